"""A difference counts when it is more than what seeds and the number of variants make."""

import math

import numpy as np
import pytest
from scipy.stats import false_discovery_control, norm, ttest_rel
from scipy.stats import t as student

from experiments.report.against import Against, against
from experiments.report.stats import Score, holm, interval, paired

A, B = (0.81, 0.84, 0.79, 0.9), (0.83, 0.85, 0.84, 0.91)


def scored(values, answers=None) -> list[Score]:
    return [Score(x, answers) for x in values]


def counted(right, of) -> Score:
    """As a run's result has it."""
    words = lambda x: " ".join(map(str, np.atleast_1d(x)))
    accuracy = np.sum(right) / np.broadcast_to(of, np.shape(right)).sum()
    return Score.of({"accuracy": accuracy, "by_row": {"right": words(right), "of": words(of)}})


def test_paired_is_students_test_of_the_differences():
    assert paired(scored(A), scored(B)) == pytest.approx(ttest_rel(B, A).pvalue)
    assert paired(scored(A, 1e12), scored(B, 1e12)) == pytest.approx(ttest_rel(B, A).pvalue)


EQUAL = [250 / 270, 253 / 270], [251 / 270, 254 / 270]  # apart by as much, but for rounding


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        ([], [], None),
        ([0.1], [0.2], None),
        ([0.3, 0.4], [0.3, 0.4], 1.0),
        ([0.1, 0.2], [0.6, 0.7], 1),
        (*EQUAL, 1),
    ],
)
def test_paired_of_few_and_of_equal_differences(a, b, p):
    assert paired(scored(a), scored(b)) == p


def test_rows_are_a_sample_that_more_seeds_do_not_enlarge():
    rows, t = 1000, {2: 12.706205, 10: 2.262157}
    error = (0.9 * 0.1 / rows) ** 0.5
    for n in (2, 10):
        mean, half = interval(scored([0.9] * n, rows))
        assert mean == pytest.approx(0.9)
        assert half == pytest.approx(math.hypot(t[n] / rows / n**0.5, 1.959964 * error))
    # all rows right: a row, by which two seeds may differ
    assert interval(scored([1.0, 1.0], 100))[1] == pytest.approx(12.706205 * 0.01 / 2**0.5)
    assert interval(scored([0.9, 0.9])) == (pytest.approx(0.9), None)
    # seeds that are all that varies
    assert interval(scored([0.5, 0.7], 1e12))[1] == pytest.approx(12.706205 * 0.1)


def test_p_is_where_the_interval_of_the_difference_ends():
    a, b, rows = (0.90, 0.91, 0.92), (0.925, 0.93, 0.95), 2000
    p = paired(scored(a, rows), scored(b, rows))
    seeds = np.std(np.subtract(b, a), ddof=1) / 3**0.5
    of_rows = ((0.91 * 0.09 + 0.935 * 0.065) / rows) ** 0.5
    half = math.hypot(student.isf(p / 2, 2) * seeds, norm.isf(p / 2) * of_rows)
    assert half == pytest.approx(0.025)
    assert p > paired(scored(a), scored(b))
    assert paired(scored([1.0, 1.0], 270), scored([1.0, 1.0], 270)) == 1
    assert 0 < paired(scored([0.0] * 30, 10**6), scored([1.0] * 30, 10**6)) < 1e-9


@pytest.mark.parametrize(("seeds", "noise"), [(3, 0.003), (10, 0.003), (3, 0.01)])
def test_variants_that_are_equal_but_on_these_rows_differ_in_few_comparisons(seeds, noise):
    # each fails on rows of its own, 4% of all there are, in all seeds; seeds change a few more
    random = np.random.default_rng(0)
    found, inside = [], []
    for _ in range(400):
        own = random.binomial(270, 0.96, (2, 1)) / 270
        scores = np.clip(own + random.normal(0, noise, (2, seeds)), 0, 1)
        first, second = (scored(x, 270) for x in scores.tolist())
        found.append(paired(first, second) < 0.05)
        mean, half = interval(first)
        inside.append(abs(mean - 0.96) <= half)
    assert np.mean(found) < 0.05 + 2 * 0.011
    assert np.mean(inside) > 0.9


def test_rows_are_paired():
    # 300 of 1,000 rows are wrong in both variants and all seeds, the first has 20 more
    easy = np.arange(1000) >= 300
    worse = easy & (np.arange(1000) < 980)
    a, b = [counted(worse.astype(int), 1)] * 3, [counted(easy.astype(int), 1)] * 3
    p = paired(a, b)
    assert p < 0.01 < 0.3 < paired(*(scored([x.accuracy] * 3, 1000) for x in (a[0], b[0])))
    error = np.std(easy * 1.0 - worse, ddof=1) / 1000**0.5
    half = math.hypot(student.isf(p / 2, 2) / 1000 / 3**0.5, norm.isf(p / 2) * error)
    assert half == pytest.approx(0.02)
    # of other rows there are no pairs
    assert paired(a, [counted(easy[:900].astype(int), 1)] * 3) > 0.01


def test_answers_of_one_row_are_not_a_sample_of_their_own():
    # all 8 of a row are right or none, in all seeds: 250 rows, not 2,000
    rows = np.repeat([8, 0], [150, 100])
    mean, half = interval([counted(rows, 8)] * 4)
    assert mean == pytest.approx(0.6)
    seeds, of_rows = student.isf(0.025, 3) / 2000 / 2, 1.959964 * (0.6 * 0.4 / 249) ** 0.5
    assert half == pytest.approx(math.hypot(seeds, of_rows))
    # rows that ask more weigh more: a ratio of means, by linearisation
    right, of = np.array([1, 3, 0, 2]), np.array([1, 4, 2, 3])
    error = np.linalg.norm(right - 0.6 * of) / 10 * (4 / 3) ** 0.5
    found = interval([counted(right, of)] * 2)
    assert found == (0.6, pytest.approx(math.hypot(12.706205 * 0.1 / 2**0.5, 1.959964 * error)))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 1000])
@pytest.mark.parametrize("seed_noise", [0.0, 0.3])
def test_p_and_interval_are_right_where_rows_are_hard_for_all(rows, seed_noise):
    # each row is as hard as it is; seeds are good or bad, as many as there could be
    random = np.random.default_rng(0)
    found, inside = [], []
    for _ in range(400):
        hard = random.normal(0, 1, rows)
        luck = random.normal(0, seed_noise, (2, 3, 1))
        right = (hard + luck + random.normal(0, 0.5, (2, 3, rows)) < 1).astype(int)
        a, b = ([counted(x, 1) for x in seeds] for seeds in right)
        found.append(paired(a, b) < 0.05)
        mean, half = interval(a)
        inside.append(abs(mean - norm.cdf(1 / (1.25 + seed_noise**2) ** 0.5)) <= half)
    assert np.mean(found) < 0.05 + 2 * 0.011
    assert np.mean(inside) > 0.95 - 2 * 0.011


def test_equal_differences_of_two_seeds_are_a_tie():
    for answers, p in ((None, "1"), (270, "0.86")):
        seeds = [dict(enumerate(scored(x, answers))) for x in EQUAL]
        found = against(dict(zip(("softmax", "linear"), seeds)))
        assert found["linear"].text() == f"tie (+0.4, p {p})"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "seeds", "variants"), [(270, 2, 6), (270, 2, 57), (270, 3, 6), (2000, 3, 14)]
)
def test_of_equal_variants_few_comparisons_find_a_difference(rows, seeds, variants):
    # all are right on 94% of rows; of 400 comparisons, 5% has a standard error of 1.1%
    correct = np.random.default_rng(0).binomial(rows, 0.94, (400, variants, seeds)) / rows
    seeds = lambda x: dict(enumerate(scored(x, rows)))
    scores = [{n: seeds(x) for n, x in enumerate(one.tolist())} for one in correct]
    found = [not all(x.tie for x in against(one).values()) for one in scores]
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
    scores = {
        "softmax": {0: 0.80, 1: 0.82, 2: 0.81},
        "better": {0: 0.90, 1: 0.921, 2: 0.912, 7: 0.0},
        "alike": {0: 0.81, 1: 0.80, 2: 0.815},
        "one": {0: 0.99},
    }
    of = lambda seeds: {seed: Score(x) for seed, x in seeds.items()}
    found = against({name: of(seeds) for name, seeds in scores.items()})
    assert list(found) == ["better", "alike"]
    assert found["better"].seeds == 3
    assert not found["better"].tie
    # the seed that one of them has alone is in its mean: 68.3% beside 81.0
    assert found["better"].text().startswith("+10.1, p ")
    assert found["better"].text().endswith(", over 3 seeds")
    assert found["alike"].text().startswith("tie (")
    assert "seeds" not in found["alike"].text()
    fewer = against({"softmax": of(scores["softmax"]), "two": of({0: 0.9, 1: 0.8})})["two"]
    assert fewer.text().startswith("tie (+4.0, p ")
    assert fewer.text().endswith(", over 2 seeds)")


def test_the_first_variant_is_compared_with_nobody():
    assert against({"softmax": dict(enumerate(scored([0.5, 0.6])))}) == {}
    assert Against(0.01, 0.0004, 3, 3).text() == "+1.0, p < 0.001"


@pytest.mark.parametrize(
    ("p", "told"),
    [(0.0499, "+1.0, p < 0.05"), (0.0494, "+1.0, p 0.049"), (0.05, "tie (+1.0, p 0.05)")],
)
def test_a_difference_has_no_p_of_a_tie(p, told):
    """One just below the level was rounded up to it."""
    assert Against(0.01, p, 3, 3).text() == told


def test_a_difference_of_nothing_has_one_sign():
    assert Against(-0.0001, 1.0, 3, 3).text() == "tie (+0.0, p 1)"
