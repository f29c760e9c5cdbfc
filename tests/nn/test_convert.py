"""Fewer key heads in a trained encoder: its keys and values pooled, all else as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, Toy, build, run

from attn import RWKV7, Differential, Linformer, pool_heads
from attn.nn import GRU, Decoder, FNet, parameter_count, with_kv_heads

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 6)), jnp.int32)
W, N, H = 12, 4, 4
FORMS = [
    dict(layers=2, mechanism=(SOFTMAX, Toy())),
    dict(layers=2, scan=True, qk_norm=True, positions="rotary", mechanism=Differential()),
    dict(layers=2, tied=True, positions="t5", head="token", pooling="none"),
]


def trained(**changes):
    """An encoder whose parameters are not the ones that its key draws."""
    encoder = build(heads=N, head_dim=H, **changes)
    key = jax.random.key(3)
    move = lambda x: x + 0.1 * jax.random.normal(key, x.shape)
    nnx.update(encoder, jax.tree.map(move, nnx.state(encoder)))
    return encoder


def leaves(encoder):
    return {
        jax.tree_util.keystr(path): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(nnx.state(encoder))
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=lambda f: "-".join(f))
def test_keys_and_values_are_pooled_and_all_else_is_as_trained(form):
    old = trained(**form)
    new = with_kv_heads(old, 2)
    assert new.config.kv_heads == 2
    before, after = leaves(old), leaves(new)
    assert before.keys() == after.keys()
    for name, x in before.items():
        if "qkv" not in name:
            np.testing.assert_array_equal(after[name], x)
            continue
        q, k, v = np.split(x, 3, axis=-1)
        pooled = [pool_heads(jnp.asarray(y), num_heads=N, groups=2) for y in (k, v)]
        np.testing.assert_array_equal(after[name], np.concatenate([q, *pooled], -1))
    assert parameter_count(new) < parameter_count(old)
    assert np.isfinite(run(new, TOKENS)).all()
    # the old one is not touched by training the new one
    new.embedding.tokens[...] = new.embedding.tokens[...] + 1
    np.testing.assert_array_equal(leaves(old)["['embedding']['tokens'].value"],
                                  before["['embedding']['tokens'].value"])  # fmt: skip


@pytest.mark.parametrize("form", FORMS[:2], ids=lambda f: "-".join(f))
def test_pooling_identical_heads_changes_no_score(form):
    old = trained(**form)
    for block in old.stack.blocks:
        qkv = block.attention.qkv
        q, k, v = jnp.split(qkv[...].reshape(*qkv.shape[:-1], 3 * N, H), 3, axis=-2)
        same = lambda y: jnp.repeat(y[..., ::2, :], 2, axis=-2)
        qkv[...] = jnp.concatenate([q, same(k), same(v)], -2).reshape(qkv.shape)
    want = run(old, TOKENS)
    np.testing.assert_allclose(run(with_kv_heads(old, 2), TOKENS), want, rtol=2e-5, atol=2e-5)
    assert not np.allclose(run(with_kv_heads(trained(**form), 1), TOKENS), want)


def test_as_many_heads_are_the_same_encoder():
    old = trained()
    jax.tree.map(np.testing.assert_array_equal, leaves(with_kv_heads(old, N)), leaves(old))


def test_fewer_again():
    once = with_kv_heads(with_kv_heads(trained(), 2), 1)
    at_once = with_kv_heads(trained(), 1)
    assert once.config == at_once.config
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    jax.tree.map(near, leaves(once), leaves(at_once))


def test_what_cannot_be_pooled_is_named():
    with pytest.raises(ValueError, match="num_kv_heads: expected a divisor of the 4 key heads"):
        with_kv_heads(trained(), 3)
    with pytest.raises(ValueError, match="got True"):
        with_kv_heads(trained(), True)
    causal = trained(head="token", pooling="none").config
    with pytest.raises(TypeError, match="encoder: expected an Encoder, got Decoder"):
        with_kv_heads(Decoder(causal, key=jax.random.key(0)), 2)
    with pytest.raises(NotImplementedError, match="mechanism: Linformer learns key_projection"):
        with_kv_heads(trained(mechanism=Linformer(features=3)), 2)
    with pytest.raises(NotImplementedError, match="mechanism: RWKV7 learns blending for each key"):
        with_kv_heads(trained(mechanism=RWKV7(chunk=4)), 2)
    with pytest.raises(ValueError, match=r"encoder: expected a layer with heads, got GRU and FNet"):
        with_kv_heads(build(heads=N, layers=3, mechanism=(GRU(), FNet(), GRU())), 2)
    bare = trained(mechanism=RWKV7(chunk=4, value_residual=False))
    assert with_kv_heads(bare, 2).config.kv_heads == 2
