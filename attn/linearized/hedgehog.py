"""Hedgehog (Zhang et al. 2024, arXiv:2402.04347): learned feature maps, O(T H (H + D)) time."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._settings import check_choice, check_count
from attn._wide import wide
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import hedgehog, hedgehog_softmax
from attn.masks import FULL, Mask

ACTIVATIONS = ("softmax", "exp")


def hedgehog_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    query_map: Float[Array, "N H F"],
    key_map: Float[Array, "K H F"],
    activation: Literal["softmax", "exp"] = "softmax",
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j), with maps learned for each head.

    phi(x) = [exp(x W), exp(-x W)], or [softmax(x W), softmax(-x W)] over the F features of each
    half, as the authors train it: W is the head's `query_map` or `key_map`, to which the paper adds
    a bias. Maps are trained by `distillation_loss`. O(T) time and memory. Honours `Causal`,
    `Padding` and `Segments` joined by `&`, else NotImplementedError. Raises ValueError for maps of
    the wrong shape and another activation.
    """
    check_floats(query_map=query_map)
    shape = query_map.shape
    if len(shape) != 3 or shape[-1] == 0:
        raise ValueError(f"query_map: expected [heads, head width, features], got {list(shape)}")
    record = Hedgehog(activation=activation, features=shape[-1], chunk=chunk)
    return record(q, k, v, mask=mask, bias=bias, query_map=query_map, key_map=key_map)


def distillation_loss(
    student: Float[Array, "*B N T S"], teacher: Float[Array, "*B N T S"]
) -> Float[Array, ""]:
    """The cross entropy -sum_j teacher_ij log student_ij, averaged over the rows that see anything.

    `student` are a mechanism's `weights`, `teacher` those of softmax (`attn.dense_weights`), which
    gets no gradient. Its minimum, where both are equal, is the teacher's entropy. A weight that
    underflowed to 0 counts as the smallest normal number: its logarithm would be infinite. In at
    least float32. Raises ValueError unless both have one shape, TypeError for anything but arrays
    of floats.
    """
    check_floats(student=student, teacher=teacher)
    if student.shape != teacher.shape:
        want, got = list(student.shape), list(teacher.shape)
        raise ValueError(f"teacher: expected the student's shape {want}, got {got}")
    teacher = wide(jax.lax.stop_gradient(teacher))
    # wide: a sum over tens of thousands of rows is infinite in float16
    student = wide(jnp.maximum(student, jnp.finfo(student.dtype).tiny))
    shown = ~(teacher <= 0)  # not > 0, which is False for NaN: rows of NaN would make a loss of 0
    sees = shown.any(-1)
    rows = -jnp.where(shown, teacher * jnp.log(student), 0).sum(-1)
    return rows.sum() / jnp.maximum(sees.sum(), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hedgehog(Linearized):
    """Feature maps learned to mimic softmax's weights (Zhang et al. 2024).

    A map has `features` columns, as many as the head is wide by default.
    """

    crosses: ClassVar = True
    normalised: ClassVar = True
    squares: ClassVar = True  # a learned map may overflow as a square does
    features: int | None = None
    activation: Literal["softmax", "exp"] = "softmax"

    def __post_init__(self):
        super().__post_init__()
        check_choice("activation", self.activation, ACTIVATIONS)
        if self.features is not None:
            check_count("features", self.features)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # the identity, as the authors initialise it
        eye = jnp.eye(head_dim, self.features or head_dim, dtype=jnp.float32)
        eyes = lambda heads: jnp.broadcast_to(eye, (heads, *eye.shape))
        return {"query_map": eyes(num_heads), "key_map": eyes(num_kv_heads)}

    def terms(self, q, k, *, query_map, key_map):
        features = hedgehog if self.activation == "exp" else hedgehog_softmax
        (fq, _), (fk, log_weight) = features(q, query_map), features(k, key_map)
        return Terms(fq, fk, log_weight=log_weight)

    def map_flops(self, head_dim):
        return 2 * (self.features or head_dim) * head_dim

    @classmethod
    def examples(cls):
        return cls(chunk=8), cls(activation="exp", chunk=8)
