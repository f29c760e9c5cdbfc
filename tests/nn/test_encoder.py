"""The encoder: its equations, its inputs, and that padding never shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiers import FEW, at_once
from toy_mechanism import SOFTMAX, Toy, build, config, jit, maps, run

from attn import FULL, MECHANISMS, Array, Causal, Global, Padding, Segments, Window
from attn.nn import (
    LSTMN,
    Attention,
    DualEncoder,
    Encoder,
    EncoderConfig,
    LuongSeq2Seq,
    functional,
    parameter_count,
)
from attn.nn.config_rules import choices
from attn.nn.head import pool
from attn.nn.mlp import ACTIVATIONS
from attn.nn.norm import NORMS
from attn.positions import sinusoidal, sinusoidal_grid

RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, 11, (3, 6)), jnp.int32)
LENGTHS = jnp.array([6, 3, 0], jnp.int32)
NEAR = dict(rtol=3e-5, atol=3e-5)

# together they reach every choice, every mechanism argument and every flag
VARIED = [
    dict(pooling="mean", layers=2, mechanism=(SOFTMAX, Toy()), head_width=5),
    dict(pooling="cls", positions="learned", activation="relu", layers=2, tied=True),
    dict(pooling="max", positions="rotary", activation="silu", norm="rms", dropout=0.5),
    dict(pooling="none", head="token", positions="alibi", norm_position="post", dtype="bfloat16"),
    dict(head="dual", positions="t5", activation="swiglu", layers=2, scan=True, remat=True),
    dict(positions="none", kv_heads=1, head_dim=5, mlp_width=0, qk_norm=True, dtype="float16"),
    dict(positions="xpos", activation="gelu_exact"),
    dict(positions="grid", columns=4, pooling="cls"),
    dict(pooling="last", mechanism=Toy()),
]


def test_the_varied_encoders_reach_every_choice():
    allowed = choices(EncoderConfig)
    assert set(allowed["activation"]) == set(ACTIVATIONS)
    assert set(allowed["norm"]) == set(NORMS)
    for name, values in allowed.items():
        assert {getattr(config(**v), name) for v in VARIED} == set(values), name


@pytest.mark.parametrize("changes", VARIED, ids="-".join)
def test_every_option_gives_finite_scores_and_maps(changes):
    encoder = build(**changes)
    dual = encoder.config.head == "dual"
    tokens = jnp.stack([TOKENS, TOKENS[::-1]], 1) if dual else TOKENS
    lengths = jnp.stack([LENGTHS, LENGTHS[::-1]], 1) if dual else LENGTHS
    call = dict(lengths=lengths, mask=Causal() if encoder.config.positions == "xpos" else FULL)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y = run(encoder, tokens, dropout_key=jax.random.key(3), **call)
        w = jax.eval_shape(lambda: encoder.maps(tokens, **call))
    assert y.dtype == jnp.float32
    assert np.isfinite(y).all()
    assert y.shape == ((3, 6, 3) if encoder.config.head == "token" else (3, 3))
    L = 6 + (encoder.config.pooling == "cls")
    assert [m.shape for m in w] == [(*tokens.shape[:-1], 2, L, L)] * encoder.config.layers
    assert {x.dtype for x in jax.tree.leaves(nnx.state(encoder))} == {np.dtype("float32")}


@pytest.mark.parametrize("name", at_once(MECHANISMS, FEW))
def test_every_mechanism_fits_the_encoder_as_it_is(name):
    mechanism = MECHANISMS[name].examples()[0]
    # CLS would see nothing under a causal mask
    causal = Causal in mechanism.requires
    mask, pooling, L = (Causal(), "mean", 6) if causal else (FULL, "cls", 7)
    encoder = build(mechanism=mechanism, pooling=pooling, layers=2, scan=True)
    call = dict(lengths=LENGTHS, mask=mask)
    assert jax.eval_shape(lambda: encoder(TOKENS, **call)).shape == (3, 3)
    try:
        w = jax.eval_shape(lambda: encoder.maps(TOKENS, **call))
    except NotImplementedError:
        return
    assert [m.shape for m in w] == [(3, 2, L, L)] * 2


def layer_norm(x, norm):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
    return x * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])


def linear(x, layer):
    return x @ np.asarray(layer.kernel[...], np.float64) + np.asarray(layer.bias[...])


def attend(x, a):
    n, _, h = a.heads
    q, k, v = (y.reshape(*x.shape[:-1], n, h) for y in np.split(x @ np.asarray(a.qkv[...]), 3, -1))
    s = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(h)
    e = np.exp(s - s.max(-1, keepdims=True))
    y = np.einsum("bnts,bsnh->btnh", e / e.sum(-1, keepdims=True), v)
    return y.reshape(*x.shape[:-1], -1) @ np.asarray(a.out[...])


def mlp(x, m):
    return linear(np.maximum(linear(x, m.up), 0), m.down)


@pytest.mark.parametrize("where", ["pre", "post"])
def test_norm_positions_equal_their_equations(where):
    encoder = build(norm_position=where, activation="relu", layers=2)
    x = np.asarray(encoder.embedding.tokens[...], np.float64)[TOKENS] + sinusoidal(6, 12)
    for b in encoder.stack.blocks:
        # scales other than 1, so that a norm in the wrong place shows
        b.attention_norm.scale[...] = b.attention_norm.scale[...] * 1.5
        b.mlp_norm.scale[...] = b.mlp_norm.scale[...] * 0.5
        if where == "pre":
            x = x + attend(layer_norm(x, b.attention_norm), b.attention)
            x = x + mlp(layer_norm(x, b.mlp_norm), b.mlp)
        else:
            x = layer_norm(x + attend(x, b.attention), b.attention_norm)
            x = layer_norm(x + mlp(x, b.mlp), b.mlp_norm)
    x = layer_norm(x, encoder.norm) if where == "pre" else x
    hidden, last = encoder.head.linears
    want = linear(np.maximum(linear(x.mean(1), hidden), 0), last)
    np.testing.assert_allclose(run(encoder, TOKENS), want, **NEAR)


def test_tokens_may_be_vectors_on_a_grid():
    vectors = dict(vocab_size=None, token_width=5, positions="grid", columns=3)
    x = jnp.asarray(RNG.normal(size=(3, 6, 5)), jnp.float32)
    embedding = build(**vectors, pooling="cls").embedding
    embedding.bias[...] = jnp.arange(12.0)
    got = embedding(x, dropout_key=None)
    want = x @ embedding.tokens[...] + np.arange(12) + sinusoidal_grid(6, 3, 12)
    np.testing.assert_allclose(got[:, 1:], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[:, 0], jnp.broadcast_to(embedding.cls[...], (3, 12)))

    encoder = build(**vectors)
    y = run(encoder, x, lengths=LENGTHS)
    hidden = jnp.where(jnp.arange(6)[:, None] < LENGTHS[:, None, None], x, jnp.nan)
    np.testing.assert_array_equal(run(encoder, hidden, lengths=LENGTHS), y)
    assert np.isnan(run(encoder, x.at[0, 2, 1].set(jnp.nan))[0]).all()
    with pytest.raises(TypeError, match="tokens: expected an array of floats, got int32"):
        encoder(TOKENS)
    with pytest.raises(ValueError, match=r"tokens: expected \['...', 'T', 5\], got \[3, 6, 4\]"):
        encoder(x[..., :4])
    with pytest.raises(TypeError, match="tokens: expected an array of integers, got float32"):
        build()(x)


@pytest.mark.parametrize(
    "changes",
    [
        dict(pooling="cls"),
        dict(pooling="mean", mechanism=Toy()),
        dict(pooling="max", positions="t5"),
        dict(pooling="none", head="token", positions="learned", norm_position="post"),
    ],
    ids="-".join,
)
def test_padding_never_leaks(changes):
    apply, params = functional(build(**changes))
    token = changes["pooling"] == "none"
    real = np.arange(6) < np.asarray(LENGTHS)[:, None]

    @jit
    def run(params, tokens):
        def loss(params):
            y = apply(params, tokens, lengths=LENGTHS)
            return jnp.sum(jnp.square(y * real[..., None] if token else y)), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return y, gradient

    y, gradient = run(params, TOKENS)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((y, gradient)))  # length 0 too
    # tokens are integers: the worst they can hold is an id outside the vocabulary, which is NaN
    for filler in (5, -9, 10**6):
        again, gradient_again = run(params, jnp.where(real, TOKENS, filler))
        np.testing.assert_array_equal(again, y)
        jax.tree.map(np.testing.assert_array_equal, gradient_again, gradient)
    # and a padded row is what it would be without its padding
    cut = jit(apply)(params, TOKENS[1:2, :3])
    np.testing.assert_allclose(y[1:2, :3] if token else y[1:2], cut, **NEAR)


def test_ids_outside_the_vocabulary_show():
    encoder = build(head="token", pooling="none", mechanism=SOFTMAX)
    assert np.isnan(run(encoder, TOKENS.at[0, 0].set(11))[0, 0]).all()


@pytest.mark.parametrize("pooling", ["last", "max"])
def test_pooling_of_an_empty_row_is_zero(pooling):
    encoder = build(pooling=pooling)
    nothing = encoder.head(jnp.zeros((1, 6, 12)), jnp.ones((1, 6), bool))
    np.testing.assert_array_equal(run(encoder, TOKENS[2:], lengths=LENGTHS[2:]), nothing)
    np.testing.assert_array_equal(
        run(build(pooling=pooling, positions="none"), TOKENS[2:, :0]), nothing
    )


def test_last_is_the_last_real_position():
    x = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
    real = jnp.arange(5) < jnp.array([[5, 1, 3], [2, 4, 5]])[..., None]
    want = [[row[int(seen.sum()) - 1] for row, seen in zip(*rows)] for rows in zip(x, real)]
    with jax.numpy_rank_promotion("raise"):
        np.testing.assert_array_equal(pool(x, real, "last"), want)
        np.testing.assert_array_equal(pool(x, real[:1, :1], "last"), x[:, :, 4])


def test_a_dual_encoder_scores_vectors_that_are_kept():
    settings = config(head="dual")
    dual = DualEncoder(settings, key=jax.random.key(0))
    tokens = jnp.stack([TOKENS, TOKENS[::-1]], 1)
    lengths = jnp.stack([LENGTHS, LENGTHS[::-1]], 1)
    pairs = run(dual, tokens, lengths=lengths)
    np.testing.assert_array_equal(
        pairs, run(Encoder(settings, key=jax.random.key(0)), tokens, lengths=lengths)
    )
    kept = dual.vectors(TOKENS, lengths=LENGTHS)
    np.testing.assert_allclose(dual.score(kept, kept[::-1]), pairs, **NEAR)
    every = dual.score(kept[:, None], kept)  # each against each
    assert every.shape == (3, 3, 3)
    np.testing.assert_allclose(every[jnp.arange(3), jnp.array([2, 1, 0])], pairs, **NEAR)
    with pytest.raises(ValueError, match="head: expected 'dual' for a DualEncoder, got 'classif"):
        DualEncoder(config(), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"b: expected a last axis of 12, got \[3, 11\]"):
        dual.score(kept, kept[:, 1:])
    with pytest.raises(ValueError, match=r"b: expected axes that broadcast with a's \[3, 12\], go"):
        dual.score(kept, kept[1:])
    with pytest.raises(TypeError, match="a: expected an array of floats, got list"):
        dual.score([1.0] * 12, kept)


def test_dual_is_one_encoder_for_both_sequences():
    encoder = build(head="dual", dtype="float32")
    single = build()  # the same key, hence the same body
    single.head.linears = nnx.List([lambda x: x])
    pooled = lambda tokens: np.asarray(run(single, tokens))

    a, b = pooled(TOKENS), pooled(TOKENS[::-1])
    x = np.concatenate([a, b, a * b, a - b], -1)
    first, second, last = encoder.head.linears
    want = linear(np.maximum(linear(np.maximum(linear(x, first), 0), second), 0), last)
    np.testing.assert_allclose(run(encoder, jnp.stack([TOKENS, TOKENS[::-1]], 1)), want, **NEAR)


def test_one_key_gives_every_mechanism_the_same_other_parameters():
    states = [
        {jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(nnx.state(e))}
        for e in (build(), build(mechanism=Toy()), build(seed=1))
    ]
    softmax, toy, other = states
    assert softmax.keys() < toy.keys()
    for name, value in softmax.items():
        np.testing.assert_array_equal(value, toy[name])
    assert not np.array_equal(*(np.ravel(s["['embedding']['tokens'].value"]) for s in (toy, other)))
    # the draws of one path are fixed: crc32 of names, never Python's salted hash()
    np.testing.assert_allclose(softmax["['embedding']['tokens'].value"][0, :2], FIRST, rtol=1e-5)


def test_scores_follow_the_mask():
    encoder = build(head="token", pooling="none")
    changed = TOKENS.at[:, 4].set((TOKENS[:, 4] + 1) % 11)
    y, z = (run(encoder, t, mask=Causal()) for t in (TOKENS, changed))
    np.testing.assert_array_equal(y[:, :4], z[:, :4])
    assert not np.allclose(y[:, 4:], z[:, 4:])
    seen = np.tril(np.ones((6, 6))) * (np.arange(6) < np.asarray(LENGTHS)[:, None])[:, None]
    for w in maps(encoder, TOKENS, mask=Causal(), lengths=LENGTHS):
        np.testing.assert_array_equal(np.asarray(w) > 0, np.broadcast_to(seen[:, None], w.shape))
    segments = Segments(*[jnp.array([[0, 0, 0, 1, 1, 1]])] * 2)
    assert not np.allclose(run(encoder, TOKENS, mask=segments), run(encoder, TOKENS))


@pytest.mark.parametrize(
    ("positions", "alone"),
    [
        *(dict.fromkeys(("sinusoidal", "grid", "learned"), False).items()),
        *(dict.fromkeys(("rotary", "xpos", "alibi", "t5", "none"), True).items()),
    ],
)
def test_only_added_positions_tell_where_in_a_row_a_document_lies(positions, alone):
    """The docstring of Encoder says which; it once said nothing."""
    columns = 3 if positions == "grid" else None
    encoder = build(head="token", pooling="none", positions=positions, columns=columns)
    packed = Causal() & Segments(jnp.array([0, 0, 0, 1, 1, 1]))
    second, itself = (
        run(encoder, TOKENS, mask=packed)[:, 3:],
        run(encoder, TOKENS[:, 3:], mask=Causal()),
    )
    assert np.allclose(second, itself, **NEAR) == alone


def test_cls_is_index_0_of_the_mask():
    encoder = build(pooling="cls")
    assert [w.shape for w in maps(encoder, TOKENS)] == [(3, 2, 7, 7)]
    (w,) = maps(encoder, TOKENS, mask=Window(1, 1) | Global((0,)), lengths=LENGTHS)
    w = np.asarray(w)
    assert (w[0, 0, 0] > 0).all()
    assert (w[0, 0, 3] > 0).sum() == 4
    np.testing.assert_array_equal(w[1, 0, 0] > 0, [1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(w[2, 0, 0] > 0, [1, 0, 0, 0, 0, 0, 0])
    with pytest.raises(ValueError, match="lets index 0 see no other"):
        encoder(TOKENS, mask=Causal())
    with pytest.raises(ValueError, match=r"the arrays of Array no longer fit"):
        encoder(TOKENS, mask=Array(jnp.ones((1, 6, 6), bool)))


def test_what_does_not_fit_is_refused_by_name():
    encoder = build()
    with pytest.raises(ValueError, match=r"tokens: expected at most max_length=7 .* got 8"):
        encoder(jnp.zeros((1, 8), int))
    with pytest.raises(TypeError, match="tokens: expected an array of integers, got float32"):
        encoder(TOKENS.astype(jnp.float32))
    with pytest.raises(ValueError, match=r"lengths: expected shape \[3\], got \[2\]"):
        encoder(TOKENS, lengths=LENGTHS[:2])
    with pytest.raises(ValueError, match="mask: padding is given as lengths="):
        encoder(TOKENS, mask=Padding(LENGTHS))
    with pytest.raises(TypeError, match=r"mask: expected a Mask .* wrap a boolean array"):
        encoder(TOKENS, mask=TOKENS > 0)
    with pytest.raises(ValueError, match=r"tokens: expected \['...', 2, 'T'\], got \[3, 6\]"):
        build(head="dual")(TOKENS)
    for positions in ("alibi", "t5"):
        with pytest.raises(ValueError, match=f"positions: Toy has no scores to add {positions} to"):
            build(mechanism=Toy(), positions=positions)


def test_a_seed_is_no_key():
    with pytest.raises(TypeError, match=r"key: expected that of jax.random.key\(seed\), got 0"):
        Encoder(config(), key=0)


def test_no_key_is_no_key():
    """jax's "unexpected PRNG key type" named neither the argument nor what it takes."""
    for make in (
        lambda: Encoder(config(), key=None),
        lambda: Attention(4, num_heads=2, mechanism=SOFTMAX, max_length=3, key=None),
        lambda: LuongSeq2Seq(vocab_size=5, classes=3, width=4, key=None),
        lambda: LSTMN(4, key=None),
    ):
        with pytest.raises(TypeError, match=r"^key: expected that of jax.random.key.* got None"):
            make()


def test_one_trace_for_all_lengths_masks_and_keys_of_a_shape():
    apply, params = functional(build(positions="alibi"))
    traces = []

    @jit
    def run(params, tokens, lengths, mask, key):
        traces.append(1)
        return apply(params, tokens, lengths=lengths, mask=mask, dropout_key=key)

    run(params, TOKENS, LENGTHS, Causal(), jax.random.key(0))
    run(params, TOKENS + 1, LENGTHS[::-1], Causal(), jax.random.key(1))
    assert len(traces) == 1


def test_parameter_count():
    a, m, h = 12 * 36 + 12 * 12, 12 * 10 + 10 + 10 * 12 + 12, 12 * 10 + 10 + 10 * 3 + 3
    assert parameter_count(build()) == 11 * 12 + a + m + 4 * 12 + 2 * 12 + h
    # its centroids get no gradient, and reports do not count them either
    routed = build(mechanism=MECHANISMS["routing"]())
    assert parameter_count(routed) == parameter_count(build())
    with pytest.raises(TypeError, match=r"module: expected an nnx.Module, got NoneType"):
        parameter_count(None)  # which had none
    with pytest.raises(TypeError, match=r"module: expected an nnx.Module, got NoneType"):
        functional(None)


# jax.random.normal of key(0) folded with "embedding" and "tokens"
FIRST = [0.07253963, 1.4210943]


def test_scores_at_some_positions_are_those_of_the_whole():
    encoder = build(head="token", pooling="none")
    at = jnp.array([[4, 0], [2, 2], [5, 1]])
    want = jnp.take_along_axis(encoder(TOKENS), at[..., None], axis=1)
    np.testing.assert_allclose(encoder(TOKENS, at=at), want, **NEAR)
    with pytest.raises(ValueError, match="at:"):
        build()(TOKENS, at=at)


def test_places_that_are_none_are_named():
    encoder = build(head="token", pooling="none")
    at = lambda places: jax.eval_shape(lambda: encoder(TOKENS, at=places)).shape
    assert at(np.zeros((3, 2), np.int32)) == at(np.zeros((1, 2), np.int32)) == (3, 2, 3)
    for shape in ((2,), (2, 4), (1, 3, 2)):
        with pytest.raises(ValueError, match=r"at: expected shape \[3, 'P'\], got"):
            at(np.zeros(shape, np.int32))
    with pytest.raises(TypeError, match="at: expected an array of integers, got list"):
        at([[0, 1]] * 3)
    with pytest.raises(TypeError, match="at: expected an array of integers, got float32"):
        at(np.zeros((3, 2), np.float32))
    for place in (-1, TOKENS.shape[1]):
        with pytest.raises(ValueError, match=f"at: expected integers from 0 to 5, got {place}"):
            at(np.full((3, 2), place))


@pytest.mark.parametrize("dtype", [np.int32, np.int8])
def test_scores_at_traced_places_that_are_none_are_nan(dtype):
    encoder = build(head="token", pooling="none")
    at = np.array([[-1, 0], [2, 6], [-6, 5]], dtype)
    scores = jax.jit(lambda at: encoder(TOKENS, at=at))(at)
    np.testing.assert_array_equal(np.isnan(scores).all(-1), (at < 0) | (at > 5))
    np.testing.assert_array_equal(np.isnan(scores).any(-1), (at < 0) | (at > 5))


def test_narrow_integers_do_not_wrap():
    table = 256
    encoder = build(vocab_size=table, pooling="cls", max_length=255, positions="none")
    tokens = jnp.arange(255)[None] % 100
    lengths = np.array([255], np.uint8)
    full = run(encoder, tokens)
    np.testing.assert_allclose(run(encoder, tokens, lengths=lengths), full, rtol=1e-5)
    assert np.isnan(run(encoder, jnp.full((1, 3), -1, jnp.int8))).all()


LARGE = 2**32 + 3


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_lengths_past_the_end_are_whole_rows(pooling):
    encoder = build(pooling=pooling)
    lengths = np.array([2**31 - 1, 6, 7])
    want = run(encoder, TOKENS, lengths=np.array([6, 6, 6]))
    np.testing.assert_array_equal(run(encoder, TOKENS, lengths=lengths), want)


def test_integers_that_32_bits_do_not_hold_are_refused():
    encoder, dual = build(), build(head="dual")
    tokens = np.asarray(TOKENS, np.int64)
    tokens[1, 2] = LARGE
    for call in (
        lambda: encoder(tokens),
        lambda: encoder(tokens, lengths=LENGTHS),
        lambda: dual(np.stack([tokens, tokens], 1)),
        lambda: encoder.embedding(tokens, dropout_key=None),
        lambda: encoder.receptive_field(tokens[1], jnp.array([0])),
    ):
        with pytest.raises(ValueError, match=rf"tokens: expected integers from .* got {LARGE}"):
            call()
    with pytest.raises(ValueError, match=rf"lengths: expected integers from .* got {LARGE}"):
        encoder(TOKENS, lengths=np.array([2, LARGE, 1]))
    fits = run(encoder, np.asarray(TOKENS, np.int64), lengths=np.asarray(LENGTHS, np.int64))
    np.testing.assert_array_equal(fits, run(encoder, TOKENS, lengths=LENGTHS))


def test_lengths_below_0_are_refused():
    for encoder, shape in ((build(), (3,)), (build(head="dual"), (3, 2))):
        tokens = np.zeros((*shape, 6), np.int32)
        for lengths in (np.full(shape, -1), jnp.full(shape, -1, jnp.int8)):
            with pytest.raises(ValueError, match=r"lengths: expected integers from 0 to .* got -1"):
                encoder(tokens, lengths=lengths)


def test_rows_that_are_not_there_have_no_receptive_field():
    encoder = build(pooling="cls")
    field = jax.jit(lambda tokens: encoder.receptive_field(tokens, np.array([0, 6]), probes=2))
    assert (field(TOKENS[0]).max(1) > 0).all()
    none = jnp.zeros(0, int)
    assert build().receptive_field(none, none).shape == (0, 0)
    for wrong in (7, -1):
        with pytest.raises(ValueError, match=f"rows: expected integers from 0 to 6, got {wrong}"):
            encoder.receptive_field(TOKENS[0], jnp.array([0, wrong]))
    with pytest.raises(TypeError, match="rows: expected an array of integers, got list"):
        encoder.receptive_field(TOKENS[0], [0])
    with pytest.raises(TypeError, match="tokens: expected an array of integers, got list"):
        encoder.receptive_field([0, 1], jnp.array([0]))
    with pytest.raises(TypeError, match="lengths: expected an array of integers, got list"):
        encoder.receptive_field(TOKENS[0], jnp.array([0]), lengths=[3])
    with pytest.raises(ValueError, match=r"probes: expected an integer from 1 .* got 0"):
        encoder.receptive_field(TOKENS[0], jnp.array([0]), probes=0)
    # 4 rows of 6 tokens with 4 probes broadcast to [R, B, W]
    with pytest.raises(ValueError, match=r"tokens: expected one sequence \['T'\], .* got \[4, 6\]"):
        encoder.receptive_field(jnp.tile(TOKENS[:1], (4, 1)), jnp.array([0]), probes=4)
    for wrong in (jnp.int32(0), jnp.zeros((2, 2), jnp.int32)):
        with pytest.raises(ValueError, match=r"rows: expected shape \['R'\], got "):
            encoder.receptive_field(TOKENS[0], wrong)


def test_a_dual_encoder_has_a_receptive_field_of_one_sequence():
    encoder = build(head="dual")
    field = lambda tokens: encoder.receptive_field(tokens, jnp.array([1]), probes=2)
    assert jax.eval_shape(field, TOKENS[0]).shape == (1, 6)


@pytest.mark.slow
def test_all_of_t5s_buckets_are_for_the_past_where_the_mask_is_causal():
    """Distances of 0 to 15 have a bucket each then; in both directions those of 0 to 7."""
    tokens = jnp.arange(18)[None] % 11
    encoder = build(positions="t5", head="token", pooling="none", max_length=18)

    def reached(mask):
        apply, params = functional(encoder)
        score = lambda p: (apply(p, tokens, mask=mask) ** 2).sum()
        return np.flatnonzero(np.abs(jax.grad(score)(params)["relative"]).sum(1))

    np.testing.assert_array_equal(reached(Causal()), range(17))
    np.testing.assert_array_equal(reached(FULL), [*range(11), *range(17, 27)])


@pytest.mark.parametrize("positions", ["t5", "grid", "learned"])
def test_parameters_start_in_float32_under_x64(positions):
    vectors = dict(vocab_size=None, token_width=5, positions=positions)
    vectors["columns"] = 3 if positions == "grid" else None
    with jax.enable_x64(True):
        made = lambda: nnx.state(Encoder(config(**vectors), key=jax.random.key(0)))
        shapes = jax.tree.leaves(nnx.eval_shape(made))
    assert {x.dtype for x in shapes} == {jnp.dtype("float32")}
