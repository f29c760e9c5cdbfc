"""Variants with weights of their own: against the papers, by blocks; and wrong ones are caught."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from tiers import at_once

import attn
from attn import FULL, Causal, Padding, Prefix, Segments, Window
from attn._core import dots
from attn._tokens import blocks_first
from attn.dense import _rows, luong
from attn.testing import inputs, rms
from attn.testing.trying import buffer_shapes, with_gradients

T, S = 9, 12
LENGTHS = np.array([7, 12])
RUNS = np.array([[0, 1, 0, 1, 2, 2, 2, 0, 1], [1, 1, 1, 0, 0, 0, 0, 0, 0]])
KEY_RUNS = np.concatenate([RUNS, [[0, 1, 2], [0, 0, 3]]], 1)
MASKS = {
    "FULL": FULL,
    "Causal": Causal(),
    "Padding": Padding(jnp.asarray(LENGTHS)),
    "Segments": Segments(jnp.asarray(RUNS), jnp.asarray(KEY_RUNS)),
    "all": Causal()
    & Padding(jnp.asarray(LENGTHS))
    & Segments(jnp.asarray(RUNS), jnp.asarray(KEY_RUNS)),
}


def same(mechanism, define, name, *, larger=1.0):
    """Call and reference equal `define(q, k, v, seen, row, learned)`, batch row by batch row."""
    mask, (q, k, v, learned) = MASKS[name], inputs(mechanism, T=T, S=S, scale=2.0)
    learned = {n: x * larger for n, x in learned.items()}
    seen = np.broadcast_to(mask.array(T, S), (2, T, S))
    wide = lambda x: np.asarray(x, np.float64)
    exact = {n: wide(x) for n, x in learned.items()}
    want = np.stack([define(*map(wide, (q[r], k[r], v[r])), seen[r], r, exact) for r in range(2)])
    for form in (mechanism, mechanism.reference):
        got = wide(jax.jit(form)(q, k, v, mask=mask, **learned))
        assert rms(got - want) / rms(want) < 32 * 2**-23


@pytest.mark.parametrize("name", MASKS)
def test_additive_is_bahdanaus(name):
    names = ("query_projection", "key_projection", "score_vector")
    define = lambda q, k, v, m, row, a: oracle.additive(q, k, v, m, *(a[n] for n in names))
    same(attn.Additive(hidden=5, block=4), define, name)


@pytest.mark.parametrize("name", at_once(MASKS, ("FULL", "all")))
@pytest.mark.parametrize("local", luong.LOCALS)
@pytest.mark.parametrize("score", luong.SCORES)
def test_luong_is_the_papers(score, local, name):
    same_luong(attn.Luong(score=score, local=local, window=2), name)


def same_luong(mechanism, name):
    def define(q, k, v, m, row, learned):
        real = LENGTHS[row] if name in ("Padding", "all") else S
        return oracle.luong(q, k, v, m, mechanism.score, mechanism.local, 2, real, learned)

    # larger than drawn: positions would all lie near the middle
    same(mechanism, define, name, larger=2.0)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("length", [None, 40])
def test_sigmoid_has_the_papers_bias(length, name):
    same_sigmoid(attn.Sigmoid(length=length), name)


def same_sigmoid(mechanism, name):
    b = -np.log(mechanism.length or S)
    define = lambda q, k, v, m, *_: oracle.pointwise(q, k, v, m, lambda s: 1 / (1 + np.exp(-s - b)))
    same(mechanism, define, name)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("power", [1, 2])
def test_relu_is_divided_by_the_length(power, name):
    define = lambda q, k, v, m, *_: oracle.pointwise(
        q, k, v, m, lambda s: max(s, 0.0) ** power / 40
    )
    same(attn.Relu(power=power, length=40), define, name)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", ["dense", "random"])
def test_synthesizer_reads_no_keys(kind, name):
    define = lambda q, k, v, m, row, learned: oracle.synthesizer(q, v, m, learned)
    same(attn.Synthesizer(kind=kind), define, name)


@pytest.mark.slow
def test_the_slope_of_relu_at_zero_is_zero_in_the_definition_too():
    # where a query is 0, as biases start: half of it came back by jnp.maximum
    mechanism = attn.Synthesizer()
    q, *others = inputs(mechanism, T=5, S=5)
    slope = lambda f: with_gradients(f)((q * 0, *others), FULL, None)[1][0]
    (dq, *_, learned), of_definition = slope(mechanism), slope(mechanism.reference)
    assert not dq.any()
    assert not of_definition[0].any()
    np.testing.assert_array_equal(learned["b1"], of_definition[3]["b1"])


EVERY = [
    attn.Additive(hidden=3),
    attn.Luong(score="general", local="p", window=3),
    attn.Sigmoid(),
    attn.Relu(power=1),
    attn.Synthesizer(),
    attn.Synthesizer(kind="random"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "mask"),
    [(m, Causal()) for m in EVERY] + [(EVERY[2], FULL), (EVERY[2], Window(5, 2) | Prefix(1))],
    ids=repr,
)
def test_blocks_change_nothing(mechanism, mask):
    # 37 rows by twos: four groups of blocks, each with a run of keys of its own length
    arrays = inputs(mechanism, T=37, S=37)
    bias = attn.Alibi(jnp.array([0.1, 0.2, 0.3, 0.4]))

    def run(block):
        sized = dataclasses.replace(mechanism, block=block, dropout_rate=0.3)
        call = functools.partial(sized, dropout_key=jax.random.key(0))
        return jax.jit(lambda arrays: with_gradients(call)(arrays, mask, bias))(arrays)

    for one, two in zip(jax.tree.leaves(run(None)), jax.tree.leaves(run(2))):
        assert rms(one - two) <= 64 * 2**-23 * rms(one)


@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_nan_in_the_future_reaches_no_gradient_of_the_past(mechanism):
    # block by block and without jit: a compiler drops rows that a whole program does not ask for
    q, k, v, learned = inputs(mechanism, T=11, S=11)
    mechanism = dataclasses.replace(mechanism, block=4)
    past = lambda q, k, v: (mechanism(q, k, v, mask=Causal(), **learned)[:, :5] ** 2).sum()
    dirty = jax.grad(past, argnums=(0, 1, 2))(*(x.at[:, 5:].set(jnp.nan) for x in (q, k, v)))
    for got, want in zip(dirty, jax.grad(past, argnums=(0, 1, 2))(q, k, v)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_nan_in_a_visible_value_makes_its_queries_nan(mechanism):
    q, k, v, learned = inputs(mechanism)
    v = v.at[0, 3, 0, 0].set(jnp.inf)
    out = jax.jit(mechanism)(q, k, v, mask=Causal(), **learned)
    w = jax.jit(mechanism.weights)(q, k, mask=Causal(), **learned)
    seen = np.asarray(w != 0)[0, :2, :, 3]
    seen = seen | (isinstance(mechanism, attn.Relu) & (np.arange(19) >= 3))  # seen at weight 0
    assert (np.isnan(out).all(-1)[0, :, :2].T == seen).all()
    assert np.isfinite(out[1]).all()
    assert np.isfinite(out[0, :, 2:]).all()


def test_local_p_is_a_gaussian_around_the_predicted_position():
    # one head, W and a such that p = S sigmoid(q): the paper's equations 9 and 10 by hand
    q = jnp.arctanh(jnp.array([-0.9, -0.2, 0.0, 0.5]))[:, None, None]
    k, v = jnp.zeros((20, 1, 1)), jnp.eye(20)[:, None]
    one = {"position_projection": jnp.ones((1, 1, 1)), "position_vector": jnp.full((1, 1), 2.0)}
    w = attn.luong_attention(q, k, v, local="p", window=4, **one)[:, 0]
    p = 20 / (1 + np.exp(-2 * np.array([-0.9, -0.2, 0.0, 0.5])))
    j = np.arange(20)
    near = np.abs(j - p[:, None]) <= 4
    want = near / near.sum(1, keepdims=True) * np.exp(-((j - p[:, None]) ** 2) / (2 * 2.0**2))
    np.testing.assert_allclose(w, want, rtol=1e-5, atol=1e-7)
    assert (w.sum(1) < 0.7).all()  # not renormalised
    only = lambda mask: attn.luong_attention(q, k, v, local="p", window=4, mask=mask, **one)[2, 0]
    assert only(Padding(jnp.array(10))).argmax() == 5  # the middle of what is real
    assert only(Padding(keys=jnp.arange(20) >= 10)).argmax() == 15


@pytest.mark.parametrize("local", ["m", "p", None])
def test_luong_of_no_keys_is_nothing(local):
    for mechanism in (attn.Luong(local=local, window=3), attn.Luong(score="general", local=local)):
        (q, k, v), learned = arrays_of(mechanism)
        lengths = Padding(jnp.zeros(len(q), jnp.int32))
        for call in (mechanism, mechanism.reference):
            assert not call(q, k[:, :0], v[:, :0], mask=lengths, **learned).any()


@pytest.mark.parametrize("local", ["m", None])
def test_luong_dot_is_softmax_unscaled(local):
    q, k, v, _ = inputs(attn.Luong())
    mask = Window(3, 3) if local else FULL
    want = attn.dot_product_attention(q, k, v, mask=mask, scale=1.0)
    got = attn.luong_attention(q, k, v, local=local, window=3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_sigmoid_weights_sum_to_about_one_whatever_the_length():
    for n in (16, 1024):
        q, k, _, _ = inputs(attn.Sigmoid(), T=4, S=n, scale=0.1)
        np.testing.assert_allclose(attn.Sigmoid().weights(q, k).sum(-1), 1, atol=0.1)


@pytest.mark.parametrize("hidden", [16])
def test_additive_never_holds_a_hidden_layer_of_all_pairs(hidden):
    length = 2048
    mechanism = attn.Additive(hidden=hidden)
    q, k, v, learned = inputs(mechanism, T=length, S=length, batch=(1,), N=2, K=1)
    run = lambda *a: with_gradients(mechanism)(a, Causal(), None)
    shapes = list(buffer_shapes(jax.make_jaxpr(run)(q, k, v, learned).jaxpr))
    assert max(np.prod(shape, dtype=float) for shape in shapes) < length * length / 4


def decoded(mechanism, q, k, v, learned, *, prompt, size):
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
    state, out = mechanism.init_state((2,), max_length=size, **sizes), []
    step = jax.jit(mechanism.step)
    if prompt:
        prefill = jax.jit(mechanism.prefill, static_argnames="max_length")
        state, first = prefill(*(x[:, :prompt] for x in (q, k, v)), max_length=size, **learned)
        out.append(first)
    for t in range(prompt, q.shape[1]):
        state, one = step(state, *(x[:, t : t + 1] for x in (q, k, v)), **learned)
        out.append(one)
    return jnp.concatenate(out, 1)


DECODES = [m for m in EVERY if not isinstance(m, attn.Luong)]
DECODES += [attn.Luong(score="concat"), attn.Luong(score="general", local="m", window=2)]


@pytest.mark.parametrize("mechanism", DECODES, ids=repr)
def test_a_prompt_at_once_equals_its_tokens_one_by_one(mechanism):
    q, k, v, learned = inputs(mechanism, T=7, S=7)
    v = v.at[0, 6].set(jnp.nan)
    one = decoded(mechanism, q, k, v, learned, prompt=0, size=9)
    np.testing.assert_allclose(
        decoded(mechanism, q, k, v, learned, prompt=4, size=9), one, rtol=2e-5, atol=2e-6
    )
    assert np.isfinite(one[1]).all()
    assert np.isnan(one[0, 6]).all()


def test_a_full_cache_says_so_and_a_window_goes_round():
    for mechanism, full in ((attn.Relu(), True), (attn.Luong(local="m", window=2), False)):
        q, k, v, learned = inputs(mechanism, T=6, S=6)
        out = decoded(mechanism, q, k, v, learned, prompt=0, size=5)
        assert np.isnan(out[:, 5]).all() == full
        assert np.isfinite(out[:, :5]).all()


def arrays_of(mechanism, **shape):
    q, k, v, learned = inputs(mechanism, **shape)
    return (q, k, v), learned


ERRORS = [
    ("hidden", lambda: attn.Additive(hidden=0)),
    ("score", lambda: attn.Luong(score="cosine")),
    ("local", lambda: attn.Luong(local="q")),
    ("window", lambda: attn.Luong(window=0)),
    ("length", lambda: attn.Sigmoid(length=0)),
    ("power", lambda: attn.Relu(power=3)),
    ("length", lambda: attn.Relu(length=-1)),
    ("kind", lambda: attn.Synthesizer(kind="factorized")),
    ("hidden", lambda: attn.Synthesizer(kind="random", hidden=3)),
    ("dropout_rate", lambda: attn.Relu(dropout_rate=1.0)),
    ("block", lambda: attn.Sigmoid(block=0)),
]


@pytest.mark.parametrize(("name", "make"), ERRORS)
def test_wrong_settings_are_named(name, make):
    with pytest.raises(ValueError, match=f"^{name}:"):
        make()


def test_wrong_arrays_are_named():
    (q, k, v), learned = arrays_of(attn.Additive())
    with pytest.raises(ValueError, match=r"^key_projection: expected \[1, 8, 8\], got"):
        attn.additive_attention(q, k[:, :, :1], v[:, :, :1], **learned)
    with pytest.raises(ValueError, match=r"^score_projection: expected an array .* got None"):
        attn.luong_attention(q, k, v, score="general")
    with pytest.raises(ValueError, match=r"^query_projection: expected None"):
        attn.luong_attention(q, k, v, query_projection=learned["query_projection"])
    with pytest.raises(ValueError, match=r"^position_projection: expected an array"):
        attn.luong_attention(q, k, v, local="p")
    with pytest.raises(ValueError, match=r"^dropout_key"):
        attn.relu_attention(q, k, v, dropout_rate=0.1)
    with pytest.raises(NotImplementedError, match="local='p' does not decode"):
        attn.Luong(local="p").prefill(q, k, v, max_length=30)


@pytest.mark.parametrize("kind", ["dense", "random"])
def test_synthesizer_knows_how_long_it_was_made_for(kind):
    mechanism = attn.Synthesizer(kind=kind)
    (q, k, v), learned = arrays_of(mechanism, T=5, S=5)
    (_, k, v), _ = arrays_of(mechanism, T=5, S=9)
    with pytest.raises(ValueError, match=r"^k: expected a length of at most 8.* got 9"):
        mechanism(q, k, v, **learned)
    other = attn.Synthesizer(kind="random" if kind == "dense" else "dense")
    name = sorted(learned)[0]
    with pytest.raises(TypeError, match=f"^{name}: Synthesizer takes .* with these settings"):
        other(q, k, v, **learned)


# wrong implementations, each with the oracle that must catch it


def mutated(mechanism, name, wrong):
    """The mechanism with one function replaced while it is called (not in its reference)."""

    class Mutant(type(mechanism)):
        def __call__(self, *args, **kwargs):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(name, wrong)
                _rows._attend.clear_cache()  # neither what was traced before, nor this afterwards
                try:
                    return super().__call__(*args, **kwargs)
                finally:
                    _rows._attend.clear_cache()

    return Mutant(**{f.name: getattr(mechanism, f.name) for f in dataclasses.fields(mechanism)})


class Renormalised(attn.Luong):
    """The Gaussian's rows sum to 1 again."""

    def __call__(self, q, k, v, *, mask=FULL, **learned):
        w = self.weights(q, k, mask=mask, **learned)
        w = w / jnp.maximum(w.sum(-1, keepdims=True), 1e-9)
        return jnp.einsum("bnts,bsnd->btnd", w, jnp.repeat(v, 2, axis=-2))


LOCAL_P = {"local": "p", "window": 2}
MUTANTS = [
    (Renormalised(**LOCAL_P), same_luong, "FULL"),
    (
        mutated(
            attn.Luong(**LOCAL_P), "attn.dense._alignment._gaussian", lambda d, _: jnp.ones_like(d)
        ),
        same_luong,
        "FULL",
    ),
    (
        mutated(
            attn.Luong(**LOCAL_P),
            "attn.dense.luong.real_keys",
            lambda _, S: (jnp.int32(0), jnp.int32(S)),
        ),
        same_luong,
        "Padding",
    ),
    (
        mutated(
            attn.Luong(score="concat", window=2),
            "attn.dense._rows.tanh_scores",
            lambda u, x, v: dots(u * v, x * 0 + 1) + dots(u * 0 + v, x),
        ),
        same_luong,
        "FULL",
    ),
    (
        mutated(
            attn.Sigmoid(),
            "attn.dense.sigmoid._sigmoid",
            lambda s, seen, shift: jnp.where(seen, jax.nn.sigmoid(s), 0),
        ),
        same_sigmoid,
        "FULL",
    ),
]


@pytest.mark.parametrize(("mutant", "same_as_paper", "mask"), MUTANTS)
def test_mutant_is_caught(mutant, same_as_paper, mask):
    with pytest.raises(AssertionError):
        same_as_paper(mutant, mask)


def test_a_dropout_mask_that_starts_again_in_each_block_is_caught():
    def again(x, size):
        blocks = blocks_first(x, size)
        return jnp.broadcast_to(blocks[:1], blocks.shape) if x.dtype == jnp.uint32 else blocks

    fine = attn.Relu(block=8, dropout_rate=0.3)
    q, k, v, _ = inputs(fine)
    wrong = mutated(fine, "attn.dense._rows.blocks_first", again)
    out, bad = (m(q, k, v, dropout_key=jax.random.key(0)) for m in (fine, wrong))
    want = fine.reference(q, k, v, dropout_key=jax.random.key(0))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    assert rms(bad[:, 8:] - want[:, 8:]) > 0.1 * rms(want)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_position_of_sums_that_overflow_reaches_no_gradient(sign):
    """inf - inf, by the order of a sum on some machines: the derivative of tanh was NaN there."""
    mechanism = attn.Luong(score="concat", local="p", window=4)
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    alternating = jnp.where(jnp.arange(8) % 2, -2.0, 2.0)[:, None]
    W = jnp.broadcast_to(alternating, learned["position_projection"].shape)

    def loss(q, position_projection):
        arrays = learned | {"position_projection": position_projection}
        return (mechanism(q, k, v, mask=Causal(), **arrays)[:, :5] ** 2).sum()

    grad = jax.jit(jax.grad(loss, (0, 1)))
    dirty, clean = grad(q.at[:, 5:].set(sign * 3e38), W), grad(q, W)
    for x, y in zip(dirty, clean):
        np.testing.assert_array_equal(x, y)
    out = mechanism(q.at[:, 5:].set(sign * 3e38), k, v, **learned | {"position_projection": W})
    assert np.isnan(out[:, 5:]).all()  # not some position
    assert np.isfinite(out[:, :5]).all()


@pytest.mark.parametrize("kind", ["additive", "luong", "synthesizer"])
def test_narrow_learned_arrays_are_widened_in_the_definition_too(kind):
    """Under strict promotion a step of additive, which is a row of it, raised."""
    mechanism = attn.MECHANISMS[kind].examples()[-1]
    q, k, v, learned = inputs(mechanism, T=3, S=3)
    learned = {name: x.astype(jnp.bfloat16) for name, x in learned.items()}
    with jax.numpy_dtype_promotion("strict"):
        forms = mechanism, mechanism.reference
        outs = [jax.eval_shape(functools.partial(form, **learned), q, k, v) for form in forms]
    assert [out.dtype for out in outs] == [jnp.float32] * 2
