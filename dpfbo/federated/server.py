"""Algorithm 1: the server. One round turns the messages of all agents into one public broadcast.

Also here: the peer exchange of the original FTS, which has no aggregating server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.federated.broadcast import AgentVectors, Broadcast, RegionVectors
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import Mechanism, Release
from dpfbo.federated.messages import Messages
from dpfbo.federated.weights import Weighting
from dpfbo.gp.regions import Regions
from dpfbo.privacy.accounting import Accountant, finite_or_none
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError, digest
from dpfbo.rng import Streams

if TYPE_CHECKING:
    import dp_accounting


@dataclass(frozen=True)
class ServerRecord:
    """What the server writes down of one round; `records.SERVER_SCHEMA` says which fields are private.

    n_dropped: messages, of all agents, that were lost on the way or came too late.
    """

    round: int
    epsilon: float
    release: Release
    n_dropped: int = 0


class AnyServer(Protocol):
    """Turns the messages of a round into what the agents follow next."""

    @property
    def uses_messages(self) -> bool: ...

    def round(
        self, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Broadcast | None, ServerRecord | None]:
        """One round; None: nothing is sent any more. late: N, True for messages that did not arrive in time."""


class KeptRelease(Protocol):
    """Where a release is kept, durably, from before its charge until the round is over.

    A server that is killed in between sends the same bytes when it is started again, although its noise
    cannot be drawn a second time.
    """

    def load(self, round: int) -> Release | None: ...

    def save(self, round: int, release: Release) -> None: ...


@lru_cache(maxsize=32)
def _curve(accountant: Accountant, events: tuple[dp_accounting.DpEvent, ...], delta: float) -> list[float]:
    """Kept for the next run in this process with the same events: another seed, most often."""
    return accountant.curve(events, delta)


class EpsilonCurve:
    """Epsilon after k charges, for a run whose events are known beforehand; extended when more are charged."""

    def __init__(self, accountant: Accountant, planned: Sequence[dp_accounting.DpEvent], delta: float) -> None:
        self._accountant, self._delta = accountant, delta
        self._planned, self._events = list(planned), list(planned)

    def prepare(self) -> None:
        """Compute the planned curve now rather than at the first charge."""
        self._curve  # noqa: B018

    @cached_property
    def _curve(self) -> list[float]:
        return _curve(self._accountant, tuple(self._events), self._delta)  # type: ignore[arg-type]

    def after(self, charged: Sequence[dp_accounting.DpEvent]) -> float:
        """Epsilon of the charged events: looked up where they are the planned ones, computed where not."""
        if not charged:
            return 0.0
        k = len(charged)
        if list(charged) != self._events[:k]:
            self._events = [*charged, *self._planned[self._begun(charged) :]]  # serves for the rest of the run
            self._curve = _curve(self._accountant, tuple(self._events), self._delta)  # type: ignore[arg-type]
        return self._curve[k - 1]

    def _begun(self, charged: Sequence[dp_accounting.DpEvent]) -> int:
        """How many of the planned events the charged ones end with, which are those of earlier runs and of this one."""
        lengths = range(1, min(len(charged), len(self._planned)) + 1)
        return next((n for n in lengths if list(charged[-n:]) == self._planned[:n]), 0)


class BudgetSpent(RuntimeError):
    """One more broadcast would cost more than the budget; nothing was released."""


@dataclass(frozen=True)
class Budget:
    """What all releases together may cost.

    epsilon: the limit. spent: epsilon of the charges, at the budget's delta. when_spent: `refuse`, the round that would
    go over it raises BudgetSpent; `stop`, nothing is released from it on, and the agents go on alone.

    Raises ValueError for an epsilon that is not above 0 or another name.
    """

    epsilon: float
    spent: EpsilonCurve
    when_spent: str = "refuse"

    def __post_init__(self) -> None:
        checks.positive("privacy.budget.epsilon", self.epsilon)
        checks.one_of("privacy.budget.when_spent", self.when_spent, ("refuse", "stop"))

    def allows(self, events: Sequence[dp_accounting.DpEvent]) -> bool:
        """Whether it pays for all of these."""
        return self.spent.after(events) <= self.epsilon


@dataclass(frozen=True)
class Server:
    """The aggregating server of DP-FTS-DE and its family.

    Guarantee. Everything that `round` returns as a broadcast is a post-processing of the mechanism's joint
    releases, and every release is charged to the ledger, durably, before this method returns it; see the
    mechanism for relation, event and sensitivity. No release is made that would take the ledger over the budget.
    The `ServerRecord` is for simulation: its release carries private numbers.

    n_features: M. weighting: the weights of each round. dropout: messages that never arrive; they count as zero
    vectors, and q, noise and epsilon stay as they are. kept: for noise that cannot be drawn twice.
    """

    n_agents: int
    n_features: int
    regions: Regions
    weighting: Weighting
    mechanism: Mechanism
    entropy: Entropy
    ledger: Ledger
    epsilon: EpsilonCurve
    dropout: Dropout = Dropout()
    kept: KeptRelease | None = None
    budget: Budget | None = None
    uses_messages: bool = True

    def round(
        self, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Broadcast | None, ServerRecord | None]:
        """Algo. 1 lines 5 to 13. messages: N x M, or N vectors with None for a lost one, or their holders.

        Returns (None, None) where the budget is spent and `when_spent` is `stop`.
        """
        weights = self.weighting(t, self.regions.assign(torch.arange(self.n_agents)), self.regions.P)  # P x N
        event = self.mechanism.dp_event(weights, t)
        release = self.kept.load(t) if self.kept else None  # of a server that was killed in this round
        if not self._affordable(t, event, release):
            return None, None
        lost = self.dropout.lost(self.n_agents, t) | (False if late is None else late)
        if release is None:
            messages = [None] * self.n_agents if messages is None else messages
            release = self.mechanism.release(messages, weights, self.n_features, self.entropy, t, lost)
            if self.kept:
                self.kept.save(t, release)
        check_noise_is_new(self.ledger, t, release, self.entropy, release.sigma > 0)
        self.ledger.charge(Charge.of(t, event, release.sigma, finite_or_none(release.sensitivity), release.values))
        # a reproducible run repeats what an earlier one left of it in the ledger; fresh noise adds to all of it
        spent = self.ledger.events(up_to_round=t if self.entropy.reproducible else None)
        return RegionVectors(release.values), ServerRecord(t, self.epsilon.after(spent), release, int(lost.sum()))

    def _affordable(self, t: int, event: dp_accounting.DpEvent, kept: Release | None) -> bool:
        """Whether the budget pays for this round; raises BudgetSpent where it does not and must."""
        if self.budget is None or (kept is not None and self.ledger.holds(t, kept.values)):
            return True
        spent = self.ledger.events(up_to_round=t - 1 if self.entropy.reproducible else None)
        if self.budget.allows([*spent, event]):
            return True
        if self.budget.when_spent == "stop":
            return False
        raise BudgetSpent(
            f"the broadcast of round {t} would cost more than privacy.budget.epsilon={self.budget.epsilon!r} "
            f"with the {len(spent)} that are charged already"
        )


def check_noise_is_new(ledger: Ledger, t: int, release: Release, entropy: Entropy, random: bool) -> None:
    """Raise LedgerError if the same random numbers served other data before: the difference would be bare.

    random: whether the release draws any.
    """
    others = [c for c in ledger.charges if c.round == t and c.digest != digest(release.values)]
    if entropy.reproducible and random and others:
        raise LedgerError(
            f"ledger {ledger.path} holds another broadcast of round {t} with the same seeded noise (other "
            "data, code or settings?): delete the folder to simulate anew, or use privacy.rng=os"
        )


@dataclass(frozen=True)
class PeerExchange:
    """FTS as published in 2020: no server, each agent follows the message of another agent, picked at random.

    Not private: messages go from agent to agent as they are. One that is lost or not finite is passed on as zeros.
    """

    n_agents: int
    streams: Streams
    dropout: Dropout = Dropout()
    uses_messages: bool = True

    def __post_init__(self) -> None:
        if self.n_agents < 2:
            raise ValueError(
                f"problem.n_agents must be at least 2 for the exchange between agents, got {self.n_agents}"
            )

    def round(
        self, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Broadcast, ServerRecord | None]:
        if not isinstance(messages, Tensor):
            raise ValueError("the exchange between agents needs the N x M messages of all agents")
        lost = self.dropout.lost(self.n_agents, t) | (False if late is None else late)
        usable = torch.isfinite(messages).all(1) & ~lost
        agents = torch.arange(self.n_agents)
        shift = 1 + (self.streams.uniform("peer", agents, t, 1)[:, 0] * (self.n_agents - 1)).long()
        return AgentVectors(torch.where(usable[:, None], messages, 0.0)[(agents + shift) % self.n_agents]), None
