"""Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): all that is kept of a token is
one latent, from which the keys and values of every head are rebuilt. O(T S) time, O(T + S) memory.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._arrays import check_shapes
from attn._cached import Cached
from attn._core import dense_attention, isolate
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._settings import check_block, check_count
from attn._wide import over_root, wide
from attn.biases import Bias
from attn.dense._rows import last_sizes
from attn.kernels.call import Call
from attn.kernels.dispatch import keep_names, run
from attn.masks import FULL, TERMS, Mask


@auto_inside
def latent_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    key_up: Float[Array, "N rank rest"],
    value_up: Float[Array, "N rank D"],
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    implementation: str | tuple[str, ...] | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax((q_R k_R^T + q_C (c U)^T) / sqrt(H) + bias) c V per head, U = `key_up` and V =
    `value_up` its own.

    c_j, the latent of token j, is what k_j and v_j hold in the head's key head, divided by the root
    of its mean square (the gain of the paper's norm is part of U and V), so a layer's kernel of k
    and v is the paper's W^DKV. The first R = H - rest channels of q and k, the decoupled ones that
    rotary positions may turn, stay out of it; rank = rest + D. With one key head this is
    multi-head latent attention, with more grouped latent attention (Zadouri et al. 2025,
    arXiv:2505.21487). Besides those of softmax 2 S N rank^2 operations. Queries are not compressed,
    which saves memory in training only. Raises ValueError for `key_up` and `value_up` of other
    shapes.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_block(block)
    keys, values = _rebuilt(q, k, v, key_up, value_up)
    dropout = as_dropout(dropout_rate, dropout_key, q, keys)
    call = Call(wide(q), keys, values, mask, bias, dropout=dropout, block=block)
    return run(call, implementation)[0].astype(jnp.result_type(q))


def _rebuilt(q, k, v, key_up, value_up):
    """The keys [k_R, c U] [*B, S, N, H] and the values c V [*B, S, N, D] of all heads."""
    k_R, c, poison = _latents(q, k, v, key_up, value_up)
    (*to, K, rank), N = c.shape, q.shape[-2]

    def up(x):
        by_group = x.reshape(K, N // K, rank, x.shape[-1]).astype(c.dtype)
        y = jnp.einsum("...kr,kgrh->...kgh", c, by_group) + poison[..., None]
        return y.reshape(*to, N, x.shape[-1])

    return jnp.concatenate([jnp.repeat(k_R, N // K, axis=-2), up(key_up)], -1), up(value_up)


def _latents(q, k, v, key_up, value_up):
    """k_R [*B, S, K, R], the latents c [*B, S, K, rank] and the poison of both [*B, S, K, 1]."""
    N, H, D = *q.shape[-2:], v.shape[-1]
    rest = min(max(1, *last_sizes(key_up, 1)), H)
    shapes = {"key_up": (N, rest + D, rest), "value_up": (N, rest + D, D)}
    check_shapes({"key_up": key_up, "value_up": value_up}, shapes)
    kv, poison = isolate(jnp.concatenate([wide(k), wide(v)], -1))
    k_R, c = jnp.split(kv, [H - rest], axis=-1)
    return k_R, over_root(c, jnp.mean), poison[..., None]


def _absorbed(q, k, v, *, mask, bias=None, key_up, value_up) -> Float[Array, "*B T N D"]:
    """The same by q U^T and (softmax c) V, as the authors decode: no key is rebuilt."""
    k_R, c, poison = _latents(q, k, v, key_up, value_up)
    (q_R, q_C), c = jnp.split(q, [k_R.shape[-1]], axis=-1), c + poison
    q_C = jnp.einsum("...tnh,nrh->...tnr", q_C, key_up.astype(q.dtype))
    q_of, keys = jnp.concatenate([q_R, q_C], -1), jnp.concatenate([k_R, c], -1)
    out = dense_attention(q_of, keys, c, mask=mask, bias=bias, scale=q.shape[-1] ** -0.5)
    out, lost = isolate(out)
    return jnp.einsum("...tnr,nrd->...tnd", out, value_up.astype(out.dtype)) + lost[..., None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent(Cached):
    """Softmax over keys and values of all heads, each rebuilt from what the token's k and v hold in
    a key head: with one key head multi-head latent attention (DeepSeek-AI 2024), with more grouped
    latent attention (Zadouri et al. 2025). The first `decoupled` channels of q and k stay out of
    it; rotary positions may turn no others."""

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    decoupled: int = 0
    implementation: str | tuple[str, ...] | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        check_count("decoupled", self.decoupled, least=0)
        keep_names(self)
        check_rate(self.dropout_rate)
        check_block(self.block)

    @property
    def turnable(self) -> int:
        return self.decoupled

    @property
    def linear_memory(self):
        return self.implementation != "materialized"

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        rest = head_dim - self.decoupled
        if rest < 1:
            raise ValueError(
                f"decoupled: expected fewer than the {head_dim} channels of a head, got "
                f"{self.decoupled}"
            )
        rank, (of_keys, of_values) = rest + value_dim, jax.random.split(key)
        draw = jax.nn.initializers.normal(rank**-0.5)
        return {
            "key_up": draw(of_keys, (num_heads, rank, rest), jnp.float32),
            "value_up": draw(of_values, (num_heads, rank, value_dim), jnp.float32),
        }

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned) -> Array:
        self.check_learned(q, k, v, **learned)
        return latent_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            implementation=self.implementation,
            block=self.block,
            **learned,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned):
        self.check_learned(q, k, v, **learned)
        keys, values = _rebuilt(q, k, v, **learned)
        dropout = dropout_of(self, dropout_key, q, keys)
        return dense_attention(wide(q), keys, values, mask=mask, bias=bias, dropout=dropout)

    def weights(self, q, k, *, mask=FULL, bias=None, **learned):
        raise NotImplementedError(
            "Latent has no T x S matrix to show: its keys are rebuilt from k and v together"
        )

    def step(self, state, q, k, v, *, bias=None, **learned):
        check_state(state, _cache.Cache, q)
        self.check_learned(q, k, v, **learned)
        attend = functools.partial(_absorbed, **learned)
        return _cache.decode(state, attend, q, k, v, bias)

    def flops(self, T, S, N, K, H, D):
        return 2 * N * (S * (H - self.decoupled + D) ** 2 + T * S * (H + D))

    @classmethod
    def examples(cls):
        return (
            cls(implementation="blockwise", block=8),
            cls(implementation="materialized", decoupled=2, dropout_rate=0.3),
        )
