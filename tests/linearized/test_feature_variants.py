"""RFA, cosFormer, Based, Hedgehog and efficient attention against their papers' definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest

from attn import FULL, Causal, Padding, Segments, dense_weights
from attn.linearized.based import Based
from attn.linearized.cosformer import Cosformer
from attn.linearized.efficient import Efficient, _running
from attn.linearized.feature_maps import orthogonal_features
from attn.linearized.hedgehog import Hedgehog, distillation_loss, hedgehog_attention
from attn.linearized.performer import Performer
from attn.linearized.rfa import RFA, rfa_attention
from attn.testing import inputs, rms
from attn.testing.cases import widen

T, S = 9, 12
RUNS = np.array([[0, 1, 0, 1, 2, 2, 2, 0, 1], [1, 1, 1, 0, 0, 0, 0, 0, 0]])
KEY_RUNS = np.concatenate([RUNS, [[0, 1, 2], [0, 0, 3]]], 1)
PADDING = Padding(jnp.array([7, 12]))
SEGMENTS = Segments(jnp.asarray(RUNS), jnp.asarray(KEY_RUNS))
MASKS = {
    "FULL": FULL,
    "Causal(2)": Causal(2),
    "packed": PADDING & SEGMENTS,
    "all": Causal() & PADDING & SEGMENTS,
}
MASK = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
wide = lambda x: np.asarray(x, np.float64)


def same(mechanism, define, mask, *, room=1, **shape):
    """Call and reference equal `define(q, k, v, seen, arrays)`, batch row by batch row."""
    shape = {"T": T, "S": S, "scale": 2.0, **shape}
    q, k, v, arrays = inputs(mechanism, **shape)
    seen = np.broadcast_to(mask.array(q.shape[1], k.shape[1]), (2, q.shape[1], k.shape[1]))
    gates = mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8)
    rows = lambda r: {n: wide(x[r] if n in gates else x) for n, x in arrays.items()}
    want = [define(*map(wide, (q[r], k[r], v[r])), seen[r], rows(r)) for r in range(2)]
    for form in (mechanism, mechanism.reference):
        got = wide(jax.jit(form)(q, k, v, mask=mask, **arrays))
        assert rms(got - np.stack(want)) / rms(want) < 32 * 2**-23 * room


def fourier(x, w):
    """sin and cos of w . x / |x|, over sqrt(M)."""
    angle = w @ (x / np.sqrt(x @ x + 1e-6))
    return np.concatenate([np.sin(angle), np.cos(angle)]) / np.sqrt(len(w))


@MASK
def test_rfa_is_the_papers(mask):
    w = wide(orthogonal_features(0, 32, 8))

    def define(q, k, v, seen, arrays):
        phi = lambda x, head: fourier(x, w * arrays["sigma"][head])
        weigh = lambda n, head, i, j: phi(q[i, n], head) @ phi(k[j, head], head)
        return oracle.normalised(q, k, v, seen, weigh)

    same(RFA(features=32, chunk=4), define, mask, room=8)


@pytest.mark.parametrize(
    ("mask", "c"), list(zip(MASKS.values(), (0.085, 0.11, 0.15, 0.17), strict=True)), ids=MASKS
)
def test_rfa_with_a_floor_is_the_authors(mask, c):
    """Features times c and normalisers of at least 1; their c is a tenth, these give normalisers on
    both sides of 1 (https://github.com/Noahs-ARK/RFA)."""
    rfa = RFA(features=32, chunk=4, floor=1 / (32 * c**2))
    q, k, v, arrays = inputs(rfa, T=T, S=S, scale=2.0)
    w = arrays["sigma"][:, None] * orthogonal_features(0, 32, 8)
    seen = jnp.asarray(mask.array(T, S))
    seen = seen[:, None] if seen.ndim == 3 else seen

    def features(x, w):
        angle = jnp.einsum("btnh,nmh->btnm", x / jnp.linalg.norm(x, axis=-1, keepdims=True), w)
        return c * jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)

    def weights(q, k):
        twice = lambda x, axis: jnp.repeat(x, 2, axis)
        fq, fk = features(q, twice(w, 0)), twice(features(k, w), 2)
        return jnp.where(seen, jnp.einsum("btnm,bsnm->bnts", fq, fk), 0)

    def define(q, k, v):
        p = weights(q, k)
        p = p / jnp.maximum(p.sum(-1, keepdims=True), 1)
        return jnp.einsum("bnts,bsnd->btnd", p, jnp.repeat(v, 2, 2))

    assert 0.1 < (weights(q, k).sum(-1) < 1).mean() < 0.9
    out_and_gradients = lambda form: jax.jit(
        lambda *x: (form(*x), jax.grad(lambda *x: jnp.sin(form(*x)).sum(), (0, 1, 2))(*x))
    )(q, k, v)
    want = out_and_gradients(define)
    for form in (rfa, rfa.reference):
        got = out_and_gradients(functools.partial(form, mask=mask, **arrays))
        for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_any_number_may_be_the_floor():
    """An integer beyond 32 bits, a float64 of NumPy's; and the smallest where nothing is seen."""
    q, k, v, arrays = inputs(RFA(), T=5, S=5)
    run = lambda floor, mask: RFA(floor=floor, chunk=4)(q, k, v, mask=mask, **arrays)
    np.testing.assert_allclose(run(10**12, FULL) * 1e12, run(1e9, FULL) * 1e9, rtol=1e-5)
    for mask in (Padding(jnp.array([0, 5])), Causal() & Padding(jnp.array([0, 5]))):
        assert (run(1e-30, mask)[0] == 0).all()
    with jax.enable_x64(True):
        rfa = RFA(floor=np.float64(1.5))
        assert rfa.weights(q, k, **arrays).dtype == np.float32


def test_gated_rfa_is_the_papers_recurrence():
    w = wide(orthogonal_features(0, 32, 8))

    def define(q, k, v, seen, arrays):
        phi = lambda x, head: fourier(x, w * arrays["sigma"][head])
        return oracle.gated_rfa(q, k, v, np.exp(arrays["log_decay"]), phi)

    same(RFA(features=32, chunk=4, gated=True), define, Causal(), S=T, room=8)


def test_normalisers_of_gated_rfa_are_at_most_1():
    """So a floor above divides all rows by itself."""
    q, k, v, arrays = inputs(RFA(gated=True), T=5, S=5)
    run = lambda floor: RFA(gated=True, floor=floor)(q, k, v, mask=Causal(), **arrays) * floor
    np.testing.assert_allclose(run(100 / 64), run(1.0), rtol=1e-5)


@pytest.mark.slow
def test_gated_rfa_at_extreme_gates():
    """A gate of 1 writes nothing, one of 0 forgets all; both have gradients."""
    q, k, v, _ = inputs(RFA(), T=6, S=6)
    gate = np.full((2, 6, 4), -0.5, np.float32)
    gate[:, 0], gate[:, 2], gate[:, 4] = 0.0, -np.inf, -1e4

    @jax.jit
    def run(q, k, v, gate):
        return rfa_attention(q, k, v, mask=Causal(), log_decay=gate, features=32, chunk=4)

    out = run(q, k, v, jnp.asarray(gate))
    assert (np.asarray(out[:, 0]) == 0).all()
    for t in (2, 4):  # nothing but the token's own value
        np.testing.assert_allclose(out[:, t], jnp.repeat(v[:, t], 2, -2), rtol=1e-4, atol=1e-5)
    loss = lambda *arrays: (run(*arrays) ** 2).sum()
    grads = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, v, jnp.asarray(gate))
    assert all(np.isfinite(g).all() for g in grads)


def test_gated_rfa_asks_for_causal():
    q, k, v, arrays = inputs(RFA(gated=True))
    with pytest.raises(NotImplementedError, match="Causal"):
        RFA(gated=True)(q, k, v, **arrays)


@MASK
def test_cosformer_is_the_papers(mask):
    causal = mask.take(Causal)[0][0]
    offset = 0 if causal is None else causal.offset

    def define(q, k, v, seen, arrays):
        M = max(T + offset, S)

        def weigh(n, head, i, j):
            distance = np.cos(np.pi / 2 * (i + offset - j) / M)
            return np.maximum(q[i, n], 0) @ np.maximum(k[j, head], 0) * distance

        return oracle.normalised(q, k, v, seen, weigh)

    same(Cosformer(chunk=4), define, mask, room=4)


def test_cosformer_says_when_it_is_too_long():
    cosformer = Cosformer(length=8)
    q, k, v, _ = inputs(cosformer, T=9, S=9)
    with pytest.raises(ValueError, match="length: expected at least 9, got 8"):
        cosformer(q, k, v)
    _, out = cosformer.prefill(q, k, v, max_length=9)
    assert np.isfinite(out[:, :8]).all()
    assert np.isnan(out[:, 8]).all()


@MASK
@pytest.mark.parametrize("window", [0, 3, 9])  # the last holds all keys, without an offset
def test_based_is_softmax_nearby_and_taylor_far_away(window, mask):
    causal = mask.take(Causal)[0][0]
    offset = 0 if causal is None else causal.offset

    def define(q, k, v, seen, arrays):
        def weigh(n, head, i, j):
            s = q[i, n] @ k[j, head] / np.sqrt(8)
            return np.exp(s) if abs(i + offset - j) < window else 1 + s + s**2 / 2

        return oracle.normalised(q, k, v, seen, weigh)

    same(Based(window=window, chunk=4), define, mask)


def test_based_in_a_window_of_all_is_softmax():
    q, k, _, _ = inputs(Based(), T=9, S=9)
    want = dense_weights(q, k, mask=Causal())
    got = Based(window=9).weights(q, k, mask=Causal())
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_based_neither_overflows_nor_underflows_at_large_scores():
    """The first rows see near keys alone: at a score of -900 they once came out as 0."""
    based = Based(window=3, chunk=4)
    q, k, v, _ = inputs(based, T=9, S=9, scale=300.0)
    run = jax.jit(lambda q, k, v: based(q, k, v, mask=Causal()))
    out, want = run(q, k, v), jax.jit(based.reference)(q, k, v, mask=Causal())
    assert rms(out - want) / rms(want) < 1e-3
    np.testing.assert_allclose(out[:, 0], jnp.repeat(v[:, 0], 2, -2), rtol=1e-4)
    grads = jax.jit(jax.grad(lambda *a: (run(*a) ** 2).sum(), (0, 1, 2)))(q, k, v)
    assert all(np.isfinite(g).all() for g in grads)


@MASK
@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_hedgehog_is_the_papers(activation, mask):
    def define(q, k, v, seen, arrays):
        def phi(x, w):
            halves = np.exp([x @ w, -(x @ w)])
            if activation == "softmax":
                halves = halves / halves.sum(-1, keepdims=True)
            return halves.ravel()

        query, key = arrays["query_map"], arrays["key_map"]
        weigh = lambda n, head, i, j: phi(q[i, n], query[n]) @ phi(k[j, head], key[head])
        return oracle.normalised(q, k, v, seen, weigh)

    same(Hedgehog(activation=activation, chunk=4), define, mask)


def test_hedgehog_names_a_wrong_map():
    q, k, v, maps = inputs(Hedgehog())
    with pytest.raises(ValueError, match=r"key_map: expected \[2, 8, 8\], got \[4, 8, 8\]"):
        hedgehog_attention(q, k, v, **{**maps, "key_map": maps["query_map"]})


@pytest.mark.slow
def test_distillation_loss_is_least_at_equality():
    q, k, _, _ = inputs(Hedgehog(), T=6, S=6)
    teacher = dense_weights(q, k, mask=Causal())
    entropy = -np.sum(np.where(teacher > 0, teacher * np.log(np.maximum(teacher, 1e-30)), 0), -1)
    loss = functools.partial(distillation_loss, teacher=teacher)
    np.testing.assert_allclose(loss(teacher), entropy.mean(), rtol=1e-5)
    for seed in range(3):
        other = jax.random.uniform(jax.random.key(seed), teacher.shape) * (teacher > 0)
        mixed = 0.9 * teacher + 0.1 * other / other.sum(-1, keepdims=True)
        assert loss(mixed) > loss(teacher)
    # through logits there is no slope at equality, and none into the teacher
    logits = jnp.log(jnp.maximum(teacher, 1e-30))
    slope = jax.grad(lambda x: loss(jax.nn.softmax(x)))(logits)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    slope = jax.grad(lambda t: distillation_loss(jax.nn.softmax(logits + 1), t))(teacher)
    assert (np.asarray(slope) == 0).all()


def test_a_weight_that_underflowed_counts_as_the_smallest_normal_number():
    teacher = jnp.array([[[[0.25, 0.75]]]])
    student = jnp.array([[[[0.0, 1.0]]]])
    for dtype in (jnp.float32, jnp.bfloat16):
        least = -0.25 * np.log(float(jnp.finfo(dtype).tiny))  # 21.8 in both
        loss, slope = jax.value_and_grad(distillation_loss)(student.astype(dtype), teacher)
        np.testing.assert_allclose(loss, least, rtol=1e-2)
        # a zero does not move by its own logarithm, whose slope is infinite
        np.testing.assert_array_equal(slope, [[[[0, -0.75]]]])


def test_many_rows_in_float16_have_a_finite_mean():
    # their sum, 1.4 for each, is above the largest float16, 65,504
    w = jnp.full((1, 1, 70_000, 4), 0.25, jnp.float16)
    loss, slope = jax.value_and_grad(distillation_loss)(w, w)
    np.testing.assert_allclose(loss, np.log(4), rtol=1e-5)
    np.testing.assert_allclose(slope, -1 / 70_000, rtol=0.01)


@pytest.mark.slow
def test_rows_that_see_nothing_do_not_count():
    q, k, _, maps = inputs(Hedgehog(), T=6, S=6)
    loss = lambda mask: distillation_loss(
        Hedgehog().weights(q, k, mask=mask, **maps), dense_weights(q, k, mask=mask)
    )
    blind = Padding(queries=jnp.broadcast_to(jnp.arange(6) < 3, (2, 6)))
    want = distillation_loss(
        Hedgehog().weights(q[:, :3], k, **maps), dense_weights(q[:, :3], k, mask=FULL)
    )
    np.testing.assert_allclose(loss(blind), want, rtol=1e-5)
    assert loss(Padding(jnp.array([0, 0]))) == 0


def test_a_teacher_that_is_nan_is_not_silent():
    w = jnp.full((2, 3, 4, 5), 0.2)
    assert jnp.isnan(distillation_loss(w, w * jnp.nan))
    assert jnp.isnan(distillation_loss(w, w.at[0, 0, 0, 1].set(jnp.nan)))
    with pytest.raises(TypeError, match=r"^student: expected an array of floats, got int32"):
        distillation_loss(w.astype(int), w)


def test_a_teacher_of_another_shape_is_refused():
    # of one row for a batch of two the mean was twice what it is
    w = jnp.full((2, 3, 4, 5), 0.2)
    with pytest.raises(ValueError, match=r"teacher: expected .* \[2, 3, 4, 5\], got \[3, 4, 5\]"):
        distillation_loss(w, w[0])


@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_distillation_brings_hedgehog_towards_softmax(activation):
    mechanism = Hedgehog(activation=activation)
    q, k, _, maps = inputs(mechanism, T=24, S=24, scale=2.0)
    teacher = dense_weights(q, k, mask=Causal())
    entropy = distillation_loss(teacher, teacher)
    loss = jax.jit(
        lambda maps: (
            distillation_loss(mechanism.weights(q, k, mask=Causal(), **maps), teacher) - entropy
        )
    )
    optimizer = optax.adam(0.02)

    def step(carry, _):
        maps, state = carry
        value, grads = jax.value_and_grad(loss)(maps)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(maps, updates), state), value

    train = lambda maps: jax.lax.scan(step, (maps, optimizer.init(maps)), None, length=300)
    (maps, _), values = jax.jit(train)(maps)
    assert loss(maps) < 0.5 * values[0], (values[0], loss(maps))


@MASK
def test_efficient_is_the_papers(mask):
    define = lambda q, k, v, seen, arrays: oracle.efficient(q, k, v, seen)
    same(Efficient(chunk=4), define, mask)


@pytest.mark.parametrize("S", [1, 2, 4, 5, 10, 17])
def test_a_running_log_sum_exp_begins_again_where_it_is_told_to(S):
    rng = np.random.default_rng(S)
    x, begins = rng.normal(size=(2, S, 1, 3)), rng.random((2, S, 1, 1)) < 0.3
    want, total = np.empty_like(x), np.full((2, 1, 3), -np.inf)
    for i in range(S):
        total = np.logaddexp(np.where(begins[:, i], -np.inf, total), x[:, i])
        want[:, i] = total
    np.testing.assert_allclose(_running(jnp.float32(x), jnp.asarray(begins)), want, 1e-5, 1e-6)


def test_efficient_at_extreme_keys():
    """A key that outweighs all before it, or weighs nothing, exactly; with gradients."""
    q, k, v, _ = inputs(Efficient(), T=6, S=6)
    k = k.at[:, 2].set(1e8).at[:, 4].set(-1e8)
    run = jax.jit(lambda q, k, v: Efficient(chunk=4)(q, k, v, mask=Causal()))
    out = run(q, k, v)
    for t in range(2, 6):
        np.testing.assert_allclose(out[:, t], jnp.repeat(v[:, 2], 2, -2), rtol=1e-5, atol=1e-6)
    grads = jax.jit(jax.grad(lambda *a: (run(*a) ** 2).sum(), (0, 1, 2)))(q, k, v)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("mechanism", [Efficient(chunk=4), Cosformer(length=16, chunk=4)])
def test_prompts_in_parts_equal_the_whole(mechanism):
    q, k, v, _ = inputs(mechanism, T=11, S=11)
    want = jax.jit(mechanism)(q, k, v, mask=Causal())
    step = jax.jit(mechanism.step)
    state = mechanism.init_state(
        (2,), num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6, max_length=11
    )
    parts = []
    for a, b in ((0, 5), (5, 6), (6, 11)):
        state, out = step(state, q[:, a:b], k[:, a:b], v[:, a:b])
        parts.append(out)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Performer, RFA])
def test_features_are_drawn_under_a_guard_against_transfers(kind):
    mechanism = kind(features=6, seed=987)  # of no other test: what is drawn is kept
    q, k, v, learned = inputs(mechanism, T=5, S=5)
    with jax.transfer_guard("disallow"):
        jax.jit(mechanism)(q, k, v, **learned)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [FULL, Causal()], ids=str)
def test_keys_far_from_a_query_send_finite_gradients(mask):
    """A query met 1e-20 of its features, whose square is 0 in float32: training stopped there."""
    rng = np.random.default_rng(0)
    apart = rng.normal(size=8)
    apart *= 24 / np.linalg.norm(apart)
    near = lambda x: jnp.asarray(x + 0.1 * rng.normal(size=(1, 5, 2, 8)), jnp.float32)
    arrays = near(apart), near(-apart), near(0)

    def gradients(attend, *arrays):
        loss = lambda *x: jnp.sin(attend(*x, mask=mask)).sum()
        return jax.grad(loss, (0, 1, 2))(*arrays)

    performer = Performer(features=16)
    found = gradients(performer, *arrays)
    with jax.enable_x64(True):
        exact = jax.tree.map(np.asarray, gradients(performer.reference, *widen(arrays)))
    for a, b in zip(found, exact):
        assert np.linalg.norm(a - b) < 3e-5 * np.linalg.norm(b)


@pytest.mark.parametrize("mask", [FULL, Causal()], ids=str)
def test_keys_whose_square_overflows_are_still_seen(mask):
    # the weight of each was exp(-inf), and the output of a query that sees no other key was 0
    q, k, v, _ = inputs(Performer(), T=5, S=5)
    out = jax.jit(Performer(features=16, chunk=4))(q, 1e25 * k, jnp.ones_like(v), mask=mask)
    np.testing.assert_allclose(out, 1, atol=1e-6)
