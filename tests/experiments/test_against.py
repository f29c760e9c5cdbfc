"""A difference counts when it is more than what seeds and the number of variants make."""

import math

import numpy as np
import pytest
from scipy.stats import false_discovery_control, ttest_rel

from experiments.report.against import Against, against
from experiments.report.stats import holm, interval, paired

A, B = (0.81, 0.84, 0.79, 0.9), (0.83, 0.85, 0.84, 0.91)


def test_paired_is_students_test_of_the_differences():
    assert paired([b - a for a, b in zip(A, B)]) == pytest.approx(ttest_rel(B, A).pvalue)


EQUAL = [250 / 270 - 251 / 270, 253 / 270 - 254 / 270]  # but for rounding


@pytest.mark.parametrize(
    ("differences", "p"),
    [([], None), ([0.1], None), ([0.0, 0.0], 1.0), ([0.5, 0.5], 1), (EQUAL, 1)],
)
def test_paired_of_few_and_of_equal_differences(differences, p):
    assert paired(differences) == p


def test_seeds_agree_no_better_than_to_a_row():
    # one row more in each of two seeds is t = 1 / (1 / sqrt 2), of one degree of freedom: Cauchy's
    assert paired(EQUAL, 1 / 270) == pytest.approx(1 - 2 * math.atan(2**0.5) / math.pi)
    assert paired([0.0, 0.0], 1 / 270) == 1
    apart = [3 / 270, 7 / 270]
    assert paired(apart, 1 / 270) == paired(apart)
    assert interval([0.9, 0.9]) == (0.9, None)
    assert interval([0.9, 0.9], 0.01)[1] == pytest.approx(12.706205 * 0.01 / 2**0.5)
    assert interval([0.5, 0.7], 0.01)[1] == pytest.approx(12.706205 * 0.1)


def test_equal_differences_of_two_seeds_are_a_tie():
    scores = {"softmax": {0: 250 / 270, 1: 253 / 270}, "linear": {0: 251 / 270, 1: 254 / 270}}
    assert against(scores)["linear"].text() == "tie (+0.4, p 1)"
    assert against(scores, 1 / 270)["linear"].text() == "tie (+0.4, p 0.39)"


@pytest.mark.parametrize(
    ("rows", "seeds", "variants"), [(270, 2, 6), (270, 2, 57), (270, 3, 6), (2000, 3, 14)]
)
def test_of_equal_variants_few_comparisons_find_a_difference(rows, seeds, variants):
    # all are right on 94% of rows; of 400 comparisons, 5% has a standard error of 1.1%
    correct = np.random.default_rng(0).binomial(rows, 0.94, (400, variants, seeds)) / rows
    scores = [{n: dict(enumerate(x)) for n, x in enumerate(one.tolist())} for one in correct]
    found = [not all(x.tie for x in against(one, 1 / rows).values()) for one in scores]
    assert np.mean(found) < 0.05 + 2 * 0.011


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
