"""How far a timed result is from the float64 oracle, in units of what is allowed there."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from attn.testing.contract import EPS, NARROW, WIDE, rms, size_of
from experiments.measure.oracle import Oracle

NAMES = ("output", "gradient of q", "gradient of k", "gradient of v")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`error` is at most 1 within the contract; `what` says what is worst, and by how much."""

    error: float
    what: str


def judge(
    oracle: Oracle, inputs: Sequence[np.ndarray], dtype: str
) -> Callable[[Sequence[np.ndarray]], Verdict]:
    """A judge of (output [B, T, N, H], gradients of q, k, v if there are) for q, k, v and the
    gradient of the output.

    Looks at the last key head of the last batch row, and all query heads that share it, in full.
    """
    q, k, v, g = inputs
    N, K = q.shape[-2], k.shape[-2]
    group = range(N - N // K, N)
    one = lambda x, n: np.asarray(x[-1, :, n], np.float64)

    @functools.cache
    def truth() -> list[np.ndarray]:
        heads = [oracle(n, one(q, n), one(k, -1), one(v, -1), one(g, n)) for n in group]
        out, dq, dk, dv = zip(*heads)
        return [np.stack(out, 1), np.stack(dq, 1), sum(dk), sum(dv)]

    def look(results: Sequence[np.ndarray]) -> Verdict:
        seen = [x[-1, :, -len(group) :] for x in results[:2]] + [x[-1, :, -1] for x in results[2:]]
        return worst([np.asarray(x, np.float64) for x in seen], truth(), dtype)

    return look


def worst(got: Sequence[np.ndarray], want: Sequence[np.ndarray], dtype: str) -> Verdict:
    """The largest of the errors; nothing is within the contract that is not finite."""
    eps, allowed = EPS[dtype], WIDE if dtype == "float32" else NARROW
    verdicts = []
    for n, (name, x, y) in enumerate(zip(NAMES, got, want)):
        size = size_of(y)
        bound = allowed["gradient" if n else "output"] * eps
        verdicts.append(_verdict(name, rms(x - y) / size, bound))
        if n == 0:  # the worst row, against the larger of its own size and the whole's
            row = lambda a: np.sqrt(np.square(a).mean(-1))
            off = (row(x - y) / np.maximum(row(y), size)).max(initial=0)
            verdicts.append(_verdict("worst row of the output", off, allowed["row"] * eps))
    return max(verdicts, key=lambda v: v.error)


def _verdict(name: str, off: float, allowed: float) -> Verdict:
    error = off / allowed if np.isfinite(off) else np.inf
    return Verdict(float(error), f"{name} is off by {off:.1e}, allowed {allowed:.1e}")
