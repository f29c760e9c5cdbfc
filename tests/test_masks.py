"""The mask language: explained by drawings, then checked against loops."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import masks
from attn.masks import (
    FULL,
    STATIC_TERMS,
    And,
    Array,
    Axial,
    Blocks,
    Causal,
    Coarse,
    Dilated,
    Fixed,
    Global,
    Local2D,
    LogDistance,
    Not,
    Or,
    Padding,
    Prefix,
    Random,
    Segments,
    Strided,
    Summary,
    Window,
    from_json,
)
from attn.testing import check_mask

DRAWINGS = [
    (
        Causal(),
        """
        # . . . .
        # # . . .
        # # # . .
        # # # # .
        """,
    ),
    (
        Causal(1),
        """
        # # . . .
        # # # . .
        # # # # .
        # # # # #
        """,
    ),
    (
        Window(1, 2),
        """
        # # # . .
        # # # # .
        . # # # #
        . . # # #
        """,
    ),
    (
        Dilated(1, 2),
        """
        # . # . .
        . # . # .
        # . # . #
        . # . # .
        """,
    ),
    (
        Causal() | Prefix(3),
        """
        # # # . .
        # # # . .
        # # # . .
        # # # # .
        """,
    ),
    (
        Global((1,)) & Causal(),
        """
        . . . . .
        # # . . .
        . # . . .
        . # . . .
        """,
    ),
    (
        Strided(2) & Causal(),
        """
        # . . . .
        . # . . .
        # . # . .
        . # . # .
        """,
    ),
    (
        Fixed(2, 1),
        """
        # # . # .
        # # . # .
        . # # # .
        . # # # .
        """,
    ),
    (
        Axial(2, 2),
        """
        # # # . .
        # # . # .
        # . # # .
        . # # # .
        """,
    ),
    (
        Blocks(((1, 0, 1), (0, 1, 0)), 2),
        """
        # # . . #
        # # . . #
        . . # # .
        . . # # .
        """,
    ),
    (
        LogDistance(),
        """
        # # # . #
        # # # # .
        # # # # #
        . # # # #
        """,
    ),
    (
        Local2D(2, 2, 0),
        """
        # . . . .
        . # . . .
        . . # . .
        . . . # .
        """,
    ),
    (
        Summary(3, 1),
        """
        . . # . .
        . . # . .
        . . # . .
        . . # . .
        """,
    ),
    (
        Coarse(Causal(), 2),
        """
        # # . . .
        # # . . .
        # # # # .
        # # # # .
        """,
    ),
    (
        ~Window(1, 1),
        """
        . . # # #
        . . . # #
        # . . . #
        # # . . .
        """,
    ),
    (
        Padding(2),
        """
        # # . . .
        # # . . .
        # # . . .
        # # . . .
        """,
    ),
    (
        Segments(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0, 2])) & Causal(),
        """
        # . . . .
        # . . . .
        . # # . .
        . # # . .
        """,
    ),
]

STATIC = [
    FULL,
    Causal(),
    Causal(-3),
    Causal(4),
    Window(2, 1),
    Window(0, 0),
    Window(100, 0),
    Dilated(2, 3),
    Prefix(4),
    Prefix(0),
    Global((0, 7)),
    Global(()),
    Strided(3),
    Strided(1),
    Fixed(4, 1),
    Fixed(4, 0),
    Fixed(3, 3),
    Random(4, 1, 0),
    Random(3, 2, 5),
    Random(1, 0, 0),
    Blocks(((1, 0, 1), (0, 1, 0)), 4),
    Blocks((), 4),
    Axial(3, 4),
    Axial(4, 1),
    LogDistance(),
    Local2D(3, 4, 1),
    Summary(4, 1),
    Summary(3, 3),
    Coarse(Window(1, 0) | Random(1, 1, 2), 3),
    Causal() & Window(3, 0),
    Causal() | Prefix(3),
    ~Causal(),
    (Global((0,)) & ~Strided(2)) | Random(3, 2, 1),
]
DYNAMIC = [
    Padding(jnp.array([3, 5])),
    Padding(keys=jnp.array([[True, False, True]])),
    Padding(2, queries=jnp.array([True, False])),
    Segments(jnp.array([0, 1]), jnp.array([1, 0, 0])),
    Array(jnp.array([[[True, False, True], [False, False, True]]])),
    Causal() & Padding(jnp.array([3, 5])),
]


@pytest.mark.parametrize(("mask", "drawing"), DRAWINGS, ids=lambda x: str(x)[:30])
def test_drawing(mask, drawing):
    want = "\n".join(line.strip() for line in drawing.strip().splitlines())
    assert mask.draw(4, 5) == want


@pytest.mark.parametrize("mask", STATIC, ids=str)
@pytest.mark.parametrize(("T", "S"), [(13, 13), (7, 19), (19, 7), (1, 1)])
def test_array_blocks_and_density_agree(mask, T, S):
    whole = mask.array(T, S)
    assert isinstance(whole, np.ndarray)
    assert whole.shape == (T, S)
    assert whole.dtype == bool
    assert mask.density(T, S) == pytest.approx(whole.mean())
    check_mask(mask, T, S)


SINGLE = [mask for mask in STATIC if not isinstance(mask, And | Or | Not | Coarse)]


@pytest.mark.parametrize(
    "mask", [*SINGLE, Coarse(Causal(), 3), Causal() & Window(3, 0), ~Causal()], ids=str
)
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (5, 4), (4, 8)])
def test_no_block_is_visited_or_masked_in_vain(mask, rows, columns):
    """It costs time alone, so nothing else would tell."""
    for T, S in ((20, 24), (40, 16)):
        found = mask.array(T, S).reshape(T // rows, rows, S // columns, columns)
        some, every = mask.blocks(T, S, rows, columns)
        np.testing.assert_array_equal(some, found.any((1, 3)))
        np.testing.assert_array_equal(every, found.all((1, 3)))


@pytest.mark.parametrize("mask", STATIC, ids=str)
def test_at_takes_any_index_arrays_and_traces(mask):
    whole = mask.array(9, 11)
    mask = mask.sized(9, 11)
    assert bool(mask.at(3, 4)) == whole[3, 4]
    i, j = np.array([[0], [8], [3]]), np.array([10, 2])
    assert (mask.at(i, j) == whole[i, j]).all()
    traced = jax.jit(lambda i, j: mask.at(i, j))(jnp.asarray(i), jnp.asarray(j))
    assert (np.asarray(traced) == whole[i, j]).all()
    i, j = np.arange(9), np.arange(9)
    assert (mask.at(i, j) == np.diag(whole)).all()


@pytest.mark.parametrize("mask", STATIC, ids=str)
def test_static_masks_are_hashable_leafless_and_survive_json(mask):
    again = from_json(mask.to_json())
    assert again == mask
    assert hash(again) == hash(mask)
    assert mask.static
    assert jax.tree.leaves(mask) == []


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (Global([0, 3]), Global((0, 3))),
        (Blocks([[True, False], [1, 1]], 2), Blocks(((True, False), (True, True)), 2)),
        (Blocks(np.eye(2), np.int64(2)), Blocks(((True, False), (False, True)), 2)),
        (Random(2, 1, 0, [4, np.int64(6)]), Random(2, 1, 0, (4, 6))),
    ],
    ids=lambda mask: str(mask)[:40],
)
def test_static_masks_of_lists_and_arrays_are_those_of_tuples(given, same):
    assert given == same
    assert hash(given) == hash(same)
    assert str(given) == str(same)


@pytest.mark.parametrize("mask", DYNAMIC, ids=lambda m: str(m)[:40])
def test_dynamic_masks_are_pytrees_and_survive_json(mask):
    assert from_json(mask.to_json()) == mask
    assert not mask.static
    assert jax.tree.leaves(mask)
    leaves, tree = jax.tree.flatten(mask)
    assert jax.tree.unflatten(tree, leaves) == mask
    with pytest.raises(TypeError, match="not hashable"):
        hash(mask)


@pytest.mark.parametrize("mask", STATIC, ids=str)
def test_integers_of_numpy_are_kept_as_those_of_python(mask):
    """A `Summary` of them was saved as one of arrays."""
    values = {f.name: getattr(mask, f.name) for f in dataclasses.fields(mask)}
    made = type(mask)(**{k: np.int64(v) if type(v) is int else v for k, v in values.items()})
    assert made.to_json() == mask.to_json()


def test_so_are_those_of_a_mask_of_ones_own():
    """Read from JSON, a period was an array, and the mask neither equal nor hashable."""
    mask = Reach(np.int32(4), (np.int64(2), np.int64(3)))
    again = from_json(mask.to_json())
    assert again == mask
    assert again.to_json() == Reach(jnp.int32(4), (2, 3)).to_json()
    assert [type(p) for p in again.periods] == [int, int]
    assert isinstance(again.reach, jax.Array)
    np.testing.assert_array_equal(again.array(9, 9), mask.array(9, 9))


def test_patterns_are_equal_in_another_process():
    texts = [m.sized(40, 40).to_json() for m in STATIC]
    program = (
        "import json, sys; from attn.masks import from_json\n"
        "for t in json.load(sys.stdin): m = from_json(t); print(m.array(40, 40).tobytes().hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PATH": "/usr/bin", "JAX_PLATFORMS": "cpu"},
    )
    assert run.stdout.split() == [m.array(40, 40).tobytes().hex() for m in STATIC]


def test_random_reaches_the_whole_sequence_with_per_row_blocks_each():
    layout = Random(1, 3, 0).array(400, 400)
    assert (layout.sum(1) == 3).all()
    thirds = layout.reshape(400, 4, 100).sum((0, 2)) / layout.sum()
    assert np.abs(thirds - 0.25).max() < 0.05
    assert not (layout == Random(1, 3, 1).array(400, 400)).all()
    assert Random(2, 3, 0).density(5, 6) == Random(2, 4, 0).density(5, 6) == 1  # of three blocks


def test_random_draws_by_splitmix64():
    """What a trained model was masked by stays as it was, in every version."""
    bits, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & bits
        x = (x ^ x >> 27) * 0x94D049BB133111EB & bits
        return x ^ x >> 31

    rank = lambda a, b: mixed((mixed((7 * golden & bits ^ a) + golden & bits) ^ b) + golden & bits)
    layout = Random(1, 5, 7, (16, 64)).layout()
    for row in range(16):
        least = sorted(range(64), key=lambda column: rank(row, column))[:5]
        assert np.flatnonzero(layout[row]).tolist() == sorted(least)


def test_the_density_of_an_array_is_exact():
    """A mean in float32 would round away one pair of 2^24."""
    seen = np.ones((4099, 4099), bool)
    seen[0, 0] = False
    assert Array(jnp.asarray(seen)).density(4099, 4099) == 1 - 1 / 4099**2


def test_what_random_drew_is_kept_and_cannot_be_changed():
    # a block that was hidden by hand was hidden from every mask of these numbers from then on
    for per_row in (1, 4):
        with pytest.raises(ValueError, match="read-only"):
            Random(2, per_row, 0, (8, 8)).layout()[:] = False


def test_tuples_of_a_layout_are_read_once():
    """Its density at 8,192 tokens in blocks of 16 took 30 times as long as that of `Random`."""
    mask = Blocks(((True, False), (False, True)), 2)
    assert mask.array(4, 4).sum() == 8
    assert mask._grid is mask._grid
    assert from_json(mask.to_json()) == mask


def test_random_without_lengths_is_refused():
    with pytest.raises(ValueError, match="sized"):
        Random(2, 1, 0).at(0, 0)


def test_take_splits_a_conjunction_and_loses_nothing():
    padding = Padding(jnp.array([1]))
    (causal, pad, segments), rest = (Causal() & padding & Window(1, 0)).take(
        Causal, Padding, Segments
    )
    assert causal == Causal()
    assert pad is padding
    assert segments is None
    assert rest == Window(1, 0)
    assert Causal().take(Causal) == ((Causal(),), FULL)
    either = Causal() | Prefix(2)
    assert either.take(Causal) == ((None,), either)
    assert (Causal(2) & Causal(-1)).take(Causal) == ((Causal(-1),), FULL)
    two = padding & Padding(jnp.array([2]))
    (first,), rest = two.take(Padding)
    assert (first & rest).array(2, 3).tolist() == two.array(2, 3).tolist()


def test_composition_simplifies_only_what_is_equal():
    assert FULL & Causal() == Causal()
    assert (FULL | Causal()) == FULL
    assert ~~Causal() == Causal()
    assert (Causal() & Window(1, 1)) & Prefix(2) == Causal() & (Window(1, 1) & Prefix(2))


def test_written_out_it_is_what_the_operators_make():
    a, b, c = Causal(), Window(1, 1), Prefix(2)
    for kind, want in ((And, a & b & c), (Or, a | b | c)):
        got = kind([a, kind((b, c))])
        assert got == want
        assert hash(got) == hash(want)
    assert Not(a) == ~a
    assert And([Prefix(2), And((Causal(), b))]).take(Causal) == ((a,), c & b)


def test_outside_of_arrays_nothing_is_seen():
    for mask in (
        Array(jnp.ones((2, 2), bool)),
        Segments(jnp.zeros(2, int), jnp.zeros(2, int)),
        Padding(keys=jnp.ones(2, bool)),
        Blocks(((1,),), 2),
        Axial(1, 2),
    ):
        assert not mask.at(np.array([0, 0, 5]), np.array([2, -1, 0]))[:2].any()


def test_batch_rows_stay_where_there_are_no_tokens():
    for mask in (Array(jnp.ones((2, 0, 3), bool)), Padding(keys=jnp.ones((2, 0), bool))):
        assert mask.array(0, 3).shape == (2, 0, 3)
        assert not mask.array(1, 3).any()


def test_unsigned_indices_past_int32_are_no_negative_ones():
    last = np.array([2**32 - 1], np.uint32)
    assert Causal().at(last, np.array([2], np.uint32)).all()
    assert not Prefix(2).at(last, last).any()


@pytest.mark.parametrize("mask", DYNAMIC, ids=lambda m: str(m)[:40])
def test_a_mask_is_an_argument_of_a_jitted_function(mask):
    T = 2
    S = 3
    np.testing.assert_array_equal(jax.jit(lambda m: m.array(T, S))(mask), mask.array(T, S))


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: Window(-1, 0), ValueError, "left"),
        (lambda: Window(0, 1.5), TypeError, "right"),
        (lambda: Dilated(1, 0), ValueError, "rate"),
        (lambda: Strided(0), ValueError, "stride"),
        (lambda: Fixed(2, 3), ValueError, "summary"),
        (lambda: Fixed(0, 0), ValueError, "block"),
        (lambda: Fixed(2, -1), ValueError, "summary"),
        (lambda: Random(0, 1, 0), ValueError, "block"),
        (lambda: Random(1, -1, 0), ValueError, "per_row"),
        (lambda: Random(1, 1, -1), ValueError, "seed"),
        (lambda: Random(4, 1, 0, 16), TypeError, r"size: expected the lengths .*, got 16"),
        (lambda: Random(4, 1, 0, (16,)), TypeError, r"size: expected the lengths .*, got \(16,\)"),
        (lambda: Blocks((1, 0), 2), ValueError, "layout"),
        (lambda: Blocks(((2,),), 2), ValueError, "layout: expected booleans, got 2"),
        (lambda: Blocks(5, 2), TypeError, "layout: expected rows of booleans"),
        (lambda: Blocks(((1, 0), (1,)), 2), TypeError, "layout: expected rows of booleans"),
        (lambda: Blocks(((True,),), 0), ValueError, "size"),
        (lambda: Global(3), TypeError, "positions: expected integers, got 3"),
        (lambda: Global((-1,)), ValueError, "positions"),
        (lambda: Prefix(-1), ValueError, "n"),
        (lambda: Axial(0, 2), ValueError, "height"),
        (lambda: Axial(2, 0), ValueError, "width"),
        (lambda: Local2D(0, 2, 1), ValueError, "height"),
        (lambda: Local2D(2, 0, 1), ValueError, "width"),
        (lambda: Local2D(2, 2, -1), ValueError, "reach"),
        (lambda: Summary(2, 3), ValueError, "summary"),
        (lambda: Coarse(Causal(), 0), ValueError, "size"),
        (lambda: Coarse(Padding(jnp.array([1])), 2), TypeError, "mask: expected .*, got Padding"),
        (lambda: Padding(), ValueError, "Padding: expected lengths, .* got none"),
        (lambda: Padding(jnp.array([1.0])), TypeError, "lengths"),
        (lambda: Padding(keys=jnp.array([1])), TypeError, "keys"),
        (lambda: Padding(keys=jnp.array(True)), ValueError, "Padding.keys: .*, got True"),
        (lambda: Segments(jnp.zeros(2), jnp.zeros(2)), TypeError, "query_ids"),
        (lambda: Segments(None, jnp.arange(2)), ValueError, "Segments.query_ids: .*, got None"),
        (lambda: Segments(jnp.array(1)), ValueError, "Segments.query_ids: .*, got 1"),
        (lambda: Segments(jnp.arange(2), jnp.array(1)), ValueError, "Segments.key_ids: .*, got 1"),
        (lambda: Segments(jnp.arange(2)).check((), 2, 3), ValueError, "key_ids: .*, got none"),
        (lambda: Segments([[0, 0, 1], [0]]), ValueError, "Segments.query_ids: .* rows of one"),
        (lambda: Padding(keys=[[True], [True, False]]), ValueError, "Padding.keys: .*; pad them"),
        (lambda: Array(jnp.ones(3, bool)), ValueError, r"Array: expected .*, got \[3\]"),
        (lambda: Array(jnp.ones((2, 2))), TypeError, "booleans"),
        (lambda: Causal() & jnp.ones((2, 2), bool), TypeError, "Array"),
        (lambda: And(()), ValueError, "mask_terms: expected at least one mask in And, got none"),
        (lambda: Or([Causal(), 5]), TypeError, "Or: expected a mask, got int"),
        (lambda: And(Causal()), TypeError, "mask_terms: expected a tuple of masks, got Causal"),
        (lambda: Not(5), TypeError, "Not: expected a mask, got int"),
        (lambda: Causal().at(0.5, 1), TypeError, "i: expected integer"),
        (lambda: Padding(jnp.array(3)).at(0, 2**32), ValueError, "j: expected .*, got 4294967296"),
        (lambda: Causal().at(jnp.uint32(2**31), 1), ValueError, "i: expected .*, got 2147483648"),
        (lambda: Causal().array(-1, 2), ValueError, "T"),
        (lambda: Causal() and Window(2, 2), TypeError, "Causal has no truth value: .* with &"),
        (lambda: Causal() or Window(2, 2), TypeError, "Causal has no truth value"),
        (lambda: not (Causal() & Window(2, 2)), TypeError, "And has no truth value"),
        (lambda: bool(Padding(jnp.array([1]))), TypeError, "Padding has no truth value"),
        (lambda: from_json("{"), ValueError, "JSON"),
        (lambda: from_json(None), TypeError, "text: expected a string"),
        (lambda: Causal().density(-1, 2), ValueError, "T: expected an integer"),
        (lambda: Causal().take("Causal"), TypeError, "kinds: expected classes .* got 'Causal'"),
        (lambda: from_json('{"term": "Causall", "offset": 0}'), ValueError, "Causall"),
        (lambda: from_json('{"term": "Causal"}'), ValueError, "offset"),
        (lambda: from_json("[1]"), ValueError, "term"),
        (lambda: Padding(jnp.array([1, 2])).check((3,), 4, 4), ValueError, "lengths"),
        (lambda: Array(jnp.ones((4, 4), bool)).check((4,), 4, 4), ValueError, "Padding"),
        (lambda: Array(jnp.ones((2, 3, 4, 4), bool)).check((2,), 4, 4), ValueError, "all heads"),
    ],
)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize("mask", DYNAMIC, ids=lambda m: str(m)[:40])
def test_a_traced_mask_is_equal_to_itself(mask):
    jax.jit(lambda m: [None for _ in range(1 // (m == m))])(mask)
    assert not jax.jit(lambda m: m == Padding(jnp.array([7])))(mask)


def test_every_static_term_is_tried_here():
    tried = {type(term) for mask in STATIC for term in mask.terms()}
    assert tried == set(STATIC_TERMS)
    assert set(masks.TERMS) >= tried


@pytest.mark.parametrize(
    "text",
    [
        '{"term": "Causal", "offset": 1.5}',
        '{"term": [], "offset": 1}',
        '{"term": "And", "mask_terms": []}',
        '{"term": "And", "mask_terms": [1]}',
        '{"term": "Not", "mask": 3}',
        '{"term": "Array", "seen": {"dtype": "bool", "shape": [1, 1], "values": ["no"]}}',
        '{"term": "Array", "seen": {"dtype": "bool", "shape": [1, 1]}}',
        '{"term": "Array", "seen": {"dtype": "junk", "shape": [1], "values": [1]}}',
        '{"term": "Not", "mask": ' * 3000,
    ],
    ids=lambda x: x[:60],
)
def test_hostile_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_unsigned_and_huge_integers_do_not_wrap_around():
    assert Window(5, 0).at(np.uint32(1), np.uint32(0))
    for build in (lambda: Causal(2**31 - 1), lambda: Window(5, 2**31 - 1), lambda: Prefix(2**31)):
        with pytest.raises(ValueError, match="expected an integer"):
            build()


def test_products_of_fields_past_32_bits_are_whole_numbers_to_a_program_too():
    for mask in (
        masks.Dilated(2**20, 2**12),
        masks.Axial(2**16, 2**16),
        masks.Local2D(2**16, 2**16, 1),
    ):
        i, j = np.array([5, 2**14]), np.array([2**14 + 2**12, 5])
        assert np.array_equal(mask.at(i, j), jax.jit(mask.at)(i, j))


@pytest.mark.parametrize(
    "build", [lambda x: Causal(x), lambda x: Window(1, x), lambda x: Prefix(x)]
)
@pytest.mark.parametrize("value", [True, np.True_])
def test_true_is_no_number(build, value):
    with pytest.raises(TypeError, match=r"expected an integer, got .*True"):
        build(value)


LARGE = np.int64(1) << 32


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Segments(LARGE * np.arange(3), np.arange(3)), r"Segments.query_ids: .*429496729"),
        (lambda: Segments(np.arange(3), -LARGE * np.arange(3)), r"Segments.key_ids: .*-4294967296"),
        (lambda: Padding(np.array([3, 2**31])), r"Padding.lengths: .*-2147483648 to 2147483647, g"),
        (lambda: Padding(np.uint32(2**31)), r"Padding.lengths: .*, got 2147483648"),
        (lambda: Padding(2**32 + 1), r"Padding.lengths: expected integers from .* got 4294967297"),
    ],
)
def test_arrays_that_32_bits_do_not_hold_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_so_are_those_of_a_text_and_of_a_mask_of_ones_own():
    """Documents saved under x64 were all one document where it is off."""
    with jax.enable_x64(True):
        text = Segments(LARGE * np.arange(3)).to_json()
        assert from_json(text).array(3, 3).sum() == 3
    with pytest.raises(ValueError, match=r"values: expected integers from .*, got 4294967296"):
        from_json(text)
    with pytest.raises(ValueError, match=r"Reach.reach: expected integers from .*, got 4294967296"):
        Reach(np.array(LARGE))


@masks.term
class Reach(masks.Mask):
    reach: jax.Array = masks.array_field(0)
    periods: tuple[int, ...] = (1,)

    def sees(self, i, j):
        near = i - j <= self.reach
        return near & masks.Or(tuple(map(Strided, self.periods))).sees(i, j)


def test_arrays_of_64_bits_are_taken_where_they_fit():
    ids = np.array([7, 7, 2**31 - 1, -(2**31)])
    assert Segments(ids, ids).array(4, 4).tolist() == (ids[:, None] == ids).tolist()
    assert Padding(np.uint64(3)).array(1, 5).sum() == 3
    with jax.enable_x64(True):
        ids = LARGE * np.arange(1, 4)
        assert Segments(ids, ids).array(3, 3).tolist() == np.eye(3, dtype=bool).tolist()
        assert Padding(LARGE).array(1, 5).all()


@pytest.mark.parametrize("x64", [False, True])
def test_short_and_unsigned_arrays_meet_indices_under_strict_promotion(x64):
    wide, i = np.array([3, 1], np.int32), np.arange(4, dtype=np.int32)
    ids = np.array([[0, 1, 1, 2]] * 2)
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        seen = lambda mask: mask.at(i[:, None], i)
        for kind in (np.int8, np.uint8, np.uint16):
            both = Padding(wide.astype(kind)) & Padding(wide)
            np.testing.assert_array_equal(seen(both), seen(Padding(wide)))
            packed = Segments(ids.astype(kind), ids.astype(np.int32))
            np.testing.assert_array_equal(seen(packed), ids[..., None] == ids[:, None])
            assert Padding(wide.astype(kind)).seen_keys(4).sum() == 4


def test_two_paddings_join_to_one():
    a, b = Padding(jnp.array([3, 1])), Padding(jnp.array([2, 5]), keys=jnp.ones((2, 6), bool))
    (both,), rest = (Causal() & a & b).take(Padding)
    assert rest == Causal()
    np.testing.assert_array_equal(both.array(2, 6), (a & b).array(2, 6))


def test_padding_hides_keys_and_queries_joined_or_not():
    rng, of, whole = np.random.default_rng(0), [], []
    for lengths in np.array([[4, 6], [5, 3]]):
        keys, queries = rng.random((2, 2, 6)) < 0.7
        of.append(Padding(lengths, keys=keys, queries=queries))
        there = keys & (np.arange(6) < lengths[:, None])
        whole.append(queries[:, :, None] & there[:, None, :])
        np.testing.assert_array_equal(of[-1].array(6, 6), whole[-1])
        np.testing.assert_array_equal(of[-1].seen_keys(6), there)
        np.testing.assert_array_equal(of[-1].seen_queries(6), queries)
    both = of[0] & of[1]
    assert isinstance(both, Padding)
    np.testing.assert_array_equal(both.array(6, 6), whole[0] & whole[1])
    alone = Padding(queries=of[0].queries).array(6, 6)
    np.testing.assert_array_equal(alone, np.repeat(of[0].queries[..., None], 6, -1))


def test_a_term_of_another_rank_is_named_joined_or_not():
    for wrong in (masks.Padding(jnp.ones(4, int)), masks.Padding(keys=jnp.ones((4, 5), bool))):
        right = masks.Padding(jnp.ones((3, 4), int), keys=jnp.ones((3, 4, 5), bool))
        for mask in (wrong, right & wrong, wrong & right):
            with pytest.raises(ValueError, match=r"Padding\.(lengths|keys): expected shape \[3, 4"):
                mask.check((3, 4), 5, 5)


def test_paddings_of_other_lengths_are_not_joined_to_one():
    """One key was taken for that of every position, and its wrong length was not refused."""
    one, five = Padding(keys=jnp.ones(1, bool)), Padding(keys=jnp.ones(5, bool))
    for mask in (one & five, five & one):
        assert mask.array(1, 5).tolist() == [[True, False, False, False, False]]
        with pytest.raises(ValueError, match=r"Padding\.keys: expected shape \[5\], got \[1\]"):
            mask.check((), 5, 5)


def test_no_batch_rows_have_a_density():
    assert masks.Padding(jnp.zeros(0, int)).density(3, 3) == 0


def test_padding_without_batch_axes_meets_padding_with_them():
    q = jnp.ones((3, 4, 5, 1, 2))
    rows = masks.Padding(jnp.full((3, 4), 4))
    for other in (masks.Padding(jnp.int32(3)), masks.Padding(keys=jnp.arange(5) < 3)):
        for mask in (rows & other, other & rows):
            assert mask.take(masks.Padding)[1] == FULL
            mask.check((3, 4), 5, 5)
            assert attn.dot_product_attention(q, q, q, mask=mask).shape == q.shape
    keys = masks.Padding(keys=jnp.ones((3, 4, 5), bool)) & masks.Padding(keys=jnp.arange(5) < 3)
    assert isinstance(keys, masks.Padding)
