"""Who a benchmark compares, as one list of names, and the float64 oracle that all must equal."""

import functools
import os
from collections.abc import Callable
from typing import Any

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn import Causal, Mask, Window

Attention = Callable[[Any, Any, Any], Any]  # q, k, v [B, T, N, H] -> [B, T, N, H]


class Unavailable(Exception):
    """A peer that cannot take part here; the message says why."""


def jax_nn(mask: Mask, T: int) -> Attention:
    """`jax.nn.dot_product_attention`, told of the mask by its own arguments."""
    if mask == Causal():
        return functools.partial(jax.nn.dot_product_attention, is_causal=True)
    if isinstance(mask, Window):
        size = (mask.left, mask.right)
        return functools.partial(jax.nn.dot_product_attention, local_window_size=size)
    raise Unavailable(f"it has no argument for {mask}")


def masked(function: Callable, mask: Mask, T: int) -> Attention:
    """A function that takes a boolean mask [T, T], drawn inside as its users do."""
    return lambda q, k, v: function(q, k, v, mask=jnp.asarray(mask.array(T, T))[None, None])


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

        q, k, v = (jnp.moveaxis(x, 1, 0) for x in (jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v))
        start = jnp.zeros((*k.shape[1:], v.shape[-1])), jnp.zeros(k.shape[1:])
        return jnp.moveaxis(jax.lax.scan(step, start, (q, k, v))[1], 0, 1)

    return attend


PEERS: dict[str, Callable[[Mask, int], Attention]] = {
    "jax.nn": jax_nn,
    "flax.linen": functools.partial(masked, flax.linen.dot_product_attention),
    "flax.nnx": functools.partial(masked, flax.nnx.dot_product_attention),
    "token scan": token_scan,
}


def torch_sdpa(mask: Mask, T: int, backward: bool) -> Callable[..., tuple]:
    """torch's CPU attention: (q, k, v, g) -> the output, and its gradients with `backward`.

    Takes and gives torch tensors [B, N, T, H], its own layout, so that no copy is timed.
    """
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed") from None
    torch.set_num_threads(os.cpu_count() or 1)
    if mask == Causal():
        options = {"is_causal": True}
    else:
        options = {"attn_mask": torch.from_numpy(np.array(mask.array(T, T)))}
    attend = torch.nn.functional.scaled_dot_product_attention

    def call(q, k, v, g):
        if not backward:
            with torch.inference_mode():
                return (attend(q, k, v, **options),)
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out = attend(q, k, v, **options)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), g)

    return call


def to_torch(x: jax.Array) -> Any:
    import torch

    return torch.from_numpy(np.asarray(x).swapaxes(1, 2).copy())


def from_torch(x: Any) -> np.ndarray:
    return x.numpy().swapaxes(1, 2)


Head = Float[np.ndarray, "T H"]


def softmax_oracle(mask: Mask, q: Head, k: Head, v: Head) -> Head:
    """Softmax attention of one head in float64, by blocks of rows and the keys they may see."""
    T, H = q.shape
    step = min(256, T)
    some, _ = mask.blocks(T, T, step, step)
    out = np.zeros_like(v)
    for a, row in enumerate(some):
        i = np.arange(a * step, min(T, (a + 1) * step))
        j = np.concatenate(
            [np.arange(b * step, min(T, (b + 1) * step)) for b in np.flatnonzero(row)]
        )
        s = np.where(mask.at(i[:, None], j[None]), q[i] @ k[j].T / np.sqrt(H), -np.inf)
        p = np.exp(s - s.max(1, keepdims=True))
        out[i] = p @ v[j] / p.sum(1, keepdims=True)
    return out


def linear_oracle(mask: Mask, q: Head, k: Head, v: Head) -> Head:
    """Causal linear attention, elu + 1, of one head in float64."""
    feature = lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1
    q, k, out, step = feature(q), feature(k), np.zeros_like(v), 64
    state, total = np.zeros((q.shape[1], v.shape[1])), np.zeros(q.shape[1])
    for start in range(0, len(q), step):
        a, b, c = (x[start : start + step] for x in (q, k, v))
        w = np.tril(a @ b.T)
        out[start : start + step] = (a @ state + w @ c) / (a @ total + w.sum(1))[:, None]
        state, total = state + b.T @ c, total + b.sum(0)
    return out


def disagreement(
    oracle: Callable[[Head, Head, Head], Head],
    inputs: tuple[np.ndarray, ...],
    results: tuple[np.ndarray, ...],
) -> str | None:
    """None if the output, and the gradients if given, are the oracle's; else what is not.

    Looks at the last head of the last batch row, within DESIGN's float32 contract. Gradients are
    compared with the oracle's central difference in a random direction, which every entry enters.
    """
    q, k, v, g = (np.asarray(x[-1, :, -1], np.float64) for x in inputs)
    out, *gradients = (np.asarray(x[-1, :, -1], np.float64) for x in results)
    eps = float(np.finfo(np.float32).eps)
    want = oracle(q, k, v)
    error = np.linalg.norm(out - want) / np.linalg.norm(want)
    if not error <= 32 * eps:
        return f"output is off by {error:.1e}, allowed {32 * eps:.1e}"
    rng = np.random.default_rng(0)
    for place, gradient in enumerate(gradients):
        u = rng.standard_normal(q.shape)
        slope = _slope(oracle, [q, k, v], place, u, g)
        # an error e in the gradient shows as e . u, which is normal with deviation |e|: 4 of them
        error = abs((gradient * u).sum() - slope) / np.linalg.norm(gradient)
        if not error <= 4 * 64 * eps:
            return f"gradient of {'qkv'[place]} is off by {error:.1e}, allowed {256 * eps:.1e}"
    return None


def _slope(oracle, qkv: list[Head], place: int, u: Head, g: Head, h: float = 1e-5) -> float:
    """The central difference of sum(oracle g) as argument `place` moves along u."""
    up, down = ([*qkv[:place], qkv[place] + x * u, *qkv[place + 1 :]] for x in (h, -h))
    return ((oracle(*up) - oracle(*down)) * g).sum() / (2 * h)
