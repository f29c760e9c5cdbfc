"""The encoder-decoder: token by token it is what it is at once, and padding is nothing to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, Toy, config, run

import attn
from attn import (
    MECHANISMS,
    Additive,
    Causal,
    GatedDeltaNet,
    Linear,
    Luong,
    Nystrom,
    SlidingWindow,
)
from attn.masks import Padding
from attn.nn import Seq2Seq, Seq2SeqConfig
from attn.nn.cross import CrossBlock, check_cross
from attn.testing import inputs

RNG = np.random.default_rng(0)
SOURCE = jnp.asarray(RNG.integers(0, 11, (3, 7)), jnp.int32)
TARGET = jnp.asarray(RNG.integers(0, 5, (3, 6)), jnp.int32).at[:, 0].set(2)
LENGTHS = jnp.array([7, 3, 1])
NEAR = dict(rtol=2e-4, atol=2e-5)
SIDE = dict(head="token", pooling="none")
CROSSING = [x for kind in MECHANISMS.values() for x in kind.examples() if x.crosses]


def model(*, cross=SOFTMAX, bos=2, source=None, **changes) -> Seq2Seq:
    source = config(**{**SIDE, "layers": 2, **(source or {})})
    target = config(**{**SIDE, "vocab_size": 5, "classes": 5, "max_length": 6, **changes})
    settings = Seq2SeqConfig(source=source, target=target, cross=cross, bos=bos)
    return Seq2Seq(settings, key=jax.random.key(0))


def scores_at_once_and_stepped(net, prompt: int, **options):
    graph, params = nnx.split(net)

    @jax.jit
    def go(params, source, target):
        net = nnx.merge(graph, params)
        whole = net(source, target, lengths=LENGTHS, **options)
        state, first = net.prefill(source, target[:, :prompt], lengths=LENGTHS, **options)
        one = lambda state, token: nnx.merge(graph, params).step(state, token)
        _, scores = jax.lax.scan(one, state, target[:, prompt:].T)
        return whole, jnp.concatenate([first[:, None], jnp.moveaxis(scores, 0, 1)], 1)

    return go(params, SOURCE, TARGET)


# together: caches, a ring, sums, grouped heads, every kind of position, both norms, no network,
# cross-attention of three kinds, and layers in a loop, a scan or tied
FORMS = [
    (dict(positions="rotary", kv_heads=1, qk_norm=True, cross=Additive(hidden=5)), {}),
    (dict(mechanism=SlidingWindow(left=2, right=0), norm_position="post", layers=2), {}),
    (dict(mechanism=Linear(chunk=4), cross=Linear(chunk=4), positions="none", mlp_width=0), {}),
    (
        dict(mechanism=GatedDeltaNet(chunk=4), source=dict(mechanism=GatedDeltaNet(chunk=4))),
        dict(mask=Causal()),
    ),
    (dict(positions="learned", source=dict(positions="t5", scan=True), dtype="bfloat16"), {}),
    (dict(positions="alibi", layers=2, scan=True, kv_heads=1, remat=True), {}),
    (dict(positions="t5", layers=2, tied=True, norm_position="post"), {}),
    (dict(positions="t5", layers=2, tied=True, scan=True), {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "options"), FORMS, ids=str)
def test_step_by_step_equals_at_once(changes, options):
    whole, stepped = scores_at_once_and_stepped(model(**changes), 2, **options)
    near = dict(rtol=0, atol=0.05) if changes.get("dtype") == "bfloat16" else NEAR
    np.testing.assert_allclose(stepped, whole[:, 1:], **near)
    assert abs(whole).max() > 0.1


@pytest.mark.parametrize("where", ["pre", "post"])
def test_a_layer_is_its_equations(where):
    settings = config(**SIDE, norm_position=where)
    key = jax.random.key(1)
    layer = CrossBlock(settings, SOFTMAX, cross=SOFTMAX, source_length=7, key=key)
    for norm in (layer.own.attention_norm, layer.cross_norm, layer.mlp_norm):
        key, of_scale, of_bias = jax.random.split(key, 3)
        norm.scale[...] = 1 + jax.random.normal(of_scale, norm.scale.shape) / 2
        norm.bias[...] = jax.random.normal(of_bias, norm.bias.shape)
    x, source = (jax.random.normal(k, (3, n, 12)) for k, n in zip(jax.random.split(key), (6, 7)))
    mask = Padding(LENGTHS)
    parts = [
        (layer.own.attention_norm, lambda y: layer.own.attention(y, mask=Causal())),
        (layer.cross_norm, lambda y: layer.cross(y, context=source, mask=mask)),
        (layer.mlp_norm, layer.mlp),
    ]
    want = x
    for norm, part in parts:
        want = norm(want + part(want)) if where == "post" else want + part(norm(want))
    out = layer(x, source=source, mask=mask, bias=None, positions=None, dropout_key=None)
    np.testing.assert_allclose(out, want, **NEAR)


def test_a_score_is_of_the_source_and_of_earlier_tokens_alone():
    net = model(layers=2)
    scores = run(net, SOURCE, TARGET)
    later = run(net, SOURCE, TARGET.at[:, 4:].set(0))
    np.testing.assert_allclose(scores[:, :4], later[:, :4], **NEAR)
    assert abs(scores[:, 4:] - later[:, 4:]).max() > 1e-3
    other = run(net, SOURCE.at[:, -1].add(1), TARGET)
    assert (abs(scores - other).max(-1) > 1e-5).all()


@pytest.mark.parametrize("norm_position", ["pre", pytest.param("post", marks=pytest.mark.slow)])
def test_padding_never_leaks(norm_position):
    net = model(norm_position=norm_position)
    graph, params = nnx.split(net)

    @jax.jit
    def go(params, source):
        loss = lambda params: nnx.merge(graph, params)(source, TARGET, lengths=LENGTHS)
        scores, pull = jax.vjp(loss, params)
        return scores, pull(jnp.ones_like(scores))

    scores, gradient = go(params, SOURCE)
    # an id outside the vocabulary is NaN to the embedding
    spoilt = jnp.where(jnp.arange(7) < LENGTHS[:, None], SOURCE, 99)
    after, other = go(params, spoilt)
    jax.tree.map(np.testing.assert_array_equal, (scores, gradient), (after, other))
    assert np.isfinite(scores).all()
    row = run(net, SOURCE[1:2, :3], TARGET[1:2])
    np.testing.assert_allclose(scores[1:2], row, **NEAR)


def test_features_that_are_nan_past_the_length_are_not_seen():
    block = model().stack.blocks[0].cross
    x, context = (jnp.asarray(RNG.normal(size=(2, n, 12)), jnp.float32) for n in (4, 5))
    seen = Padding(jnp.array([3, 2]))
    look = jax.jit(lambda c: block.recall(x, block.memory(c), mask=seen))
    want = block(x, context=context, mask=seen)
    spoilt = context.at[0, 3:].set(jnp.nan).at[1, 2:].set(jnp.nan)
    np.testing.assert_allclose(look(spoilt), want, **NEAR)


def test_greedy_takes_the_likeliest():
    net = model(layers=2)
    tokens = net.greedy(SOURCE, 6, lengths=LENGTHS)
    given = jnp.concatenate([jnp.full((3, 1), 2), tokens[:, :-1]], 1)
    scores = run(net, SOURCE, given, lengths=LENGTHS)
    np.testing.assert_array_equal(tokens, scores.argmax(-1))
    with pytest.raises(ValueError, match="steps: expected 1 to max_length=6, got 7"):
        net.greedy(SOURCE, 7)


@pytest.mark.slow
def test_a_beam_of_one_is_greedy_and_a_wide_one_scores_its_own_words():
    net = model()
    greedy = net.greedy(SOURCE, 6, lengths=LENGTHS)
    end = int(greedy[0, 2])
    tokens, _ = net.beam(SOURCE, 6, width=1, end=end, lengths=LENGTHS)
    after = jnp.cumsum(greedy == end, 1) - (greedy == end) > 0
    np.testing.assert_array_equal(tokens[:, 0], jnp.where(after, end, greedy))
    tokens, scores = net.beam(SOURCE, 6, width=4, end=end, alpha=0.6, lengths=LENGTHS)
    assert (np.diff(scores) <= 0).all()
    for best in (0, 3):
        given = jnp.concatenate([jnp.full((3, 1), 2), tokens[:, best, :-1]], 1)
        logp = jax.nn.log_softmax(run(net, SOURCE, given, lengths=LENGTHS))
        each = jnp.take_along_axis(logp, tokens[:, best, :, None], 2)[..., 0]
        before = jnp.cumsum(tokens[:, best] == end, 1) - (tokens[:, best] == end) == 0
        want = (each * before).sum(1) / ((5 + before.sum(1)) / 6) ** 0.6
        np.testing.assert_allclose(scores[:, best], want, rtol=1e-4)


def test_maps_are_rows_of_shares():
    (one, two) = run(model(layers=2), SOURCE, TARGET, lengths=LENGTHS, method="maps")
    assert one.shape == two.shape == (3, 2, 6, 7)
    np.testing.assert_allclose(two.sum(-1), 1, atol=1e-5)
    assert (two[1, :, :, 3:] == 0).all()


class Mine(Toy):
    """As a user's own that looks row by row."""

    crosses = True


def row_by_row(mechanism) -> bool:
    """Whether each query's output is that of the query alone, at any place, under padding."""
    q, k, v, learned = inputs(mechanism, T=5, S=5)
    if set(learned) - set(dict(mechanism.init(jax.random.key(0), **sizes(q, k, v)))):
        return False  # gates
    mask = Padding(jnp.full(q.shape[:-3], 4))
    go = jax.jit(lambda q: mechanism(q, k, v, mask=mask, **learned))
    try:
        whole, alone = go(q), [go(q[..., i : i + 1, :, :]) for i in (0, 3)]
        more = go(jnp.concatenate([q, q, q[..., :1, :, :]], -3))
    except (ValueError, NotImplementedError, TypeError):
        return False
    near = lambda x, y: bool(jnp.allclose(x, y, rtol=1e-4, atol=1e-4))
    rows = [near(x[..., 0, :, :], whole[..., i, :, :]) for i, x in zip((0, 3), alone)]
    return all(rows) and near(more[..., 5:10, :, :], whole)


def sizes(q, k, v):
    heads = dict(num_heads=q.shape[-2], num_kv_heads=k.shape[-2], head_dim=q.shape[-1])
    return dict(value_dim=v.shape[-1], max_length=k.shape[-3], **heads)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [*CROSSING, Luong(), Luong(score="concat")], ids=repr)
def test_what_may_look_across_does_so_row_by_row(mechanism):
    assert row_by_row(mechanism)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Luong(local="m", window=1), Nystrom(landmarks=2)])
def test_rows_that_depend_on_others_are_seen_to(mechanism):
    assert not row_by_row(mechanism)


@pytest.mark.parametrize("cross", [Toy(), Luong(local="m"), SlidingWindow(), GatedDeltaNet()])
def test_what_cannot_look_across_is_refused_by_name(cross):
    with pytest.raises(ValueError, match=f"cross: expected .* got {cross.name}"):
        model(cross=cross)
    check_cross(Luong(score="general"))
    check_cross(Mine())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(source=dict(head="classification", pooling="mean")), "source.head"),
        (dict(source=dict(width=8)), "target.width"),
        (dict(bos=5), "bos"),
        (dict(cross="softmax"), "cross"),
    ],
)
def test_what_does_not_go_together_is_named(changes, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        model(**changes)


def test_wrong_tokens_are_refused():
    net, listed = model(), [[3, 4, 5]]
    state, _ = run(net, SOURCE, TARGET[:, :1], method="prefill")
    for call, name in (
        (lambda: net(listed, TARGET), "source"),
        (lambda: net(SOURCE, TARGET * 1.0), "target_in"),
        (lambda: net.prefill(SOURCE, listed), "prompt"),
        (lambda: net.step(state, 3), "token"),
        (lambda: net.greedy(listed, 2), "source"),
        (lambda: net.beam(listed, 2, width=2, end=1), "source"),
        (lambda: net.maps(SOURCE, TARGET * 1.5), "target_in"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected an array of integers"):
            call()
    with pytest.raises(ValueError, match="prompt: expected at least one"):
        net.prefill(SOURCE, TARGET[:, :0])
    with pytest.raises(ValueError, match=r"end: expected an id below 5, got Array\(1,"):
        net.beam(SOURCE, 2, width=2, end=jnp.array(1))
    for call in (net, net.maps):
        match = r"^target_in: expected \[3, 'T'\] to go with source, got \[1, 6\]"
        with pytest.raises(ValueError, match=match):
            call(SOURCE, TARGET[:1])
    with pytest.raises(TypeError, match="state: expected that of `prefill`, got NoneType"):
        net.step(None, TARGET[:, 0])
    with pytest.raises(ValueError, match="lengths: expected shape"):
        net(SOURCE, TARGET, lengths=LENGTHS[:2])
    for call in (
        lambda **how: net(SOURCE, TARGET, **how),
        lambda **how: net.greedy(SOURCE, 2, **how),
    ):
        with pytest.raises(ValueError, match=r"lengths: expected integers from 0 to .* got -7"):
            call(lengths=-LENGTHS)
    for call in (net, net.maps):
        with pytest.raises(ValueError, match="target_in: expected at most max_length=6"):
            call(SOURCE, jnp.concatenate([TARGET, TARGET], 1))


def test_integers_that_32_bits_do_not_hold_are_refused():
    net, large = model(), np.full((3, 6), 2**32 + 3)
    beam = lambda source, **more: net.beam(source, 2, width=2, end=0, **more)
    for call, name in (
        (lambda: net(large, TARGET), "source"),
        (lambda: net(SOURCE, large), "target_in"),
        (lambda: net.prefill(SOURCE, large), "prompt"),
        (lambda: net.greedy(large, 2), "source"),
        (lambda: beam(large), "source"),
    ):
        match = rf"{name}: expected integers from .* got 4294967299"
        with pytest.raises(ValueError, match=match):
            call()
    for call in (
        lambda: net(SOURCE, TARGET, lengths=large[:, 0]),
        lambda: net.greedy(SOURCE, 2, lengths=large[:, 0]),
        lambda: beam(SOURCE, lengths=large[:, 0]),
    ):
        with pytest.raises(ValueError, match=r"lengths: expected integers from .* got 4294967299"):
            call()


def test_more_classes_than_can_be_read_again_are_refused():
    with pytest.raises(ValueError, match=r"target.classes: expected at most the vocabulary"):
        model(classes=30)


@pytest.mark.slow
def test_a_source_without_batch_has_a_beam():
    net = model(mechanism=Linear(chunk=4))
    source = jnp.array([[3, 4, 5]])
    tokens, scores = net.beam(source, 4, width=2, end=1)
    one, score = net.beam(source[0], 4, width=2, end=1)
    np.testing.assert_array_equal(one, tokens[0])
    np.testing.assert_allclose(score, scores[0], rtol=1e-6)
    # its mask has no batch either: one of [S, S] was refused, that greedy decoding takes
    mask = attn.masks.Array(jnp.ones((3, 3), bool))
    beam = lambda: model().beam(source[0], 4, width=2, end=1, mask=mask)
    assert jax.eval_shape(beam)[0].shape == (2, 4)


@pytest.mark.slow
def test_a_source_of_vectors_is_written_from_too():
    """Greedy decoding and beams once took the last axis of a source for its tokens."""
    net = model(source=dict(vocab_size=None, token_width=4))
    source = jnp.asarray(RNG.normal(size=(2, 7, 4)), jnp.float32)
    tokens = net.greedy(source, 4, lengths=LENGTHS[:2])
    given = jnp.concatenate([jnp.full((2, 1), 2), tokens[:, :-1]], 1)
    scores = run(net, source, given, lengths=LENGTHS[:2])
    np.testing.assert_array_equal(tokens, scores.argmax(-1))
    beams, _ = net.beam(source, 4, width=1, end=1, lengths=LENGTHS[:2])
    one, _ = net.beam(source[0], 4, width=1, end=1, lengths=LENGTHS[0])
    np.testing.assert_array_equal(one, beams[0])
