"""Every law of `attn.testing` over every example of every mechanism."""

import jax
import pytest

import attn
from attn.linearized._family import Linearized
from attn.testing import LAWS, check

# The suite compiles for most of its time, so not all of it is fast; CI runs the rest too, compiled
# with fewer optimisations (`scripts/test --slow`). Fast are all laws of each first example, except
# that the linearized variants share one engine: three of them try it whole.
WHOLE = ("Linear", "GLA", "GatedDeltaNet")
OF_A_VARIANT = ("refuses_the_rest", "is_strictly_causal", "steps_equal_parallel")
# further settings of a linearized variant change its terms, and nothing around them
OF_A_SETTING = ("equals_reference", "is_strictly_causal", "does_not_leak", "steps_equal_parallel")


def cases():
    for kind in attn.MECHANISMS.values():
        shared = issubclass(kind, Linearized)
        for n, example in enumerate(kind.examples()):
            for law in OF_A_SETTING if shared and n else LAWS:
                fast = not shared or example.name in WHOLE or law in OF_A_VARIANT
                slow = [] if n == 0 and fast else [pytest.mark.slow]
                yield pytest.param(example, law, marks=slow, id=f"{example!r}-{law}")


@pytest.fixture
def compiled_quickly(request):
    """Few optimisations for what is slow: most of its time is LLVM's."""
    before = jax.config.jax_disable_most_optimizations
    slow = request.node.get_closest_marker("slow") is not None
    jax.config.update("jax_disable_most_optimizations", slow or before)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize(("mechanism", "law"), list(cases()))
def test_law_holds(mechanism, law):
    check(mechanism, only=[law]).raise_if_broken()


def test_report_reads_like_a_report():
    report = check(attn.Softmax(), only=["refuses_the_rest"])
    assert report.ok
    assert "holds  refuses_the_rest" in str(report)
    assert "1 of 1 laws hold" in str(report)


def test_unknown_law_is_named():
    with pytest.raises(ValueError, match="is_fast"):
        check(attn.Softmax(), only=["is_fast"])
