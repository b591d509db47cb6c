"""Epsilon curves and budgets: the numbers of the accountant."""

import pytest

from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.budget import Budget, EpsilonCurve
from dpfbo.privacy.ledger import Charge, Ledger

DELTA = 1e-3
EVENTS = [round_event(0.3, 1.5 + 0.1 * t) for t in range(12)]
OTHERS = [round_event(0.2, 3.0 + t) for t in range(3)]


def charged(ledger, events, first=0):
    for t, event in enumerate(events, start=first):
        ledger.charge(
            Charge(t, event.sampling_probability, event.event.noise_multiplier, 1.0, 1.0, f"{first:032x}{t:032x}")
        )
    return ledger


def expected(events):
    return Rdp().curve(events, DELTA)[-1]


def test_epsilon_after_charges_of_a_ledger_is_that_of_the_same_list():
    ledger, curve = Ledger(), EpsilonCurve(Rdp(), EVENTS, DELTA)
    for t, event in enumerate(EVENTS):
        charged(ledger, [event], t)
        assert curve.after(ledger.events()) == curve.after(list(ledger.events())) == expected(EVENTS[: t + 1])
        assert curve.after(ledger.events(t - 1), [event]) == expected(EVENTS[: t + 1])
    assert curve.after(ledger.events(3)) == expected(EVENTS[:4])
    assert curve.after([]) == 0.0


def test_charges_of_earlier_runs_come_first():
    ledger = charged(Ledger(), OTHERS)
    curve = EpsilonCurve(Rdp(), EVENTS, DELTA)
    for t, event in enumerate(EVENTS):
        assert curve.after(ledger.events(), [event]) == expected([*OTHERS, *EVENTS[: t + 1]])
        charged(ledger, [event], 10 + t)
        assert curve.after(ledger.events()) == expected([*OTHERS, *EVENTS[: t + 1]])


def test_another_ledger_is_compared_anew():
    curve = EpsilonCurve(Rdp(), EVENTS, DELTA)
    assert curve.after(charged(Ledger(), EVENTS).events()) == expected(EVENTS)
    assert curve.after(charged(Ledger(), OTHERS).events()) == expected(OTHERS)
    assert curve.after(charged(Ledger(), EVENTS[:2]).events(), OTHERS) == expected([*EVENTS[:2], *OTHERS])


def test_events_that_were_not_planned_extend_the_curve():
    ledger, curve = charged(Ledger(), EVENTS), EpsilonCurve(Rdp(), EVENTS[:5], DELTA)
    assert curve.after(ledger.events()) == expected(EVENTS)
    assert curve.after(ledger.events(2)) == expected(EVENTS[:3])
    assert EpsilonCurve(Rdp(), [], DELTA).after(ledger.events()) == expected(EVENTS)


def test_rounds_that_are_equal_are_one_event_so_that_comparing_them_is_cheap():
    ledger = charged(Ledger(), EVENTS)
    assert all(event is planned for event, planned in zip(ledger.events(), EVENTS, strict=True))


@pytest.mark.parametrize("spent", [[], OTHERS, EVENTS[:4]])
def test_a_budget_counts_what_it_pays_for(spent):
    limit = expected([*spent, *EVENTS[:7]])
    budget = Budget(limit, EpsilonCurve(Rdp(), EVENTS, DELTA))
    assert budget.number_allowed(spent, EVENTS) == 7
    assert budget.allows(spent, EVENTS[:7]) and not budget.allows(spent, EVENTS[:8])
    assert budget.allows([*spent, *EVENTS[:7]]) and not budget.allows([*spent, *EVENTS[:8]])
    assert budget.number_allowed([*spent, *EVENTS[:7]], EVENTS[7:]) == 0
    assert budget.number_allowed(spent, []) == 0
    assert budget.number_allowed(charged(Ledger(), spent).events(), EVENTS) == 7


def test_along_is_after_for_every_number_of_events():
    for planned in (EVENTS, [], EVENTS[:3], OTHERS):
        for spent in ([], OTHERS, EVENTS[:2]):
            along = list(EpsilonCurve(Rdp(), planned, DELTA).along(spent, EVENTS))
            assert along == [expected([*spent, *EVENTS[: k + 1]]) for k in range(len(EVENTS))]


def test_what_was_spent_counts_even_if_the_next_event_is_planned_at_its_place():
    """The same event is planned for all rounds, and a dearer one was charged before the first."""
    planned, dear = [EVENTS[5]] * 6, [round_event(0.9, 0.8)]
    for n in range(1, 6):
        spent = dear + planned[: n - 1]
        along = list(EpsilonCurve(Rdp(), planned, DELTA).along(spent, planned[:2]))
        assert along == [expected([*spent, *planned[:k]]) for k in (1, 2)]


@pytest.mark.parametrize("earlier", [[], OTHERS, OTHERS + EVENTS[:1]])
@pytest.mark.parametrize("planned", [EVENTS, EVENTS[:1], [EVENTS[0]] * 12])
def test_earlier_charges_cost_one_more_curve_and_no_more(monkeypatch, planned, earlier):
    """The curve goes on over what is still planned, whatever was charged before the run."""
    computed = []
    monkeypatch.setattr("dpfbo.privacy.budget._curve", _counted(computed))
    curve = EpsilonCurve(Rdp(), planned, DELTA)
    charged_now = list(earlier)
    for event in planned:
        curve.after(charged_now, [event])
        charged_now.append(event)
        curve.after(charged_now)
    assert len(computed) == 1 and len(computed[0]) == len(earlier) + len(planned)


def _counted(computed):
    def curve(accountant, events, delta):
        computed.append(events)
        return list(range(len(events)))

    return curve
