"""What is known of the errors beforehand, in NumPy float64.

An estimate with E[K^] = K whose relative errors e_j = K^_ij / K_ij - 1 are small leaves, to first
order, the row's output off by sum_j w_ij e_j (v_j - o_i): attention divides what all weights share
away. Its mean square needs only the covariances E[e_j e_l], which both random maps have in closed
form, and it falls as 1 / m.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Array, Float


def favor_covariance(q: Float[Array, "H"], k: Float[Array, "S H"]) -> Float[Array, "S S"]:
    """m E[e_j e_l] = exp((q + k_j) . (q + k_l)) - 1: where j = l Lemma 2 of Choromanski et al. 2020
    (arXiv:2009.14794)."""
    return np.exp((q + k) @ (q + k).T) - 1  # expm1 is five times as slow


def fourier_covariance(q: Float[Array, "H"], k: Float[Array, "S H"]) -> Float[Array, "S S"]:
    """m E[e_j e_l] = (exp(d_j . d_l) + exp(-d_j . d_l)) / 2 - 1 for d_j = q - k_j."""
    e = np.exp((q - k) @ (q - k).T)
    return (e + 1 / e) / 2 - 1


Covariance = Callable[..., Float[Array, "S S"]]


def limit(q, k) -> Float[Array, "T S"]:
    """Softmax of q . k: the weights that both maps tend to."""
    s = q @ k.T
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)


def coefficient(q, k, v, covariance: Covariance, rows: int) -> float:
    """c of the first order error c / sqrt(m): of the output of `rows` queries, relative."""
    q, k, v = (np.asarray(x, np.float64) for x in (q[:rows], k, v))
    w = limit(q, k)
    out, total = w @ v, 0.0
    for i in range(len(q)):
        moved = w[i][:, None] * (v - out[i])
        total += np.einsum("jd,jd", moved, covariance(q[i], k) @ moved)
    return math.sqrt(total / np.square(out).sum())


def taylor_error(q, k, v) -> float:
    """The first order error of the output, relative, if exp(s) loses s^3 / 6."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    w, s = limit(q, k), q @ k.T
    lost = w * s**3 / 6 * np.exp(-s)
    out = w @ v
    return float(np.linalg.norm(lost @ v - lost.sum(-1, keepdims=True) * out) / np.linalg.norm(out))


def features_for(relative: float, width: int, scale: float) -> float:
    """(exp(|q + k|^2) - 1) / relative^2: the features at which a kernel entry's deviation is
    `relative` of it, for unit normal q and k at this scale, whose |q + k|^2 is 2 scale sqrt(H)
    where q . k is 0."""
    return math.expm1(2 * scale * math.sqrt(width)) / relative**2


def exponents(at: Sequence[float], errors: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The slope of log error over log `at`: mean over draws (rows), and the mean's error."""
    x, y = np.log(at), np.log(np.asarray(errors))
    x = x - x.mean()
    slopes = y @ x / (x @ x)
    return float(slopes.mean()), float(slopes.std(ddof=1) / math.sqrt(len(slopes)))
