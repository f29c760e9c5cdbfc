"""Tasks: where batches come from. `TASKS` is the one table of their names."""

from experiments.tasks.base import Batch as Batch
from experiments.tasks.base import Task as Task
from experiments.tasks.digits import Digits as Digits
from experiments.tasks.listops import ListOps as ListOps
from experiments.tasks.recall import Recall as Recall

TASKS: dict[str, type[Task]] = {
    "digits": Digits,
    "listops": ListOps,
    "recall": Recall,
}
