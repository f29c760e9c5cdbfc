"""A difference counts when it is more than what seeds and the number of variants make."""

import pytest
from scipy.stats import false_discovery_control, ttest_rel

from experiments.report.against import Against, against
from experiments.report.stats import holm, paired

A, B = (0.81, 0.84, 0.79, 0.9), (0.83, 0.85, 0.84, 0.91)


def test_paired_is_students_test_of_the_differences():
    assert paired([b - a for a, b in zip(A, B)]) == pytest.approx(ttest_rel(B, A).pvalue)


@pytest.mark.parametrize(
    ("differences", "p"), [([], None), ([0.1], None), ([0.0, 0.0], 1.0), ([0.5, 0.5], 0.0)]
)
def test_paired_of_few_and_of_equal_differences(differences, p):
    assert paired(differences) == p


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    # Holm 1979's steps by hand: 0.01 x 4, 0.02 x 3, 0.03 x 2, and never below an earlier one
    found = holm({"c": 0.03, "a": 0.01, "d": 0.9, "b": 0.02})
    assert found == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.9})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    # never weaker than Bonferroni, never stronger than a control of false discoveries
    ps = {"a": 0.011, "b": 0.02, "c": 0.4}
    weaker = dict(zip(ps, false_discovery_control(list(ps.values()))))
    assert all(weaker[k] <= p <= 3 * ps[k] for k, p in holm(ps).items())


def test_only_seeds_that_both_have_count():
    found = against(
        {
            "softmax": {0: 0.80, 1: 0.82, 2: 0.81},
            "better": {0: 0.90, 1: 0.921, 2: 0.912, 7: 0.0},
            "alike": {0: 0.81, 1: 0.80, 2: 0.815},
            "one": {0: 0.99},
        }
    )
    assert list(found) == ["better", "alike"]
    assert found["better"].seeds == 3
    assert not found["better"].tie
    assert found["better"].text().startswith("+10.1, p ")
    assert found["alike"].text().startswith("tie (")


def test_the_first_variant_is_compared_with_nobody():
    assert against({"softmax": {0: 0.5, 1: 0.6}}) == {}
    assert Against(0.01, 0.0004, 3).text() == "+1.0, p < 0.001"
