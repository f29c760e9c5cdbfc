"""Hedgehog's maps, learned from softmax's weights on inputs like those that are measured."""

import functools

import jax
import jax.numpy as jnp
import optax

import attn
from experiments.studies.approximation.inputs import Settings, draw

FIRST = 1 << 20  # seeds from here on are for training: measured draws have small ones


def identity(width: int) -> dict:
    """The maps as the record begins: x to exp(x) and exp(-x)."""
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": width, "value_dim": width}
    return attn.Hedgehog().init(jax.random.key(0), max_length=1, **sizes)


def random_maps(width: int, features: int) -> dict:
    """Normal maps to any number of features, at which there is no identity."""
    keys = jax.random.split(jax.random.key(0), 2)
    of = lambda key: jax.random.normal(key, (1, width, features)) / width**0.5
    return {"query_map": of(keys[0]), "key_map": of(keys[1])}


def student_of(maps: dict) -> attn.Hedgehog:
    """The record that takes these maps."""
    return attn.Hedgehog(features=maps["query_map"].shape[-1])


def divergence(maps: dict, seeds, s: Settings, scale):
    """The distillation loss less the teacher's entropy, its least value: 0 if softmax is met."""
    x = jax.vmap(lambda seed: draw(seed, s.train_length, s.width, scale))(seeds)
    teacher = attn.dense_weights(x.q, x.k, mask=attn.FULL)
    loss = lambda student: attn.distillation_loss(student, teacher)
    return loss(student_of(maps).weights(x.q, x.k, **maps)) - loss(teacher)


@functools.partial(jax.jit, static_argnames="s")
def distil(maps: dict, scale, *, s: Settings):
    """(maps, losses) after `s.steps` steps of Adam on new inputs each, the rate falling to 0."""
    optimizer = optax.adam(optax.cosine_decay_schedule(s.rate, s.steps))

    def step(carry, number):
        maps, state = carry
        seeds = FIRST + s.batch * number + jnp.arange(s.batch)
        loss, slope = jax.value_and_grad(divergence)(maps, seeds, s, scale)
        updates, state = optimizer.update(slope, state)
        return (optax.apply_updates(maps, updates), state), loss

    carry, losses = jax.lax.scan(step, (maps, optimizer.init(maps)), jnp.arange(s.steps))
    return carry[0], losses


def learned(s: Settings, scale: float) -> tuple[dict, dict]:
    """({name: maps}, {name: divergence on new inputs}) untrained and distilled."""
    start = identity(s.width)
    maps = {"hedgehog, untrained": start, "hedgehog, distilled": distil(start, scale, s=s)[0]}
    fresh = jnp.arange(s.batch)
    return maps, {n: float(divergence(m, fresh, s, scale)) for n, m in maps.items()}
