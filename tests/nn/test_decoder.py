"""The decoder: token by token it is what it is at once, in every form; sampling keeps its word."""

import dataclasses
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiers import FEW, at_once
from toy_mechanism import SOFTMAX, Toy, config, run

from attn import (
    MECHANISMS,
    RWKV7,
    Alibi,
    AxialPattern,
    BigBird,
    Causal,
    Cosformer,
    DeltaNet,
    FixedPattern,
    GatedDeltaNet,
    Linear,
    Local2DPattern,
    Relu,
    Segments,
    Sigmoid,
    Sinks,
    SlidingWindow,
    Softmax,
    StridedPattern,
)
from attn.nn import Attention, Decoder, Encoder, Seq2SeqConfig, dropout, sample

RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, 11, (3, 7)), jnp.int32)
NEAR = dict(rtol=2e-4, atol=2e-5)
LM = dict(head="token", pooling="none", classes=11)


def decoder(**changes) -> Decoder:
    return Decoder(config(**{**LM, **changes}), key=jax.random.key(0))


def stepped(model, prompt: int, tokens=TOKENS):
    """Scores after each token from the prompt's last on, [B, T - prompt + 1, classes]."""
    graph, params = nnx.split(model)

    @jax.jit
    def go(params, tokens):
        one = lambda state, token: nnx.merge(graph, params).step(state, token)
        state, first = nnx.merge(graph, params).prefill(tokens[:, :prompt])
        _, scores = jax.lax.scan(one, state, tokens[:, prompt:].T)
        return jnp.concatenate([first[:, None], jnp.moveaxis(scores, 0, 1)], 1)

    return go(params, tokens)


# together: caches, a ring, pinned tokens, sums, gates, short convolutions, a token shift, grouped
# heads, every position that decodes, both norms, and layers in a loop, a scan or tied
FORMS = [
    dict(mechanism=SOFTMAX, positions="rotary", kv_heads=1, qk_norm=True),
    dict(mechanism=SlidingWindow(left=2, right=0), positions="learned", norm_position="post"),
    dict(mechanism=(Linear(chunk=4), Sinks(sinks=1, window=3)), layers=2, positions="none"),
    dict(mechanism=GatedDeltaNet(chunk=4), layers=2, scan=True, positions="sinusoidal"),
    dict(mechanism=RWKV7(chunk=4), layers=2, scan=True, positions="none", norm_position="post"),
    dict(mechanism=DeltaNet(chunk=4), layers=2, tied=True, mlp_width=0, positions="rotary"),
    dict(mechanism=Softmax(), layers=2, tied=True, scan=True, positions="none", dtype="bfloat16"),
    dict(mechanism=Softmax(logit_cap=2.0), layers=2, scan=True, positions="alibi", kv_heads=1),
    dict(mechanism=Softmax(sinks="zero"), layers=2, positions="t5"),
    dict(
        mechanism=(SlidingWindow(left=2, right=0), Sinks(sinks=1, window=3)),
        layers=2,
        positions="t5",
    ),
]


@pytest.mark.slow
def test_t5s_buckets_are_those_of_a_causal_encoder_at_every_step():
    model = decoder(positions="t5", max_length=20)
    tokens = jnp.arange(20)[None] % 11
    whole = np.asarray(run(model, tokens))
    np.testing.assert_allclose(stepped(model, 3, tokens), whole[:, 2:], **NEAR)
    np.testing.assert_allclose(run(model.encoder, tokens, mask=Causal()), whole, **NEAR)


@pytest.mark.parametrize("changes", at_once(FORMS, FORMS[:4]), ids=str)
def test_step_by_step_equals_at_once(changes):
    model = decoder(**changes)
    whole = np.asarray(run(model, TOKENS), np.float32)
    near = dict(rtol=0, atol=0.05) if changes.get("dtype") == "bfloat16" else NEAR
    for prompt in (1, 5):
        np.testing.assert_allclose(stepped(model, prompt), whole[:, prompt - 1 :], **near)


@pytest.mark.parametrize("name", at_once(MECHANISMS, FEW))
def test_every_mechanism_that_decodes_fits_the_decoder(name):
    mechanism = MECHANISMS[name].examples()[0]
    if getattr(mechanism, "length", 0) is None:
        mechanism = dataclasses.replace(mechanism, length=7)
    model = decoder(mechanism=mechanism, positions="learned")
    try:
        state, scores = jax.eval_shape(model.prefill, TOKENS[:, :5])
    except NotImplementedError:
        return
    after, more = jax.eval_shape(model.step, state, TOKENS[:, 5])
    assert scores.shape == more.shape == (3, 11)
    same = lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype)
    assert jax.tree.all(jax.tree.map(same, state, after))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Cosformer, Relu, Sigmoid])
def test_keys_that_are_counted_want_a_length_to_decode(kind):
    with pytest.raises(
        ValueError, match=rf"^length: {kind.__name__} counts the keys.* as .*\(leng"
    ):
        decoder(mechanism=kind()).prefill(TOKENS[:, :5])
    model = decoder(mechanism=kind(length=7))
    np.testing.assert_allclose(stepped(model, 5), run(model, TOKENS)[:, 4:], **NEAR)
    with pytest.raises(ValueError, match=r"^target.length: "):
        Seq2SeqConfig(
            source=model.config, target=dataclasses.replace(model.config, mechanism=kind())
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("open_one", "given", "named"),
    [
        (FixedPattern(), {"block_size": 2}, "mechanism: FixedPattern .* give it block_size"),
        (StridedPattern(), {"stride": 2}, "mechanism: StridedPattern .* give it stride"),
        (AxialPattern(), {"height": 3, "width": 3}, "mechanism: AxialPattern .* height and width"),
        (Local2DPattern(reach=1), {"height": 3, "width": 3}, "mechanism: Local2DPattern .* height"),
        (
            BigBird(block_size=1, window=0, global_blocks=1, random=1),
            {"length": 9},
            r"length: BigBird .* as BigBird\(length=9\)",
        ),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_patterns_that_are_made_for_a_length_want_their_sizes_to_decode(open_one, given, named):
    """For 7 tokens they have other blocks than for the 9 that there is room for."""
    sizes = dict(max_length=9, positions="learned")
    with pytest.raises(ValueError, match=f"^{named}"):
        decoder(mechanism=open_one, **sizes).prefill(TOKENS[:, :5])
    model = decoder(mechanism=dataclasses.replace(open_one, **given), **sizes)
    np.testing.assert_allclose(stepped(model, 5), run(model, TOKENS)[:, 4:], **NEAR)


def test_it_is_the_encoder_under_causal():
    one, other = decoder(), Encoder(config(**LM), key=jax.random.key(0))
    params = nnx.state(one.encoder)
    jax.tree.map(np.testing.assert_array_equal, params, nnx.state(other))
    scores = run(one, TOKENS)
    later = run(one, TOKENS.at[:, 4:].set(0))
    np.testing.assert_array_equal(scores[:, :4], later[:, :4])
    ids = jnp.broadcast_to(jnp.arange(7) // 4, (3, 7))
    alone = run(one, TOKENS, mask=Segments(ids, ids))
    np.testing.assert_allclose(alone[:, :4], scores[:, :4], **NEAR)
    assert abs(alone[:, 4:] - scores[:, 4:]).max() > 1e-3


def test_generate_takes_the_likeliest_and_stays_within_max_length():
    model = decoder(layers=2)
    prompt = TOKENS[:, :3]
    out = run(model, prompt, 4, method="generate", temperature=0.0)
    np.testing.assert_array_equal(out[:, :3], prompt)
    whole = run(model, out)
    np.testing.assert_array_equal(out[:, 3:], whole[:, 2:-1].argmax(-1))
    both = "^prompt and steps: expected at most max_length=7 in all, got 8"
    with pytest.raises(ValueError, match=both):
        model.generate(prompt, 5, temperature=0.0)
    state, _ = run(model, TOKENS, method="prefill")
    _, scores = run(model, state, TOKENS[:, 0], method="step")
    assert np.isnan(scores).all()


def test_prompts_of_several_lengths_go_on_as_each_would_alone():
    model = decoder(mechanism=(Linear(chunk=4), Sinks(sinks=1, window=3)), layers=2)
    lengths = [2, 4, 3]
    out = model.generate(TOKENS[:, :4], 3, lengths=jnp.array(lengths), temperature=0)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(out[row, :length], TOKENS[row, :length])
    scores = run(model, out)
    for row, length in enumerate(lengths):
        want = scores[row, length - 1 : -1].argmax(-1)
        np.testing.assert_array_equal(out[row, length:], want)
    for wrong in ([2, 4], [0, 4, 3], [2, 5, 3], [2.0, 4.0, 3.0]):
        with pytest.raises(ValueError, match="lengths: expected"):
            model.generate(TOKENS[:, :4], 3, lengths=jnp.array(wrong), temperature=0)
    traced = lambda lengths: model.generate(TOKENS[:, :4], 3, lengths=lengths, temperature=0)
    with pytest.raises(TypeError, match=r"^lengths: expected numbers, .* outside of jit"):
        jax.jit(traced)(jnp.array([2, 4, 3]))


@pytest.mark.slow
def test_draws_depend_on_the_key_and_nothing_else():
    model = decoder()
    draw = lambda seed: run(model, TOKENS[:, :2], 5, method="generate", key=jax.random.key(seed))
    np.testing.assert_array_equal(draw(0), draw(0))
    assert (draw(0) != draw(1)).any()


def test_what_a_row_draws_is_the_same_beside_shorter_prompts():
    model, key = decoder(), jax.random.key(3)
    draw = lambda *n: model.generate(TOKENS[:, :4], 3, lengths=jnp.array(n), key=key)
    np.testing.assert_array_equal(draw(4, 4, 4)[0], draw(4, 1, 2)[0])


def test_a_share_of_1_is_all_of_a_large_vocabulary():
    """By the program: of 250,000 tokens, sums of shares leave out 96 that are hardly ever drawn."""
    program = lambda **how: jax.make_jaxpr(lambda s, key: sample(s, key, **how))
    scores = jnp.zeros(9), jax.random.key(0)
    assert str(program(top_p=1.0)(*scores)) == str(program()(*scores))
    assert str(program(top_p=0.9)(*scores)) != str(program()(*scores))


def test_a_draw_from_all_tokens_sorts_none():
    """Sorted, a draw from 50,257 tokens took 12 times as long on a CPU."""
    program = lambda **how: str(jax.make_jaxpr(lambda s, key: sample(s, key, **how))(*given))
    given = jnp.zeros((2, 9)), jax.random.key(0)
    assert "top_k" not in program(temperature=0.5)
    assert "top_k" in program(top_k=9)


P = np.array([0.4, 0.05, 0.3, 0.2, 0.05])


def test_the_fewest_that_reach_top_p_and_no_more():
    draw = jax.vmap(lambda key: sample(jnp.zeros(4), key, top_p=0.5))
    assert set(np.asarray(draw(jax.random.split(jax.random.key(0), 200)))) == {0, 1}


def frequencies(**settings):
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda key: sample(jnp.log(jnp.asarray(P)), key, **settings)))
    return np.bincount(draw(keys), minlength=5) / 4000


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2),
        ({"top_k": 2}, P * [1, 0, 1, 0, 0]),
        ({"top_p": 0.69}, P * [1, 0, 1, 0, 0]),
        ({"top_p": 0.71}, P * [1, 0, 1, 1, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, P * [1, 0, 1, 0, 0]),
        ({"top_k": 4, "top_p": 1.0}, P * [1, 1, 1, 1, 0]),
        ({"temperature": 0}, [1, 0, 0, 0, 0]),
        ({"temperature": 2**31}, [1, 1, 1, 1, 1]),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_should_be(settings, want):
    want = np.asarray(want) / np.sum(want)
    got = frequencies(**settings)
    assert (got[want == 0] == 0).all()
    np.testing.assert_allclose(got, want, atol=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_no_numbers_draw_no_token(temperature):
    scores = jnp.zeros((3, 11)).at[1, 4].set(jnp.nan).at[2, :5].set(-jnp.inf)
    token = jax.jit(lambda s: sample(s, jax.random.key(0), temperature=temperature))(scores)
    assert token[1] == -1
    assert token[0] >= 0
    assert token[2] >= 5
    assert sample(jnp.full(5, -jnp.inf), jax.random.key(0), temperature=temperature) == -1


@pytest.mark.parametrize("settings", [{}, {"top_k": 2, "top_p": 0.5}], ids=str)
def test_infinite_scores_make_no_nan_on_the_way(settings):
    key = jax.random.key(0)
    scores = jnp.array([[0.0, jnp.inf, -jnp.inf], [-jnp.inf] * 3, [-jnp.inf, -jnp.inf, 2.0]])
    with jax.debug_nans(True):  # which looks at each result outside of jit
        token = sample(scores, key, **settings)
    assert token.tolist() == [1, -1, 2]


@pytest.mark.parametrize(
    "settings", [{}, {"top_p": 0.5}, {"top_k": 2}, {"temperature": 1e-3}], ids=str
)
def test_an_infinite_score_is_the_token(settings):
    keys = jax.random.split(jax.random.key(0), 64)
    draw = jax.jit(jax.vmap(lambda scores, key: sample(scores, key, **settings), (None, 0)))
    assert (draw(jnp.array([0.0, jnp.inf, 0.0]), keys) == 1).all()
    if "top_p" not in settings:  # which keeps the fewest
        assert set(draw(jnp.array([jnp.inf, 0.0, jnp.inf]), keys).tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"key": None}, "key"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 12}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"temperature": 1e39}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"temperature": Fraction(1, 2)}, "temperature"),  # JAX does not compute with it
        ({"top_p": Fraction(1, 2)}, "top_p"),
    ],
)
def test_wrong_settings_are_named(settings, named):
    settings = {"key": jax.random.key(0), **settings}
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        sample(jnp.zeros((2, 11)), **settings)
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        decoder().generate(TOKENS[:, :2], 1, **settings)


def test_several_keys_are_not_one():
    several = jax.random.split(jax.random.key(0), 2)
    for call in (
        lambda: sample(jnp.zeros((2, 3)), several),
        lambda: Decoder(config(**LM), key=several),
    ):
        with pytest.raises(ValueError, match=r"key: expected one key, got an array \[2\]"):
            call()
    assert sample(jnp.zeros((2, 3)), jax.random.PRNGKey(0)).shape == (2,)


def test_a_seed_is_no_key():
    for call in (
        lambda: sample(jnp.zeros((2, 11)), 3),
        lambda: decoder().generate(TOKENS[:, :2], 1, key=3),
        lambda: dropout(jnp.ones(3), 0.5, 3),
    ):
        with pytest.raises(TypeError, match=r"key: expected that of jax.random.key\(seed\), got 3"):
            call()


@pytest.mark.parametrize("settings", [{"temperature": 0}, {}, {"top_k": 1}], ids=str)
def test_no_token_can_be_drawn_of_none(settings):
    for shape in ((2, 0), ()):
        wrong = re.escape(f"scores: expected [*B, V] of V >= 1 tokens, got {list(shape)}")
        with pytest.raises(ValueError, match=wrong):
            sample(jnp.zeros(shape), jax.random.key(0), **settings)
    with pytest.raises(TypeError, match="scores: expected an array of floats, got list"):
        sample([0.0, 1.0], jax.random.key(0), **settings)


def test_what_cannot_decode_is_refused_by_name():
    with pytest.raises(ValueError, match="head: expected 'token' for a Decoder"):
        Decoder(config(), key=jax.random.key(0))
    sizes = dict(num_heads=2, max_length=7, key=jax.random.key(0))
    layer = Attention(8, mechanism=Linear(), **sizes)
    with pytest.raises(NotImplementedError, match="bias: Linear has no scores to add one to"):
        layer.prefill(jnp.ones((1, 3, 8)), max_length=7, bias=Alibi(jnp.ones(2)))
    with pytest.raises(NotImplementedError, match="Toy does not decode"):
        decoder(mechanism=Toy()).prefill(TOKENS)
    model = decoder()
    with pytest.raises(TypeError, match="prompt: expected an array of integers"):
        model.prefill(TOKENS * 1.0)
    state, _ = jax.eval_shape(model.prefill, TOKENS)
    for token in (3, [3, 1, 4]):
        with pytest.raises(TypeError, match="token: expected an array of integers"):
            model.step(state, token)
    with pytest.raises(ValueError, match="prompt: expected at least one"):
        model.prefill(TOKENS[:, :0])
    with pytest.raises(ValueError, match="steps: expected an integer"):
        model.generate(TOKENS[:, :2], -1)
    with pytest.raises(TypeError, match="state: expected that of `prefill`, got NoneType"):
        model.step(None, TOKENS[:, 0])


@pytest.mark.parametrize(("scan", "got"), [(False, "1"), (True, "LayerState")])
def test_a_state_of_another_stack_is_refused(scan, got):
    """One of fewer layers ran only as many."""
    state, _ = jax.eval_shape(decoder(layers=1, scan=scan).prefill, TOKENS)
    with pytest.raises(ValueError, match=f"^state: expected those of 2 layers .*, got {got}"):
        jax.eval_shape(decoder(layers=2).step, state, TOKENS[:, 0])


@pytest.mark.parametrize(("layers", "scan"), [(3, True), (2, False)])
def test_a_scan_refuses_the_state_of_another_stack(layers, scan):
    """In the words of jax's scan, or an IndexError."""
    state, _ = jax.eval_shape(decoder(layers=layers, scan=scan).prefill, TOKENS)
    with pytest.raises(ValueError, match=r"^state: .* \[2 layers, ...\] in a scan, got \[3\]"):
        jax.eval_shape(decoder(layers=2, scan=True).step, state, TOKENS[:, 0])


@pytest.mark.filterwarnings("error")
def test_lengths_may_be_a_list():
    # jax warned that it will refuse to tell the shape of one
    model = decoder()
    draw = lambda lengths: model.generate(TOKENS[:, :2], 2, lengths=lengths, temperature=0)
    np.testing.assert_array_equal(draw([1, 2, 2]), draw(jnp.array([1, 2, 2])))
    with pytest.raises(ValueError, match=r"lengths: expected shape \[3\], got \[2\]"):
        draw([1, 2])


def test_steps_may_be_numpys():
    model = decoder()
    draw = lambda steps: model.generate(TOKENS[:, :2], steps, temperature=0)
    np.testing.assert_array_equal(draw(np.int64(2)), draw(2))


def test_classes_that_are_no_tokens_are_not_fed_back():
    model = decoder(vocab_size=12)
    with pytest.raises(ValueError, match=r"vocab_size=12 .* got 11; .*objective='causal'"):
        model.generate(TOKENS[:, :2], 1, temperature=0)


@pytest.mark.slow
def test_tokens_in_narrow_integers_do_not_wrap():
    net = decoder(classes=200, vocab_size=200)
    prompt = jnp.array([[1, 2]])
    wide = net.generate(prompt, 3, temperature=0)
    narrow = net.generate(prompt.astype(jnp.int8), 3, temperature=0)
    assert narrow.dtype == jnp.int32
    np.testing.assert_array_equal(narrow, wide)


def test_tokens_that_32_bits_do_not_hold_are_refused():
    net, large = decoder(), np.array([[1, 2**32 + 3]])
    for call, name in (
        (lambda: net(large), "tokens"),
        (lambda: net.prefill(large), "prompt"),
        (lambda: net.generate(large, 2, temperature=0), "prompt"),
        (lambda: net.step(jax.eval_shape(net.prefill, TOKENS)[0], large[:, 1]), "token"),
    ):
        with pytest.raises(ValueError, match=rf"{name}: expected integers from .* got 4294967299"):
            call()


def test_lengths_below_0_are_refused():
    with pytest.raises(ValueError, match=r"lengths: expected integers from 0 to .* got -2"):
        decoder()(TOKENS, lengths=jnp.array([7, -2, 3]))


def test_a_small_temperature_is_the_likeliest():
    scores = jnp.array([[1.0, 3.0, 2.0]])
    assert sample(scores, jax.random.key(0), temperature=1e-40, top_k=2) == 1
