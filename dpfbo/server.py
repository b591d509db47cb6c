"""Algorithm 1: the server. One round turns the messages of all agents into one public broadcast.

Also here: the peer exchange of the original FTS, which has no aggregating server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import dp_accounting
import torch
from torch import Tensor

from dpfbo.accounting import Accountant, finite_or_none
from dpfbo.broadcast import AgentVectors, Broadcast, RegionVectors
from dpfbo.entropy import Entropy
from dpfbo.ledger import Charge, Ledger, digest
from dpfbo.mechanism import Mechanism, Messages, Release
from dpfbo.regions import Regions
from dpfbo.rng import Streams
from dpfbo.weights import Weighting


@dataclass(frozen=True)
class ServerRecord:
    """What the server writes down of one round; `records.SERVER_SCHEMA` says which fields are private."""

    round: int
    epsilon: float
    release: Release


class AnyServer(Protocol):
    """Turns the messages of a round into what the agents follow next."""

    @property
    def uses_messages(self) -> bool: ...

    def round(self, t: int, messages: Messages | None) -> tuple[Broadcast, ServerRecord | None]: ...


class EpsilonCurve:
    """Epsilon after k charges, for a run whose events are known beforehand; extended when more are charged."""

    def __init__(self, accountant: Accountant, planned: Sequence[dp_accounting.DpEvent], delta: float) -> None:
        self._accountant, self._delta = accountant, delta
        self._events = list(planned)
        self._curve = accountant.curve(self._events, delta)

    def after(self, charged: Sequence[dp_accounting.DpEvent]) -> float:
        """Epsilon of the charged events: looked up where they are the planned ones, computed where not."""
        if not charged:
            return 0.0
        k = len(charged)
        if list(charged) != self._events[:k]:
            self._events = list(charged)
            self._curve = self._accountant.curve(self._events, self._delta)
        return self._curve[k - 1]


@dataclass(frozen=True)
class Server:
    """The aggregating server of DP-FTS-DE and its family.

    Guarantee. Everything that `round` returns as a broadcast is a post-processing of the mechanism's joint
    releases, and every release is charged to the ledger, durably, before this method returns it; see the
    mechanism for relation, event and sensitivity. The `ServerRecord` is for simulation: its release carries
    private numbers.

    n_features: M. weighting: the weights of each round. delta: of every epsilon reported here.
    """

    n_agents: int
    n_features: int
    regions: Regions
    weighting: Weighting
    mechanism: Mechanism
    entropy: Entropy
    ledger: Ledger
    epsilon: EpsilonCurve
    uses_messages: bool = True

    def round(self, t: int, messages: Messages | None) -> tuple[Broadcast, ServerRecord | None]:
        """Algo. 1 lines 5 to 13. messages: N x M, or N vectors with None for a lost one."""
        if messages is None:
            messages = [None] * self.n_agents
        assignment = self.regions.assign(torch.arange(self.n_agents))
        weights = self.weighting(t, assignment, self.regions.P)  # P x N
        release = self.mechanism.release(messages, weights, self.n_features, self.entropy, t)
        q, z = _parameters(self.mechanism.dp_event(self.n_agents))
        self.ledger.charge(Charge(t, q, z, release.sigma, finite_or_none(release.sensitivity), digest(release.values)))
        # a reproducible run repeats what an earlier one left of it in the ledger; fresh noise adds to all of it
        spent = self.ledger.events(up_to_round=t if self.entropy.reproducible else None)
        return RegionVectors(release.values), ServerRecord(t, self.epsilon.after(spent), release)


@dataclass(frozen=True)
class PeerExchange:
    """FTS as published in 2020: no server, each agent follows the message of another agent, picked at random.

    Not private: messages go from agent to agent as they are. A message that is not finite is passed on as zeros.
    """

    n_agents: int
    streams: Streams
    uses_messages: bool = True

    def __post_init__(self) -> None:
        if self.n_agents < 2:
            raise ValueError(
                f"problem.n_agents must be at least 2 for the exchange between agents, got {self.n_agents}"
            )

    def round(self, t: int, messages: Messages | None) -> tuple[Broadcast, ServerRecord | None]:
        if not isinstance(messages, Tensor):
            raise ValueError("the exchange between agents needs the N x M messages of all agents")
        agents = torch.arange(self.n_agents)
        shift = 1 + (self.streams.uniform("peer", agents, t, 1)[:, 0] * (self.n_agents - 1)).long()
        values = messages[(agents + shift) % self.n_agents]
        return AgentVectors(torch.where(torch.isfinite(values).all(1, keepdim=True), values, 0.0)), None


def _parameters(event: dp_accounting.DpEvent) -> tuple[float, float | None]:
    if isinstance(event, dp_accounting.PoissonSampledDpEvent) and isinstance(
        event.event, dp_accounting.GaussianDpEvent
    ):
        return event.sampling_probability, event.event.noise_multiplier
    return 1.0, None
