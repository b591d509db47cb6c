"""The verdict rule: its verdicts, and the rate of wrong ones."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.evidence import verdicts
from analysis.evidence.verdicts import (
    CONTRARY,
    HOLDS,
    LEVEL,
    LOOKS,
    MOST_ADDED,
    OPEN,
    SAME,
    Estimate,
    Evidence,
    PublishedMean,
    family_verdicts,
    mean_of,
)

REPEATS = 2000
ONE_LOOK = LEVEL / LOOKS


def alone(*holds, level=()):
    """The verdict on a claim that is a family of its own."""
    return family_verdicts([Evidence(tuple(holds), tuple(level))])[0][0]


def agreement(*pairs):
    evidence = Evidence(excluded=verdicts.exclusion(pairs), otherwise=HOLDS if verdicts.agrees(pairs) else OPEN)
    return family_verdicts([evidence])[0][0]


def share(count, of=REPEATS):
    """A share, and the binomial error at the level of one look."""
    return count / of, math.sqrt(ONE_LOOK * (1 - ONE_LOOK) / of)


def test_mean_and_error_by_hand():
    estimate = mean_of([1.0, 2.0, 6.0])
    assert (estimate.value, estimate.n, estimate.df) == (3.0, 3, 2)
    assert estimate.se == pytest.approx(math.sqrt(7 / 3))
    assert estimate.p == pytest.approx(stats.ttest_1samp([1.0, 2.0, 6.0], 0, alternative="greater").pvalue)


def test_pairs_are_the_units_that_all_have():
    d = verdicts.contrast((1.0, -1.0), ({0: 5.0, 1: 7.0, 2: 100.0}, {1: 4.0, 0: 4.0, 3: -100.0}))
    assert (d.value, d.n) == (2.0, 2)
    assert verdicts.contrast((1.0, -1.0), ({0: 1.0}, {1: 1.0})) is None


def test_one_unit_decides_nothing():
    for value in (-5.0, 5.0):
        assert alone(mean_of([value])) == OPEN
    assert agreement((mean_of([5.0]), PublishedMean(0.0, 0.1, 10))) == OPEN


def test_two_units_decide_nothing_and_three_need_over_six_standard_errors():
    assert alone(Estimate(1e6, 1.0, 1, 2)) == OPEN
    for value in (0.0, 1e6):
        assert agreement((Estimate(value, 0.1, 1, 2), PublishedMean(0.0, 0.1, 2))) == OPEN
    assert agreement((Estimate(0.0, 0.1, 2, 3), PublishedMean(0.0, 0.1, 2))) == HOLDS
    assert alone(Estimate(6.2, 1.0, 2, 3)) == OPEN
    assert alone(Estimate(6.3, 1.0, 2, 3)) == HOLDS


def test_equal_differences():
    """Differences without spread give no error, whatever their mean."""
    for value in (0.1, -0.1, 0.0):
        assert alone(mean_of([value] * 3)) == OPEN
        assert alone(Estimate(9.0, 1.0, 9, 10), mean_of([value] * 10)) == OPEN
    for published in (PublishedMean(0.8, None, 5), PublishedMean(0.1, 0.1, 5)):
        assert agreement((mean_of([0.1] * 5), published)) == OPEN


@pytest.mark.parametrize("looks", [2, 3, 4])
def test_every_look_has_an_equal_share_of_the_level(looks):
    level = LEVEL / looks / 2  # tests of "holds" and of "contrary"
    for p, verdict in ((0.999 * level, HOLDS), (1.001 * level, OPEN)):
        d = Estimate(float(stats.t.isf(p, 99)), 1.0, 99, 100)
        assert family_verdicts([Evidence((d,))], looks)[0][0] == verdict


@pytest.mark.parametrize("tests", [1, 18, 60])
def test_choosing_the_added_units_by_the_first_look_keeps_its_level(tests):
    """At the number of units that the first look asks for, the second one errs less often than a look may.

    The probability is integrated over the statistic of the first look, which is normal without an effect.
    """
    level, planned = ONE_LOOK / tests, 1000
    limit = stats.norm.isf(level)
    firsts, width = np.linspace(-limit, limit, 5001, retstep=True)
    wrong = 0.0
    for first in firsts:
        needed = Estimate(abs(first), 1.0, planned - 1, planned).units_needed(level)
        if planned < needed <= MOST_ADDED * planned:
            ratio = needed / planned  # the second statistic is (first + sqrt(ratio - 1) * normal) / sqrt(ratio)
            second = stats.norm.sf((limit * math.sqrt(ratio) - first) / math.sqrt(ratio - 1))
            wrong += second * stats.norm.pdf(first) * width
    assert 0.3 * level < wrong < level


@pytest.mark.parametrize("n", [3, 5, 20])
def test_no_effect_is_called_one_at_the_level(n):
    samples = np.random.default_rng(n).normal(size=(REPEATS, n))
    found = [alone(mean_of(list(row))) for row in samples]
    rate, se = share(found.count(HOLDS) + found.count(CONTRARY))
    assert abs(rate - ONE_LOOK) < 4 * se


def test_seeds_added_for_undecided_claims_keep_the_level():
    """A family without effects, whose sample is trebled if one of its three claims is not decided."""
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(REPEATS):
        samples = rng.normal(size=(3, 30)) + rng.normal(size=30)  # settings that share their reference
        for n in (10, 30):
            found = [v for v, _ in family_verdicts([Evidence((mean_of(list(row[:n])),)) for row in samples])]
            if OPEN not in found:
                break
        wrong += found != [OPEN] * 3
    assert wrong / REPEATS < LEVEL


def test_one_control_that_is_level_is_enough_to_refuse():
    rng = np.random.default_rng(0)
    found = [alone(mean_of(list(rng.normal(3, 1, 6))), mean_of(list(rng.normal(0, 1, 6)))) for _ in range(REPEATS)]
    holds, se = share(found.count(HOLDS))
    assert holds < ONE_LOOK + 4 * se
    assert found.count(CONTRARY) / REPEATS < ONE_LOOK


def test_equivalence_at_the_edge_of_its_margin():
    """The true difference is the margin: either verdict is given at most at the level."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(REPEATS):
        d, margin = rng.normal(1.0, 0.3, 8), 1.0
        found.append(alone(mean_of(list(d + margin)), mean_of(list(margin - d))))
    for verdict in (HOLDS, CONTRARY):
        rate, se = share(found.count(verdict))
        assert rate < ONE_LOOK + 4 * se


def test_equivalence_decides():
    close, far = Estimate(1.0, 0.1, 9, 10), Estimate(-1.0, 0.1, 9, 10)
    assert alone(close, close) == HOLDS
    assert alone(close, far) == CONTRARY
    assert alone(close, Estimate(0.1, 0.1, 9, 10)) == OPEN


@pytest.mark.parametrize("n", [3, 10])
@pytest.mark.parametrize("published_se", [True, False])
def test_a_right_number_is_excluded_at_most_at_the_level(n, published_se):
    """Both means come from one law, the published one from 5 runs."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(REPEATS):
        theirs, ours = rng.normal(size=5), rng.normal(size=n)
        se = theirs.std(ddof=1) / math.sqrt(5) if published_se else None
        wrong += verdicts.exclusion([(mean_of(list(ours)), PublishedMean(theirs.mean(), se, 5))]) <= ONE_LOOK
    rate, se = share(wrong)
    assert rate < ONE_LOOK + 4 * se
    if not published_se:  # then the test is exact
        assert rate > ONE_LOOK - 4 * se


def test_several_rounds_are_corrected_for():
    ours = Estimate(3.1, 1.0, 1000, 1001)
    exact = PublishedMean(0.0, 1e-9, 1001)
    assert agreement((ours, exact)) == CONTRARY
    assert agreement(*[(ours, exact)] * 40) != CONTRARY


def test_agreement_needs_as_many_units_and_a_like_error():
    theirs = PublishedMean(0.0, 1.0, 10)
    assert agreement((Estimate(0.5, 1.0, 9, 10), theirs)) == HOLDS
    assert agreement((Estimate(0.5, 1.0, 4, 5), theirs)) == OPEN
    assert agreement((Estimate(0.5, 3.0, 9, 10), theirs)) == OPEN
    assert agreement((Estimate(9.0, 1.0, 9, 10), theirs)) == CONTRARY


@pytest.mark.parametrize(("distance", "expected"), [(1.9, HOLDS), (2.1, OPEN), (9.0, CONTRARY)])
def test_agreement_is_within_two_errors_at_every_point(distance, expected):
    """Errors of 0.6 and 0.8 combine to 1. Between two errors and the level neither verdict is given."""
    good, theirs = Estimate(0.0, 0.6, 99, 100), PublishedMean(0.0, 0.8, 100)
    assert agreement((good, theirs), (Estimate(-distance, 0.6, 99, 100), theirs)) == expected


def test_a_number_without_an_error_needs_a_small_one_of_ours():
    """The error of the difference counts: five runs with the spread of our twenty have twice our error."""
    theirs = PublishedMean(1.0, None, 5)
    assert agreement((Estimate(1.1, 0.065, 19, 20), theirs)) == HOLDS
    assert agreement((Estimate(1.1, 0.07, 19, 20), theirs)) == OPEN
    assert agreement((Estimate(1.0, 0.02, 99, 100), PublishedMean(1.0, None, 1))) == OPEN


def test_a_family_is_wrong_anywhere_at_most_at_the_level():
    """Of six claims, four of no effect: which verdicts are wrong is known."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(REPEATS // 4):
        family = []
        for effect in (0.0, 0.0, 0.0, 0.0, 1.0, 0.2):
            d = rng.normal(effect, 0.5, 12)
            ends = (mean_of(list(0.2 + d)), mean_of(list(0.2 - d)))
            family.append(Evidence((mean_of(list(d)),), ends))
        found = [verdict for verdict, _ in family_verdicts(family)]
        wrong += (
            any(v in (HOLDS, CONTRARY) for v in found[:4])
            or found[4] in (CONTRARY, SAME)
            or found[5] in (CONTRARY, SAME)
        )
    rate, se = share(wrong, REPEATS // 4)
    assert rate < ONE_LOOK + 4 * se


def test_holm_is_stricter_in_a_larger_family():
    clear, near = Estimate(9.0, 1.0, 99, 100), Estimate(2.5, 1.0, 99, 100)
    assert alone(near) == HOLDS
    assert [v for v, _ in family_verdicts([Evidence((near,)), Evidence((clear,))])] == [HOLDS, HOLDS]
    assert [v for v, _ in family_verdicts([Evidence((near,))] * 3)] == [OPEN] * 3


def test_level_is_said_of_a_small_difference_and_not_of_a_large_one():
    small = Estimate(0.01, 0.01, 99, 100)
    ends = [Estimate(0.1 + x, 0.01, 99, 100) for x in (0.01, -0.01)]
    assert alone(small, level=ends) == SAME
    assert alone(Estimate(0.09, 0.01, 99, 100), level=[Estimate(x, 0.01, 99, 100) for x in (0.19, 0.01)]) == HOLDS


def test_an_open_claim_says_how_many_units_decide():
    """With that many units of the same spread and mean, the verdict is given in four of five cases."""
    rng = np.random.default_rng(4)
    verdict, n = family_verdicts([Evidence((Estimate(0.3, 1 / math.sqrt(8), 7, 8),))])[0]
    assert verdict == OPEN and n > 8
    found = [alone(mean_of(list(rng.normal(0.3, 1, n)))) for _ in range(REPEATS // 4)]
    assert 0.7 < found.count(HOLDS) / len(found) < 0.9


@pytest.mark.parametrize("bad", [lambda: mean_of([]), lambda: mean_of([math.nan, 1.0]), lambda: PublishedMean(1, 1, 1)])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError):
        bad()
