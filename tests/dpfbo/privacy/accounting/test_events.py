"""Events of rounds, and names of accountants."""

import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo.checks import SettingError
from dpfbo.formats.words import REPLACE_ONE, ZERO_OUT
from dpfbo.privacy import accounting
from dpfbo.privacy.accounting import (
    ACCOUNTANTS,
    UnsupportedEvent,
    accountant_named,
    accountant_names,
    accounted_multiplier,
    check_delta,
    default_delta,
    finite_or_none,
    sampled_gaussian,
)
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.accounting.events import round_event, round_parameters

GAUSSIAN = dp_accounting.GaussianDpEvent(1.5)


@pytest.mark.parametrize(
    ("given", "event"),
    [
        ((0.3, 1.5), dp_accounting.PoissonSampledDpEvent(0.3, GAUSSIAN)),
        ((1.0, 1.5), dp_accounting.PoissonSampledDpEvent(1.0, GAUSSIAN)),
        ((0.3, 3.0, (3, 9)), dp_accounting.SampledWithoutReplacementDpEvent(9, 3, GAUSSIAN)),
        ((0.3, None), dp_accounting.NonPrivateDpEvent()),
        ((0.3, 0.0, (3, 9)), dp_accounting.NonPrivateDpEvent()),
    ],
)
def test_a_round_s_event_and_its_parameters(given, event):
    assert round_event(*given) == event
    parameters = round_parameters(event)
    assert round_event(*parameters) == event
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        assert parameters == (1.0, None, None)
    elif len(given) == 3:
        assert parameters == (3 / 9, 3.0, (3, 9))
    else:
        assert parameters == (*given, None)


def laplace(inner):
    return dp_accounting.PoissonSampledDpEvent(0.3, inner)


@pytest.mark.parametrize(
    "event",
    [GAUSSIAN, dp_accounting.NoOpDpEvent(), laplace(dp_accounting.LaplaceDpEvent(1.0)), laplace(laplace(GAUSSIAN))],
)
def test_other_events_are_no_rounds(event):
    with pytest.raises(UnsupportedEvent, match="a round of this mechanism cannot be a "):
        round_parameters(event)
    with pytest.raises(UnsupportedEvent, match="cannot analyse"):
        sampled_gaussian(event)


def test_q_and_z_of_a_round():
    assert sampled_gaussian(round_event(0.3, None)) == (1.0, 0.0)
    assert sampled_gaussian(round_event(0.3, 2.0 - 1e-12)) == (0.3, 1.9999999)
    with pytest.raises(UnsupportedEvent):
        sampled_gaussian(round_event(0.3, 3.0, (3, 9)))


def test_accountants_by_name():
    assert accountant_names()[: len(ACCOUNTANTS)] == ("moments", "rdp", "pld", "gdp", "fixed_size")
    for name, kind in ACCOUNTANTS.items():
        accountant = accountant_named(name)
        assert type(accountant).__name__ == kind
        assert accountant.relation == (REPLACE_ONE if name == "fixed_size" else ZERO_OUT)
        assert accountant.approximation is (name == "gdp")
    with pytest.raises(
        SettingError, match="^accountant must be one of 'moments', 'rdp', 'pld', 'gdp', 'fixed_size'.*, got 'mine'"
    ):
        accountant_named("mine")


@pytest.mark.parametrize("accountant", [*map(accountant_named, ACCOUNTANTS), AnalyticGaussian("one row")])
def test_nothing_costs_nothing(accountant):
    assert accountant.epsilon([], 0.01) == 0.0
    assert accountant.curve([], 0.01) == []


def test_delta_lies_between_0_and_1():
    for wrong in (0, 1, -0.1, 1.5, True, False, "small", None, math.nan):
        with pytest.raises(SettingError, match="^privacy.delta must lie in .0, 1., got"):
            check_delta(wrong, "privacy.delta")
        with pytest.raises(SettingError, match="^delta must"):
            check_delta(wrong)
    check_delta(5e-324)
    check_delta(1 - 2**-53)


def test_default_delta():
    assert default_delta(200) == 200**-1.1
    assert default_delta(2) == 2**-1.1
    assert default_delta(1) == 0.1


@given(z=st.floats(0.01, 1e9))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_multipliers_are_rounded_down_and_hardly(z):
    rounded = accounted_multiplier(z)
    assert rounded <= z
    assert rounded >= min(z, 1e6) * (1 - 2e-7)
    assert accounted_multiplier(rounded) == rounded


def test_multipliers_of_few_digits_stay():
    for z in (0.01, 0.35, 1.0, 1.1, 2.735, 1e4, 1e6):
        assert accounted_multiplier(z) == z


@pytest.mark.parametrize(
    ("z", "rounded"),
    [
        (2.0 - 1e-12, 1.9999999), (1.23456789, 1.2345678), (1.23456781, 1.2345678), (123456.789, 123456.78),
        (0.099999999999, 0.099999999), (9.99999999, 9.9999999), (10.0000004, 10.0), (10.0000009, 10.0),
        (1e6 + 1, 1e6), (1e300, 1e6), (999999.999, 999999.99),
    ],
)  # fmt: skip
def test_multipliers_are_rounded_down_to_eight_digits(z, rounded):
    assert accounted_multiplier(z) == rounded


def test_an_event_object_is_read_once(monkeypatch):
    one, other, read = round_event(0.5, 1.0), round_event(0.5, 2.0), []
    monkeypatch.setattr(accounting, "sampled_gaussian", lambda event: read.append(event) or sampled_gaussian(event))
    assert accounting.kinds_of([one, one, other, one]) == [(0.5, 1.0), (0.5, 1.0), (0.5, 2.0), (0.5, 1.0)]
    assert len(read) == 2


def test_epsilon_in_files():
    assert finite_or_none(1.5) == 1.5
    assert finite_or_none(math.inf) is finite_or_none(math.nan) is None
