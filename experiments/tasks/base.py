"""What a task is: batches that are pure functions of (seed, step), splits in a fixed order."""

import abc
import dataclasses
import functools
import hashlib
import json
import numbers
import zlib
from collections.abc import Iterator
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float32, Int, Int32

SPLITS = ("train", "validation", "test")
MOST_DRAWN = 1_000_000  # rows of a split that is drawn once and held in memory


# Registered so that a batch can be handed to a jitted step; nothing here computes with jax.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Token id 0 is padding: it fills everything at or past a row's length."""

    # [B, 2, T] where head is "dual"; vectors where the task has a token_width
    tokens: Int32[np.ndarray, "B T"] | Int32[np.ndarray, "B 2 T"] | Float32[np.ndarray, "B T F"]
    lengths: Int32[np.ndarray, "B"] | Int32[np.ndarray, "B 2"]
    labels: Int32[np.ndarray, "B"] | Int32[np.ndarray, "B L"]  # L is T, or the targets' U
    weights: Float32[np.ndarray, "B"] | Float32[np.ndarray, "B L"]  # 1 where a label counts
    slices: Int32[np.ndarray, "B"]  # index into the task's slices

    def __getitem__(self, rows: Int[np.ndarray, "b"] | slice) -> "Batch":
        return Batch(**{f.name: getattr(self, f.name)[rows] for f in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A data set: its fields say all that defines it, and it holds no arrays."""

    # "classification" (a label per row), "dual" (per pair of rows), "token" (per position) or
    # "sequence" (a target of its own length, `target_length`; a row is right when all of it is:
    # a `Translation`, in sequence.py)
    head: ClassVar[str]
    causal: ClassVar[bool] = False  # later tokens are the answers: only a causal model learns them
    padded: ClassVar[bool] = False  # training rows may be padded even if no held-out row is
    token: ClassVar[str] = "token"  # what one is: a loss over them is told in bits for each

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int | None:
        """Token ids lie in [0, vocab_size); None where tokens are vectors."""

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """T, the width of every batch, but of those of training where they are narrower."""

    @property
    def train_length(self) -> int:
        """The width of training batches."""
        return self.length

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """Labels lie in [0, classes)."""

    @property
    def token_width(self) -> int | None:
        """Where tokens are vectors, how many numbers each has."""
        return None

    @property
    def sizes(self) -> dict[str, int | None]:
        """What `attn.nn.EncoderConfig` must know of a task, but for its head."""
        return {
            "vocab_size": self.vocab_size,
            "token_width": self.token_width,
            "max_length": self.length,
            "classes": self.classes,
        }

    @property
    def slices(self) -> tuple[str, ...]:
        """Names of the difficulty slices that results are split into."""
        return ("all",)

    @abc.abstractmethod
    def size(self, split: str) -> int | None:
        """Number of examples in a split; None if they are drawn afresh without end."""

    @abc.abstractmethod
    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        """The rows of a finite split at these indices."""

    @abc.abstractmethod
    def baselines(self) -> dict[str, float]:
        """Validation accuracy of strategies that need no learning."""

    def accuracies(self) -> dict[str, float]:
        """The baselines, as Python's numbers. Raises ValueError for what is no accuracy."""
        found = self.baselines()
        for name, x in found.items():
            right = isinstance(x, numbers.Real) and 0 <= x <= 1
            require(right, f"baselines: {name}", "an accuracy, a number in 0..1", x)
        return {name: float(x) for name, x in found.items()}

    @abc.abstractmethod
    def content(self) -> bytes:
        """What beside the fields defines the data: the bytes themselves, or a sample drawn."""

    @property
    def asked(self) -> int | None:
        """The most positions of a row that have a label, if held-out rows may not show it."""
        return None

    def measures(self, loss: float) -> dict[str, float]:
        """What else a mean loss in nats says, by name."""
        return {}

    def batch(self, seed: int, step: int, batch_size: int) -> Batch:
        """Training batch number `step`: epochs are shuffled by (seed, epoch) and run on. A run asks
        in a thread of its own, where no context of the caller holds (`jax.enable_x64`) and what is
        bound to a thread (an SQLite connection) must be opened."""
        check_draw(seed, step, batch_size)
        position = step * batch_size + np.arange(batch_size)
        return self.examples("train", shuffled(seed, position, self.size("train")))

    def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
        """The whole split in order; the last batch is filled up with rows of weight 0."""
        size = self.size(split)
        require(size is not None, "split", "a finite split to evaluate on", split)
        require_int("batch_size", batch_size, 1)
        return (self._rows(split, start, batch_size, size) for start in range(0, size, batch_size))

    def _rows(self, split: str, start: int, batch_size: int, size: int) -> Batch:
        indices = np.arange(start, start + batch_size)
        # The last row repeated, not zeros: an empty row may be nan, and 0 * nan is nan.
        batch = batch_of(batch_size, self.examples(split, np.minimum(indices, size - 1)))
        real = (indices < size).reshape(-1, *[1] * (batch.weights.ndim - 1))
        return dataclasses.replace(batch, weights=np.where(real, batch.weights, np.float32(0)))

    def checked(self, batch: Batch, rows: int) -> Batch:
        """The batch, of so many rows. Raises ValueError for what a model would take without a word,
        or make nan of: XLA refuses no index that is out of range."""
        batch_of(rows, batch)
        of_row = (rows, 2) if self.head == "dual" else (rows,)
        tail = () if self.token_width is None else (self.token_width,)
        lengths = dict.fromkeys((self.length, self.train_length))
        each, shape = [(*of_row[1:], length, *tail) for length in lengths], batch.tokens.shape
        wanted = f"rows of shape {' or '.join(map(str, each))}"
        require(shape[1:] in each, "tokens", wanted, shape)
        width = shape[len(of_row)]
        if self.vocab_size is not None:
            _require_below("tokens", batch.tokens, self.vocab_size)
        for name, wanted in (("lengths", of_row), ("slices", (rows,))):
            got = getattr(batch, name).shape
            require(got == wanted, name, f"an array of shape {wanted}", got)
        _require_below("lengths", batch.lengths, width + 1)
        _require_below("slices", batch.slices, len(self.slices))
        labels, weights = batch.labels, batch.weights  # nan shows in the loss
        # a decoder reads them all
        like = f"an array of the shape of weights, {weights.shape}"
        require(labels.shape == weights.shape, "labels", like, labels.shape)
        wanted = (rows, *self._asked_of(width))
        require(weights.shape == wanted, "weights", f"an array of shape {wanted}", weights.shape)
        none = labels.dtype.type(0)  # for 0 would make integers of booleans
        asked = labels if self.head == "sequence" else np.where(weights == 0, none, labels)
        _require_below("labels", asked, self.classes)
        other = weights[(weights != 0) & (weights != 1) & ~np.isnan(weights)]
        require(not other.size, "weights", "1 where a label counts, else 0", other[:1].tolist())
        return batch

    def _asked_of(self, width: int) -> tuple[int, ...]:
        """The axes of a row's labels, where it has so many positions."""
        if self.head == "sequence":
            return (self.target_length,)
        return (width,) if self.head == "token" else ()

    def definition(self) -> dict[str, int | float | str | tuple]:
        """The fields that define the data."""
        return dataclasses.asdict(self)

    def fingerprint(self) -> str:
        """Sixteen hex digits: equal exactly when name, definition and content are."""
        words = json.dumps({"task": type(self).__name__, **self.definition()}, sort_keys=True)
        return hashlib.sha256(words.encode() + self.content()).hexdigest()[:16]


def shuffled(seed: int, position: Int[np.ndarray, "B"], size: int) -> Int[np.ndarray, "B"]:
    """Which of `size` stand at these positions of a stream that has each once per epoch."""
    epoch = position // size
    orders = [_order(seed, e, size)[position[epoch == e] % size] for e in np.unique(epoch)]
    return np.concatenate(orders)


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> Int[np.ndarray, "N"]:
    order = rng("epoch", seed, int(epoch)).permutation(size)
    order.flags.writeable = False
    return order


def rng(*words: str | int) -> np.random.Generator:
    """A stream of its own for each sequence of as many words, the first of which name its purpose:
    fewer than four words are filled up with zeros, so that ("a", 1) and ("a", 1, 0) share one."""
    # crc32, not hash(): the same in every process.
    entropy = [zlib.crc32(word.encode()) if isinstance(word, str) else word for word in words]
    return np.random.default_rng(entropy)


def batch_of(rows: int, batch: Batch) -> Batch:
    """The batch. Raises ValueError for what is none, or has an array of another number of rows."""
    require(isinstance(batch, Batch), "batch", "a Batch (experiments.tasks)", type(batch))
    for name, x in vars(batch).items():
        got = getattr(x, "shape", type(x).__name__)
        require(got[:1] == (rows,), name, f"an array of {rows} rows", got)
    return batch


def majority(labels: Int[np.ndarray, "N"]) -> float:
    """Accuracy of always giving the most frequent label."""
    return float(np.bincount(labels).max() / labels.size)


def require(ok: bool, name: str, expected: str, got: object) -> None:
    if not ok:
        raise ValueError(f"{name}: expected {expected}, got {got!r}")


def require_int(name: str, value: object, low: int, high: int = 2**31 - 1) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(ok, name, f"an integer in {low}..{high}", value)


def _require_below(name: str, values: Int[np.ndarray, "..."], end: int) -> None:
    low, high = values.min(), values.max()
    if values.dtype.kind not in "iu" or low < 0 or high >= end:  # words take longer than looking
        got = f"{values.dtype} from {low} to {high}"
        raise ValueError(f"{name}: expected integers in 0..{end - 1}, got {got}")


def require_different(
    name: str, values: object, low: int, high: int = 2**31 - 1, *, least: int = 1
) -> None:
    """A tuple of at least so many integers, for one slice each."""
    what = "a tuple of different integers, such as (4, 8)"
    require(isinstance(values, tuple) and len(values) >= least, name, what, values)
    for value in values:
        require_int(name, value, low, high)
    require(len(set(values)) == len(values), name, what, values)


def check_split(split: str) -> None:
    require(split in SPLITS, "split", f"one of {', '.join(SPLITS)}", split)


def check_draw(seed: int, step: int, batch_size: int) -> None:
    # One 32-bit word each: longer integers would let two (seed, step) share a stream.
    require_int("seed", seed, 0)
    require_int("step", step, 0)
    require_int("batch_size", batch_size, 1)
