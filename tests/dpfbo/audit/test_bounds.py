"""The bounds of the audit: valid and tight where the truth is known, exact in the input that they refuse."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from dpfbo.audit.bounds import Claim, upper_bound, verdict
from dpfbo.audit.tradeoff import gaussian_delta, promised
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld

DELTA = 29**-1.1


def gaussian_epsilon(mu, delta):
    return dp_accounting.get_epsilon_gaussian(1 / mu, delta)


def gaussians(mu, trials, seed):
    """Scores of a test between N(0, 1) and N(mu, 1)."""
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal((2, trials))
    return draw[0], draw[1] + mu


def claim(z=1.0, q=1.0, T=1, accountant=None, delta=DELTA):
    return Claim.of([round_event(q, z)] * T, accountant or Pld(), delta)


def test_gaussian_profile_is_the_accountants():
    for mu in (0.3, 1.0, 2.5):
        epsilon = gaussian_epsilon(mu, DELTA)
        assert float(gaussian_delta(mu, np.array(epsilon))) == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(("q", "z", "T"), [(1.0, 1.0, 1), (0.3, 1.0, 1), (0.5, 0.6, 2), (0.35, 2.0, 60)])
def test_profile_gives_the_claimed_epsilon_back(q, z, T):
    made = claim(z, q, T)
    assert made.epsilon == pytest.approx(Pld().epsilon([round_event(q, z)] * T, DELTA))
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


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_bounds_cover_the_truth(mu):
    """The share of bounds above the true epsilon, over 120 audits of a Gaussian with known mu, is at most 5 %."""
    true, claimed = gaussian_epsilon(mu, DELTA), claim(1 / mu)
    audits = [verdict(*gaussians(mu, 300, seed), claimed) for seed in range(120)]
    above = sum(v.epsilon > true for v in audits)
    assert stats.binom.sf(above - 1, 120, 0.05) > 1e-3
    assert sum(not v.holds for v in audits) <= 6
    assert max(v.epsilon for v in audits) > 0.3 * true


def test_bounds_have_teeth():
    v = verdict(*gaussians(1.0, 10_000, 0), claim())
    assert v.epsilon > 0.7 * v.claim.epsilon
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


def test_perfect_separation_and_no_separation():
    low, high = np.zeros(1000), np.ones(1000)
    assert verdict(low, high, claim()).epsilon > 4
    assert not verdict(low, high, claim()).holds
    nothing = verdict(low, low, claim())
    assert (nothing.epsilon, nothing.holds) == (0.0, True)
    assert verdict(low, np.full(1000, math.inf), claim()).epsilon > 4


@pytest.mark.parametrize("n", [40, 1000])
def test_worlds_that_do_not_overlap_are_cut_in_the_middle(n):
    """A cut at the largest score of one half is crossed by scores of the other; one in the gap is not."""
    for seed in range(30):
        v = verdict(*gaussians(10.0, n, seed), claim())
        assert all(4 < t.threshold < 6 for t in v.tests)
        assert all(t.fpr == t.fnr == upper_bound(0, n // 2, 0.05 / 2) for t in v.tests)


def test_claim_of_an_accountant_without_a_curve():
    """fixed_size has no curve; a Gaussian mechanism satisfies the pairs that another accountant promises for it."""
    made = Claim.of([round_event(0.5, 4.0, (6, 12))], FixedSize(), DELTA)
    assert made.accountant.relation == "replace-one"
    assert (np.diff(made.profile.epsilons) <= 0).all()
    loose = promised(Moments(), [round_event(1.0, 1.0)])
    fpr = np.linspace(0.01, 0.9, 20)
    assert (loose.tradeoff(fpr) <= stats.norm.cdf(stats.norm.isf(fpr) - 1) + 1e-9).all()


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((19, 19), "trials in each world must be an integer of at least 20, got 19"),
        ((40, 50), "both worlds must have equally many trials, got 40 and 50"),
    ],
)
def test_bad_input_is_refused(sizes, says):
    with pytest.raises(ValueError, match=says):
        verdict(np.zeros(sizes[0]), np.zeros(sizes[1]), claim())
