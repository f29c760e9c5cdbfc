"""The engine of the linearized family: its three forms agree, states carry gradients, sums of gates
are exact, and what overflows stays where it is seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn.linearized import _decays, _sums
from attn.linearized._family import Linearized
from attn.testing import assert_close, inputs

FAMILY = {
    name: kind.examples()[0]
    for name, kind in attn.MECHANISMS.items()
    if issubclass(kind, Linearized)
}


@pytest.mark.parametrize("name", sorted(FAMILY.keys() - {"based"}))
def test_chunks_matrix_and_token_loop_agree(name):
    m = FAMILY[name]
    q, k, v, learned = inputs(m, T=21, S=21)
    close = functools.partial(assert_close, dtype=jnp.float32, room=m.room)
    call, by_matrix = jax.jit(m), jax.jit(m.reference)
    loop = jax.jit(m.loop)(q, k, v, **learned)
    close(call(q, k, v, mask=attn.Causal(), **learned), loop, what="chunks against the loop")
    close(by_matrix(q, k, v, mask=attn.Causal(), **learned), loop, what="matrix against the loop")


@pytest.mark.parametrize("name", sorted(FAMILY.keys() - {"based"}))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_token_loop_of_narrow_tokens_is_narrow_under_x64(name, dtype):
    m = FAMILY[name]
    q, k, v, learned = inputs(m, T=3, S=3, dtype=jnp.dtype(dtype))
    with jax.enable_x64(True):
        out = jax.eval_shape(m.loop, q, k, v, **learned)
    assert out.dtype == jnp.float32


def test_a_batch_without_order_is_taken_in_chunks_of_so_many_features():
    """A chunk had 1,024 tokens of each row: with 8 rows of 256 features 233 MB, not 50, which the
    kernel clears at each call unless it is kept. 1,025 tokens took two such chunks."""
    assert [_sums.chunk_of(T, 64, 16) for T in (64, 1024, 1025)] == [64, 1024, 513]
    assert _sums.chunk_of(1024, 8 * 4 * 256, 16) == 64  # at 2 MB of features
    assert _sums.chunk_of(1024, 8 * 4 * 256, 64) == 256  # above it, as the sums are large too

    m = attn.Performer(features=200)
    q, k, v, _ = inputs(m, T=131, S=131, batch=(8,), K=4)  # 2 chunks; of a row alone 1
    loss = lambda q, k, v: jnp.sin(m(q, k, v)).sum()
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    rows = [gradients(*(x[i : i + 1] for x in (q, k, v))) for i in (0, 7)]
    for got, *alone in zip(gradients(q, k, v), *rows):
        assert_close(got[jnp.array([0, 7])], jnp.concatenate(alone), dtype=jnp.float32, what="rows")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "gla", "gated_delta_net", "rwkv7"])
def test_gradients_pass_through_a_state_carried_across_a_split(name):
    m = FAMILY[name]
    q, k, v, learned = inputs(m, T=19, S=19)
    gates = m.gate_shapes(num_heads=4, num_kv_heads=2, head_dim=8)

    def whole(q, k, v, learned):
        return jnp.sin(m(q, k, v, mask=attn.Causal(), **learned)).sum()

    def split(q, k, v, learned):
        sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": v.shape[-1]}
        state, total = m.init_state((2,), **sizes, max_length=19), 0.0
        for piece in (slice(0, 7), slice(7, 8), slice(8, 19)):
            cut = lambda x: x[:, piece]
            arrays = {n: cut(x) if n in gates else x for n, x in learned.items()}
            state, out = m.step(state, cut(q), cut(k), cut(v), **arrays)
            total += jnp.sin(out).sum()
        return total

    with jax.default_matmul_precision("highest"):
        grads = [
            jax.jit(jax.grad(f, argnums=(0, 1, 2, 3)))(q, k, v, learned) for f in (whole, split)
        ]
    check = functools.partial(assert_close, dtype=jnp.float32, kind="gradient", what=name)
    jax.tree.map(lambda a, b: check(b, a), *grads)


@pytest.mark.parametrize("own", [True, False])
def test_a_gate_of_minus_ten_thousand_leaves_what_follows_it_exact(own):
    rng = np.random.default_rng(0)
    rows, keys = rng.normal(size=(2, 16, 3)), rng.normal(size=(16, 3))
    g = -rng.uniform(0.001, 0.1, size=(16, 3))
    g[5] = -1e4
    between = lambda i, j: g[j + 1 : i + 1 if own else i].sum(0)
    want = np.zeros((2, 16, 16))
    for i in range(16):
        for j in range(i + 1 if own else i):
            want[:, i, j] = (rows[:, i] * keys[j] * np.exp(between(i, j))).sum(-1)
    seen = np.tri(16, k=0 if own else -1)
    single = [jnp.asarray(x, jnp.float32) for x in (rows, keys, g)]
    got = _decays.per_channel(*single, own)[0] * seen
    assert_close(got, want, dtype=jnp.float32, what="per channel")
    alike = np.broadcast_to(g[:, :1], g.shape)
    one = jnp.asarray(g[:, 0], jnp.float32)
    got = _decays.per_head(single[0], single[1], one, own, seen == 1)[0]
    again = (
        _decays.per_channel(single[0], single[1], jnp.asarray(alike, jnp.float32), own)[0] * seen
    )
    assert_close(got, again, dtype=jnp.float32, what="per head against per channel")


def test_differences_of_running_sums_would_not_be_exact():
    g = -np.full(16, 0.05, np.float32)
    g[5] = -1e4
    sums = np.cumsum(g)
    assert abs(np.exp(sums[15] - sums[6]) - np.exp(g[7:].sum())) > 1e-4


def test_the_gradient_by_hand_of_decayed_scores_is_that_of_their_definition():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        rows, keys = jnp.asarray(rng.normal(size=(2, 8, 3))), jnp.asarray(rng.normal(size=(8, 3)))
        g = -jnp.asarray(rng.uniform(size=(8, 3)))
        seen = np.tri(8)

        def definition(rows, keys, g, own):
            upto = jnp.cumsum(g, 0)
            decay = jnp.exp(jnp.where(seen[..., None] == 1, upto[:, None] - upto[None], 0))
            a = jnp.einsum("rim,jm,ijm->rij", rows, keys, decay) * seen
            kept = keys * jnp.exp(upto[-1] - upto)
            return a, rows * jnp.exp(upto), kept, jnp.exp(upto[-1])

        def loss(scores, *arrays):
            a, now, kept, total = scores(*arrays, True)
            return sum(jnp.sin(x).sum() for x in (a * seen, now, kept, total))

        grads = [
            jax.jit(jax.grad(functools.partial(loss, f), argnums=(0, 1, 2)))(rows, keys, g)
            for f in (_decays.per_channel, definition)
        ]
        for a, b in zip(*grads):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_what_overflows_in_the_future_is_not_seen():
    m = attn.DeltaNet(l2_norm=False, chunk=8)
    q, k, v, learned = inputs(m, T=11, S=11)
    call = jax.jit(lambda k: m(q, k, v, mask=attn.Causal(), **learned))
    huge = call(k.at[:, 4:].multiply(1e12))
    np.testing.assert_array_equal(huge[:, :4], call(k)[:, :4])
    assert np.isnan(np.asarray(huge[:, -1])).all()


def test_what_needs_causal_says_so():
    q, k, v, learned = inputs(attn.KDA())
    with pytest.raises(NotImplementedError, match="Causal"):
        attn.kda_attention(q, k, v, **learned)
    with pytest.raises(ValueError, match=r"beta: expected \[2, 19, 4\], got nothing"):
        attn.KDA()(q, k, v, mask=attn.Causal(), log_decay=learned["log_decay"])


def test_a_learned_array_of_another_shape_is_named():
    m = attn.RWKV6()
    q, k, v, learned = inputs(m)
    with pytest.raises(ValueError, match=r"bonus: expected \[4, 8\], got \[8\]"):
        m(q, k, v, **{**learned, "bonus": learned["bonus"][0]})


@pytest.mark.parametrize("m", [attn.GatedDeltaNet(), attn.RWKV7()], ids=repr)
def test_the_definition_calls_no_triangular_solve(m):
    """Large ones hang: the threads of the BLAS and XLA's wait for each other."""
    q, k, v, learned = inputs(m, T=5, S=5)
    total = lambda *qkv: m.reference(*qkv, mask=attn.Causal(), **learned).sum()
    assert "triangular_solve" not in str(jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(q, k, v))
