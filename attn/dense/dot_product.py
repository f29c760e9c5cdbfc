"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762): O(T S) time."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._arrays import is_floats
from attn._axes import aligned
from attn._cached import Cached
from attn._core import check_sinks, dense_attention, dense_weights, isolate
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._merge import merged
from attn._prompt import bias_of, check_prompt
from attn._requests import check_requests
from attn._settings import check_block, check_cap, check_flag, check_flags, is_number
from attn._wide import log_add, over_root, wide
from attn.biases import Bias
from attn.kernels.call import Call
from attn.kernels.dispatch import keep_names, pick, run
from attn.masks import FULL, TERMS, Causal, Mask

Implementation = Literal["materialized", "blockwise", "cudnn", "tokamax", "splash"]


@overload
def dot_product_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Float[Array, "#N"] | None = None,
    logit_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_lse: Literal[False] = False,
    implementation: str | Sequence[str] | None = None,
    block: int | tuple[int, int] | None = None,
) -> Float[Array, "*B T N D"]: ...


@overload
def dot_product_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Float[Array, "#N"] | None = None,
    logit_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_lse: Literal[True],
    implementation: str | Sequence[str] | None = None,
    block: int | tuple[int, int] | None = None,
) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]: ...


@auto_inside
def dot_product_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Float[Array, "#N"] | None = None,
    logit_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_lse: bool = False,
    implementation: str | Sequence[str] | None = None,
    block: int | tuple[int, int] | None = None,
) -> Float[Array, "*B T N D"] | tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(scale q k^T + bias) v over the keys that `mask` shows, per head.

    `scale` is 1/sqrt(H) by default; `logit_cap` c replaces scores s by c tanh(s / c) before the
    bias. `sinks` adds one logit to each row of a head, whose weight is discarded (Xiao et al. 2023,
    arXiv:2309.17453; zeros give softmax over one more key and value of 0). With `dropout_key`,
    weights are dropped at `dropout_rate`, independently for each batch row and head, and the same
    ones in every implementation. A query that sees nothing gets 0. `return_lse` also returns the
    log-sum-exp of each row (in at least float32, sink included, -inf where nothing is seen), for
    `merge`. `implementation` is a name of `IMPLEMENTATIONS` or several, best first: by default the
    platform's; `picked` tells which runs. `block` is for `blockwise` alone: how many queries and
    keys it visits at once. Raises ValueError or TypeError for wrong shapes, dtypes or settings,
    NotImplementedError if no implementation that is named can honour the rest.
    """
    call = _call(
        q, k, v, mask, bias, scale, logit_cap, dropout_rate, dropout_key, block,
        sinks=sinks, return_lse=return_lse,
    )  # fmt: skip
    out, lse = run(call, implementation)
    if sinks is not None:
        out, lse = _drain(out, lse, sinks)
    return (out, lse) if return_lse else out


def picked(
    q,
    k,
    v,
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Array | None = None,
    logit_cap: float | None = None,
    sinks: Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_lse: bool = False,
    implementation: str | Sequence[str] | None = None,
    block: int | tuple[int, int] | None = None,
) -> str:
    """The name of the implementation that `dot_product_attention` would run with these arguments;
    q, k and v may be `jax.ShapeDtypeStruct`. Raises what it would raise."""
    call = _call(
        q, k, v, mask, bias, scale, logit_cap, dropout_rate, dropout_key, block,
        sinks=sinks, return_lse=return_lse,
    )  # fmt: skip
    return pick(call, implementation)


def _call(q, k, v, mask, bias, scale, cap, rate, key, block, *, sinks=None, return_lse) -> Call:
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_block(block)
    check_cap(cap)
    check_sinks(sinks, q)
    check_flag("return_lse", return_lse)
    dropout = as_dropout(rate, key, q, k)
    cap = None if cap is None else float(cap)
    return Call(q, k, v, mask, bias, scale, cap, dropout, return_lse or sinks is not None, block)


@jax.jit  # for calls outside of jit
def _drain(out, lse, sinks):
    """`out` times exp(lse) / (exp(lse) + exp(sink)), the share that each row's sink leaves; and the
    log-sum-exp with the sink."""
    dtype = out.dtype
    lse, sinks = aligned(lse, wide(jnp.asarray(sinks)).astype(lse.dtype))
    # a NaN row whose output is unused must not reach the sinks: 0 * NaN
    out, poison = isolate(wide(out))
    empty, lost = lse == -jnp.inf, jnp.isnan(lse)
    lse = jnp.where(empty | lost, 0, lse)
    # not sigmoid(lse - sinks): its derivative s (1 - s) rounds away small sinks
    share = jnp.where(empty, 0, jnp.exp(-log_add(sinks - lse, 0.0)))
    total = jnp.where(empty, -jnp.inf, log_add(lse, sinks))
    out = (out * share[..., None] + poison[..., None]).astype(dtype)
    return out, jnp.where(lost, jnp.nan, total)


def merge(
    parts: Iterable[tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]],
) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """The output and log-sum-exp over all keys from those over disjoint parts of them.

    sum_p exp(lse_p) out_p / sum_p exp(lse_p), O(T) for each part; a part of which a row sees
    nothing does not count. A log-sum-exp has the heads last, as `return_lse` gives it: transpose
    one of another library, [*B, N, T]; where T == N no check can tell. The backward pass is written
    by hand: JAX refuses forward-mode derivatives of it (`jax.jvp` of `jax.grad` works). Raises
    ValueError for no parts and for shapes that differ, TypeError for anything but pairs of float
    arrays.
    """
    if not isinstance(parts, Iterable):
        raise TypeError(f"parts: expected pairs (output, log-sum-exp), got {parts!r}")
    parts = tuple(parts)
    if not parts:
        raise ValueError("parts: expected at least one (output, log-sum-exp), got none")
    for n, part in enumerate(parts):
        if not (isinstance(part, (tuple, list)) and len(part) == 2 and all(map(is_floats, part))):
            got = type(part).__name__
            raise TypeError(f"parts[{n}]: expected (output, log-sum-exp), float arrays, got {got}")
        got, want = [list(x.shape) for x in part], list(parts[0][0].shape)
        if len(want) < 2 or got != [want, want[:-1]]:
            raise ValueError(
                f"parts[{n}]: expected an output [*B, T, N, D] as of parts[0] and its log-sum-exp "
                f"[*B, T, N], {want} and {want[:-1]}, got {got[0]} and {got[1]}"
            )
    return merged(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Softmax(Cached):
    """Exact softmax over scaled dot products (Vaswani et al. 2017), with options from later work.

    `sinks` "zero" or "learned" is one extra logit per head; `qk_norm` divides each query and key by
    its root mean square (after Henry et al. 2020), as a layer has turned it: xPos and YaRN, whose
    scale that would undo, are refused beside it. Scores are divided by `temperature`, a number or
    "learned", one for each head. With `output_gate="sigmoid"` a layer multiplies the output by the
    sigmoid of a projection of its input (Gated Attention, Qiu et al. 2025, arXiv:2505.06708).
    """

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    implementation: Implementation | tuple[Implementation, ...] | None = None
    logit_cap: float | None = None
    sinks: Literal["zero", "learned"] | None = None
    qk_norm: bool = False
    temperature: float | Literal["learned"] = 1.0
    output_gate: Literal["silu", "sigmoid"] | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        keep_names(self)
        check_requests(self)
        if self.sinks not in (None, "zero", "learned"):
            raise ValueError(f"sinks: expected 'zero', 'learned' or None, got {self.sinks!r}")
        if self.temperature != "learned":
            if not is_number(self.temperature) or not 0 < self.temperature < 1e30:
                raise ValueError(
                    "temperature: expected a positive number or 'learned', got "
                    f"{self.temperature!r}"
                )
        check_flags(self)
        check_cap(self.logit_cap)
        check_rate(self.dropout_rate)
        check_block(self.block)

    @property
    def room(self):
        # a temperature's gradient is one number a head: the sum over all scores, which cancel
        return 2.0 if self.temperature == "learned" else 1.0

    @property
    def linear_memory(self):
        return self.implementation != "materialized"

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        learned = {}
        if self.sinks == "learned":
            learned["sinks"] = jnp.zeros(num_heads, jnp.float32)
        if self.temperature == "learned":
            learned["temperature"] = jnp.ones(num_heads, jnp.float32)
        return learned

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned) -> Array:
        q, k, options = self._options(q, k, **learned)
        return dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            implementation=self.implementation,
            block=self.block,
            **options,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned):
        dropout = dropout_of(self, dropout_key, q, k)
        q, k, options = self._options(q, k, **learned)
        return dense_attention(q, k, v, mask=mask, bias=bias, dropout=dropout, **options)

    def weights(self, q, k, *, mask=FULL, bias=None, **learned):
        q, k, options = self._options(q, k, **learned)
        return dense_weights(q, k, mask=mask, bias=bias, **options)

    def _options(self, q, k, **learned):
        """q and k as they are multiplied, and the options that every form takes."""
        self.check_learned(q, k, k, **learned)
        sinks = jnp.zeros(q.shape[-2]) if self.sinks == "zero" else learned.get("sinks")
        temperature = self.temperature
        if temperature == "learned":
            temperature = wide(learned["temperature"])
        scale = q.shape[-1] ** -0.5 / temperature
        if self.qk_norm:
            q, k = unit(q), unit(k)
        return q, k, {"scale": scale, "logit_cap": self.logit_cap, "sinks": sinks}

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    def prefill(self, q, k, v, *, max_length, bias=None, **learned):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), bias=bias_of(bias, q), **learned)
        return _cache.fill(self._options(q, k, **learned)[1], v, max_length), out

    def step(self, state, q, k, v, *, bias=None, **learned):
        check_state(state, _cache.Cache, q)
        check_qkv(q, k, v, FULL)
        q, k, options = self._options(q, k, **learned)
        bias = _cache.bias_row(bias, state, q)
        state, out = _cache.step(state, q, k, v, bias=bias, **options)
        return state, _cache.unless_forgotten(state, out).astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return (
            cls(implementation="materialized", sinks="zero", dropout_rate=0.3),
            cls(implementation="blockwise", dropout_rate=0.3),
            cls(implementation="blockwise", block=8, sinks="learned", temperature="learned"),
            cls(implementation="blockwise", block=16, logit_cap=5.0, qk_norm=True, temperature=0.5),
        )


@jax.jit  # for calls outside of jit
def unit(x: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """x / sqrt(mean(x^2) + 1e-6), in its own dtype; a row that is not finite stays as it is."""
    fine = jnp.isfinite(x).all(-1, keepdims=True)
    y = wide(jnp.where(fine, x, 0))  # its derivative is not NaN, and reaches no row but its own
    return jnp.where(fine, over_root(y, jnp.mean).astype(jnp.result_type(x)), x)
