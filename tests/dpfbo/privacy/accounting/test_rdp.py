"""The Rényi accountant: dp-accounting's own numbers, and a logger that is left as it was."""

import math

import dp_accounting
import numpy as np
import pytest
from absl import logging as absl_logging
from dp_accounting.rdp import rdp_privacy_accountant

from dpfbo.privacy.accounting import rdp
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.rdp import ORDERS, Rdp, divergences_of, epsilon_of

RELATION = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
KINDS = [(0.3, 1.0), (0.05, 0.7), (0.3, 1.0), (1.0, 6.0), (0.9, 30.0), (0.05, 0.7)]
EVENTS = [round_event(*kind) for kind in KINDS]


@pytest.mark.parametrize("delta", [1e-5, 0.02])
def test_epsilons_are_dp_accountings(delta):
    theirs, expected = rdp_privacy_accountant.RdpAccountant(neighboring_relation=RELATION), []
    for event in EVENTS:
        expected.append(theirs.compose(event).get_epsilon(delta))
    assert Rdp().curve(EVENTS, delta) == pytest.approx(expected, rel=1e-10)
    assert [Rdp().epsilon(EVENTS[: n + 1], delta) for n in range(6)] == pytest.approx(expected, rel=1e-10)
    assert Rdp().epsilon([], delta) == 0.0 and Rdp().curve([], delta) == []


def test_no_noise_is_no_epsilon():
    events = [EVENTS[0], round_event(0.3, None), EVENTS[0]]
    assert Rdp().curve(events, 0.01)[1:] == [math.inf] * 2
    assert Rdp().epsilon(events, 0.01) == math.inf
    assert epsilon_of([2, 3], np.array([math.inf, math.inf]), 0.01) == math.inf


def test_one_finite_order_is_enough():
    found = epsilon_of([2.0, 8.0], np.array([math.inf, 0.1]), 1e-3)
    assert isinstance(found, float)
    assert found == pytest.approx(0.1 + math.log(7 / 8) - (math.log(1e-3) + math.log(8)) / 7)  # Canonne et al. 2020


@pytest.mark.parametrize("delta", [0, 1, math.nan])
def test_a_delta_that_is_none_is_refused(delta):
    for ask in (Rdp().curve, Rdp().epsilon):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
            ask(EVENTS, delta)


def test_events_of_another_kind_are_refused():
    Rdp().check(EVENTS[0])
    with pytest.raises(ValueError, match="moments, rdp, pld and gdp cannot analyse LaplaceDpEvent"):
        Rdp().check(dp_accounting.LaplaceDpEvent(1.0))


def test_divergences_are_those_of_the_relation_and_the_orders():
    for event, relation, orders, expected in (
        (dp_accounting.GaussianDpEvent(2.0), RELATION, (2, 5.5), [2 / 8, 5.5 / 8]),
        (dp_accounting.GaussianDpEvent(1e9), RELATION, (2,), [rdp._ROUNDING]),
    ):
        assert divergences_of(event, relation, orders) == pytest.approx(expected, rel=1e-12)
    subset = dp_accounting.SampledWithoutReplacementDpEvent(10, 3, dp_accounting.GaussianDpEvent(2.0))
    one = dp_accounting.NeighboringRelation.REPLACE_ONE
    theirs = rdp_privacy_accountant.RdpAccountant((2, 3, 40), one).compose(subset).rdp
    assert np.array_equal(divergences_of(subset, one, (2, 3, 40)), theirs)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        divergences_of(subset, RELATION, (2, 3))


@pytest.mark.parametrize("refused", [False, True])
def test_the_logger_of_absl_is_quiet_in_between_and_as_before_in_the_end(monkeypatch, refused):
    before, during = absl_logging.get_verbosity(), []

    def compose(self, event, count=1):
        during.append(absl_logging.get_verbosity())
        if refused:
            raise KeyError
        return self

    monkeypatch.setattr(rdp_privacy_accountant.RdpAccountant, "compose", compose)
    absl_logging.set_verbosity(absl_logging.DEBUG)
    try:
        if refused:
            with pytest.raises(KeyError):
                divergences_of(EVENTS[0], RELATION, ORDERS)
        else:
            divergences_of(EVENTS[0], RELATION, ORDERS)
        assert during == [absl_logging.ERROR]
        assert absl_logging.get_verbosity() == absl_logging.DEBUG
    finally:
        absl_logging.set_verbosity(before)
