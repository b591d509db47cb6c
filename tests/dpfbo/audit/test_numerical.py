"""The independent accountant brackets what is known exactly, and the checks that use it have the power they state."""

import math
from dataclasses import replace

import dp_accounting
import pytest

from dpfbo.audit.server.examine import CHECKS
from dpfbo.audit.server.laws import choices_needed, excess_found
from dpfbo.audit.server.numerical import epsilon_interval
from dpfbo.audit.server.repeated_rounds import RepeatedRounds
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.rdp import Rdp
from tests.planted import faults
from tests.planted.mechanisms import ChosenTooOften

STATISTICAL = ("noise", "shape", "fresh", "chosen", "independent", "streams", "law of S_t", "law of noise", "bits")


@pytest.mark.parametrize(("z", "rounds", "delta"), [(1.0, 1, 1e-2), (1.0, 1, 1e-6), (0.6, 3, 1e-5), (4.0, 20, 1e-3)])
def test_brackets_the_exact_epsilon_without_sampling(z, rounds, delta):
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(rounds), delta)
    found = epsilon_interval((((1.0, z), rounds),), delta, exact, opposite=False)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 0.01 * exact


@pytest.mark.parametrize(("q", "z", "rounds"), [(0.5, 1.0, 2), (0.1, 0.8, 10), (0.02, 0.5, 40)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_every_accountant_lies_above_the_lower_bound(q, z, rounds, delta):
    events = [round_event(q, z)] * rounds
    pld = Pld().epsilon(events, delta)
    found = epsilon_interval((((q, z), rounds),), delta, pld, opposite=False)
    assert found.lower <= pld <= 1.005 * found.upper
    assert found.lower > 0.985 * pld
    for looser in (Rdp(), Moments()):
        assert found.lower < looser.epsilon(events, delta)


def test_opposite_messages_cost_as_much_as_half_the_multiplier_without_sampling():
    exact = dp_accounting.get_epsilon_gaussian(0.5, 1e-3)
    found = epsilon_interval((((1.0, 1.0), 1),), 1e-3, exact, opposite=True)
    assert 0.99 * exact < found.lower <= exact and found.upper == math.inf
    events = [round_event(0.5, 1.0, (6, 12))] * 2
    assert epsilon_interval((((0.5, 1.0), 2),), 1e-3, 5.0, opposite=True).lower < FixedSize().epsilon(events, 1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", faults.sound_ones())
def test_no_statistical_check_fails_a_sound_server_under_any_seed(name, seed):
    rounds = RepeatedRounds(faults.sound_ones()[name], seed)
    few = STATISTICAL if name == "sound" else STATISTICAL[5:]
    assert [CHECKS[check](rounds).words for check in few if not CHECKS[check](rounds).holds] == []


def test_an_excess_of_the_choice_is_found_with_the_stated_power():
    """At least 36 of 40 audits find the excess that is found with probability 0.99 (four standard errors)."""
    q, n = faults.Q, faults.N
    excess = excess_found(q, n, choices_needed(q, n))
    target = faults.sound(ChosenTooOften(q, faults.Z, faults.S, "tight", excess=excess))
    found = sum(not CHECKS["law of S_t"](RepeatedRounds(target, seed)).holds for seed in range(40))
    assert 0.03 < excess < 0.05 and found >= 36
    assert excess_found(q, n, choices_needed(q, n, thorough=True)) <= 0.00501


def test_a_loose_accountant_is_no_fault_and_an_infinite_one_is():
    for accountant in (Rdp(), Moments()):
        assert CHECKS["accountant"](RepeatedRounds(replace(faults.sound(), accountant=accountant))).holds
    finding = CHECKS["accountant"](RepeatedRounds(replace(faults.sound(), accountant=_Infinite())))
    assert not finding.holds and "inf" in finding.words


class _Infinite(Pld):
    def epsilon(self, events, delta):
        return math.inf
