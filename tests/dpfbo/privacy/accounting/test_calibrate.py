"""Calibration: the answer costs the target, hardly less and never more; a target out of reach is one sentence."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo.privacy.accounting import calibrate
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.gdp import Gdp
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.rdp import Rdp

DELTA = 0.01


def epsilon(accountant, q, z, T):
    return accountant.epsilon([round_event(q, z)] * T, DELTA)


@given(
    target=st.floats(0.3, 30.0),
    q=st.floats(0.05, 1.0),
    T=st.integers(1, 100),
    accountant=st.sampled_from([Pld(), Gdp()]),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_noise_costs_the_target(target, q, T, accountant):
    z = calibrate.noise_multiplier(lambda z: epsilon(accountant, q, z, T), target)
    assert 0.99 * target <= epsilon(accountant, q, z, T) <= target
    assert z == float(f"{z:.4g}")


@given(target=st.floats(0.3, 10.0), z=st.floats(0.6, 4.0), T=st.integers(1, 60))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_sampling_probability_costs_the_target(target, z, T):
    q = calibrate.sampling_probability(lambda q: epsilon(Pld(), q, z, T), target)
    spent = epsilon(Pld(), q, z, T)
    assert spent <= target
    assert q == 1.0 or spent >= 0.99 * target


@given(
    target=st.floats(1.0, 20.0),
    q=st.floats(0.05, 0.5),
    z=st.floats(0.8, 3.0),
    accountant=st.sampled_from([Pld(), Moments()]),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_rounds_are_exact(target, q, z, accountant):
    if epsilon(accountant, q, z, 1) > target:
        with pytest.raises(ValueError, match="does not pay for one round"):
            calibrate.rounds(lambda T: epsilon(accountant, q, z, T), target)
        return
    T = calibrate.rounds(lambda T: epsilon(accountant, q, z, T), target)
    assert epsilon(accountant, q, z, T) <= target < epsilon(accountant, q, z, T + 1)


def test_the_other_accountants_can_plan_too():
    for accountant, subset in ((Moments(), None), (Rdp(), None), (FixedSize(), (5, 20))):
        events = lambda z, subset=subset: [round_event(0.25, z, subset)] * 10
        z = calibrate.noise_multiplier(lambda z: accountant.epsilon(events(z), DELTA), 3.0)  # noqa: B023
        assert 0.99 * 3 <= accountant.epsilon(events(z), DELTA) <= 3


def test_a_target_that_any_noise_meets_gets_the_least():
    assert calibrate.noise_multiplier(lambda z: 0.1 / z, 50.0) == calibrate.SMALLEST_NOISE
    assert calibrate.sampling_probability(lambda q: q, 1.0) == 1.0


@pytest.mark.parametrize("exact", [0.0123456, 0.99999, 1.0, 1.00001, 3.0, 9999.4])
def test_answers_are_rounded_to_the_private_side(exact):
    z = calibrate.noise_multiplier(lambda z: 1 / z, 1 / exact)
    assert exact * (1 - 1e-12) <= z <= exact * (1 + 2e-3 / 1.9)
    q = calibrate.sampling_probability(lambda q: q, min(exact, 0.9))
    assert 0.9989 * min(exact, 0.9) <= q <= min(exact, 0.9) * (1 + 1e-12)


@pytest.mark.parametrize("exact", [1, 2, 3, 4, 63, 64, 65, 1000])
def test_rounds_by_bisection(exact):
    assert calibrate.rounds(lambda T: float(T), exact + 0.5) == exact
    assert calibrate.rounds(lambda T: float(T), exact) == exact


def test_most_rounds_are_found_and_one_more_is_refused():
    assert calibrate.rounds(lambda T: float(T), 100.0, most=100) == 100
    with pytest.raises(ValueError, match="pays for more than 100 rounds"):
        calibrate.rounds(lambda T: float(T), 101.0, most=100)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        (lambda: calibrate.noise_multiplier(lambda z: 1 + 1 / z, 0.5), "noise multiplier 10000 still costs 1"),
        (lambda: calibrate.sampling_probability(lambda q: 2 + q, 1.0), "sampling probability 1e-06 still costs 2"),
        (lambda: calibrate.rounds(lambda T: 3.0 * T, 1.0), "epsilon 1 does not pay for one round, which costs 3"),
        (lambda: calibrate.rounds(lambda T: 0.0, 1.0), "epsilon 1 pays for more than 100000 rounds"),
        (lambda: calibrate.noise_multiplier(lambda z: math.inf, 1.0), "still costs inf"),
    ],
)
def test_a_target_out_of_reach_is_one_sentence(search, says):
    with pytest.raises(ValueError, match=says) as error:
        search()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", [0, -1, math.nan, math.inf, "2", None])
@pytest.mark.parametrize("search", [calibrate.noise_multiplier, calibrate.sampling_probability, calibrate.rounds])
def test_a_target_that_is_none_is_refused(search, target):
    with pytest.raises(ValueError, match="epsilon must be a finite number above 0"):
        search(lambda x: 1 / x, target)
