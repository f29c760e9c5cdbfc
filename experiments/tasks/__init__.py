"""Tasks: where batches come from. `TASKS` is the one table of their names."""

from experiments.tasks.base import Batch as Batch
from experiments.tasks.base import Task as Task
from experiments.tasks.copying import Copy as Copy
from experiments.tasks.copying import SelectiveCopy as SelectiveCopy
from experiments.tasks.digits import Digits as Digits
from experiments.tasks.induction import Induction as Induction
from experiments.tasks.listops import ListOps as ListOps
from experiments.tasks.modular import Modular as Modular
from experiments.tasks.recall import Recall as Recall

TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "digits": Digits,
    "induction": Induction,
    "listops": ListOps,
    "modular": Modular,
    "recall": Recall,
    "selective_copy": SelectiveCopy,
}
