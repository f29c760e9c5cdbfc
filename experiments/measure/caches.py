"""Who decodes against a full cache: each in its own layout, the cache updated in place."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn import MECHANISMS
from experiments.measure import cost, torch_peers
from experiments.measure.turns import Ready

STEPS = 4  # tokens a call


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A prompt that fills a cache of L tokens but for the steps that will be timed, and them."""

    shape: cost.Shape  # T is L
    room: int

    @property
    def prompt(self) -> int:
        return self.shape.T - self.room

    def make(self, seed: int) -> list[tuple[jax.Array, ...]]:
        """q, k, v of the prompt and of the steps."""
        sizes = self.prompt, STEPS
        shapes = [dataclasses.replace(self.shape, T=size) for size in sizes]
        return [shape.qkvg(2 * seed + n)[:3] for n, shape in enumerate(shapes)]


def attn_cache(tokens: Tokens) -> tuple[Callable, Callable]:
    """(prompt's q, k, v -> state, (state, q, k, v) -> (state, out)) of our softmax."""
    mechanism = MECHANISMS["softmax"]()
    fill = lambda q, k, v: mechanism.prefill(q, k, v, max_length=tokens.shape.T)[0]
    return fill, mechanism.step


def jax_nn_cache(tokens: Tokens) -> tuple[Callable, Callable]:
    """The same with `jax.nn.dot_product_attention`, whose layout is [B, L, K, H]."""

    def fill(q, k, v):
        padded = (jnp.pad(x, ((0, 0), (0, tokens.room), (0, 0), (0, 0))) for x in (k, v))
        return *padded, jnp.int32(tokens.prompt)

    def step(state, q, k, v):
        ks, vs, n = state
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=n, axis=1)
        ks, vs = put(ks, k), put(vs, v)
        filled = jnp.full(len(q), n + 1)
        out = jax.nn.dot_product_attention(q, ks, vs, key_value_seq_lengths=filled)
        return (ks, vs, n + 1), out

    return fill, step


def in_jax(tokens: Tokens, make: Callable) -> Ready:
    """A peer compiled, its state donated to each step."""
    fill, step = make(tokens)
    states, new = [], []
    for seed in range(cost.ROTATED):
        prompt, steps = tokens.make(seed)
        states.append(jax.jit(fill)(*prompt))
        new.append([tuple(x[:, t : t + 1] for x in steps) for t in range(STEPS)])
    program = cost.build(jax.jit(step, donate_argnums=0), states[0], *new[0][0])

    def call(r: int) -> list[jax.Array]:
        n, outs = r % len(states), []
        for qkv in new[n]:
            states[n], out = program.call(states[n], *qkv)
            outs.append(out)
        return jax.block_until_ready(outs)

    results = lambda: [np.concatenate([np.asarray(x) for x in call(0)], 1)]
    costs = program.compile_seconds, program.peak_bytes, program.temporary_bytes
    return Ready(call, results, *costs)


def in_torch(tokens: Tokens) -> Ready:
    """torch's attention on caches [B, K, L, H] that are written in place."""
    torch = torch_peers.load()
    N, K = tokens.shape.N, tokens.shape.K
    attend = torch.nn.functional.scaled_dot_product_attention
    caches: list[Any] = []
    for seed in range(cost.ROTATED):
        prompt, new = (tuple(map(torch_peers.to_torch, x)) for x in tokens.make(seed))
        pad = lambda x: torch.nn.functional.pad(x, (0, 0, 0, tokens.room)).contiguous()
        caches.append([pad(prompt[1]), pad(prompt[2]), tokens.prompt, new])

    def call(r: int) -> list[Any]:
        cache = caches[r % len(caches)]
        ks, vs, n, (q, k, v) = cache
        outs = []
        with torch.inference_mode():
            for t in range(STEPS):
                ks[:, :, n + t], vs[:, :, n + t] = k[:, :, t], v[:, :, t]
                seen = slice(0, n + t + 1)
                one = q[:, :, t : t + 1], ks[:, :, seen], vs[:, :, seen]
                outs.append(attend(*one, enable_gqa=N != K))
        cache[2] += STEPS
        return torch_peers.wait(outs)

    return Ready(call, lambda: [torch_peers.from_torch(torch.cat(call(0), 2))])


PEERS = {"jax.nn": lambda tokens: in_jax(tokens, jax_nn_cache), "torch": in_torch}
