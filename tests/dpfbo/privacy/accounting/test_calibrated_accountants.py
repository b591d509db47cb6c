"""Calibration of the accountants: the answer costs the target, hardly less and never more."""

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
