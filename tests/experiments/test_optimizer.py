"""Weight decay shrinks matrices, and nothing that starts where its paper starts it for a reason."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attn import MECHANISMS, RWKV7, Mamba2, Reformer, Routing
from attn.nn import Bahdanau, Encoder, EncoderConfig, LSTMNSeq2Seq, LuongSeq2Seq
from attn.nn.functional import learned
from experiments.optimizer import FIXED, KEPT, decays

SHRUNK = {
    *("kernel", "qkv", "out", "out_gate", "down", "up", "w1", "w2", "logits", "score_vector"),
    *("query_projection", "key_projection", "value_projection", "query_map", "key_map", "sorting"),
    *("key_down", "key_up", "value_down", "value_up", "conv", "control"),
    *("logit_mixing", "weight_mixing", "position_projection", "position_vector"),
    *("key_kernel", "value_kernel", "key_pool", "value_pool"),
}


def shrinking(mechanism, **changes) -> dict[tuple[str, ...], bool]:
    """Whether each array of an encoder around a mechanism decays, by the names on its path."""
    sizes = dict(vocab_size=5, max_length=8, classes=3, layers=2, width=8, heads=2, mlp_width=8)
    how = dict(mechanism=mechanism, head="token", pooling="none", **changes)
    model = nnx.eval_shape(lambda: Encoder(EncoderConfig(**sizes, **how), key=jax.random.key(0)))
    found = jax.tree.leaves_with_path(decays(nnx.state(model)))
    name = lambda part: str(getattr(part, "key", getattr(part, "name", "")))
    return {tuple(map(name, path)): shrinks for path, shrinks in found}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("mechanism", [RWKV7(), Mamba2()], ids=lambda m: m.name)
def test_matrices_decay_and_biases_scales_rates_and_shares_do_not(mechanism, scan):
    for path, shrinks in shrinking(mechanism, scan=scan).items():
        assert shrinks == (not KEPT & set(path)), path


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_array_is_known_to_decay_or_not_to(name):
    """An array of a new variant is put on one of the two lists."""
    for example in MECHANISMS[name].examples():
        for path, shrinks in shrinking(example).items():
            assert (SHRUNK if shrinks else KEPT) & set(path), path


@pytest.mark.parametrize("family", [Bahdanau, LuongSeq2Seq, LSTMNSeq2Seq])
def test_tables_of_recurrent_models_do_not_decay(family):
    more = {"max_length": 7} if family is LSTMNSeq2Seq else {}
    build = lambda: family(vocab_size=5, classes=4, width=6, **more, key=jax.random.key(0))
    shrinks = decays(nnx.state(nnx.eval_shape(build)))
    for table in ("source_table", "target_table"):
        assert jax.tree.leaves(shrinks[table]) == [False]
    assert any(jax.tree.leaves(shrinks))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Reformer(buckets=4, chunk=4), Routing(clusters=2, window=4)])
def test_what_no_gradient_reaches_is_not_counted_as_learned(mechanism):
    sizes = dict(vocab_size=5, max_length=8, classes=3, layers=1, width=8, heads=2, mlp_width=8)
    model = Encoder(EncoderConfig(**sizes, mechanism=mechanism), key=jax.random.key(0))
    graph, params = nnx.split(model)
    tokens = jnp.arange(24).reshape(3, 8) % 5
    loss = lambda params: jnp.square(nnx.merge(graph, params)(tokens)).sum()
    gradient = jax.tree.leaves_with_path(jax.grad(loss)(params))
    fixed = [(path, x) for path, x in gradient if any(name in str(path) for name in FIXED)]
    assert fixed
    assert not any(x.any() for _, x in fixed)
    total = sum(x.size for _, x in gradient)
    assert learned(params) == total - sum(x.size for _, x in fixed)
