"""Top-k attention: the exact k largest scores that are seen, ties to the earlier key."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Causal, Padding
from attn.sparse import topk
from attn.sparse._select import best
from attn.sparse.topk import TopK, topk_attention
from attn.testing import inputs


def by_sorting(q, k, v, keys, seen):
    """The definition in loops: a stable sort of the seen scores, softmax over the first `keys`."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, T, N, H), G = q.shape, q.shape[2] // k.shape[2]
    out = np.zeros((B, T, N, v.shape[-1]))
    for b, t, n in np.ndindex(B, T, N):
        score = {j: q[b, t, n] @ k[b, j, n // G] / H**0.5 for j in np.flatnonzero(seen[b, t])}
        kept = sorted(score, key=lambda j: -score[j])[:keys]
        if kept:
            e = np.exp([score[j] - score[kept[0]] for j in kept])
            out[b, t, n] = e / e.sum() @ v[b, kept, n // G]
    return out


@pytest.mark.parametrize(("T", "S", "keys"), [(7, 19, 4), (19, 7, 1), (5, 5, 9)])
def test_equals_a_sort_with_padding(T, S, keys):
    q, k, v, _ = inputs(TopK(keys=keys), T=T, S=S, scale=3.0)
    lengths = np.array([S - 2, S])
    k = jnp.where((np.arange(S) < lengths[:, None])[..., None, None], k, jnp.nan)
    mask = Causal() & Padding(jnp.asarray(lengths))
    want = by_sorting(q, jnp.nan_to_num(k), v, keys, np.asarray(mask.array(T, S)))
    np.testing.assert_allclose(TopK(keys=keys)(q, k, v, mask=mask), want, rtol=0, atol=2e-6)


def test_ties_go_to_the_earlier_key():
    w = TopK(keys=3).weights(jnp.ones((1, 2, 1, 4)), jnp.ones((1, 6, 1, 4)))
    np.testing.assert_allclose(w[0, 0], np.tile([1 / 3] * 3 + [0] * 3, (2, 1)), rtol=1e-6)
    far = jnp.asarray([0.0, 1, 2, 1, 1, 0])[None, :, None, None]
    w = TopK(keys=2).weights(jnp.ones((1, 1, 1, 1)), far)
    assert [bool(x) for x in w[0, 0, 0] > 0] == [False, True, True, False, False, False]


@pytest.mark.optimised
def test_scores_of_0_tie_whatever_their_sign():
    """XLA ranks 0 above -0: the second 0 came after all four, which then were kept instead of 2."""
    k = jnp.asarray([-0.0, 0.0, -0.0, 0.0, -1.0])[None, :, None, None]
    q, v = jnp.ones((1, 1, 1, 1)), jnp.eye(5)[None, :, None]
    w = jax.jit(TopK(keys=2))(q, k, v)[0, 0, 0]
    assert [bool(x) for x in w > 0] == [True, True, False, False, False]
    may = jnp.ones(5, bool)
    assert jax.jit(best, static_argnums=(2, 3))(k.ravel(), may, False, 2).tolist() == [0, 1]


def test_exactly_so_many_keys_matter_and_get_a_gradient():
    q, k, v, _ = inputs(TopK(), T=1, S=19, batch=(1,), N=1, K=1)
    loss = lambda k, v: (topk_attention(q, k, v, keys=5) ** 2).sum()
    for grad in jax.grad(loss, argnums=(0, 1))(k, v):
        assert ((grad != 0).any(-1).sum()) == 5


def test_chunks_equal_one_chunk(replaced):
    q, k, v, _ = inputs(TopK(), T=37, S=23)
    whole = topk_attention(q, k, v, keys=4, mask=Causal())
    replaced(topk._attend, topk, "chunk_size", lambda numbers: 8)
    parts = topk_attention(q, k, v, keys=4, mask=Causal())
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("keys", [0, -1, 2.0, True])
def test_bad_settings_are_named(keys):
    with pytest.raises(ValueError, match="keys"):
        TopK(keys=keys)
    with pytest.raises(ValueError, match="keys"):
        topk_attention(*inputs(TopK())[:3], keys=keys)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="what XLA's CPU backend makes of it")
def test_no_row_is_sorted():
    """XLA made a sort of each row where of the largest only the last was asked for."""
    q, k, v, _ = inputs(TopK(keys=4), T=19, S=19)
    compiled = jax.jit(TopK(keys=4)).lower(q, k, v).compile().as_text()
    assert " sort(" not in compiled
    assert "TopK" in compiled


TWO = """
import jax, numpy as np
import attn
from attn.testing import inputs
from jax.sharding import AxisType, PartitionSpec as P
m = attn.TopK(keys=2)
q, k, v, _ = inputs(m, T=5, S=5)
mesh = jax.make_mesh((2,), ("b",), axis_types=(AxisType.Auto,))
both = jax.shard_map(m, mesh=mesh, in_specs=P("b"), out_specs=P("b"))
np.testing.assert_allclose(jax.jit(both)(q, k, v), m(q, k, v), atol=1e-6)
"""


@pytest.mark.slow
def test_two_devices_share_the_batch():
    """XLA's check of what follows its TopK failed there, and ended the process."""
    flags = "--xla_force_host_platform_device_count=2"
    told = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", TWO], check=True, env=told)


def test_what_is_not_finite_shows_in_steps_as_in_the_whole():
    """Decoding lost it where it was not among the largest, and a value of the largest with it."""
    mechanism, T = TopK(keys=2), 5
    q, k, v, _ = inputs(mechanism, T=T, S=T)
    state, step = mechanism.prefill(q[:, :0], k[:, :0], v[:, :0], max_length=T)[0], mechanism.step
    for spoilt in (k.at[:, 1].set(jnp.nan), v), (k, v.at[:, 1].set(jnp.inf)):
        now, outs = state, []
        for t in range(T):
            now, out = step(now, *(x[:, t : t + 1] for x in (q, *spoilt)))
            outs.append(out)
        seen = np.arange(T)[:, None, None] >= 1
        for each in (mechanism(q, *spoilt, mask=Causal()), jnp.concatenate(outs, 1)):
            assert (np.isnan(each) == seen).all()
