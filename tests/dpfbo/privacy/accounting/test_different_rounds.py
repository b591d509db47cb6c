"""Rounds that all differ: upper bounds near those of dp-accounting on a fine grid, and exact where that is known."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.budget import EpsilonCurve

SCHEDULES = {
    "noise falls": ([(0.25, 4 - 0.02 * t) for t in range(100)], 3e-3),
    "sampling grows": ([(0.01 + 0.002 * t, 1.0) for t in range(80)], 1e-5),
    "no sampling": ([(1.0, 3 + 0.05 * t) for t in range(60)], 1e-6),
    "some not sampled": ([(1.0 if t % 3 else 0.3, 2 + 0.05 * t) for t in range(60)], 1e-4),
    "little noise": ([(0.1, 0.4 + 0.01 * t) for t in range(50)], 1e-5),
    "rare": ([(0.001, 2 + 0.01 * t) for t in range(60)], 1e-8),
    "unlike": ([(0.2, float(z)) for z in np.geomspace(30, 1, 60)], 1e-5),
}


def event(q, z):
    return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))


def events(kinds):
    return [event(*kind) for kind in kinds]


def fine(kinds, delta, interval):
    """Epsilon by dp-accounting's own distributions, as far from the exact one as their interval."""
    total = None
    for q, z in kinds:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=interval, use_connect_dots=True
        )
        total = one if total is None else total.compose(one)
    return total.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("name", ["noise falls", "no sampling", "unlike"])
def test_it_is_not_below_dp_accounting(name):
    """With an interval so fine that dp-accounting's result is exact to 1e-5."""
    kinds, delta = SCHEDULES[name]
    kinds = kinds[::4]
    reference = fine(kinds, delta, 2e-4)
    assert reference * (1 - 1e-5) <= Pld().epsilon(events(kinds), delta) <= reference * 1.001


@pytest.mark.parametrize("of", [Pld().epsilon, lambda *given: Pld().curve(*given)[-1]], ids=["epsilon", "curve"])
def test_gaussians_without_sampling_have_the_exact_epsilon(of):
    multipliers = np.linspace(20.0, 60.0, 300)
    exact = dp_accounting.get_epsilon_gaussian(float(np.sum(multipliers**-2.0)) ** -0.5, 1e-5)
    assert exact <= of(events((1.0, float(z)) for z in multipliers), 1e-5) <= 1.0005 * exact


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_curve_never_falls_and_its_end_is_the_total(name):
    kinds, delta = SCHEDULES[name]
    curve = Pld().curve(events(kinds), delta)
    assert len(curve) == len(kinds)
    assert all(a <= b for a, b in itertools.pairwise(curve))
    assert curve[-1] == pytest.approx(Pld().epsilon(events(kinds), delta), rel=1e-6)


@pytest.mark.parametrize("delta", [1e-15, 1e-308, 5e-324])
def test_a_delta_below_rounding_errors_has_no_epsilon(delta):
    some = events((0.2, 2 + 0.01 * t) for t in range(20))
    assert Pld().epsilon(some, delta) == math.inf
    assert set(Pld().curve(some, delta)) == {math.inf}


@pytest.mark.parametrize(
    "kinds",
    [
        [(0.5, 0.02 + 1e-5 * t) for t in range(40)],
        [(1e-6, 1e3 + t) for t in range(40)],
        [(1.0, 1e6 - t) for t in range(40)],
        [(0.999, 0.3 + 0.1 * t) for t in range(40)],
    ],
    ids=["tiny noise", "hardly sampled", "huge noise", "nearly all"],
)
def test_extreme_rounds_have_bounds_between_the_exact_and_that_of_renyi(kinds):
    """A mixture diverges no more than the plain Gaussian, whose epsilon is known."""
    epsilon, delta = Pld().epsilon(events(kinds), 1e-5), 1e-5
    plain = dp_accounting.get_epsilon_gaussian(float(sum(z**-2.0 for _, z in kinds)) ** -0.5, delta)
    assert 0 <= epsilon <= plain * 1.01 + 1e-4
    assert epsilon == pytest.approx(Pld().curve(events(kinds), delta)[-1], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("accountant", [Pld(), Rdp(), Moments()], ids=["pld", "rdp", "moments"])
def test_one_more_round_continues_the_curve_and_one_without_noise_ends_it(accountant):
    some = events((0.2, 2 + 0.01 * t) for t in range(17))
    few, many = accountant.curve(some[:-1], 1e-4), accountant.curve(some, 1e-4)
    assert many[:-1] == pytest.approx(few, rel=1e-9) and many[-1] >= many[-2]
    assert accountant.epsilon(some, 1e-4) == pytest.approx(many[-1], rel=1e-6)
    some.insert(9, dp_accounting.NonPrivateDpEvent())
    curve = accountant.curve(some, 1e-4)
    assert curve[8] < math.inf and set(curve[9:]) == {math.inf}
    assert accountant.epsilon(some, 1e-4) == math.inf


def test_pld_is_below_rdp_is_below_moments():
    some = events((0.05 + 0.004 * t, 1 + 0.02 * t) for t in range(60))
    pld, rdp, moments = (a.curve(some, 1e-5) for a in (Pld(), Rdp(), Moments()))
    assert all(a <= b <= c for a, b, c in zip(pld, rdp, moments, strict=True))


def test_a_curve_that_was_planned_is_computed_once(monkeypatch):
    computed, accountant = [], Rdp()
    monkeypatch.setattr(Rdp, "curve", lambda self, events, delta: computed.append(len(events)) or [1.0] * len(events))
    some = events((0.21, 2.5 + 0.01 * t) for t in range(40))
    curve = EpsilonCurve(accountant, some, 1e-4)
    assert [curve.after(some[:k]) for k in range(41)] == [0.0] + [1.0] * 40
    assert computed == [40]
