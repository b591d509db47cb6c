"""The power that the checks state, and the bounds of the exact epsilon that the accountant is compared with."""

import math
from dataclasses import replace

import dp_accounting
import pytest

from dpfbo.audit.server.claims import epsilon_interval
from dpfbo.audit.server.examine import examine
from dpfbo.audit.server.laws import choices_needed, excess_found
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.rdp import Rdp
from tests.planted import faults
from tests.planted.mechanisms import ChosenTooOften

STATISTICAL = ("noise", "streams", "law of S_t", "law of noise", "bits")


@pytest.mark.parametrize(("z", "rounds", "delta"), [(1.0, 1, 1e-2), (1.0, 1, 1e-6), (0.6, 3, 1e-5), (4.0, 20, 1e-3)])
def test_brackets_the_exact_epsilon_without_sampling(z, rounds, delta):
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(rounds), delta)
    lower, upper = epsilon_interval((((1.0, z), rounds),), delta, exact, opposite=False)
    assert lower <= exact <= upper
    assert upper - lower < 0.01 * exact


@pytest.mark.parametrize(("q", "z", "rounds"), [(0.5, 1.0, 2), (0.1, 0.8, 10), (0.02, 0.5, 40)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_every_accountant_lies_above_the_lower_bound(q, z, rounds, delta):
    events = [round_event(q, z)] * rounds
    pld = Pld().epsilon(events, delta)
    lower, upper = epsilon_interval((((q, z), rounds),), delta, pld, opposite=False)
    assert lower <= pld <= 1.005 * upper
    assert lower > 0.985 * pld
    for looser in (Rdp(), Moments()):
        assert lower < looser.epsilon(events, delta)


def test_opposite_messages_cost_as_much_as_half_the_multiplier_without_sampling():
    exact = dp_accounting.get_epsilon_gaussian(0.5, 1e-3)
    lower, upper = epsilon_interval((((1.0, 1.0), 1),), 1e-3, exact, opposite=True)
    assert 0.99 * exact < lower <= exact and upper == math.inf
    events = [round_event(0.5, 1.0, (6, 12))] * 2
    assert epsilon_interval((((0.5, 1.0), 2),), 1e-3, 5.0, opposite=True)[0] < FixedSize().epsilon(events, 1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", faults.sound_ones())
def test_no_statistical_check_fails_a_sound_server_under_any_seed(name, seed):
    found = examine(faults.sound_ones()[name], seed, names=STATISTICAL)
    assert [f.words for f in found if not f.holds] == []


def test_an_excess_of_the_choice_is_found_with_the_stated_power():
    """At least 36 of 40 audits find the excess that is found with probability 0.99 (four standard errors)."""
    q, n = faults.Q, faults.N
    excess = excess_found(q, n, choices_needed(q, n))
    target = faults.sound(ChosenTooOften(q, faults.Z, faults.S, "tight", excess=excess))
    found = sum(not examine(target, seed, names=["law of S_t"])[0].holds for seed in range(40))
    assert 0.03 < excess < 0.05 and found >= 36
    assert excess_found(q, n, choices_needed(q, n, thorough=True)) <= 0.00501


def test_a_loose_accountant_is_no_fault_and_an_infinite_one_is():
    for accountant in (Rdp(), Moments()):
        assert examine(replace(faults.sound(), accountant=accountant), names=["accountant"])[0].holds
    (finding,) = examine(replace(faults.sound(), accountant=_Infinite()), names=["accountant"])
    assert not finding.holds and "inf" in finding.words


class _Infinite(Pld):
    def epsilon(self, events, delta):
        return math.inf
