"""Each pattern is the one its paper draws, its parts make it up, and its work is as claimed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Causal, _forms
from attn._places import Places
from attn.kernels import dispatch
from attn.kernels.cudnn import Cudnn
from attn.masks import FULL, Padding, Random, Window
from attn.sparse._patterned import Patterned
from attn.sparse._reorder import Part, Reordered, SameGroup
from attn.sparse.local_2d import DEARER, TILE
from attn.testing import assert_close, inputs
from attn.testing.trying import compare, with_gradients

T = 37
PATTERNS = [name for name, kind in attn.MECHANISMS.items() if issubclass(kind, Patterned)]


def drawn(define):
    return np.array([[define(i, j) for j in range(T)] for i in range(T)])


def power_of_two(n):
    return n in (0, 1, 2, 4, 8, 16, 32)


PAPERS = {
    attn.SlidingWindow(left=5, right=2): lambda i, j: -5 <= j - i <= 2,
    attn.GlobalWindow(window=2, positions=(0, 9)): lambda i, j: (
        abs(i - j) <= 2 or i in (0, 9) or j in (0, 9)
    ),
    attn.StridedPattern(stride=6): lambda i, j: abs(i - j) <= 6 or (i - j) % 6 == 0,
    attn.StridedPattern(): lambda i, j: abs(i - j) <= 7 or (i - j) % 7 == 0,
    attn.FixedPattern(block_size=6, summary=2): lambda i, j: i // 6 == j // 6 or j % 6 >= 4,
    attn.Sinks(sinks=3, window=4): lambda i, j: j < 3 or abs(i - j) < 4,
    attn.AxialPattern(height=6, width=6): lambda i, j: (
        i < 36 and j < 36 and (i // 6 == j // 6 or i % 6 == j % 6)
    ),
    attn.LogSparse(window=4): lambda i, j: abs(i - j) < 4 or power_of_two(abs(i - j)),
    attn.SlidingWindow(left=3, right=1, rate=4): lambda i, j: j - i in (-12, -8, -4, 0, 4),
    attn.Local2DPattern(height=6, width=6, reach=2): lambda i, j: (
        i < 36 and j < 36 and abs(i // 6 - j // 6) <= 2 and abs(i % 6 - j % 6) <= 2
    ),
}


@pytest.mark.parametrize("mechanism", PAPERS, ids=repr)
def test_pattern_is_the_papers(mechanism):
    (pattern,) = mechanism.patterns(T, T)
    np.testing.assert_array_equal(pattern.array(T, T), drawn(PAPERS[mechanism]))


@pytest.mark.parametrize(
    ("mechanism", "of_head"),
    [
        (
            attn.StridedPattern(stride=6, heads="alternating"),
            (lambda i, j: abs(i - j) <= 6, lambda i, j: (i - j) % 6 == 0),
        ),
        (
            attn.FixedPattern(block_size=6, summary=2, heads="alternating"),
            (lambda i, j: i // 6 == j // 6, lambda i, j: j % 6 >= 4),
        ),
    ],
    ids=["strided", "fixed"],
)
def test_alternating_heads_are_the_papers_two_kinds(mechanism, of_head):
    for n, pattern in enumerate(mechanism.patterns(T, T)):
        np.testing.assert_array_equal(pattern.array(T, T), drawn(of_head[n]))
        parts = sum(of_part(part, T, T) for part in mechanism.pieces(T, T)[n])
        np.testing.assert_array_equal(parts, drawn(of_head[n]))
    q, k, v, _ = inputs(mechanism, T=T, S=T)
    whole, in_pieces = mechanism(q, k, v), dataclasses.replace(mechanism, block=8)(q, k, v)
    for head in range(4):
        seen = attn.Array(jnp.asarray(drawn(of_head[head % 2]))[None])
        want = attn.dot_product_attention(q, k, v, mask=seen)[..., head, :]
        for out in (whole, in_pieces):
            np.testing.assert_allclose(out[..., head, :], want, rtol=0, atol=2e-6)


def test_a_dilated_segment_costs_its_length_over_the_square_of_its_rate():
    """As in the paper and in its docstring: queries and keys are both every r-th token."""
    mechanism = attn.DilatedSegments(segments=(4096,), rates=(4,))
    length, N, H, D = 8192, 4, 2, 3
    flops = mechanism.flops(length, length, N, N, H, D)
    assert flops == 2 * length * N * 4096 // 4**2 * (H + D)


@pytest.mark.parametrize(("segments", "rates"), [((5, 10, 20), (1, 2, 4)), ((3, 7, 9), (1, 2, 4))])
def test_dilated_segments_are_a_softmax_weighed_by_how_often_a_pair_is_met(segments, rates):
    mechanism = attn.DilatedSegments(segments=segments, rates=rates)
    q, k, v, _ = inputs(mechanism, T=T, S=T)
    out = np.asarray(mechanism(q, k, v))
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    for b, i, n in [(0, 0, 0), (1, 7, 1), (0, 11, 3), (1, 36, 2)]:
        top = bottom = 0.0
        for w, r in zip(mechanism.segments, mechanism.rates):
            for j in range(T):
                if i // w == j // w and i % w % r == j % w % r == n % r:
                    e = np.exp(q[b, i, n] @ k[b, j, n // 2] / np.sqrt(8))
                    top, bottom = top + e * v[b, j, n // 2], bottom + e
        np.testing.assert_allclose(out[b, i, n], top / bottom, rtol=0, atol=2e-6)


def of_part(part: Part, T, S):
    """The pairs of a part, drawn where the tokens lie."""
    queries = part.queries or Places.of(np.arange(T))
    keys = part.keys or Places.of(np.arange(S))
    seen = Reordered(part.pattern.sized(T, S), queries, keys)
    drawn = seen.array(len(queries), len(keys))
    near = part.near.array(len(queries), len(keys))
    assert not (drawn & ~near).any()
    where = np.zeros((T, S), int)
    where[np.ix_(queries.array(), keys.array())] = drawn
    return where


@pytest.mark.parametrize("mechanism", PAPERS, ids=repr)
@pytest.mark.parametrize("S", [T, 23])
def test_parts_are_disjoint_and_make_the_pattern(mechanism, S):
    ((of_all,), (pattern,)) = mechanism.pieces(T, S), mechanism.patterns(T, S)
    parts = sum(of_part(part, T, S) for part in of_all)
    np.testing.assert_array_equal(parts, pattern.array(T, S).astype(int))
    want = float(pattern.array(T, S).mean())
    assert abs(mechanism.density(T, S) - want) < 1e-9


def test_blocks_of_what_is_reordered_hold_all_that_is_seen():
    order = np.lexsort((np.arange(T), np.arange(T) % 5))
    places = Places.of(order)
    for mask in (Causal(), attn.Window(4, 2), attn.Strided(5), SameGroup(places, places)):
        mask = mask if isinstance(mask, SameGroup) else Reordered(mask, places, places)
        attn.testing.check_mask(mask, T, T)


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_square_root_patterns_visit_few_blocks(kind):
    mechanism = attn.MECHANISMS[kind](block=128)
    growth = [mechanism.visited(T, T) * T * T for T in (4096, 16384)]
    assert growth[1] < 4**1.6 * growth[0]  # T^1.5, and whole blocks
    assert "of pairs visible" in mechanism.describe(4096)


@pytest.mark.slow
def test_biases_and_dropout_are_those_of_the_tokens_own_places():
    mechanism = attn.StridedPattern(stride=4, dropout_rate=0.3, block=8)
    q, k, v, _ = inputs(mechanism)
    normal = lambda *shape: jnp.asarray(np.random.default_rng(5).normal(size=shape), jnp.float32)
    arrays = (normal(2, 4, 19, 19), normal(1, 4, 19, 1), normal(2, 1, 1, 19))
    for bias in (attn.Relative(normal(32, 4)), *arrays, None):
        options = {"mask": Causal(), "dropout_key": jax.random.key(1), "bias": bias}
        got, want = mechanism(q, k, v, **options), mechanism.reference(q, k, v, **options)
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)


def test_queries_that_lie_in_order_are_not_copied():
    """The last keys of all blocks are gathered for queries that stay where they are."""
    mechanism = attn.FixedPattern(block=8)
    q, k, v, _ = inputs(mechanism, T=T, S=T)
    made = jax.make_jaxpr(mechanism)(q, k, v)
    shapes = [e.outvars[0].aval.shape for e in made.eqns if e.params.get("name") == "_take"]
    assert {shape[-3] for shape in shapes} == {5}  # the last of each 7


def test_a_part_that_nobody_is_about_is_nothing():
    mechanism = attn.GlobalWindow(window=2, positions=(50,), block=8)
    q, k, v, _ = inputs(mechanism)
    want = attn.window_attention(q, k, v, left=2, right=2, mask=FULL, block=8)
    np.testing.assert_array_equal(mechanism(q, k, v), want)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: attn.GlobalWindow(window=-1), "window"),
        (lambda: attn.GlobalWindow(positions=(-1,)), "positions"),
        (lambda: attn.StridedPattern(stride=0), "stride"),
        (lambda: attn.FixedPattern(block_size=2, summary=3), "summary"),
        (lambda: attn.Sinks(window=0), "window"),
        (lambda: attn.AxialPattern(height=0, width=2), "height"),
        (lambda: attn.LogSparse(window=0), "window"),
        (lambda: attn.Local2DPattern(height=2, width=2, reach=-1), "reach"),
        (lambda: attn.SlidingWindow(rate=0), "rate"),
        (lambda: attn.SlidingWindow(left=-1), "left"),
        (lambda: attn.SlidingWindow(left=True), "left: expected an integer .* got True"),
        (lambda: attn.SlidingWindow(right=1.5, rate=2), "right: expected an integer .* got 1.5"),
        (lambda: attn.DilatedSegments(segments=(4,), rates=(1, 2)), "rates"),
        (lambda: attn.DilatedSegments(segments=(0,), rates=(1,)), "segments"),
        (lambda: attn.StridedPattern(heads="both"), "heads"),
        (lambda: attn.BlockSparse(masks=()), "masks"),
        (lambda: attn.BlockSparse(masks="{}"), "term"),
        (lambda: attn.SlidingWindow(dropout_rate=1.0), "dropout_rate"),
    ],
)
def test_settings_that_mean_nothing_are_named(wrong, match):
    with pytest.raises(ValueError, match=match):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: attn.GlobalWindow(positions=3), "positions: expected integers, got 3"),
        (lambda: attn.DilatedSegments(segments=5), "segments: expected integers, got 5"),
    ],
)
def test_one_number_for_a_list_is_named(wrong, match):
    with pytest.raises(TypeError, match=match):
        wrong()


@pytest.mark.parametrize(
    ("pattern", "got"),
    [(5, "5"), ((), r"\(\)"), ((Causal(), 3), r"\(Causal"), (attn.Padding(np.array([1])), "Padd")],
)
def test_what_is_no_static_pattern_is_named(pattern, got):
    q = jnp.ones((1, 4, 2, 8))
    with pytest.raises(TypeError, match=f"pattern: expected static masks, got {got}"):
        attn.block_sparse_attention(q, q, q, pattern=pattern)


def test_masks_that_hold_arrays_are_no_pattern():
    with pytest.raises(TypeError, match="masks: expected static masks, got Padding"):
        attn.BlockSparse(masks=attn.Padding(jnp.array([1])))


def test_a_records_masks_are_plain_text():
    record = attn.BlockSparse(masks=(attn.Window(2, 2), attn.Strided(4)))
    assert record == attn.BlockSparse(masks=record.masks)
    assert record.patterns(9, 9) == (attn.Window(2, 2), attn.Strided(4))


def test_no_tokens_have_no_pairs():
    for record in PAPERS:
        for lengths in ((0, 0), (0, 5), (5, 0)):
            assert "0.00% of pairs visible, 0.00% of dense" in record.describe(*lengths)


def test_sinks_keep_a_cache_of_their_own_size():
    mechanism = attn.Sinks(sinks=2, window=4)
    state = mechanism.init_state(
        (1,), num_heads=1, num_kv_heads=1, head_dim=4, value_dim=4, max_length=1000
    )
    assert state.k.shape == (1, 1, 6, 4)


def test_the_plan_of_a_long_sequence_is_quick_to_make():
    form, _ = _forms.choose(attn.Window(256, 0), 65536, 65536, 4)
    assert form == "strips"


@pytest.mark.parametrize("T", [16384, 65536])
def test_a_few_rows_of_global_tokens_do_not_decide_the_blocks(T):
    """They are among those looked at, but each stands for itself."""
    mask = attn.Window(128, 128) | attn.Global((0,))
    assert _forms.choose(mask, T, T, 4) == ("loops", (128, 128))
    few, stands_for = _forms._some_rows(T // 64)
    assert len(few) == 80
    np.testing.assert_allclose(stands_for.sum(), T // 64)


def separate(T=21, seed=3):
    """Arrays of a layer whose global tokens have projections of their own."""
    mechanism = attn.GlobalWindow(window=2, positions=(0, 9), separate=True)
    q, k, v, more = inputs(mechanism, T=T, S=T, D=8, seed=seed)
    return mechanism, (q, k, v), more


@pytest.mark.slow
@pytest.mark.parametrize("mask", [FULL, attn.Padding(jnp.array([17, 21])), Causal()], ids=repr)
def test_global_tokens_ask_by_their_own_projections(mask):
    mechanism, qkv, more = separate()
    call = lambda call: jax.value_and_grad(
        lambda qkv, more: (call(*qkv, mask=mask, **more) ** 2).sum(), argnums=(0, 1)
    )(qkv, more)
    for got, want in zip(*map(jax.tree.leaves, map(call, (mechanism, mechanism.reference)))):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)
    # a global row is dense attention of its own arrays, another knows nothing of those
    out = np.asarray(mechanism(*qkv, mask=mask, **more))
    asked = attn.dot_product_attention(*(more[f"global_{x}"] for x in "qkv"), mask=mask)
    plain = attn.GlobalWindow(window=2, positions=(0, 9))(*qkv, mask=mask)
    np.testing.assert_allclose(out[:, [0, 9]], asked[:, np.array([0, 9])], rtol=0, atol=2e-6)
    others = np.setdiff1d(np.arange(21), [0, 9])
    np.testing.assert_allclose(out[:, others], plain[:, others], rtol=0, atol=2e-6)


def test_global_projections_are_all_or_none_and_of_the_same_shapes():
    mechanism, qkv, more = separate()
    with pytest.raises(ValueError, match="global_v"):
        mechanism(*qkv, global_q=more["global_q"], global_k=more["global_k"])
    with pytest.raises(ValueError, match="separate"):
        attn.GlobalWindow()(*qkv, **more)
    with pytest.raises(ValueError, match="global_k: expected"):
        mechanism(*qkv, **{**more, "global_k": more["global_k"][:, 1:]})
    with pytest.raises(NotImplementedError, match="decode"):
        mechanism.init_state(
            (1,), num_heads=1, num_kv_heads=1, head_dim=4, value_dim=4, max_length=9
        )
    with pytest.raises(NotImplementedError, match="decode"):
        mechanism.prefill(*qkv, max_length=30, **more)


@pytest.mark.slow
def test_a_layer_projects_for_global_tokens():
    from flax import nnx

    from attn.nn import Attention

    mechanism = attn.GlobalWindow(window=2, positions=(0,), separate=True)
    layer = Attention(16, num_heads=4, mechanism=mechanism, key=jax.random.key(0), max_length=12)
    x = jax.random.normal(jax.random.key(1), (2, 12, 16))
    loss = lambda layer: (layer(x)[:, 0] ** 2).sum()
    gradients = jax.tree.leaves(nnx.grad(loss)(layer))
    assert layer(x).shape == (2, 12, 16)
    assert all(np.isfinite(g).all() for g in gradients)
    grads = nnx.grad(loss)(layer)
    for name in ("global_q", "global_k", "global_v"):
        assert float(jnp.abs(grads.gates.projections[name]["kernel"][...]).max()) > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 0),
        ("window", None),
        ("global_blocks", -1),  # none, without a word
        ("random", {}),  # likewise
        ("seed", 0.5),
    ],
)
def test_settings_of_a_bigbird_are_named(name, value):
    good = {"block_size": 4, "window": 1, "global_blocks": 1, "random": 1, "seed": 0}
    for make in (attn.bigbird_pattern, attn.BigBird):
        with pytest.raises(ValueError, match=f"^{name}: expected an integer"):
            make(**{**good, name: value})


def test_a_bigbird_of_a_length_shows_the_same_pairs_at_any_other():
    fixed, free = (attn.BigBird(block_size=2, window=0, random=1, length=n) for n in (40, None))
    seen = lambda record, n: record.patterns(n, n)[0].array(n, n)
    np.testing.assert_array_equal(seen(fixed, 40)[:30, :30], seen(fixed, 30))
    assert (seen(free, 40)[:30, :30] != seen(free, 30)).any()
    assert fixed.settled
    assert not free.settled
    with pytest.raises(ValueError, match="length: expected at least 41 tokens, got 40"):
        fixed.patterns(41, 41)


@pytest.mark.parametrize("name", ["strided", "fixed", "axial", "local_2d"])
def test_patterns_without_sizes_are_not_settled(name):
    sizes = {"strided": {"stride": 3}, "fixed": {"block_size": 3}}
    given = sizes.get(name, {"height": 8, "width": 8})
    kind = attn.MECHANISMS[name]
    assert not kind().settled
    assert kind(**given).settled


@pytest.mark.parametrize("name", PATTERNS)
def test_a_prompt_is_that_of_a_settled_pattern(name):
    drawn = attn.BlockSparse(masks=(Random(2, 1, 0), Window(3, 0)))
    for mechanism in (*attn.MECHANISMS[name].examples(), *(drawn,) * (name == "block_sparse")):
        for length in (7, 40):
            one = mechanism.of_length(length)
            assert one.settled
            sized = lambda m: tuple(p.sized(length, length) for p in m.patterns(length, length))
            assert sized(one) == sized(mechanism)


def test_a_window_runs_by_a_kernel_where_the_platform_has_one(monkeypatch):
    asked = []

    class Seen(Cudnn):
        def __call__(self, call):
            asked.append(call.mask)
            return super().__call__(call)

    monkeypatch.setitem(dispatch.IMPLEMENTATIONS, "cudnn", Seen(through="xla"))
    monkeypatch.setitem(dispatch.FOR_PATTERNS, "cpu", ("cudnn", "blockwise"))
    q, k, v, _ = inputs(attn.SlidingWindow(), T=T, S=T)
    for window, mask, kernel in (
        (attn.SlidingWindow(left=5, right=0), Causal(), True),
        (attn.SlidingWindow(left=5, right=2), FULL, False),  # cuDNN's end at the query itself
        (attn.SlidingWindow(left=5, right=0, rate=2), Causal(), False),
    ):
        asked.clear()
        out = window(q, k, v, mask=mask)
        assert bool(asked) == kernel, window
        reference = window.reference(q, k, v, mask=mask)
        assert_close(out, reference, dtype="float32", what=str(window))


@pytest.mark.parametrize(
    ("height", "width", "reach", "tiled"),
    [(8, 8, 3, False), (64, 64, 8, False), (16, 512, 8, True), (256, 256, 3, True)],
)
def test_pixels_are_sorted_into_tiles_where_rows_cost_more(height, width, reach, tiled):
    pattern, size = attn.Local2DPattern(height=height, width=width, reach=reach), height * width
    ((part,),) = pattern.pieces(size, size)
    assert part.lies != tiled
    assert pattern.visited(size, size) * size <= DEARER * ((2 * -(-reach // TILE) + 1) * TILE) ** 2


@pytest.mark.parametrize("mask", [FULL, Causal() & Padding(jnp.array([30, 37]))], ids=str)
def test_tiles_compute_the_same(monkeypatch, mask):
    monkeypatch.setattr("attn.sparse.local_2d.DEARER", 0)
    pattern = attn.Local2DPattern(height=4, width=10, reach=2, block=8)
    ((part,),) = pattern.pieces(T, T)
    assert not part.lies
    arrays = inputs(pattern, T=T, S=T)
    run = jax.jit(with_gradients(pattern))
    compare(pattern, run, arrays, mask, None, dtype=jnp.float32, what="tiles")


@pytest.mark.parametrize("name", PATTERNS)
def test_a_short_pattern_runs_whole(name):
    """Its pieces visited up to twice the scores that there are, and took up to three times as
    long."""
    for mechanism in attn.MECHANISMS[name].examples():
        whole = dataclasses.replace(mechanism, block=None)
        assert all(
            parts == (Part(pattern),)
            for parts, pattern in zip(
                whole.running(200, 256), whole.patterns(200, 256), strict=True
            )
        )
        assert whole.visited(256, 256) <= 1
        assert whole.running(200, 257) == whole.pieces(200, 257)
        in_blocks = dataclasses.replace(mechanism, block=8)
        assert in_blocks.running(200, 256) == in_blocks.pieces(200, 256)
