"""AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101) with schedules and global-norm clipping."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from attn.nn.functional import FIXED, names
from experiments.config import Experiment, Optimizer


def make_optimizer(experiment: Experiment) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW; which parameters decay, `decays` says by their names."""
    o = experiment.optimizer
    clip = optax.identity() if o.clip_norm is None else optax.clip_by_global_norm(o.clip_norm)
    adamw = optax.adamw(
        learning_rate(o, experiment.train.steps),
        b1=o.b1,
        b2=o.b2,
        eps=o.eps,
        weight_decay=o.weight_decay,
        mask=decays,
    )
    return optax.chain(clip, adamw)


def updates_done(state: optax.OptState) -> Int[Array, ""]:
    """The updates that the schedule of `make_optimizer` counts, skipped batches left out."""
    return optax.tree.get(state, "ScaleByScheduleState").count


KEPT = {
    *FIXED,
    *("source_table", "target_table"),
    *("embedding", "relative", "key_position", "value_position", "inducing_points", "packed"),
    *("bias", "b1", "b2", "scale", "temperature", "sigma", "sinks", "token_shift"),
    *("a_log", "d", "bonus", "k_k", "k_a", "lower_bounds"),
    *("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"),
}


def decays(params: optax.Params) -> optax.Params:
    """True for each array that weight decay shrinks: the matrices of layers and heads, but not the
    `KEPT`, which are tables and learned inputs, biases, scales and shares, rates of gates and what
    is skipped or added by them."""

    return jax.tree_util.tree_map_with_path(lambda path, _: not names(path) & KEPT, params)


def learning_rate(o: Optimizer, steps: int) -> optax.Schedule:
    """The rate of an update, by how many came before it: warm-up times decay."""
    warmup, peak = max(o.warmup_steps, 1), o.learning_rate
    decay = SCHEDULES[o.schedule](o, steps)

    def rate(count):
        # t counts from 1, so that the first update of a warm-up moves something.
        t = count + 1.0
        return peak * jnp.minimum(1.0, t / warmup) * decay(t)

    return rate


def _constant(o: Optimizer, steps: int) -> Callable:
    return lambda t: 1.0


def _linear(o: Optimizer, steps: int) -> Callable:
    end = o.final_learning_rate / o.learning_rate
    return lambda t: end + (1 - end) * (1 - _progress(t, o.warmup_steps, steps))


def _cosine(o: Optimizer, steps: int) -> Callable:
    end = o.final_learning_rate / o.learning_rate
    half = lambda t: 0.5 * (1 + jnp.cos(jnp.pi * _progress(t, o.warmup_steps, steps)))
    return lambda t: end + (1 - end) * half(t)


def _rsqrt(o: Optimizer, steps: int) -> Callable:
    """Long Range Arena's: base min(1, t / W) / sqrt(max(t, W))."""
    return lambda t: 1 / jnp.sqrt(jnp.maximum(t, o.warmup_steps))


def _progress(t, warmup: int, steps: int):
    """0 until the warm-up ends, 1 at the last step."""
    return jnp.clip((t - warmup) / max(steps - warmup, 1), 0, 1)


# The schedules that `optimizer.schedule` names: each is what the warm-up is multiplied with.
SCHEDULES: dict[str, Callable[[Optimizer, int], Callable]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "rsqrt": _rsqrt,
}
