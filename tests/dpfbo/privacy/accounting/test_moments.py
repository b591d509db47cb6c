"""The moments accountant: moments by integration, and the least of its 32 epsilons."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.special import logsumexp

from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.moments import Moments

LAMBDAS = np.arange(1, 33)
KINDS = [(0.3, 1.0), (0.05, 0.7), (1.0, 6.0), (0.3, 1.0), (0.9, 30.0)]


def integrated(q, z):
    """`log E[(1 - q + q exp((2 x - 1) / (2 z^2)))^(lambda + 1)]`, x ~ N(0, z^2), lambda = 1..32, on a fine grid."""
    x = np.linspace(-12 * z, 33 + 12 * z, 20_001)
    density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi)) + math.log(x[1] - x[0])
    with np.errstate(divide="ignore"):
        ratio = np.logaddexp(np.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
    return logsumexp(density + (LAMBDAS[:, None] + 1) * ratio, axis=1)


def least(moments, delta):
    return float(np.min((moments + math.log(1 / delta)) / LAMBDAS))


@pytest.mark.parametrize(("q", "z"), KINDS)
def test_moments_are_those_of_integration(q, z):
    assert Moments()._cost(q, z) == pytest.approx(integrated(q, z), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("delta", [1e-5, 0.02, 0.7])
def test_moments_add_up_and_the_least_epsilon_counts(delta):
    total = np.cumsum([integrated(*kind) for kind in KINDS], axis=0)
    events = [round_event(*kind) for kind in KINDS]
    assert Moments().curve(events, delta) == pytest.approx([least(moments, delta) for moments in total], rel=1e-9)
    assert Moments().epsilon(events, delta) == Moments().curve(events, delta)[-1]
    assert Moments().epsilon(events[:1], delta) == Moments().curve(events, delta)[0]
    assert Moments().epsilon([], delta) == 0.0


def test_the_last_epsilon_of_the_curve_is_that_of_all_events():
    events = [round_event(0.3, z) for z in (1.0, 2.0, 1.0, 0.7, 1.0)]
    assert Moments().epsilon(events, 1e-3) == pytest.approx(Moments().curve(events, 1e-3)[-1], rel=1e-12)
    assert Moments().epsilon([], 1e-3) == 0


def test_events_of_another_kind_are_refused():
    Moments().check(round_event(0.3, 1.0))
    with pytest.raises(ValueError, match="moments, rdp, pld and gdp cannot analyse LaplaceDpEvent"):
        Moments().check(dp_accounting.LaplaceDpEvent(1.0))
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\), got 0"):
        Moments().curve([round_event(0.3, 1.0)], 0)
