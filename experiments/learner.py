"""The model of an Experiment as pure functions: initial state, train step, evaluation step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from attn import FULL, Causal
from attn.nn import Encoder
from attn.nn.keys import fold
from experiments import fits
from experiments.checkpoint import flatten
from experiments.config import Experiment
from experiments.errors import ConfigError, DataError
from experiments.families import sequence_model, shifted, source_mask
from experiments.measure.cost import Known, build
from experiments.optimizer import learning_rate, make_optimizer, updates_done
from experiments.tasks import Batch, Task
from experiments.tasks.base import batch_of, require

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """All that training changes."""

    step: Int[Array, ""]  # updates done
    params: PyTree
    opt_state: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What the steps assume of each batch, besides the shapes of its arrays."""

    full: bool  # every row is as long as the task: no padding to mask
    asked: int  # the most positions of a row that have a label

    @classmethod
    def of(cls, task: Task, batch_size: int) -> Self:
        """The assumptions that the held-out splits obey. Raises ValueError for one that asks for
        nothing: its loss would be nan."""
        shapes = []
        for split in ("validation", "test"):
            batches = task.evaluation(split, batch_size)
            found = [cls._one(task.checked(batch, batch_size)) for batch in batches]
            if not any(s.asked for s in found):
                raise ValueError(f"{split}: expected a label that counts (weight 1), got none")
            shapes += found
        asked = max(s.asked for s in shapes)
        full = all(s.full for s in shapes) and not task.padded
        return cls(full=full, asked=max(asked, task.asked or 0))

    @classmethod
    def _one(cls, batch: Batch) -> Self:
        full = bool((batch.lengths == batch.tokens.shape[batch.lengths.ndim]).all())
        rows = batch.weights.reshape(len(batch.weights), -1)
        return cls(full=full, asked=int(np.count_nonzero(rows, axis=1).max()))

    def check(self, batch: Batch) -> Batch:
        """The batch. Raises ValueError if it is not as assumed."""
        one = self._one(batch)
        whole = "rows without padding, as all that are held out; or the task's `padded` to be True"
        require(one.full or not self.full, "lengths", whole, int(batch.lengths.min()))
        few = f"at most {self.asked} labels that count in a row, or the task's `asked` to say more"
        require(one.asked <= self.asked, "weights", few, one.asked)
        return batch


FEW = 4  # rows


def asked_twice(task: Task, seed: int) -> None:
    """Raises ValueError where a task gives another row when it is asked again: no run could go on
    as it was, and no two be compared row by row."""
    asks = {"batch": (FEW, lambda: task.batch(seed, 0, FEW))}
    for split in ("validation", "test"):
        rows = np.arange(min(FEW, task.size(split)))
        asks[split] = rows.size, functools.partial(task.examples, split, rows)
    for name, (count, ask) in asks.items():
        one, again = (vars(batch_of(count, ask())) for _ in range(2))
        for field, x in one.items():
            if not np.array_equal(x, again[field], equal_nan=True):
                same = "the same whenever a row is asked for, drawn by (seed, step) or by its index"
                raise ValueError(f"{name}: {field}: expected {same}, got others the second time")


def built(experiment: Experiment, seed: int | Int[Array, ""]) -> nnx.Module:
    """The model as initialised: an Encoder, or one of its family for a task of sequences."""
    task, model = experiment.posed, experiment.model
    key = fold(jax.random.key(seed), "init")
    if task.head == "sequence":
        return sequence_model(task, model, key=key)
    if model.family != "transformer":
        raise ValueError(
            f"family: expected 'transformer' with a task of head {task.head!r}, got "
            f"{model.family!r}, which goes from one sequence to another"
        )
    return Encoder(model.encoder(**task.sizes, head=task.head), key=key)


class Learner:
    """An Experiment's pure functions; jit `train_step` (its state may be donated) and `eval_step`.

    `known` holds programs of other runs, one of which may be that of the first state. Raises
    ConfigError for mistakes that only show when the data is read or the encoder is built.
    """

    def __init__(self, experiment: Experiment, known: Known | None = None):
        self.experiment, self.known = experiment, known
        self.optimizer = make_optimizer(experiment)
        # `shapes` is the state's: whoever asks again would build the model again
        shapes = lambda: jax.eval_shape(lambda: self._first(experiment.seed))
        self.graph, self.shapes = refusing("the model", shapes)
        self.tree = jax.tree.structure(self.shapes)
        # both before anything is drawn
        fits.state(self.shapes)
        refusing("the task", lambda: fits.data(experiment))
        size = experiment.train.eval_batch_size
        self.shape = refusing("the task", lambda: Shape.of(experiment.posed, size))
        # of few rows none may be left to train on
        refusing("the task", lambda: asked_twice(experiment.posed, experiment.seed))

    def model(self) -> nnx.Module:
        return built(self.experiment, self.experiment.seed)

    def init(self) -> State:
        """The state before the first step."""
        return self._first(self.experiment.seed)[1]

    def _first(self, seed: int | Int[Array, ""]) -> tuple[nnx.GraphDef, State]:
        graph, params = nnx.split(built(self.experiment, seed))
        return graph, State(jnp.int32(0), params, self.optimizer.init(params))

    @functools.cached_property
    def start(self) -> Callable[[], State]:
        """`init`, compiled once, for every seed."""
        seed = np.int32(self.experiment.seed)
        program = build(lambda seed: self._first(seed)[1], seed, known=self.known)
        return lambda: program.call(seed)

    def train_step(
        self, state: State, batch: Batch, step: Int[Array, ""], seed: Int[Array, ""] | None = None
    ) -> tuple[State, dict[str, Array]]:
        """(the next state, metrics); the same state if anything is not finite, except for its step
        if `on_nonfinite` is "skip".

        `step` is the batch's number, -1 for one to skip. A state that is not at that step stays as
        it is too, so unless batches are skipped nothing changes after a bad step until the host
        looks. Given the `seed`, the experiment's, runs of other seeds have the same program.
        """
        seed = self.experiment.seed if seed is None else seed
        key = fold(jax.random.key(seed), "dropout", state.step)

        def loss(params):
            sums = self._sums(params, batch, key)
            asked = jnp.maximum(sums["asked"].sum(), 1)
            return sums["loss"] / asked, sums["right"].sum() / asked

        (value, accuracy), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        schedule = learning_rate(self.experiment.optimizer, self.experiment.train.steps)
        rate = schedule(updates_done(state.opt_state))
        # Before clipping, which would turn an infinite gradient into a finite one.
        norm = optax.tree.norm(gradient)
        named = watched(value, gradient, norm, params)
        zeros = jnp.stack([zero_if_finite(x) for x in named.values()])
        # the root, because XLA's CPU backend would copy a mere sum of all these into the kernel of
        # each array of the state, and compile it for seconds, but does not copy what is dear
        good = jnp.isfinite(jnp.sqrt(zeros.sum())) & (state.step == step)
        new = State(state.step + 1, params, opt_state)
        over = (step < 0) | (self.experiment.train.on_nonfinite == "skip")
        kept = dataclasses.replace(state, step=state.step + over)
        # `where`, because 0 * nan is nan.
        state = jax.tree.map(lambda x, old: jnp.where(good, x, old), new, kept)
        return state, {
            "loss": value,
            "accuracy": accuracy,
            "gradient_norm": norm,
            "learning_rate": rate,
            "finite": jnp.isfinite(zeros),
        }

    def train_steps(
        self, leaves: list[Array], batches: Batch, steps: Int[Array, "K"], seed: Int[Array, ""]
    ) -> tuple[list[Array], dict[str, Array]]:
        """`train_step` on each of the stacked batches, with the metrics of each. From and to the
        leaves of a state: to take a tree of Flax apart at each call, and to put it together again,
        costs the host about ten microseconds for each array."""
        one = lambda state, batch: self.train_step(state, *batch, seed)
        unroll = len(steps) == 1
        state, metrics = lax.scan(one, self.state_of(leaves), (batches, steps), unroll=unroll)
        return jax.tree.leaves(state), metrics

    def state_of(self, leaves: list[Array]) -> State:
        return jax.tree.unflatten(self.tree, leaves)

    def eval_step(self, params: PyTree, batch: Batch) -> dict[str, Array]:
        """The loss summed over a batch's answers; for each row how many are right, and how many
        there are."""
        return self._sums(params, batch, None)

    def names(self, state: State) -> list[str]:
        """What each entry of `finite` is about."""
        return list(watched(state.step, state.params, state.step, state.params))

    def _sums(self, params: PyTree, batch: Batch, key: Array | None) -> dict[str, Array]:
        sequence = self.experiment.posed.head == "sequence"
        asked = self._translated if sequence else self._asked
        logits, labels, weights = asked(params, batch, key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        right = first_largest(logits) == labels
        if sequence:
            losses, right, weights = by_row(losses, right, weights)
        of_row = lambda x: x.reshape(len(x), -1).sum(1)
        # A row that does not count may be anything, and 0 * nan is nan.
        return {
            "loss": jnp.where(weights > 0, weights * losses, 0).sum(),
            "right": of_row(weights * right),
            "asked": of_row(weights),
        }

    def _translated(
        self, params: PyTree, batch: Batch, key: Array | None
    ) -> tuple[Float[Array, "B U C"], Int[Array, "B U"], Float[Array, "B U"]]:
        """Logits, labels and weights of each token of the target, given those before it."""
        logits = nnx.merge(self.graph, params)(
            batch.tokens,
            shifted(batch.labels),
            lengths=None if self.shape.full else batch.lengths,
            dropout_key=key,
            **source_mask(self.experiment.model),
        )
        return logits, batch.labels, batch.weights

    def _asked(
        self, params: PyTree, batch: Batch, key: Array | None
    ) -> tuple[Float[Array, "B *K C"], Int[Array, "B *K"], Float[Array, "B *K"]]:
        """Logits, labels and weights; with a label per position, of the labelled ones."""
        labels, weights, at = batch.labels, batch.weights, None
        asked = self.shape.asked
        if labels.ndim == 2 and asked < labels.shape[1]:
            at = jax.vmap(lambda w: jnp.nonzero(w, size=asked, fill_value=-1)[0])(weights)
            take = lambda x: jnp.take_along_axis(x, at, 1, mode="clip")
            # a row with fewer labels is filled up by its first token, which every row has: weight 0
            weights = jnp.where(at < 0, 0, take(weights))
            labels, at = take(labels), jnp.maximum(at, 0)
        logits = nnx.merge(self.graph, params)(
            batch.tokens,
            mask=Causal() if self.experiment.model.causal else FULL,
            lengths=None if self.shape.full else batch.lengths,
            dropout_key=key,
            at=at,
        )
        return logits, labels, weights


def by_row(
    losses: Float[Array, "B U"], right: Bool[Array, "B U"], weights: Float[Array, "B U"]
) -> tuple[Float[Array, "B"], Bool[Array, "B"], Float[Array, "B"]]:
    """For each row: the mean loss of its tokens, whether all are right, and 1 if it counts.

    All are right under teacher forcing exactly when greedy decoding gives the target: up to the
    first token that differs both see the same tokens, and so the same scores.
    """
    counts = weights > 0
    tokens = jnp.maximum(counts.sum(1), 1)
    rows = counts.any(1).astype(weights.dtype)
    return jnp.where(counts, losses, 0).sum(1) / tokens, (right | ~counts).all(1), rows


def first_largest(x: Float[Array, "*B C"]) -> Int[Array, "*B"]:
    """x.argmax(-1), but C in a row with nan, in two passes that XLA vectorises on a CPU."""
    index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return jnp.where(x == x.max(-1, keepdims=True), index, x.shape[-1]).min(-1)


def refusing(what: str, function: Callable[[], T]) -> T:
    """The result of `function`. What a task or a model refuses only when it is made becomes a
    ConfigError, a file that cannot be read a DataError."""
    try:
        return function()
    except OSError as error:
        raise DataError(str(error)) from error
    except ValueError as error:  # with a line for each mistake
        raise ConfigError(str(error).split("\n"), what) from error
    except (TypeError, NotImplementedError, ImportError, MemoryError) as error:
        raise ConfigError([str(error)], what) from error


def zero_if_finite(x: Float[Array, "..."]) -> Float[Array, ""]:
    """0 if all of x is finite, else nan: XLA's CPU backend sums in vectors and on all cores, but
    reduces `isfinite(x)` one by one."""
    return (x * 0).sum()


def watched(loss: Array, gradient: PyTree, norm: Array, params: PyTree) -> dict[str, Array]:
    """The values that must be finite, in the order in which they go wrong."""
    gradients = {f"gradient {name}": x for name, x in flatten(gradient).items()}
    after = {f"updated parameter {name}": x for name, x in flatten(params).items()}
    # Finite gradients may have an infinite norm, and clipped by it, or divided by Adam's root of
    # squares, be zeros for ever; Adam's state is finite wherever the norm is.
    return {"loss": loss, **gradients, "gradient norm": norm, **after}
