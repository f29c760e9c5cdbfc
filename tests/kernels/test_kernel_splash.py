"""Splash attention in the Pallas interpreter against `materialized`, output and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import arrays, same

import attn
from attn import FULL, Causal, Global, Padding, Segments, Strided, Window

# the stand-ins' sums are as rough as unoptimised loops make them
pytestmark = pytest.mark.optimised

RNG = np.random.default_rng(0)
RUNS = Segments(RNG.integers(0, 3, (2, 128)), RNG.integers(0, 4, (2, 200)))
PACKED = np.sort(RNG.integers(0, 3, (2, 150)), -1)
LARGE_IDS = np.array([-(2**31), 0, 2**31 - 1], np.int32)[PACKED]
MASKS = {
    "causal, fewer keys": (256, 128, Causal()),
    "full, padded keys": (128, 150, FULL),
    "window, blind last rows": (256, 128, Window(10, 0)),
    "late causal": (128, 128, Causal(-3)),
    "lengths": (128, 256, Causal() & Padding(jnp.array([0, 70]))),
    "holes and queries": (
        128,
        130,
        Window(3, 60)
        & Padding(keys=RNG.uniform(size=(2, 130)) < 0.1, queries=RNG.uniform(size=(2, 128)) < 0.5),
    ),
    "segments": (128, 200, RUNS),
    "segments, window, lengths": (128, 200, RUNS & Window(2, 1) & Padding(jnp.array([30, 190]))),
    "packed, ids of any size": (150, 150, Causal() & Segments(LARGE_IDS, LARGE_IDS)),
    "two terms": (150, 200, Causal(-3) | Global((4,))),
    "any static mask and lengths": (
        130,
        200,
        (Window(3, 3) | Global((4,))) & Strided(2) & Padding(jnp.array([3, 170])),
    ),
}


@pytest.mark.slow
def test_splash_causal_grouped_heads(stand_ins):
    same(*arrays(130, 130), "splash", mask=Causal())


@pytest.mark.slow
@pytest.mark.parametrize("case", MASKS)
def test_splash_masks_mean_what_was_asked(stand_ins, case):
    T, S, mask = MASKS[case]
    same(*arrays(T, S), "splash", mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
def test_splash_heads(stand_ins, heads):
    N, K = heads
    same(*arrays(128, 128, N=N, K=K), "splash", mask=Causal())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"scale": -0.4}, {"scale": 0.0}, {"logit_cap": 1.5}, {"scale": jnp.array([0.1, 2, -1, 0.5])}],
    ids=str,
)
def test_splash_options(stand_ins, options):
    same(*arrays(128, 128), "splash", mask=Causal(), **options)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 0.25, jnp.full(4, 0.3)], ids=str)
@pytest.mark.parametrize("logits", [1.0, 8.0])
def test_splash_in_bfloat16_keeps_the_contract(stand_ins, logits, scale):
    # q times 8^-0.5, rounded to bfloat16 once more, had rows off by 2.8 eps
    q, k, v = arrays(128, 128, dtype=jnp.bfloat16)
    same(q * logits, k, v, "splash", mask=Causal(), scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_splash_leading_axes(stand_ins, batch):
    same(*arrays(128, 128, batch=batch), "splash", mask=Causal())


@pytest.mark.slow
def test_shard_map_that_tracks_axes_gets_another_or_a_reason(stand_ins):
    # Pallas raised from inside the trace, and with it the default on a TPU
    mesh = jax.make_mesh((1,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("b")

    def run(names, check):
        call = lambda q, k, v: attn.dot_product_attention(q, k, v, implementation=names)
        run = jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)
        return jax.jit(run)

    q, k, v = arrays()
    with pytest.raises(NotImplementedError, match="check_vma=False"):
        run("splash", True)(q, k, v)
    want = run(["splash", "blockwise"], True)(q, k, v)
    np.testing.assert_allclose(run("splash", False)(q, k, v), want, rtol=1e-5, atol=1e-6)
