"""Checks of what is said of epsilon: by the accountant, and by the record of each round; and of what is kept."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import dp_accounting

from dpfbo.audit.server.numerical import Interval, Kind, epsilon_interval
from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import Target, without_epsilon
from dpfbo.audit.server.whole_runs import charged_rounds
from dpfbo.federated.server import Server
from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.accounting import Accountant, sampled_gaussian
from dpfbo.privacy.accounting.events import round_event, round_parameters
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.release import Release

MOST_ROUNDS = 100  # of the run, whose epsilon is integrated
FACTOR = 1.01  # pld over the exact epsilon, at most
LOOSE_FACTOR = 3.0  # moments and rdp
_SLACK = 1e-2  # epsilon, in addition
_CASES: tuple[tuple[tuple[Kind, int], ...], ...] = (
    (((1.0, 1.0), 1),),
    (((0.5, 1.0), 2),),
    (((0.1, 0.8), 10),),
    (((0.5, 1.0), 1), ((0.3, 2.0), 3)),
)
_DELTA = 1e-5
_SUBSET = (6, 12)
_ROUNDING = 1e-6  # relative, of an epsilon
_EARLIER = 0.8  # multiplier of a charge that the ledger has before the run, over that of its first round
_REPORTED = 3  # rounds whose records are read
_SAME = 1e-3  # relative difference of a record's epsilon, whose grid may be another


def accountant(rounds: RepeatedRounds) -> CheckResult:
    """The accountant's epsilon lies above the exact one, by an independent integration, and not far above it.

    Four small cases, one of them at a second delta, and the charges of the run itself.
    """
    target = rounds.target
    opposite = target.accountant.relation == REPLACE_ONE
    worst, words, tried = 0.0, "", 0
    for events, delta in _cases(rounds, opposite):
        said, exact = _compared(target.accountant, tuple(events), delta, opposite)  # type: ignore[arg-type]
        tried += len(said)
        most = (FACTOR if _tight(target.accountant) else LOOSE_FACTOR) * exact.upper + _SLACK
        for epsilon in said:
            ratio = exact.lower / max(epsilon, 1e-12)
            if ratio > worst:
                worst = ratio
                words = f"{len(events)} rounds, delta {delta:.3g}: {epsilon:.4f}, exactly {exact.lower:.4f} or more"
            if epsilon < exact.lower * (1 - _ROUNDING) or not epsilon <= most:
                bounds = f"exactly {exact.lower:.4f} to {exact.upper:.4f}"
                said_words = f"{len(events)} rounds, delta {delta:.3g}: the accountant says {epsilon:.4f}, {bounds}"
                return CheckResult("accountant", False, said_words, epsilon, exact.lower if ratio > 1 else most)
    return CheckResult("accountant", True, f"{tried} epsilons; closest: {words}", worst, 1.0)


def _tight(accountant: Accountant) -> bool:
    return type(accountant).__name__ == "Pld"


def _cases(rounds: RepeatedRounds, opposite: bool) -> list[tuple[list[dp_accounting.DpEvent], float]]:
    """(events, delta) of every case."""
    subset = _SUBSET if opposite else None
    small = [[round_event(q, z, subset) for (q, z), count in case for _ in range(count)] for case in _CASES]
    charged = [rounds.charge(t).event() for t in charged_rounds(rounds)[:MOST_ROUNDS]]
    return [*((events, rounds.target.delta) for events in small), (small[1], _DELTA), (charged, rounds.target.delta)]


@lru_cache(maxsize=256)
def _compared(
    accountant: Accountant, events: tuple[dp_accounting.DpEvent, ...], delta: float, opposite: bool
) -> tuple[tuple[float, ...], Interval]:
    """The accountant's epsilons of some events, by its two ways, and the exact one."""
    said = (accountant.epsilon(list(events), delta), accountant.curve(list(events), delta)[-1])
    kinds = Counter(_kind(event) for event in events)
    return said, epsilon_interval(tuple(kinds.items()), delta, said[0], opposite)


@lru_cache(maxsize=256)
def _spent(accountant: Accountant, events: tuple[dp_accounting.DpEvent, ...], delta: float) -> float:
    return accountant.epsilon(list(events), delta)


def _kind(event: dp_accounting.DpEvent) -> Kind:
    """(q, z) of a round, z of sigma over one message's norm."""
    q, z, subset = round_parameters(event)
    return (q, float(z or 0)) if subset else sampled_gaussian(event)


def reported(rounds: RepeatedRounds) -> CheckResult:
    """The epsilon and sigma in the record of each round are those of the ledger, with what it held before the run."""
    target, name = rounds.target, "reported"
    charged = charged_rounds(rounds)[:_REPORTED]
    if charged != list(range(len(charged))):
        return CheckResult(name, True, "the first rounds are not charged", 0.0, _SAME)
    first = rounds.charge(0)
    planned = [rounds.charge(t).event() for t in charged]
    earlier = replace(first, z=None if first.z is None else _EARLIER * first.z, digest="0" * 64)
    worst, words = 0.0, ""
    seeded = rounds.entropy(0)
    # noise that counts as new adds to what another run charged for the same round; seeded noise would be refused
    for held, entropy in (((), seeded), ((earlier,), replace(seeded, reproducible=False))):
        ledger = Ledger()
        for charge in held:
            ledger.charge(charge)
        curve = EpsilonCurve(target.accountant, planned, target.delta)
        server = _server(target, entropy, ledger, epsilon=curve)
        for t in charged:
            _, record, _ = server.round(t, rounds.zeros())
            if record is None:
                break
            spent = _spent(target.accountant, tuple(ledger.events()), target.delta)  # type: ignore[arg-type]
            gap = abs(record.epsilon - spent) / max(spent, 1e-12)
            if record.sigma != ledger.charges[-1].sigma:
                said = (
                    f"round {t}: sigma {record.sigma:.6g} in the record, {ledger.charges[-1].sigma:.6g} in the ledger"
                )
                return CheckResult(name, False, said, record.sigma, ledger.charges[-1].sigma)
            if not gap < worst:
                worst = gap
                words = f"round {t} with {len(held)} earlier charges: epsilon {record.epsilon:.4f}, ledger {spent:.4f}"
    return CheckResult(name, bool(worst <= _SAME), words, worst, _SAME)


class _InMemory:
    """A kept release in memory."""

    def __init__(self) -> None:
        self.saved: dict[int, tuple[Release, Sequence[int] | None]] = {}

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        return self.saved.get(round)

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        self.saved[round] = (release, order)


def kept(rounds: RepeatedRounds) -> CheckResult:
    """A release that is kept for a restart is the one that leaves, bit for bit, and costs nothing twice.

    Killed before its charge or after, the server sends the same numbers again, and they are charged once.
    """
    target, name = rounds.target, "kept"
    t = rounds.examined[0]
    memory, ledger = _InMemory(), Ledger()
    messages = rounds.crowd.messages
    sent = _server(target, rounds.entropy(0), ledger, kept=memory).round(t, messages)[0]
    found = memory.saved.get(t)
    if found is None or sent is None:
        return CheckResult(name, False, f"round {t}: nothing is kept of the release", 1.0, 0.0)
    gap = float((found[0].values - sent.values).abs().max())  # type: ignore[union-attr]
    words = f"round {t}: what is kept differs from what left by {gap:.3g}"
    if gap != 0:
        return CheckResult(name, False, words, gap, 0.0)
    for before in (ledger, Ledger()):  # killed after the charge, or before it
        again = _server(target, rounds.entropy(1), before, kept=memory).round(t, messages)[0]
        differs = again is None or bool((again.values != sent.values).any())  # type: ignore[union-attr]
        if differs or [c.digest for c in before.charges] != [c.digest for c in ledger.charges]:
            words = f"round {t}: a restarted server sends other numbers, or charges the same ones again"
            return CheckResult(name, False, words, 1.0, 0.0)
    return CheckResult(name, True, words + ", and a restarted server sends it again, charged once", 0.0, 0.0)


def _server(target: Target, entropy: Entropy, ledger: Ledger, **changes: object) -> Server:
    """The summing server with these changes and no budget."""
    usual: dict[str, object] = {"epsilon": without_epsilon(), "kept": None, "budget": None}
    return replace(target.summing, entropy=entropy, ledger=ledger, **{**usual, **changes})  # type: ignore[arg-type]
