"""The decoder's layers in a loop, a scan, tied or rematerialised are one function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_seq2seq import LENGTHS, SOURCE, TARGET, model
from toy_mechanism import jit, run

from attn import FULL, Alibi, Relative
from attn.nn import functional
from attn.nn.score_bias import score_bias

KEY = jax.random.key(7)
FORM = dict(layers=2, positions="rotary", dropout=0.3)


def score_and_gradient(net):
    apply, params = functional(net)

    def loss(params):
        y = apply(params, SOURCE, TARGET, lengths=LENGTHS, dropout_key=KEY)
        return jnp.sin(y).sum(), y

    (_, y), gradient = jit(jax.value_and_grad(loss, has_aux=True))(params)
    return y, gradient


def near(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5), a, b)


def stacked(gradient):
    """The gradient of a loop in the form of a scan's."""
    blocks = [gradient["stack"]["blocks"][i] for i in range(2)]
    return jax.tree.map(lambda *x: jnp.stack(x), *blocks)


@pytest.mark.slow
def test_scan_and_remat_have_the_gradients_of_the_loop():
    y, gradient = score_and_gradient(model(**FORM))
    near(score_and_gradient(model(**FORM, remat=True)), (y, gradient))
    scan, of_scan = score_and_gradient(model(**FORM, scan=True, remat=True))
    near(scan, y)
    near(of_scan["stack"]["blocks"][0], stacked(gradient))
    # what all layers read is told by each of them
    near(of_scan["encoder"], gradient["encoder"])
    near(of_scan["embedding"], gradient["embedding"])


@pytest.mark.slow
def test_tied_layers_have_the_gradients_of_equal_ones():
    untied = model(**FORM)
    first = nnx.state(untied.stack.blocks[0])
    nnx.update(untied.stack.blocks[1], first)
    y, gradient = score_and_gradient(untied)
    for scan in (False, True):
        net = model(**FORM, tied=True, scan=scan)
        nnx.update(net.stack.blocks[0], first)
        tied, of_tied = score_and_gradient(net)
        near(tied, y)
        near(of_tied["stack"]["blocks"][0], jax.tree.map(lambda x: x.sum(0), stacked(gradient)))


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["alibi", "t5"])
def test_greedy_and_beam_of_a_scan_are_those_of_the_loop(positions):
    loop, scan = (model(layers=2, positions=positions, scan=scan) for scan in (False, True))
    how = dict(lengths=LENGTHS)
    tokens = scan.greedy(SOURCE, 6, **how)
    given = jnp.concatenate([jnp.full((3, 1), 2), tokens[:, :-1]], 1)
    np.testing.assert_array_equal(tokens, run(loop, SOURCE, given, **how).argmax(-1))
    one, two = (net.beam(SOURCE, 6, width=3, end=4, **how) for net in (loop, scan))
    np.testing.assert_array_equal(one[0], two[0])
    near(one[1], two[1])


def test_a_rematerialised_decoder_recomputes():
    def text(**changes):
        apply, params = functional(model(**changes))
        return str(jax.make_jaxpr(jax.grad(lambda p: apply(p, SOURCE, TARGET).sum()))(params))

    assert "remat" in text(remat=True)
    assert "remat" not in text()


@pytest.mark.slow
def test_a_bias_is_the_own_of_the_target_and_of_its_past():
    """All buckets of T5's table are for the past, as in its decoder; the source has its own."""
    net = model(positions="t5", source=dict(positions="alibi"))
    bias = net._context(jnp.arange(6), None)["bias"]
    assert isinstance(bias, Relative)
    assert np.unique(bias.array(1, 6)).size == 2  # later keys are all one to it
    assert np.unique(bias.array(6, 6)[0]).size == 6
    assert isinstance(score_bias(net.config.source, None, FULL), Alibi)
    scores = run(net, SOURCE, TARGET)
    net.relative[...] = jnp.zeros_like(net.relative[...])
    moved = abs(run(net, SOURCE, TARGET) - scores).max((0, 2))
    assert moved[0] < 1e-6  # the first token sees itself alone
    assert (moved[1:] > 1e-4).all()
