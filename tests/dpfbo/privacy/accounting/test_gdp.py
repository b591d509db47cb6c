"""Gaussian DP: its closed form, its limit, and that it stays a number."""

import itertools
import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpfbo.formats.words import ZERO_OUT
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.gdp import Gdp
from dpfbo.privacy.accounting.pld import Pld


def divergence(epsilon, mu):
    """`delta = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)`."""
    return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))


@given(
    rounds=st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.5, 10.0)), min_size=1, max_size=20),
    delta=st.floats(1e-9, 0.3),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_epsilon_solves_the_closed_form(rounds, delta):
    mu = math.sqrt(sum(q**2 * math.expm1(1 / z**2) for q, z in rounds))
    epsilon = Gdp().epsilon([round_event(q, z) for q, z in rounds], delta)
    if epsilon == 0:
        assert divergence(0.0, mu) <= delta
    else:
        assert divergence(epsilon, mu) == pytest.approx(delta, rel=1e-5)  # multipliers are rounded to 8 digits


def test_equal_rounds_have_the_formula_of_the_paper():
    mu = 0.25 * math.sqrt(40 * math.expm1(1))
    expected = dp_accounting.get_epsilon_gaussian(1 / mu, 200**-1.1)
    assert Gdp().epsilon([round_event(0.25, 1.0)] * 40, 200**-1.1) == pytest.approx(expected, rel=1e-9)


def test_it_is_below_the_true_epsilon_and_comes_near_it_with_many_rounds():
    """No guarantee: at q sqrt(T) fixed it is too small by an amount that falls as 1 / sqrt(T)."""
    gaps = []
    for T in (64, 1024, 16384):
        events = [round_event(1.2 / math.sqrt(T), 1.0)] * T
        gaps.append(Pld().epsilon(events, 1e-3) / Gdp().epsilon(events, 1e-3) - 1)
    assert gaps[0] > 0.05
    assert 0 < gaps[1] < 0.6 * gaps[0]
    assert 0 < gaps[2] < 0.4 * gaps[1]


@pytest.mark.parametrize(
    ("q", "z", "T", "delta"),
    [(1.0, 0.1, 10, 0.02), (1.0, 0.08, 3, 0.9), (0.3, 1e5, 10, 1e-9), (1e-6, 0.5, 3, 1e-12), (0.5, 1e200, 3, 1e-3)],
)
def test_huge_and_tiny_mu_stay_numbers(q, z, T, delta):
    epsilon = Gdp().epsilon([round_event(q, z)] * T, delta)
    assert 0 <= epsilon < math.inf
    smaller = Gdp().epsilon([round_event(q, z)] * T, delta / 10)
    assert smaller >= epsilon


def test_a_mu_too_small_to_square_costs_nothing():
    rounds = [round_event(1e-60, 1.0)] * 3
    assert Gdp().epsilon(rounds, 1e-3) == 0.0
    assert Gdp().curve(rounds, 1e-3) == [0.0] * 3


def test_a_mu_beyond_all_numbers_is_no_finite_epsilon():
    assert Gdp().epsilon([round_event(0.5, 0.01)], 0.01) == math.inf


def test_curve_and_epsilon_agree_whatever_the_order():
    events = [round_event(0.3, 1.0), round_event(0.1, 2.0), round_event(0.5, 0.8)] * 3
    curve = Gdp().curve(events, 0.01)
    assert len(curve) == 9 and all(b > a for a, b in itertools.pairwise(curve))
    assert curve[-1] == pytest.approx(Gdp().epsilon(events[::-1], 0.01), rel=1e-9)
    assert Gdp().curve([], 0.01) == []
    assert Gdp().epsilon([], 0.01) == 0.0


def test_no_noise_has_no_finite_epsilon_ever_after():
    curve = Gdp().curve([round_event(0.3, 1.0), dp_accounting.NonPrivateDpEvent(), round_event(0.3, 1.0)], 0.01)
    assert math.isfinite(curve[0]) and curve[1:] == [math.inf, math.inf]


def test_it_says_that_it_is_an_approximation():
    assert Gdp().approximation
    assert Gdp().relation == ZERO_OUT


def test_other_events_and_deltas_are_refused():
    with pytest.raises(UnsupportedEvent, match="SampledWithoutReplacement"):
        Gdp().check(round_event(0.3, 1.0, (3, 10)))
    for delta in (0, 1, math.nan):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
            Gdp().epsilon([round_event(0.3, 1.0)], delta)
