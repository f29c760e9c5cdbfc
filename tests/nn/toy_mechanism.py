"""A mechanism with learned arrays and gates of both kinds, and small encoders to put it in."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn import FULL, Mechanism, Softmax
from attn._axes import aligned
from attn._core import apply_weights, masked_softmax, scores, seen_array
from attn._inputs import check_qkv, refuse_rest
from attn._wide import wide
from attn.masks import TERMS, Causal
from attn.nn import Encoder, EncoderConfig

SOFTMAX = Softmax(implementation="materialized")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy(Mechanism):
    """beta_t softmax(sharpness_n q k^T) v + shift_t."""

    honours: ClassVar = TERMS

    def __call__(self, q, k, v, *, mask=FULL, bias=None, sharpness, beta, shift):
        w = self.weights(q, k, mask=mask, bias=bias, sharpness=sharpness, beta=beta, shift=shift)
        seen = seen_array(mask, q.shape[-3], k.shape[-3])
        return (apply_weights(w, wide(v), seen) + shift).astype(q.dtype)

    reference = __call__

    def weights(self, q, k, *, mask=FULL, bias=None, sharpness, beta, shift):
        mask, bias = check_qkv(q, k, k, mask, bias)
        refuse_rest("Toy", FULL, bias, self.honours)
        s = scores(jnp.multiply(*aligned(wide(q), sharpness[:, None])), wide(k))
        w = masked_softmax(s, seen_array(mask, q.shape[-3], k.shape[-3]))
        return w * jnp.moveaxis(beta, -1, -2)[..., None]

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        return {"sharpness": 1 + 0.1 * jax.random.normal(key, (num_heads,))}

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {"beta": (num_heads,), "shift": (num_heads, head_dim)}

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    @classmethod
    def examples(cls):
        return (cls(),)


def config(**changes) -> EncoderConfig:
    base = dict(
        vocab_size=11,
        max_length=7,
        classes=3,
        layers=1,
        width=12,
        heads=2,
        mlp_width=10,
        mechanism=SOFTMAX,
    )
    return EncoderConfig(**{**base, **changes})


def build(*, seed: int = 0, **changes) -> Encoder:
    return Encoder(config(**changes), key=jax.random.key(seed))


# each test compiles something new and runs it once: compiling is all the time there is
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def run(module: nnx.Module, *args, method: str = "__call__", **kwargs):
    """The module compiled as one function: op by op, tests would compile for minutes."""
    graph, params = nnx.split(module)
    numbers = {n: x for n, x in enumerate(args) if isinstance(x, int)}
    numbers |= {name: x for name, x in kwargs.items() if isinstance(x, float)}

    def apply(params, args, kwargs):
        args = [numbers.get(n, x) for n, x in enumerate(args)]
        kwargs = {name: numbers.get(name, x) for name, x in kwargs.items()}
        return getattr(nnx.merge(graph, params), method)(*args, **kwargs)

    return jit(apply)(params, args, kwargs)


def maps(encoder: Encoder, tokens, **kwargs):
    return run(encoder, tokens, method="maps", **kwargs)


def steps_go_on(layer, x, *, prompt, near):
    """A prompt and the tokens after it one by one are what all are at once."""
    graph, params = nnx.split(layer)
    whole = jax.jit(lambda x: nnx.merge(graph, params)(x, mask=Causal()))(x)
    prefill = jax.jit(
        lambda x, T: nnx.merge(graph, params).prefill(x, max_length=T), static_argnums=1
    )
    step = jax.jit(lambda state, x: nnx.merge(graph, params).step(state, x))
    state, y = prefill(x[:, :prompt], x.shape[1])
    np.testing.assert_allclose(y, whole[:, :prompt], **near)
    for t in range(prompt, x.shape[1]):
        state, y = step(state, x[:, t : t + 1])
        np.testing.assert_allclose(y, whole[:, t : t + 1], **near)
