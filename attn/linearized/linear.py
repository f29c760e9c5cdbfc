"""Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236): O(T M D) time, O(M D) state."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array, Float

from attn._core import check_count, check_qkv, refuse_rest, seen_array
from attn.linearized import _scan
from attn.linearized.feature_maps import FEATURE_MAPS, FeatureMap, elu_plus_one
from attn.masks import FULL, Causal, Mask, Padding, Segments
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding, Segments)


def linear_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    feature_map: FeatureMap = elu_plus_one,
    chunk: int = 64,
) -> Float[Array, "*B T N D"]:
    """phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j), unscaled as in the paper.

    Honours `Causal`, `Padding` and `Segments` joined by `&`; O(T) time and memory under each
    (with `Segments` after one sort, at twice the cost). A query that sees nothing gets 0.
    `chunk` trades speed for nothing else. Raises NotImplementedError on other masks or a bias.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_count("chunk", chunk)
    (causal, padding, segments), rest = mask.take(*HONOURS)
    refuse_rest("linear", rest, bias, HONOURS)
    return _scan.attend(
        feature_map, (), q, k, v, causal=causal, padding=padding, segments=segments, chunk=chunk
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Mechanism):
    """Kernel feature maps in place of softmax (Katharopoulos et al. 2020)."""

    honours: ClassVar = HONOURS
    feature_map: str = "elu"
    chunk: int = 64

    def __post_init__(self):
        if self.feature_map not in FEATURE_MAPS:
            names = ", ".join(FEATURE_MAPS)
            raise ValueError(f"feature_map: expected one of {names}, got {self.feature_map!r}")
        check_count("chunk", self.chunk)

    @property
    def room(self) -> float:
        # few or small features make normalisers tiny: where a gradient cancels exactly (one visible
        # key), the rounding it leaves is divided by them (132 eps seen, at T = 2)
        return 4.0 if "relu" in self.feature_map else 1.0

    @property
    def phi(self) -> FeatureMap:
        """The feature map that the name stands for."""
        return FEATURE_MAPS[self.feature_map]

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        return linear_attention(
            q, k, v, mask=mask, bias=bias, feature_map=self.phi, chunk=self.chunk
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        mask, _ = check_qkv(q, k, v, mask)
        return _scan.dense(self.phi, (), q, k, v, seen_array(mask, q.shape[-3], k.shape[-3]))

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        refuse_rest("linear", mask.take(*HONOURS)[1], bias, HONOURS)
        return _scan.dense_weights(self.phi, (), q, k, seen_array(mask, q.shape[-3], k.shape[-3]))

    def flops(self, T, S, N, K, H, D):
        return 2 * H * D * (S * K + T * N)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _scan.empty_state(batch, num_kv_heads, head_dim, value_dim, dtype)

    def step(self, state, q, k, v):
        return _scan.step(self.phi, (), state, q, k, v)

    @classmethod
    def examples(cls):
        return (
            cls(chunk=8),
            cls(feature_map="relu", chunk=5),
            cls(feature_map="softmax"),
            cls(feature_map="squared_relu", chunk=3),
        )
