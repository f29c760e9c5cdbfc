"""Tasks: where batches come from. `TASKS` is the one table of their names."""

from experiments.tasks.base import Batch as Batch
from experiments.tasks.base import Task as Task
from experiments.tasks.bytes import Bytes as Bytes
from experiments.tasks.copying import Copy as Copy
from experiments.tasks.copying import SelectiveCopy as SelectiveCopy
from experiments.tasks.dates import Dates as Dates
from experiments.tasks.digits import DigitPatches as DigitPatches
from experiments.tasks.digits import Digits as Digits
from experiments.tasks.image import Image as Image
from experiments.tasks.induction import Induction as Induction
from experiments.tasks.inputs import Inputs as Inputs
from experiments.tasks.inputs import Objective as Objective
from experiments.tasks.listops import ListOps as ListOps
from experiments.tasks.modular import Modular as Modular
from experiments.tasks.needle import Needle as Needle
from experiments.tasks.numbers import Numbers as Numbers
from experiments.tasks.parity import Parity as Parity
from experiments.tasks.pathfinder import Pathfinder as Pathfinder
from experiments.tasks.pathfinder import PathfinderPatches as PathfinderPatches
from experiments.tasks.recall import Recall as Recall
from experiments.tasks.recall_mixed import RecallMixed as RecallMixed
from experiments.tasks.retrieval import Retrieval as Retrieval
from experiments.tasks.sequence import Reverse as Reverse
from experiments.tasks.sequence import Sort as Sort
from experiments.tasks.stack import Stack as Stack
from experiments.tasks.text import Text as Text

TASKS: dict[str, type[Task]] = {
    "bytes": Bytes,
    "copy": Copy,
    "dates": Dates,
    "digits": Digits,
    "digit_patches": DigitPatches,
    "image": Image,
    "induction": Induction,
    "listops": ListOps,
    "modular": Modular,
    "needle": Needle,
    "numbers": Numbers,
    "parity": Parity,
    "pathfinder": Pathfinder,
    "pathfinder_patches": PathfinderPatches,
    "recall": Recall,
    "recall_mixed": RecallMixed,
    "retrieval": Retrieval,
    "reverse": Reverse,
    "selective_copy": SelectiveCopy,
    "sort": Sort,
    "stack": Stack,
    "text": Text,
}
