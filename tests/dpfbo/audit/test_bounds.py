"""The bounds of the audit: valid and tight where the truth is known, exact in the input that they refuse."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from dpfbo.audit import bounds
from dpfbo.audit.bounds import Claim, Rates, fitted_epsilon, upper_bound, verdict
from dpfbo.audit.server.one_run import epsilon_of_guesses, p_value
from dpfbo.audit.tradeoff import (
    GaussianFamily,
    SampledGaussianFamily,
    family_of,
    gaussian_delta,
    gaussian_epsilon,
    promised,
)
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld

DELTA = 29**-1.1


def gaussians(mu, trials, seed):
    """Scores of a test between N(0, 1) and N(mu, 1)."""
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal((2, trials))
    return draw[0], draw[1] + mu


def claim(z=1.0, q=1.0, T=1, accountant=None, delta=DELTA):
    return Claim.of([round_event(q, z)] * T, accountant or Pld(), delta)


def test_gaussian_profile_is_the_accountants():
    for mu in (0.3, 1.0, 2.5):
        epsilon = gaussian_epsilon(mu, DELTA)
        assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, DELTA), rel=1e-6)
        assert float(gaussian_delta(mu, np.array(epsilon))) == pytest.approx(DELTA, rel=1e-6)
    assert gaussian_epsilon(0.01, 0.5) == 0.0


@pytest.mark.parametrize(("q", "z", "T"), [(1.0, 1.0, 1), (0.3, 1.0, 1), (0.5, 0.6, 2), (0.35, 2.0, 60)])
def test_profile_gives_the_claimed_epsilon_back(q, z, T):
    made = claim(z, q, T)
    family = made.family
    assert made.epsilon == pytest.approx(Pld().epsilon([round_event(q, z)] * T, DELTA))
    below = family.epsilon(1.0, DELTA)
    assert below <= made.epsilon * (1 + 1e-9)
    assert below == pytest.approx(made.epsilon, abs=2e-3 * T)
    assert np.interp(made.epsilon, made.profile.epsilons, made.profile.deltas) == pytest.approx(DELTA, rel=0.02)


@pytest.mark.parametrize(("q", "z", "T"), [(1.0, 1.0, 1), (0.5, 0.6, 2), (0.35, 1.0, 3)])
def test_no_test_lies_below_the_claimed_curve(q, z, T):
    """The simulated likelihood-ratio test is never better than the curve (4 standard errors), and touches it."""
    n = 200_000
    rng = np.random.Generator(np.random.PCG64(0))
    chosen = rng.random((n, T)) < q
    x = rng.standard_normal((2, n, T)) * z + np.stack([np.zeros((n, T)), chosen])
    ratio = np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + (x - 0.5) / z**2).sum(-1)
    without, with_message = np.sort(ratio, axis=1)
    closest = math.inf
    for alpha in (0.002, 0.01, 0.05, 0.1, 0.2):
        fnr = np.searchsorted(with_message, np.quantile(without, 1 - alpha)) / n
        f = float(claim(z, q, T).profile.tradeoff(np.array(alpha)))
        slope = abs(float(claim(z, q, T).profile.tradeoff(np.array(1.02 * alpha))) - f) / (0.02 * alpha)
        error = math.sqrt(fnr * (1 - fnr) / n + slope**2 * alpha * (1 - alpha) / n)
        assert fnr >= f - 4 * error
        closest = min(closest, (fnr - f) / error)
    assert closest < 4


def test_clopper_pearson_against_its_definition():
    for hits, n in ((0, 50), (3, 50), (49, 50), (50, 50)):
        bound = float(upper_bound(hits, n, 0.025))
        assert bound == 1.0 if hits == n else stats.binom.cdf(hits, n, bound) == pytest.approx(0.025)
    assert float(bounds.lower_bound(0, 50, 0.025)) == 0.0
    assert stats.binom.sf(6, 50, float(bounds.lower_bound(7, 50, 0.025))) == pytest.approx(0.025)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_bounds_cover_the_truth(mu):
    """The share of bounds above the true epsilon, over 120 audits of a Gaussian with known mu, is at most 5 %."""
    true, claimed = gaussian_epsilon(mu, DELTA), claim(1 / mu)
    audits = [verdict(*gaussians(mu, 300, seed), claimed) for seed in range(120)]
    above = sum(v.epsilon > true for v in audits)
    above_fit = sum(v.fit_epsilon > true for v in audits)
    assert stats.binom.sf(above - 1, 120, 0.05) > 1e-3
    assert stats.binom.sf(above_fit - 1, 120, 0.05) > 1e-3
    assert sum(not v.holds for v in audits) <= 6
    assert max(v.fit_epsilon for v in audits) > 0.4 * true


def test_bounds_have_teeth():
    v = verdict(*gaussians(1.0, 10_000, 0), claim())
    assert v.epsilon > 0.7 * v.claim.epsilon
    assert v.fit_epsilon > 0.85 * v.claim.epsilon
    assert v.holds


@pytest.mark.parametrize(("claimed", "delta"), [(2.0, DELTA), (1.25, DELTA), (2.0, 1e-5)])
def test_too_little_noise_is_a_violation_also_where_the_printed_delta_shows_nothing(claimed, delta):
    v = verdict(*gaussians(1.0, 8000, 1), claim(z=claimed, delta=delta))
    assert not v.holds
    epsilon, at = v.broken
    assert at == pytest.approx(float(gaussian_delta(1 / claimed, np.array(epsilon))))
    assert any(
        1 - at - math.exp(epsilon) * t.fpr > t.fnr or 1 - at - math.exp(epsilon) * t.fnr > t.fpr for t in v.tests
    )


def test_a_claim_of_nothing_is_violated_by_anything_that_shows():
    v = verdict(*gaussians(2.0, 400, 0), Claim.of([], Pld(), DELTA))
    assert v.claim.epsilon == 0.0
    assert not v.holds
    assert v.fit_epsilon is None


def test_perfect_separation_and_no_separation():
    low, high = np.zeros(1000), np.ones(1000)
    assert verdict(low, high, claim()).epsilon > 4
    assert not verdict(low, high, claim()).holds
    nothing = verdict(low, low, claim())
    assert (nothing.epsilon, nothing.fit_epsilon, nothing.holds) == (0.0, 0.0, True)
    assert verdict(low, np.full(1000, math.inf), claim()).epsilon > 4


@pytest.mark.parametrize("n", [40, 1000])
def test_worlds_that_do_not_overlap_are_cut_in_the_middle(n):
    """A cut at the largest score of one half is crossed by scores of the other; one in the gap is not."""
    for seed in range(30):
        v = verdict(*gaussians(10.0, n, seed), claim())
        assert all(4 < t.threshold < 6 for t in v.tests)
        assert all(t.fpr == t.fnr == upper_bound(0, n // 2, 0.05 / 4) for t in v.tests)


def test_fit_is_the_gaussian_formula_without_subsampling():
    """The fit is `mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)`, and the sampled family gives the same at q = 1."""
    test = Rates(0.0, 0.2, 0.45)
    mu = stats.norm.isf(0.2) - stats.norm.ppf(0.45)
    exact = gaussian_epsilon(mu, DELTA)
    by_loss = SampledGaussianFamily((((1.0, 2.0), 1),))
    assert fitted_epsilon(GaussianFamily(0.5), [test], DELTA) == pytest.approx(exact, rel=0.01)
    assert fitted_epsilon(by_loss, [test], DELTA) == pytest.approx(exact, rel=0.01)
    two = SampledGaussianFamily((((1.0, 1.0), 1), ((1.0, 2.0), 1)))
    same = family_of([round_event(1.0, 1.0), round_event(1.0, 2.0)])
    assert fitted_epsilon(two, [test], DELTA) == pytest.approx(fitted_epsilon(same, [test], DELTA), rel=0.01)


def test_fit_within_the_family_finds_the_true_noise():
    """For rates on the curve of a member the fit gives that member's epsilon under any claimed multiplier."""
    true = family_of([round_event(0.3, 0.8)] * 2)
    fpr = 0.03
    fnr = float(true.profile(1.0).tradeoff(np.array(fpr)))
    for claimed in (0.8, 1.6):
        family = family_of([round_event(0.3, claimed)] * 2)
        found = fitted_epsilon(family, [Rates(0.0, fpr, fnr)], DELTA)
        assert found == pytest.approx(true.epsilon(1.0, DELTA), rel=0.02)


def test_families():
    assert family_of([round_event(1.0, 1.0)] * 4) == GaussianFamily(2.0)
    assert family_of([round_event(0.5, 1.0), round_event(0.5, 2.0)]).rounds == (((0.5, 1.0), 1), ((0.5, 2.0), 1))
    assert family_of([round_event(0.5, 1.0, (3, 6))]) is None
    assert family_of([round_event(0.5, None)]) is None
    assert family_of([]) is None


def test_claim_of_an_accountant_without_a_curve():
    """fixed_size has no curve; a Gaussian mechanism satisfies the pairs that another accountant promises for it."""
    made = Claim.of([round_event(0.5, 4.0, (6, 12))], FixedSize(), DELTA)
    assert made.relation == "replace-one" and made.family is None
    assert (np.diff(made.profile.epsilons) <= 0).all()
    loose = promised(Moments(), [round_event(1.0, 1.0)])
    fpr = np.linspace(0.01, 0.9, 20)
    assert (loose.tradeoff(fpr) <= stats.norm.cdf(stats.norm.isf(fpr) - 1) + 1e-9).all()


@pytest.mark.parametrize(
    ("sizes", "confidence", "says"),
    [
        ((19, 19), 0.95, "trials in each world must be an integer of at least 20, got 19"),
        ((40, 50), 0.95, "both worlds must have as many trials, got 40 and 50"),
        ((40, 40), 1.0, r"confidence must lie in \(0, 1\), got 1.0"),
    ],
)
def test_bad_input_is_refused(sizes, confidence, says):
    with pytest.raises(ValueError, match=says):
        verdict(np.zeros(sizes[0]), np.zeros(sizes[1]), claim(), confidence)


def test_guesses_of_one_run_against_randomised_response():
    """Randomised response attains the bound: 95 % of the lower bounds lie below its epsilon, half of them above 0.7."""
    rng = np.random.Generator(np.random.PCG64(0))
    correct = rng.binomial(300, 1 / (1 + math.exp(-1.0)), 200)
    found = np.array([epsilon_of_guesses(300, 300, int(v), 0.0) for v in correct])
    assert stats.binom.sf((found > 1.0).sum() - 1, 200, 0.05) > 1e-3
    assert np.median(found) > 0.7
    assert p_value(300, 300, 219, 1.0, 0.0) == pytest.approx(stats.binom.sf(218, 300, 1 / (1 + math.exp(-1.0))))
    assert p_value(300, 100, 90, 1.0, 1e-3) > p_value(300, 100, 90, 1.0, 0.0)
    assert epsilon_of_guesses(300, 300, 150, 0.0) == 0.0
