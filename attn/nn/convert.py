"""Multi-head to grouped-query attention by pooling trained heads (Ainslie et al. 2023)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from attn._arrays import learned_shapes
from attn._settings import is_integer
from attn.heads_conversion import pool_heads
from attn.mechanism import Mechanism
from attn.nn.encoder import Encoder


def with_kv_heads(encoder: Encoder, num_kv_heads: int) -> Encoder:
    """The encoder with fewer key heads: its kernels of keys and values mean-pooled in every layer,
    every other parameter as trained (arXiv:2305.13245, who then train on for 5% of the steps).

    Raises TypeError for what is not an `Encoder` (of a `Decoder`, pass its `encoder`), ValueError
    unless `num_kv_heads` divides the number of key heads and where no layer has heads,
    NotImplementedError for a mechanism with learned arrays, gates, a short convolution or a share
    of the first layer's values (`blending`) for each key head, which no rule pools.
    """
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder: expected an Encoder, got {type(encoder).__name__}")
    old = encoder.config
    H = old.width // old.heads if old.head_dim is None else old.head_dim
    N, K, G = old.heads, old.kv_heads or old.heads, num_kv_heads
    if not is_integer(G) or G < 1 or K % G:
        raise ValueError(f"num_kv_heads: expected a divisor of the {K} key heads, got {G!r}")
    attending = [m for m in old.mechanisms if isinstance(m, Mechanism)]
    if not attending:
        names = " and ".join(dict.fromkeys(m.name for m in old.mechanisms))
        raise ValueError(f"encoder: expected a layer with heads, got {names}")
    for mechanism in dict.fromkeys(attending):
        before, after = (_shapes_of(mechanism, N, heads, H) for heads in (K, G))
        if differing := sorted(name for name in before if before[name] != after[name]):
            raise NotImplementedError(
                f"mechanism: {mechanism.name} learns {', '.join(differing)} for each key head, and "
                "no rule pools them; train it with the fewer key heads from the start"
            )
    config = dataclasses.replace(old, kv_heads=G)
    graph = nnx.graphdef(nnx.eval_shape(lambda: Encoder(config, key=jax.random.key(0))))

    def convert(path, x):
        of_qkv = path[-2:] == ("attention", "qkv") or path[-3:] == ("attention", "bias", "qkv")
        return _pool(x, N, K, G, H) if of_qkv else x

    # a copy: training the new one must leave the old one as it is
    return nnx.merge(graph, nnx.map_state(convert, nnx.state(encoder)), copy=True)


def _shapes_of(mechanism, N, K, H) -> dict:
    """The shapes of the arrays and gates that a layer learns for the mechanism."""
    heads = {"num_heads": N, "num_kv_heads": K, "head_dim": H}
    learned = dict(learned_shapes(mechanism, **heads, value_dim=H))
    if mechanism.short_conv:
        learned["short_conv"] = (mechanism.short_conv, (N + 2 * K) * H)
    if (blending := mechanism.blending(num_kv_heads=K, head_dim=H)) is not None:
        learned["blending"] = blending.shape
    return {**learned, **mechanism.gate_shapes(**heads)}


def _pool(variable, N, K, G, H):
    """[..., (N + 2 K) H] pooled to [..., (N + 2 G) H]; in a scan, layers are a leading axis."""
    q, k, v = jnp.split(variable[...], (N * H, (N + K) * H), axis=-1)
    k, v = (pool_heads(x, num_heads=K, groups=G) for x in (k, v))
    return variable.replace(jnp.concatenate([q, k, v], axis=-1))
