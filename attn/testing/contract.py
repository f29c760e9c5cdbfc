"""The numerical contract: how far from the float64 oracle a result may be, by dtype."""

import jax.numpy as jnp
import numpy as np


class BrokenLaw(AssertionError):
    """A variant broke a law; the message says which, where and by how much."""


# machine epsilon, and the errors allowed in units of it: output, gradient, worst row
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
WIDE = {"output": 32.0, "gradient": 64.0, "row": 128.0}
NARROW = {"output": 0.6, "gradient": 1.0, "row": 1.0}


def rms(x) -> float:
    """Root mean square, in float64."""
    x = np.asarray(x, np.float64)
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def size_of(oracle) -> float:
    """What errors are relative to: its rms, or 1, that of the inputs, for a gradient that cancels
    to 0 (one key: q does not matter)."""
    size = rms(oracle)
    return size if size > 1e-12 else 1.0


def assert_close(got, oracle, *, dtype, what: str, kind: str = "output", room: float = 1.0):
    """Raise BrokenLaw unless rms(got - oracle) / rms(oracle) is within the contract of `dtype`.

    `kind` is "output" or "gradient"; for outputs [..., N, D] the worst row (one query, one head) is
    bounded too, relative to the larger of its own rms and the whole's. `room` scales all bounds.
    """
    if np.shape(got) != np.shape(oracle):
        raise BrokenLaw(f"{what}: expected shape {np.shape(oracle)}, got {np.shape(got)}")
    got = np.asarray(_readable(got), np.float64)
    oracle = np.asarray(oracle, np.float64)
    # what a dtype cannot hold is infinite in it
    beyond = np.abs(oracle) > float(jnp.finfo(dtype).max)
    got = np.where(beyond & (got == np.copysign(np.inf, oracle)), oracle, got)
    if not np.isfinite(got).all():
        raise BrokenLaw(f"{what}: {np.count_nonzero(~np.isfinite(got))} values are not finite")
    name = jnp.dtype(dtype).name
    eps, bounds = EPS[name], WIDE if name in ("float64", "float32") else NARROW
    size = size_of(oracle)
    error = rms(got - oracle) / size / eps
    if error > bounds[kind] * room:
        raise BrokenLaw(
            f"{what}: {kind} is off by {error:.3g} eps ({name}), allowed {bounds[kind] * room:g}"
        )
    if kind == "output":
        rows = np.sqrt(np.mean(np.square(got - oracle), -1))
        sizes = np.maximum(np.sqrt(np.mean(np.square(oracle), -1)), size)
        worst = float((rows / sizes).max(initial=0)) / eps
        if worst > bounds["row"] * room:
            raise BrokenLaw(
                f"{what}: the worst row is off by {worst:.3g} eps ({name}), "
                f"allowed {bounds['row'] * room:g}"
            )


def assert_same_bits(got, expected, *, what: str):
    """Raise BrokenLaw unless the two arrays are equal bit by bit."""
    a, b = np.asarray(got), np.asarray(expected)
    if a.tobytes() != b.tobytes():
        where = np.argwhere(~((a == b) | ((a != a) & (b != b))))
        if not len(where):
            raise BrokenLaw(f"{what}: only the sign of a zero changed")
        first = tuple(int(x) for x in where[0])
        raise BrokenLaw(f"{what}: {len(where)} values changed, first at {first}")


def assert_zero(got, *, what: str):
    """Raise BrokenLaw unless every value is exactly 0."""
    x = np.asarray(_readable(got))
    if not (x == 0).all():
        raise BrokenLaw(f"{what}: expected exactly 0, got values up to {np.abs(x).max():.3g}")


def _readable(x):
    """bfloat16 is not NumPy's: read it as float32."""
    x = jnp.asarray(x)
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)
