"""Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236): O(T M D) time, O(M D) state."""

import dataclasses
import functools
import types
from typing import ClassVar

import jax
from jaxtyping import Array, Float

from attn._inputs import check_qkv
from attn._settings import check_choice, is_number
from attn._wide import wide
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import FEATURE_MAPS, FeatureMap, elu_plus_one, unit
from attn.masks import FULL, Mask


def linear_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    feature_map: FeatureMap = elu_plus_one,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j), unscaled as in the paper.

    Honours `Causal`, `Padding` and `Segments` joined by `&`; O(T) time and memory under each (with
    `Segments` after one sort, at up to twice the cost). A query that sees nothing gets 0.
    `feature_map` is any of `attn.linearized.feature_maps` that takes x alone, or your own; with
    `unit`, whose products are signed, the sum is not normalised. Outside of jit a map that is an
    object, a closure or has defaults besides numbers is compiled at every call, since what it holds
    may change. `chunk` changes only the speed. Raises NotImplementedError for other masks, a bias,
    or a map that closes over arrays which are differentiated; TypeError for anything but a map.
    """
    check_qkv(q, k, v, mask)
    _check_map(feature_map, q)
    if _holds_nothing(feature_map):
        return _Mapped(phi=feature_map, chunk=chunk)(q, k, v, mask=mask, bias=bias)
    mapped = _Mapped(phi=_OfOneCall(feature_map), chunk=chunk)
    once = jax.jit(lambda q, k, v: mapped(q, k, v, mask=mask, bias=bias))  # freed with its program
    return once(q, k, v)


def _check_map(phi: FeatureMap, q) -> None:
    if not callable(phi):
        raise TypeError(
            f"feature_map: expected a function of attn.linearized.feature_maps, or your "
            f"own, got {phi!r}; names are for attn.Linear"
        )
    if phi in FEATURE_MAPS.values():
        return
    made = jax.eval_shape(phi, wide(q))
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError("feature_map: expected it to return (features, log_weight or None)")
    # those would escape from the engine's hand-written backward pass
    if jax.closure_convert(phi, wide(q))[1]:
        raise NotImplementedError(
            "feature_map: it holds arrays that are differentiated; make a mechanism of it that "
            "takes them as learned arrays, as attn.Hedgehog does"
        )


def _holds_nothing(phi: FeatureMap) -> bool:
    """Whether it is a plain function, or one with numbers bound or as defaults: compiled once, it
    stays right."""
    if isinstance(phi, functools.partial):
        return _numbers(phi.args, phi.keywords) and _holds_nothing(phi.func)
    plain = isinstance(phi, types.FunctionType) and phi.__closure__ is None
    return plain and _numbers(phi.__defaults__ or (), phi.__kwdefaults__ or {})


def _numbers(args, keywords) -> bool:
    return all(map(is_number, (*args, *keywords.values())))


@dataclasses.dataclass(frozen=True, eq=False)
class _OfOneCall:
    """A map as it is in one call: equal to itself alone, so that no other call finds its program,
    with the arrays that it held then."""

    phi: FeatureMap

    def __call__(self, x):
        return self.phi(x)


def _terms(phi: FeatureMap, q, k) -> Terms:
    # the weight of a query's features cancels in the ratio
    (fq, _), (fk, log_weight) = phi(q), phi(k)
    return Terms(fq, fk, log_weight=log_weight)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mapped(Linearized):
    """`linear_attention` by any map, with or without a name."""

    squares: ClassVar = True  # as its map may
    phi: FeatureMap

    @property
    def normalised(self) -> bool:
        return self.phi is not unit

    def terms(self, q, k):
        return _terms(self.phi, q, k)

    @classmethod
    def examples(cls):
        return (cls(phi=elu_plus_one, chunk=8),)

    @property
    def name(self) -> str:
        return "Linear"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Linearized):
    """Kernel feature maps in place of softmax (Katharopoulos et al. 2020)."""

    crosses: ClassVar = True
    feature_map: str = "elu"

    def __post_init__(self):
        super().__post_init__()
        check_choice("feature_map", self.feature_map, tuple(FEATURE_MAPS))

    @property
    def phi(self) -> FeatureMap:
        """The feature map that the name stands for."""
        return FEATURE_MAPS[self.feature_map]

    @property
    def normalised(self) -> bool:
        return self.phi is not unit

    @property
    def squares(self) -> bool:
        return self.feature_map in ("squared_relu", "dpfp", "taylor")

    @property
    def room(self) -> float:
        # few or small features make normalisers tiny: where a gradient cancels exactly (one visible
        # key), the rounding it leaves is divided by them (132 eps seen, at T = 2)
        return 4.0 if self.feature_map in ("relu", "squared_relu", "dpfp") else 1.0

    def terms(self, q, k):
        return _terms(self.phi, q, k)

    @classmethod
    def examples(cls):
        return (
            cls(chunk=8),
            cls(feature_map="relu", chunk=5),
            cls(feature_map="softmax"),
            cls(feature_map="squared_relu", chunk=3),
            cls(feature_map="dpfp", chunk=8),
            cls(feature_map="unit", chunk=8),
            cls(feature_map="taylor", chunk=8),
        )
