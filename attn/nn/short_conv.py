"""A causal depthwise convolution over the last few tokens of the same document."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from attn._axes import aligned, conjunction
from attn._core import wide
from attn.gates import Uniform
from attn.masks import Mask, Padding, Segments


class ShortConv(nnx.Module):
    """silu(sum_{j < taps} w_j x_{t-j}) for each channel (Dao & Gu 2024, arXiv:2405.21060).

    Tokens that `Padding` hides and tokens of other `Segments` count as 0, like those before the
    first. Weights [taps, channels] start uniform in +-1 / sqrt(taps), without a bias. Sums are
    float32, the output is in x's dtype. Raises NotImplementedError for a mask whose arrays say
    otherwise who may see whom.
    """

    def __init__(self, channels: int, taps: int, *, key: Array):
        draw = Uniform(taps**-0.5)
        self.kernel = nnx.Param(draw(key, (taps, channels), jnp.float32))

    def __call__(self, x: Float[Array, "*B T C"], mask: Mask) -> Float[Array, "*B T C"]:
        padding, segments = _tokens_of(mask, x)
        y = wide(x)
        if padding is not None:
            seen, y = aligned(padding.seen_keys(x.shape[-2])[..., None], y)
            y = jnp.where(seen, y, 0)
        y, kernel = aligned(y, self.kernel[...].astype(y.dtype))
        taps = kernel.shape[-2]
        y = sum(kernel[..., j, None, :] * _back(y, j, segments) for j in range(taps))
        return jax.nn.silu(y).astype(x.dtype)

    def last(self, x: Float[Array, "*B T C"]) -> Float[Array, "*B taps-1 C"]:
        """What a next token needs of a prompt, 0 before its first token."""
        before = self.kernel.shape[0] - 1
        x = jnp.concatenate([jnp.zeros((*x.shape[:-2], before, x.shape[-1]), x.dtype), x], -2)
        return x[..., x.shape[-2] - before :, :]

    def step(self, before: Float[Array, "*B taps-1 C"], x: Float[Array, "*B 1 C"]):
        """(what the next token needs, the output of one token)."""
        x = jnp.concatenate([before, x], -2)
        y = wide(x)
        y, kernel = aligned(y, self.kernel[...].astype(y.dtype)[::-1])
        y = (kernel * y).sum(-2, keepdims=True)
        return x[..., 1:, :], jax.nn.silu(y).astype(x.dtype)


def _tokens_of(mask, x) -> tuple[Padding | None, Segments | None]:
    """The terms of the mask that say which tokens there are, checked."""
    if not isinstance(mask, Mask):
        raise TypeError(f"mask: expected a Mask from attn.masks, got {type(mask).__name__}")
    T = x.shape[-2]
    mask.check(x.shape[:-2], T, T)
    terms, rest = mask.take(Padding, Segments)
    if not rest.static:
        held = ", ".join(sorted({type(term).__name__ for term in rest.terms() if not term.static}))
        raise NotImplementedError(
            f"mask: a short convolution keeps apart what Padding and Segments do, joined by &, but "
            f"not {held} here; set short_conv=0"
        )
    return terms


def _back(x: Float[Array, "*B T C"], j: int, segments: Segments | None) -> Float[Array, "*B T C"]:
    """x_{t-j} at t, 0 where that is before the first token or in another document."""
    same, back = aligned(_same(j, x.shape[-2], segments)[..., None], jnp.roll(x, j, axis=-2))
    return jnp.where(same, back, 0)


def _same(j: int, T: int, segments: Segments | None) -> Bool[Array, "*B T"]:
    same = jnp.arange(T) >= j
    if segments is not None:
        # a token asks by its query id and is read by its key id: neither may differ
        for ids in (segments.query_ids, segments.key_ids):
            same = conjunction(same, ids == jnp.roll(ids, j, axis=-1))
    return same
