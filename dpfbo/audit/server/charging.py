"""Checks of the ledger: every broadcast is charged before it leaves, and none goes beyond the budget."""

import math

from dpfbo.audit.findings import ClaimBroken, require
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM, seeded
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import Charge, Ledger

_RUNS = 8  # runs, each of all rounds


class _Broken(Ledger):
    """A ledger whose charges cannot be written."""

    def charge(self, entry: Charge) -> bool:
        raise OSError("the ledger cannot be written")


def charged(rounds: RepeatedRounds) -> str:
    """Check that each round adds one charge to the ledger, with the digest of the broadcast values.

    The cost of a round must not depend on the messages.
    """
    target, seen = rounds.target, dict[int, tuple[object, ...]]()
    sent = (("nothing", 0.0), ("far too much", LONG_NORM * target.message_norm), ("NaN", math.nan))
    for run in range(_RUNS):
        ledger = Ledger()
        server = target.copy(seeded("charged", rounds.seed, run), ledger)
        name, number = sent[run % len(sent)]
        for t in range(target.rounds):
            before = len(ledger.charges)
            try:
                broadcast, _, _ = server.round(t, rounds.zeros() + number)
            except BudgetSpent:
                break
            new = ledger.charges[before:]
            if broadcast is None and not new:
                break  # the budget is spent
            if broadcast is None or len(new) != 1:
                raise ClaimBroken(f"run {run}, round {t}: {len(new)} charges for one broadcast")
            own = new[0].round == t and ledger.holds(t, broadcast.values)
            require(own, f"run {run}, round {t}: the charge is not for the numbers that were broadcast")
            cost = (new[0].q, new[0].z, new[0].sigma, new[0].subset)
            known = seen.setdefault(t, cost)
            require(known == cost, f"round {t} is charged {cost} when agents send {name}, but {known} in other runs")
    return f"{_RUNS} runs of {len(seen)} rounds: one charge for each broadcast"


def before_leaving(rounds: RepeatedRounds) -> str:
    """Check that nothing is broadcast if the charge cannot be written."""
    try:
        broadcast, _, _ = rounds.target.copy(seeded("broken", rounds.seed), _Broken()).round(0, rounds.zeros())
    except OSError:
        broadcast = None
    words = "nothing leaves" if broadcast is None else "the broadcast leaves"
    return require(broadcast is None, f"a charge that cannot be written: {words}")


def budget(rounds: RepeatedRounds) -> str:
    """Check that all broadcasts of a run together cost no more than the budget, if any."""
    target, ledger = rounds.target, Ledger()
    limit = target.summing.budget
    if limit is None:
        return "no budget is set"
    server = target.copy(seeded("budget", rounds.seed), ledger)
    try:
        for t in range(target.rounds):
            server.round(t, None)
    except BudgetSpent:
        pass
    spent = limit.spent.after(ledger.events())
    words = f"{len(ledger.charges)} broadcasts cost epsilon {spent:.3f} of a budget of {limit.epsilon:.3f}"
    return require(spent <= limit.epsilon, words)
