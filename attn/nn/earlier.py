"""The tokens before a token in its own document: what a layer that looks back may read."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._axes import aligned, conjunction
from attn._inputs import check_mask
from attn.masks import Mask, Padding, Segments


def documents(
    mask: Mask, x: Float[Array, "*B T C"], *, who: str, off: str
) -> tuple[Padding | None, Segments | None]:
    """The `Padding` and `Segments` of the mask, checked. Raises NotImplementedError for a mask that
    holds other arrays than these joined by `&`, which `who` cannot honour; `off` is the setting
    that leaves it out."""
    check_mask(mask)
    T = x.shape[-2]
    mask.check(x.shape[:-2], T, T)
    terms, rest = mask.take(Padding, Segments)
    if not rest.static:
        held = ", ".join(sorted({type(term).__name__ for term in rest.terms() if not term.static}))
        raise NotImplementedError(
            f"mask: {who} keeps apart what Padding and Segments do, joined by &, but not {held} "
            f"here; set {off}"
        )
    return terms


def shown(x: Float[Array, "*B T C"], padding: Padding | None) -> Float[Array, "*B T C"]:
    """x, set to 0 at hidden tokens, even where it is NaN."""
    if padding is None:
        return x
    seen, x = aligned(padding.seen_keys(x.shape[-2])[..., None], x)
    return jnp.where(seen, x, 0)


def back(x: Float[Array, "*B T C"], j: int, segments: Segments | None) -> Float[Array, "*B T C"]:
    """x_{t-j} at t, 0 where that is before the first token or in another document."""
    there, moved = aligned(same(j, x.shape[-2], segments)[..., None], jnp.roll(x, j, axis=-2))
    return jnp.where(there, moved, 0)


def same(j: int, T: int, segments: Segments | None) -> Bool[Array, "*B T"]:
    """Whether token t - j is there and in the document of t."""
    same = jnp.arange(T) >= j
    if segments is not None:
        # a token asks by its query id and is read by its key id: neither may differ
        for ids in segments.ids:
            same = conjunction(same, ids == jnp.roll(ids, j, axis=-1))
    return same


def latest(x: Float[Array, "*B T C"], count: int) -> Float[Array, "*B count C"]:
    """The last `count` tokens of a prompt, 0 before its first."""
    x = jnp.concatenate([jnp.zeros((*x.shape[:-2], count, x.shape[-1]), x.dtype), x], -2)
    return x[..., x.shape[-2] - count :, :]
