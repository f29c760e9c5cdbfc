"""Who a benchmark compares in JAX: what their users write, by name."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp

from attn import Causal, Mask, Window
from experiments.measure.machine import on_gpu
from experiments.measure.turns import Unavailable

Attention = Callable[[Any, Any, Any], Any]  # q [B, T, N, H], k, v [B, T, K, H] -> [B, T, N, H]


def jax_nn(mask: Mask, T: int) -> Attention:
    """`jax.nn.dot_product_attention`, told of the mask by its own arguments."""
    if mask == Causal():
        return functools.partial(jax.nn.dot_product_attention, is_causal=True)
    if isinstance(mask, Window):
        size = (mask.left, mask.right)
        return functools.partial(jax.nn.dot_product_attention, local_window_size=size)
    raise Unavailable(f"it has no argument for {mask}")


def cudnn(mask: Mask, T: int) -> Attention:
    """cuDNN's fused attention by the same function, for 16 bits on a GPU."""
    if not on_gpu():
        raise Unavailable("it runs on a GPU")
    options: dict[str, Any] = {"is_causal": True}
    if isinstance(mask, Window) and mask.right == 0:
        options["local_window_size"] = (mask.left, 0)
    elif mask != Causal():
        raise Unavailable(f"it has no argument for {mask}")

    def attend(q, k, v):
        if q.dtype.itemsize != 2:
            raise Unavailable(f"it takes bfloat16 and float16, not {q.dtype}")
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)

    return attend


def tokamax(mask: Mask, T: int) -> Attention:
    """Tokamax's fused attention by Mosaic, for GPUs and TPUs."""
    if jax.default_backend() == "cpu":
        raise Unavailable("it runs on a GPU or TPU")
    if mask != Causal():
        raise Unavailable(f"it is not asked for {mask}")
    try:
        from tokamax import dot_product_attention
    except ImportError as error:
        raise Unavailable(f"tokamax is not installed: {error}") from None
    return functools.partial(dot_product_attention, is_causal=True, implementation="mosaic")


def masked(function: Callable, mask: Mask, T: int) -> Attention:
    """A function that takes a boolean mask [T, T], drawn inside as its users do."""
    return lambda q, k, v: function(q, k, v, mask=jnp.asarray(mask.array(T, T))[None, None])


def repeated(function: Attention) -> Attention:
    """A function without grouped heads: keys and values are repeated, as its users must."""

    def attend(q, k, v):
        times = q.shape[-2] // k.shape[-2]
        return function(q, *(jnp.repeat(x, times, axis=-2) if times > 1 else x for x in (k, v)))

    return attend


def token_scan(mask: Mask, T: int) -> Attention:
    """Causal linear attention, elu + 1, as its papers define it: one token after another."""

    def attend(q, k, v):
        def step(carry, qkv):
            state, total = carry
            q, k, v = qkv  # [B, N, H]
            state = state + jnp.einsum("bnh,bnd->bnhd", k, v)
            total = total + k
            out = jnp.einsum("bnh,bnhd->bnd", q, state)
            return (state, total), out / jnp.einsum("bnh,bnh->bn", q, total)[..., None]

        dtype = q.dtype
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        q, k, v = (jnp.moveaxis(x, 1, 0) for x in (jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v))
        start = jnp.zeros((*k.shape[1:], v.shape[-1])), jnp.zeros(k.shape[1:])
        return jnp.moveaxis(jax.lax.scan(step, start, (q, k, v))[1], 0, 1).astype(dtype)

    return repeated(attend)


def linen(mask: Mask, T: int) -> Attention:
    return repeated(masked(flax.linen.dot_product_attention, mask, T))


PEERS: dict[str, Callable[[Mask, int], Attention]] = {
    "jax.nn": jax_nn,
    "flax.linen": linen,
    "flax.nnx": functools.partial(masked, flax.nnx.dot_product_attention),
    "token scan": token_scan,
    "cudnn": cudnn,
    "tokamax": tokamax,
}
