"""The variants, each with the arrays that one draw gives it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

import attn
from attn.linearized.feature_maps import draw_features, unit
from experiments.studies.approximation.distillation import student_of
from experiments.studies.approximation.inputs import Settings

FOLD = {"performer": 1, "performer, independent rows": 2}  # of a draw's key


class Variant(NamedTuple):
    """`call(q, k, v, mask=mask, **arrays)`; `arrays` are traced, so that new ones are no new
    program."""

    call: Callable
    arrays: dict


def performer(features: int, width: int, seed: int) -> dict[str, Variant]:
    """FAVOR+ with orthogonal rows, as registered, and with rows drawn independently."""
    key = lambda name: jax.random.fold_in(jax.random.key(seed), FOLD[name])
    one, other = FOLD
    rows = {
        one: draw_features(key(one), features, width),
        other: jax.random.normal(key(other), (features, width)),
    }
    call = attn.Performer(features=features)
    return {name: Variant(call, {"projection": w}) for name, w in rows.items()}


def rfa(features: int, width: int, seed: int, scale: float | None) -> Variant:
    """With sigma for inputs of this scale or, without one, with the record's own sigma of 1.

    Unit rows have products of q . k / (scale H) for typical |q|^2 = |k|^2 = scale H, so
    sigma^2 = scale sqrt(H) gives them softmax's logits.
    """
    sigma = jnp.full((1, width), 1.0 if scale is None else (scale * width**0.5) ** 0.5)
    return Variant(attn.RFA(features=features, seed=seed), {"sigma": sigma})


def rfa_limit(q, k, v, *, mask, sigma):
    """What RFA tends to with its features: softmax of sigma^2 q . k / (|q| |k|)."""
    q, k = (unit(x)[0] * sigma * q.shape[-1] ** 0.25 for x in (q, k))
    return attn.dot_product_attention(q, k, v, mask=mask)


def uniform(q, k, v, *, mask):
    """The mean of the visible values, whatever the query: what an approximation has to beat."""
    return attn.dot_product_attention(0 * q, k, v, mask=mask)


def plain() -> dict[str, Variant]:
    """Those without features of their own to choose; the last three claim no approximation."""
    calls = {
        "taylor, 2nd order": attn.Linear(feature_map="taylor"),
        "linear (elu)": attn.Linear(),
        "cosformer": attn.Cosformer(),
        "efficient": attn.Efficient(),
        "mean of the values": uniform,
    }
    return {name: Variant(call, {}) for name, call in calls.items()}


def hedgehog(maps: dict) -> Variant:
    return Variant(student_of(maps), maps)


def every(s: Settings, seed: int, rfa_seed: int, scale: float, maps: dict) -> dict[str, Variant]:
    """All at once; `maps` are the hedgehog's, by name."""
    return {
        **performer(s.features, s.width, seed),
        "rfa, sigma to scale": rfa(s.features, s.width, rfa_seed, scale),
        "rfa, sigma = 1": rfa(s.features, s.width, rfa_seed, None),
        **{name: hedgehog(found) for name, found in maps.items()},
        **plain(),
    }
