"""A task's own inputs as the thing to predict: pretraining from nothing but the task (Amos et al.
2023, arXiv:2310.02980)."""

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int

from experiments.tasks.base import Batch, Task, check_draw, require, rng

Objective = Literal["label", "masked", "causal"]
MASK = 0  # the id of padding; where a row has it too (`Recall` without noise), there is nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs(Task):
    """The tokens of `task`: "causal" asks for each from those before it; "masked" asks for a share
    of `rate` of each row's, but for a 0, which is none: of these 8 in 10 are hidden, one is another
    token and one is left as it is (Devlin et al. 2018, arXiv:1810.04805). The vocabulary is that of
    the task, so what a model learns here fits the model of the task."""

    head: ClassVar[str] = "token"
    task: Task
    objective: Objective
    rate: float = 0.15

    def __post_init__(self):
        kind, objective = type(self.task).__name__, self.objective
        posed = objective in ("masked", "causal")  # 'label' is the task as it is
        require(posed, "objective", "'masked' or 'causal'", objective)
        require(self.task.head != "dual", "objective", f"'label' with {kind}, of pairs", objective)
        ids = self.task.vocab_size is not None
        require(ids, "objective", f"'label' with {kind}, whose tokens are vectors", objective)
        least = 2 if self.causal else 1
        require(self.length >= least, "task.length", f">= {least} with {objective=}", self.length)
        ok = isinstance(self.rate, int | float) and 0 < self.rate <= 1
        require(ok, "mask_rate", "a number in (0, 1]", self.rate)

    @property
    def causal(self) -> bool:
        return self.objective == "causal"

    @property
    def padded(self) -> bool:
        return self.task.padded

    @property
    def vocab_size(self) -> int:
        return self.task.vocab_size

    @property
    def length(self) -> int:
        return self.task.length

    @property
    def train_length(self) -> int:
        return self.task.train_length

    @property
    def classes(self) -> int:
        return self.task.vocab_size

    @property
    def asked(self) -> int:
        return self.length - 1 if self.causal else _share(self.length, self.rate)

    def size(self, split: str) -> int | None:
        return self.task.size(split)

    def batch(self, seed: int, step: int, batch_size: int) -> Batch:
        check_draw(seed, step, batch_size)
        batch = self.task.batch(seed, step, batch_size)
        return self._posed(batch, [rng("inputs", "train", seed, step)])

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        # a stream for each row: what is hidden of it must not depend on the batch it comes in
        streams = [rng("inputs", split, int(i)) for i in indices]
        return self._posed(self.task.examples(split, indices), streams)

    def _posed(self, batch: Batch, streams: list[np.random.Generator]) -> Batch:
        tokens, width = batch.tokens, batch.tokens.shape[1]
        real = np.arange(width) < batch.lengths[:, None]
        if self.causal:
            labels = np.zeros_like(tokens)
            labels[:, :-1] = tokens[:, 1:]
            asked = np.zeros_like(real)
            asked[:, :-1] = real[:, 1:]
        else:
            labels = tokens
            rows = len(tokens) // len(streams)
            noise = [random.random((2, rows, width)) for random in streams]
            order, kind = np.concatenate(noise, axis=1)
            # a 0 would be asked for where it is shown
            asked = _chosen(order, real & (tokens != MASK), self.rate)
            draw = lambda random: random.integers(1, self.vocab_size, (rows, width))
            other = np.concatenate([draw(random) for random in streams])
            tokens = np.where(asked & (kind < 0.8), MASK, tokens)
            tokens = np.where(asked & (kind >= 0.9), other, tokens).astype(np.int32)
        return Batch(
            tokens=tokens,
            lengths=batch.lengths,
            labels=np.where(asked, labels, 0),
            weights=asked.astype(np.float32),
            slices=np.zeros_like(batch.slices),
        )

    def baselines(self) -> dict[str, float]:
        counts = np.zeros(self.vocab_size, int)  # batch by batch: a split of long texts is large
        for batch in self.evaluation("validation", 256):
            asked = batch.labels[batch.weights > 0]
            counts += np.bincount(asked, minlength=self.vocab_size)
        return {
            "chance": 1 / (self.vocab_size - 1),
            "most frequent token": float(counts.max() / counts.sum()),
        }

    def measures(self, loss: float) -> dict[str, float]:
        return {f"bits_per_{self.task.token}": loss / math.log(2)}

    def definition(self) -> dict[str, int | float | str | tuple]:
        own = {"objective": self.objective, "of": type(self.task).__name__}
        rate = {} if self.causal else {"rate": self.rate}
        return {**self.task.definition(), **own, **rate}

    def content(self) -> bytes:
        return self.task.content()


def _share(length: int, rate: float) -> int:
    return max(1, round(rate * length))


def _chosen(order: np.ndarray, real: Bool[np.ndarray, "B T"], rate: float):
    """A share of each row's real positions, those with the least numbers in `order`."""
    rank = np.where(real, order, np.inf).argsort(1).argsort(1)
    count = [_share(n, rate) for n in real.sum(1)]
    return real & (rank < np.array(count)[:, None])
