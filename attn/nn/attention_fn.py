"""A mechanism in place of Flax's own attention: the `attention_fn` of its multi-head modules."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from attn import masks
from attn._axes import aligned
from attn._inputs import check_mask
from attn._integers import check_range
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism


def attention_fn(mechanism: Mechanism, *, mask: Mask = FULL) -> Callable[..., Array]:
    """An `attention_fn` for `flax.nnx.MultiHeadAttention` and
    `flax.linen.MultiHeadDotProductAttention`: the mechanism under `mask` and under the mask and
    bias of each call.

    A call's boolean mask, broadcast to [*B, 1, T, S] as Flax does, becomes an `Array` term or, if
    it has one row [*B, 1, 1, S], a `Padding` of keys, which more mechanisms honour; `is_causal`
    becomes `Causal()`. A query that sees nothing gets 0. The module's dropout rate applies to the
    mechanism's weights.

    Raises TypeError for what is not a Mechanism or a Mask, ValueError for a mechanism with learned
    arrays, gates or a norm that its own layer holds, or a dropout rate of its own. The returned
    function raises ValueError for dropout without a key and for an additive mask (if its numbers
    are traced, the output is NaN), TypeError for a mask that is not an array, and
    NotImplementedError for what it cannot honour: masks that differ by head, dropout that is the
    same in every row, sowing weights, a precision, a single query of many keys (`decode=True`)
    whose position matters, and what the mechanism refuses.
    """
    if not isinstance(mechanism, Mechanism):
        name = getattr(mechanism, "__name__", repr(mechanism))
        raise TypeError(f"mechanism: expected a Mechanism such as attn.Softmax(), got {name}")
    check_mask(mask)
    if _parts(mechanism):
        raise ValueError(
            f"mechanism: {mechanism.name} has {', '.join(_parts(mechanism))} of its layer, which "
            "Flax's do not hold; use attn.nn.Attention"
        )
    if mechanism.dropout_rate:
        got = f"{mechanism.dropout_rate} of {mechanism.name}"
        raise ValueError(f"dropout_rate: expected 0, for the rate is the module's, got {got}")
    own = mask

    def attend(
        query,
        key,
        value,
        bias=None,
        mask=None,
        broadcast_dropout=True,
        dropout_rng=None,
        dropout_rate=0.0,
        deterministic=False,  # as Flax's own functions
        dtype=None,
        precision=None,
        module=None,
        is_causal=False,
        qk_attn_weights_einsum=None,
        attn_weights_value_einsum=None,
    ):
        dropping = dropout_rate > 0 and not deterministic
        _refuse(
            ("module", module is None, "None: weights are not sown, mechanism.weights has them"),
            ("precision", precision is None, "None: take jax.default_matmul_precision"),
            ("qk_attn_weights_einsum", qk_attn_weights_einsum is None, "None"),
            ("attn_weights_value_einsum", attn_weights_value_einsum is None, "None"),
            (
                "broadcast_dropout",
                not (dropping and broadcast_dropout),
                "False: each row and head has its own",
            ),
        )
        by_place = is_causal or own != FULL or not mechanism.crosses
        _refuse(
            (
                "mask",
                not (query.shape[-3] == 1 < key.shape[-3] and mask is not None and by_place),
                "more than one query: with decode=True it is not said where the one stands, which "
                f"{mechanism.name} under {own} goes by; attn.nn.Attention decodes",
            ),
        )
        dtype = dtype or jnp.result_type(query, key, value)
        q, k, v = (x.astype(dtype) for x in (query, key, value))
        seen = own & Causal() if is_causal else own
        seen = seen if mask is None else seen & _term(mask, q, k)
        told = lambda out: out if mask is None else _unless_additive(out, mask)
        if not dropping:
            return told(mechanism(q, k, v, mask=seen, bias=bias))
        if "dropout_rate" not in {f.name for f in dataclasses.fields(mechanism)}:
            raise NotImplementedError(f"dropout_rate: {mechanism.name} drops no weights; set it 0")
        if dropout_rng is None:
            raise ValueError(f"dropout_rng: expected a key with {dropout_rate=}, got None")
        dropped = dataclasses.replace(mechanism, dropout_rate=dropout_rate)
        return told(dropped(q, k, v, mask=seen, bias=bias, dropout_key=dropout_rng))

    return attend


def _parts(mechanism: Mechanism) -> list[str]:
    """The names of what the mechanism leaves to its layer."""
    sizes = dict(num_heads=8, num_kv_heads=8, head_dim=64)
    init = lambda: mechanism.init(jax.random.key(0), value_dim=64, max_length=64, **sizes)
    added = ("shared_qk", "short_conv", "output_gate", "head_norm")
    present = [name for name in added if getattr(mechanism, name) not in (None, 0, False)]
    present += ["bonus"] if mechanism.bonus is not None else []
    present += ["token_shift"] if mechanism.shifts else []
    blending = mechanism.blending(num_kv_heads=8, head_dim=64)
    present += ["blending"] if blending is not None else []
    return [*jax.eval_shape(init), *mechanism.gates(**sizes), *present]


def _term(mask: Bool[Array, "..."], q: Array, k: Array) -> Mask:
    if not hasattr(mask, "dtype"):
        got = f"{type(mask).__name__}; a Mask is given to attn.nn.attention_fn"
        raise TypeError(f"mask: expected an array of booleans, got {got}")
    if mask.dtype != bool:  # linen's are floats; one of 0 and -1e9 would be read as its opposite
        check_range("mask", mask, 0, 1)
    *batch, T, N, _ = q.shape
    S = k.shape[-3]
    mask, _ = aligned(mask, q)  # as Flax broadcasts it
    if mask.shape[-3] != 1:
        raise NotImplementedError(
            f"mask: expected one for all {N} heads, {[*batch, 1, T, S]}, got "
            f"{list(mask.shape)}; a mechanism has one mask"
        )
    mask = mask.astype(bool)[..., 0, :, :]
    if mask.shape[-2] == 1:
        keys = jnp.broadcast_to(mask[..., 0, :], (*mask.shape[:-2], S))
        return Padding(keys=keys)
    return masks.Array(jnp.broadcast_to(mask, (*mask.shape[:-2], T, S)))


def _unless_additive(out: Array, mask: Bool[Array, "..."]) -> Array:
    """out, or NaN if the mask is additive: its numbers are not known while traced."""
    if mask.dtype == bool:
        return out
    return jnp.where(((mask >= 0) & (mask <= 1)).all(), out, jnp.nan)


def _refuse(*rules: tuple[str, bool, str]) -> None:
    for name, fine, expected in rules:
        if not fine:
            raise NotImplementedError(f"{name}: expected {expected}")
