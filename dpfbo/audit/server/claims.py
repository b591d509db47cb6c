"""Checks of the accountant's epsilon, of the server's records, and of what the server sends after a restart."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import dp_accounting
from dp_accounting import NeighboringRelation

from dpfbo.audit.findings import ClaimBroken, require
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import NoEpsilon
from dpfbo.audit.tradeoff import Rounds, composed
from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.accounting import Accountant
from dpfbo.privacy.accounting.events import round_event, round_parameters
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.release import Release

MOST_ROUNDS = 100  # most rounds of the run whose epsilon is computed exactly
FACTOR = 1.01  # largest ratio of an epsilon by pld to the exact epsilon
LOOSE_FACTOR = 3.0  # the same for moments and rdp
_SLACK = 1e-2  # tolerated excess of epsilon in addition to the factor
_CASES: tuple[Rounds, ...] = (
    (((1.0, 1.0), 1),),
    (((0.5, 1.0), 2),),
    (((0.1, 0.8), 10),),
    (((0.5, 1.0), 1), ((0.3, 2.0), 3)),
)
_SHARE = 0.004  # rounding of the privacy losses of all rounds together, relative to epsilon
_DELTA = 1e-5
_SUBSET = (6, 12)  # size of S_t, number of agents
_ROUNDING = 1e-6  # tolerated relative error of an epsilon
_EARLIER = 0.8  # noise multiplier of a charge from before the run, relative to that of round 0
_REPORTED = 3  # most rounds whose records are checked
_SAME = 1e-3  # tolerated relative difference of a record's epsilon, which may use another grid


def accountant(rounds: RepeatedRounds) -> str:
    """Check that the accountant's epsilon is at least the exact epsilon, and not far above it.

    dp-accounting gives bounds on the exact epsilon. Under replace-one, it gives no upper bound, so an epsilon far above
    the exact one passes.
    """
    of = rounds.target.accountant
    opposite = of.relation == REPLACE_ONE
    factor = FACTOR if isinstance(of, Pld) else LOOSE_FACTOR
    closest, words, tried = 0.0, "", 0
    for events, delta in _cases(rounds, opposite):
        said, (lower, upper) = _compared(of, tuple(events), delta, opposite)  # type: ignore[arg-type]
        tried += len(said)
        case = f"{len(events)} rounds, delta {delta:.3g}"
        for epsilon in said:
            bounded = lower * (1 - _ROUNDING) <= epsilon <= factor * upper + _SLACK
            require(bounded, f"{case}: the accountant's epsilon is {epsilon:.4f}, exact is {lower:.4f} to {upper:.4f}")
            if lower / max(epsilon, 1e-12) > closest:
                closest = lower / max(epsilon, 1e-12)
                words = f"{case}: {epsilon:.4f}, exact is at least {lower:.4f}"
    return f"{tried} epsilons by the accountant; closest to the exact one: {words}"


def _cases(rounds: RepeatedRounds, opposite: bool) -> list[tuple[list[dp_accounting.DpEvent], float]]:
    subset = _SUBSET if opposite else None
    small = [[round_event(q, z, subset) for (q, z), count in case for _ in range(count)] for case in _CASES]
    charged = [rounds.charge(t).event() for t in rounds.charged[:MOST_ROUNDS]]
    return [*((events, rounds.target.delta) for events in small), (small[1], _DELTA), (charged, rounds.target.delta)]


@lru_cache(maxsize=256)
def _compared(
    accountant: Accountant, events: tuple[dp_accounting.DpEvent, ...], delta: float, opposite: bool
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """Return epsilon by `Accountant.epsilon` and by `Accountant.curve`, and two bounds on the exact epsilon."""
    said = (accountant.epsilon(list(events), delta), accountant.curve(list(events), delta)[-1])
    kinds = Counter((q, z or 0.0) for q, z, _ in map(round_parameters, events))
    return said, epsilon_interval(tuple(kinds.items()), delta, said[0], opposite)


def epsilon_interval(rounds: Rounds, delta: float, guess: float, opposite: bool) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon at delta after all rounds; the upper one is inf under replace-one.

    guess: a rough epsilon, which sets the step of the privacy-loss grid. opposite: True for replace-one.
    """
    interval = _SHARE * min(max(guess, 1e-2), 100.0) / sum(count for _, count in rounds)
    relation = NeighboringRelation.REPLACE_ONE if opposite else NeighboringRelation.REPLACE_SPECIAL
    lower, upper = (composed(rounds, interval, up, relation).get_epsilon_for_delta(delta) for up in (False, True))
    return float(lower), math.inf if opposite else float(upper)


def reported(rounds: RepeatedRounds) -> str:
    """Check that epsilon and sigma in the records agree with the ledger.

    The check is made with an empty ledger, and again with a ledger that holds a charge of an earlier run.
    """
    target, charged = rounds.target, rounds.charged[:_REPORTED]
    if charged != list(range(len(charged))):
        return "the first rounds are not charged"
    first, worst, words = rounds.charge(0), 0.0, ""
    planned = [rounds.charge(t).event() for t in charged]
    earlier = replace(first, z=None if first.z is None else _EARLIER * first.z, digest="0" * 64)
    seeded = rounds.entropy(0)
    # if another run has charged the same round, the server refuses seeded noise but not new noise
    for held, entropy in (((), seeded), ((earlier,), replace(seeded, reproducible=False))):
        ledger = Ledger()
        for charge in held:
            ledger.charge(charge)
        curve = EpsilonCurve(target.accountant, planned, target.delta)
        server = replace(target.summing, entropy=entropy, ledger=ledger, epsilon=curve, kept=None, budget=None)
        for t in charged:
            _, record, _ = server.round(t, rounds.zeros())
            if record is None:
                break
            sigma = ledger.charges[-1].sigma
            said = f"round {t}: sigma {record.sigma:.6g} in the record, {sigma:.6g} in the ledger"
            require(record.sigma == sigma, said)
            spent = target.accountant.epsilon(ledger.events(), target.delta)
            gap = abs(record.epsilon - spent) / max(spent, 1e-12)
            if not gap < worst:  # NaN too
                worst = gap
                words = f"round {t} with {len(held)} earlier charges: epsilon {record.epsilon:.4f}, ledger {spent:.4f}"
    return require(worst <= _SAME, words)


class _InMemory:
    def __init__(self) -> None:
        self.saved: dict[int, tuple[Release, Sequence[int] | None]] = {}

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        return self.saved.get(round)

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        self.saved[round] = (release, order)


def kept(rounds: RepeatedRounds) -> str:
    """Check that the release kept for a restart equals the release that was sent, and is charged only once.

    A restarted server must send the same numbers again, bit for bit, whether it was killed before or after the charge.
    """
    t, memory, ledger = rounds.examined[0], _InMemory(), Ledger()
    server = replace(rounds.target.summing, epsilon=NoEpsilon(), kept=memory, budget=None)
    sent = replace(server, entropy=rounds.entropy(0), ledger=ledger).round(t, rounds.crowd)[0]
    if t not in memory.saved or sent is None:
        raise ClaimBroken(f"round {t}: nothing is kept of the release")
    gap = float((memory.saved[t][0].values - sent.values).abs().max())
    words = require(gap == 0, f"round {t}: the kept release differs from the broadcast by {gap:.3g}")
    for before in (ledger, Ledger()):  # killed after the charge, or before it
        again = replace(server, entropy=rounds.entropy(1), ledger=before).round(t, rounds.crowd)[0]
        same = again is not None and bool((again.values == sent.values).all())
        same = same and [c.digest for c in before.charges] == [c.digest for c in ledger.charges]
        require(same, f"round {t}: a restarted server sends other numbers, or charges the same ones again")
    return words + ", and a restarted server sends it again and charges it once"
