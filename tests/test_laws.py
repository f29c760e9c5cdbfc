"""Every law of `attn.testing` over every example of every mechanism."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from tiers import ENGINES

import attn
from attn.linearized._family import Linearized
from attn.nn import EncoderConfig
from attn.sparse._patterned import Patterned
from attn.testing import LAWS, check, guarantees
from attn.testing.contract import BrokenLaw, assert_same_bits

# The suite compiles for most of its time, so it has three parts. Fast are all laws of softmax, for
# the engines of the other families whether one variant is causal (tests of their own see that they
# are right), for one of each engine whether it decodes as it runs, and of every variant what it
# refuses. Slow, for CI, is whether each decodes and is causal, are all laws of each first example
# of the dense variants, and of others the more if their engine is their own; of further settings
# whether they are causal and, if dense, right (others have tests of their own against loops in
# NumPy). Of the rest CI tries the cells of docs/guarantees.md: they stand for the first law where a
# variant honours no more than the columns, and for the fourth (leaks) where the engine is
# another's. All else is thorough (`scripts/test --all`). Where all laws are tried in CI, those
# about NaN, bits and memory are tried on programs compiled as a user's are.
STANDS_FOR_ITS_ENGINE = ("Softmax", "GatedDeltaNet", "BlockSparse")
WHOLE_IN_CI = (*STANDS_FOR_ITS_ENGINE, "Linear", "GLA")
OF_A_COMPILER = (
    "is_strictly_causal",
    "does_not_leak",
    "sees_nothing_gives_zero",
    "memory_is_linear",
)
OF_A_VARIANT = ("refuses_the_rest", "steps_equal_parallel")
COLUMNS = {column.term for column in guarantees.COLUMNS.values()}


def whole_in_ci(kind):
    return kind.__module__.startswith("attn.dense") or kind.__name__ in WHOLE_IN_CI


def cases():
    for name, kind in attn.MECHANISMS.items():
        sharing = issubclass(kind, Linearized | Patterned)
        dense = kind.__module__.startswith("attn.dense")
        whole = whole_in_ci(kind)
        stands = ("is_strictly_causal",) if kind.__name__ in STANDS_FOR_ITS_ENGINE else ()
        stands = LAWS if kind is attn.Softmax else stands
        own = OF_A_VARIANT if name in ENGINES else OF_A_VARIANT[:1]
        for n, example in enumerate(kind.examples()):
            for law in LAWS:
                fast = n == 0 and law in (*stands, *own)
                causal = n == 0 and law == "is_strictly_causal"
                slow = causal or (n == 0 and (whole or law in OF_A_VARIANT))
                beyond = n == 0 and not COLUMNS.issuperset(kind.honours)
                slow |= law == "equals_reference" and (beyond or dense)
                slow |= law == "is_strictly_causal" and not sharing
                # tests/sparse/test_patterns.py sees that a pattern is its paper's and what its
                # pieces make up; those that stand for the engine, that patterns run right
                by_pieces = issubclass(kind, Patterned) and not whole
                slow &= not (law == "equals_reference" and by_pieces)
                # of an engine of its own, the first example's
                more = ("does_not_leak", "any_length_works", "sees_nothing_gives_zero")
                slow |= n == 0 and law in more and not sharing
                marks = [] if fast else [pytest.mark.slow] if slow else [pytest.mark.thorough]
                as_a_user = (fast or causal or (n == 0 and whole)) and law in OF_A_COMPILER
                marks += [pytest.mark.optimised] if as_a_user else []
                yield pytest.param(example, law, marks=marks, id=f"{example!r}-{law}")


@pytest.mark.parametrize(("mechanism", "law"), list(cases()))
def test_law_holds(mechanism, law):
    check(mechanism, only=[law]).raise_if_broken()


def test_report_reads_like_a_report():
    report = check(attn.Softmax(), only=["refuses_the_rest"])
    assert report.ok
    assert "holds  refuses_the_rest" in str(report)
    assert "1 of 1 laws hold" in str(report)


def test_an_iterator_of_names_is_read_once():
    # it was empty when the laws were to be tried: none was, and the report was fine
    report = check(attn.Softmax(), only=iter(["refuses_the_rest"]))
    assert [verdict.law for verdict in report.verdicts] == ["refuses_the_rest"]


def test_unknown_law_is_named():
    with pytest.raises(ValueError, match="is_fast"):
        check(attn.Softmax(), only=["is_fast"])


def test_unknown_sizes_are_named():
    with pytest.raises(TypeError, match=r"shape: expected names out of batch, T, .*, got t$"):
        attn.testing.inputs(attn.Softmax(), t=5)


def test_a_record_with_a_list_or_an_array_is_refused():
    """Every law held, and an encoder of it raised Python's "unhashable type"."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Sized(attn.Linear):
        sizes: object = None

    sizes = dict(vocab_size=5, max_length=9, classes=3, layers=2, width=16, heads=4, mlp_width=8)
    for held in ([1, 2], np.ones(2), jnp.ones(2)):
        with pytest.raises(TypeError, match=r"^mechanism: expected fields .* hashed, .*Sized\("):
            check(Sized(sizes=held))
        with pytest.raises(ValueError, match=r"mechanism: expected fields .* hashed, .*Sized\("):
            EncoderConfig(**sizes, mechanism=Sized(sizes=held))


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        (attn.Linear, r"got Linear; write Linear\(\)"),
        (attn.linear_attention, "got linear_attention$"),
    ],
)
def test_what_is_no_mechanism_is_refused(what, hint):
    masks_for = functools.partial(attn.testing.masks_for, T=3, S=3)
    for f in (attn.testing.check, attn.testing.inputs, masks_for):
        with pytest.raises(TypeError, match=f"mechanism: expected an attn.Mechanism, {hint}"):
            f(what)


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ([0.0, -0.0], "it: only the sign of a zero changed"),  # "0 values changed"
        ([0.0, 1.0], r"it: 1 values changed, first at \(1,\)"),
    ],
)
def test_what_changed_is_told(got, told):
    with pytest.raises(BrokenLaw, match=f"^{told}$"):
        assert_same_bits(np.array(got), np.zeros(2), what="it")
