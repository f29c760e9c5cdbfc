"""Train with as many key heads as query heads, convert, train on for a few % of the steps."""

import dataclasses
import functools

import jax
import numpy as np
import optax
from flax import nnx

from attn.nn import Encoder, EncoderConfig, parameter_count
from attn.nn.keys import fold
from experiments.stdout import tell
from experiments.studies.conversion.convert import WAYS, convert
from experiments.tasks import Digits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`shares` of `steps` are how long the converted encoders train on, in all."""

    seeds: int = 3
    steps: int = 400
    shares: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2)
    batch_size: int = 64
    width: int = 32
    heads: int = 4
    groups: tuple[int, ...] = (2, 1)
    rate: float = 3e-3

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The rate stays where it is, so that training on is no different from training."""
        rate = optax.linear_schedule(0, self.rate, max(1, self.steps // 20))
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.05))


TASK = Digits()


def measure(s: Settings) -> dict:
    """Accuracies [seed][share] of each way, on validation and test together: nothing is chosen
    by them."""
    runs: dict[str, list[list[float]]] = {}
    parameters: dict[str, int] = {}
    for seed in range(s.seeds):
        base = encoder(s, seed)
        train(base, s, seed, 0, s.steps)
        tell(f"seed {seed}: {s.heads} key heads trained, accuracy {accuracy(base):.3f}")
        for name, new in converted(base, s, seed):
            runs.setdefault(name, []).append(uptrain(new, s, seed))
            parameters[name] = parameter_count(new)
            tell(f"  {name}: " + " ".join(f"{x:.3f}" for x in runs[name][-1]))
    return {"shares": s.shares, "accuracy": runs, "parameters": parameters, "rows": 540}


def encoder(s: Settings, seed: int) -> Encoder:
    config = EncoderConfig(
        vocab_size=TASK.vocab_size,
        max_length=TASK.length,
        classes=TASK.classes,
        layers=2,
        width=s.width,
        heads=s.heads,
        mlp_width=2 * s.width,
        positions="learned",
    )
    return Encoder(config, key=fold(jax.random.key(seed), "init"))


def converted(base: Encoder, s: Settings, seed: int):
    """(name, encoder) of the base itself and of each way to fewer key heads."""
    yield name_of(s.heads), nnx.clone(base)
    for groups in s.groups:
        for way in WAYS:
            key = fold(jax.random.key(seed), "convert", groups)
            yield name_of(groups, way), convert(base, groups, way, key=key)


def name_of(groups: int, way: str = "as trained") -> str:
    return f"{groups} key head{'s' * (groups > 1)}, {way}"


def uptrain(new: Encoder, s: Settings, seed: int) -> list[float]:
    """The accuracy after each share, all with the same batches and a fresh optimizer."""
    found, state, at = [], None, s.steps
    for share in s.shares:
        until = s.steps + round(share * s.steps)
        state = train(new, s, seed, at, until, state)
        found.append(accuracy(new))
        at = until
    return found


def train(model: Encoder, s: Settings, seed: int, start: int, stop: int, state=None):
    """Changes the model; returns the optimizer's state."""
    graph, params = nnx.split(model)
    state = s.optimizer.init(params) if state is None else state
    for number in range(start, stop):
        batch = TASK.batch(seed, number, s.batch_size)
        params, state = step(params, state, batch.tokens, batch.labels, graph=graph, settings=s)
    nnx.update(model, params)
    return state


@functools.partial(jax.jit, static_argnames=("graph", "settings"))
def step(params, state, tokens, labels, *, graph, settings: Settings):
    def loss(params):
        scores = nnx.merge(graph, params)(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    updates, state = settings.optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


def accuracy(model: Encoder) -> float:
    graph, params = nnx.split(model)
    batches = [next(TASK.evaluation(split, 270)) for split in ("validation", "test")]
    right = [right_of(params, b.tokens, graph=graph) == b.labels for b in batches]
    return float(np.mean(right))


@functools.partial(jax.jit, static_argnames="graph")
def right_of(params, tokens, *, graph):
    return nnx.merge(graph, params)(tokens).argmax(-1)
