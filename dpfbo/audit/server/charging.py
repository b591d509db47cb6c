"""Checks of the ledger: every broadcast is charged before it leaves, and none goes beyond the budget."""

import math

import torch

from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM, seeded
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import Charge, Ledger

_RUNS = 8  # runs of all rounds
_SENT = ("nothing", "far too much", "NaN")


class _Broken(Ledger):
    """A ledger that cannot be written."""

    def charge(self, entry: Charge) -> bool:
        raise OSError("the ledger cannot be written")


def charged(rounds: RepeatedRounds) -> CheckResult:
    """After every round the ledger has exactly one more charge: this round's, of the very numbers that were broadcast.

    The charge is the same for all messages.
    """
    target, seen = rounds.target, dict[int, tuple[object, ...]]()
    for run in range(_RUNS):
        ledger = Ledger()
        server = target.copy(seeded("charged", rounds.seed, run), ledger)
        messages = _sent(rounds, _SENT[run % len(_SENT)])
        for t in range(target.rounds):
            before = len(ledger.charges)
            try:
                broadcast, _, _ = server.round(t, messages)
            except BudgetSpent:
                break
            new = ledger.charges[before:]
            if broadcast is None and not new:
                break  # the budget is spent
            words = f"run {run}, round {t}: {len(new)} charges for one broadcast"
            if broadcast is None or len(new) != 1:
                return CheckResult("charged", False, words, float(len(new)), 1.0)
            if new[0].round != t or not ledger.holds(t, broadcast.values):
                words = f"run {run}, round {t}: the charge is not of the numbers that were broadcast"
                return CheckResult("charged", False, words, 0.0, 1.0)
            cost = (new[0].q, new[0].z, new[0].sigma, new[0].subset)
            if seen.setdefault(t, cost) != cost:
                words = f"round {t} is charged {cost} when agents send {_SENT[run % len(_SENT)]}, else {seen[t]}"
                return CheckResult("charged", False, words, 0.0, 1.0)
    return CheckResult("charged", True, f"{_RUNS} runs of {len(seen)} rounds: one charge for each broadcast", 1.0, 1.0)


def before_leaving(rounds: RepeatedRounds) -> CheckResult:
    """Nothing is broadcast if the charge cannot be written."""
    target = rounds.target
    try:
        broadcast, _, _ = target.copy(seeded("broken", rounds.seed), _Broken()).round(0, rounds.zeros())
    except OSError:
        broadcast = None
    words = "a charge that cannot be written: " + ("nothing leaves" if broadcast is None else "the broadcast leaves")
    return CheckResult("before leaving", broadcast is None, words, float(broadcast is not None), 0.0)


def budget(rounds: RepeatedRounds) -> CheckResult:
    """All broadcasts of a run together cost no more than the budget, where there is one."""
    target = rounds.target
    limit = target.summing.budget
    if limit is None:
        return CheckResult("budget", True, "no budget is set", 0.0, math.inf)
    ledger = Ledger()
    server = target.copy(seeded("budget", rounds.seed), ledger)
    try:
        for t in range(target.rounds):
            server.round(t, None)
    except BudgetSpent:
        pass
    spent = limit.spent.after(ledger.events())
    words = f"{len(ledger.charges)} broadcasts cost epsilon {spent:.3f} of a budget of {limit.epsilon:.3f}"
    return CheckResult("budget", spent <= limit.epsilon, words, spent, limit.epsilon)


def _sent(rounds: RepeatedRounds, name: str) -> torch.Tensor:
    return rounds.zeros() + {"nothing": 0.0, "NaN": math.nan}.get(name, LONG_NORM * rounds.target.message_norm)
