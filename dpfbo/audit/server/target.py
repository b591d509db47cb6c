"""The server under audit and its agents."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import dp_accounting
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.broadcast import Broadcast, RegionVectors, SharedPrior
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.mechanism import Messages, SubsampledGaussian
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard, Turn
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.privacy.accounting import Accountant, check_delta
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.distributed import BITS
from dpfbo.privacy.entropy import Entropy, SeededEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.noise import DiscreteGaussian, Gaussian
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams

LONG_NORM = 1e3  # norm of a long message, in clip norms


class NoEpsilon(EpsilonCurve):
    """An epsilon curve of NaN, which costs no computation."""

    def __init__(self) -> None:
        pass

    def after(self, charged: Sequence[dp_accounting.DpEvent], then: Sequence[dp_accounting.DpEvent] = ()) -> float:
        return math.nan


Change = Callable[[Tensor], Tensor]  # applied to all observations of one agent, 1 x k


@dataclass(frozen=True)
class AgentsSide:
    """All agents of a problem in round 0, in which they query points that follow from public settings alone.

    shard: the class that runs the agents.
    """

    problem: Problem
    agents: Agents
    shard: type[Shard] = Shard
    _observed: dict[bytes, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def first_turn(self, agent: int = 0, change: Change = torch.clone) -> Turn:
        """Return queries and messages of round 0, with `change` applied to the agent's observations."""
        return self._shard(agent, change).step(0, None, send=True)

    def _shard(self, agent: int, change: Change) -> Shard:
        problem = cast(Problem, _ChangedData(self.problem, agent, change, self._observed))
        return self.shard(problem, self.agents, torch.arange(self.problem.n_agents))


class _ChangedData:
    """A problem that changes the observations of one agent. known: a cache of the original observations."""

    def __init__(self, problem: Problem, agent: int, change: Change, known: dict[bytes, Tensor]) -> None:
        self._problem, self._agent, self._change, self._known = problem, agent, change, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        key = b"".join((agents.numpy().tobytes(), x.contiguous().numpy().tobytes(), bytes([round])))
        if key not in self._known:
            self._known[key] = self._problem.evaluate(agents, x, streams, round)
        y = self._known[key].clone()
        rows = agents == self._agent
        y[rows] = self._change(y[rows])
        return y


@dataclass(frozen=True)
class Target:
    """A server under audit, with the accountant and the delta of its claim.

    rounds: the number of audited rounds, from round 0. server: the server itself. Each replay runs a copy that has its
    own entropy source and ledger. agents: the agents of a `PriorServer`, if the audit includes them; otherwise None.

    Raises ValueError if the server has no private mechanism or adds no noise, if `rounds` is below 1, or if `delta` is
    outside (0, 1).
    """

    server: Server | PriorServer
    rounds: int
    accountant: Accountant
    delta: float
    agents: AgentsSide | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.server, Server | PriorServer)
        if not known or not isinstance(self.summing.mechanism, SubsampledGaussian):
            raise ValueError("an audit needs a server with a private mechanism: no other claims any privacy")
        if self.mechanism.noise_multiplier == 0:
            raise SettingError("noise_multiplier", "is 0: no finite epsilon is claimed, so there is nothing to audit")
        checks.integer("rounds of the audit", self.rounds, minimum=1)
        check_delta(self.delta)

    @property
    def summing(self) -> Server:
        """The server that sums the messages: `self.server`, or the inner server of a `PriorServer`."""
        return self.server.server if isinstance(self.server, PriorServer) else self.server

    @property
    def mechanism(self) -> SubsampledGaussian:
        return self.summing.mechanism  # type: ignore[return-value]

    @property
    def message_norm(self) -> float:
        """The norm to which each message is clipped."""
        return self.mechanism.message_norm(self.summing.regions.P)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, P, M): the number of agents, of regions, and of entries in a message."""
        return self.summing.n_agents, self.summing.regions.P, self.summing.message_size

    @property
    def seedable(self) -> bool:
        """True if a seed repeats all randomness of a run; False for discrete noise, which has its own generator."""
        return not isinstance(self.mechanism.noise, DiscreteGaussian)

    @cached_property
    def repeatable(self) -> "Target":
        """This target, or a copy with Gaussian noise of the same size if its noise is discrete.

        Discrete noise cannot be drawn again from a seed.
        """
        return self if self.seedable else self.with_mechanism(replace(self.mechanism, noise=Gaussian()))

    @property
    def step(self) -> float:
        """The step of the grid on which the releases of `DistributedGaussian` lie; 0 for other mechanisms."""
        N, P, _ = self.shape
        return 2.0**-BITS * self.message_norm / N if isinstance(self.mechanism, DistributedGaussian) else 0.0

    def noise_alone(self, entropy: Entropy, t: int, sigma: float, copies: int = 1) -> Tensor:
        """Draw `copies` samples of the noise of round t, P x (copies M). sigma: the sigma charged for the round."""
        N, P, M = self.shape
        mechanism, weights = self.mechanism, self.weights(t)
        if isinstance(mechanism, DistributedGaussian):
            nothing = torch.zeros(P, M, dtype=torch.float64)
            return torch.cat([mechanism.privatised(nothing, weights, entropy, t).values for _ in range(copies)], 1)
        zeros = torch.zeros(P, copies * M, dtype=torch.float64)
        return mechanism.noise.add(zeros, sigma, mechanism.tight_sensitivity(weights), entropy, t)

    def with_mechanism(self, mechanism: SubsampledGaussian) -> "Target":
        return replace(self, server=self._with(replace(self.summing, mechanism=mechanism)))

    def _with(self, summing: Server) -> Server | PriorServer:
        return replace(self.server, server=summing) if isinstance(self.server, PriorServer) else summing

    def weights(self, t: int) -> Tensor:
        """Return the weights of round t, P x N."""
        N, P, _ = self.shape
        return self.summing.weighting(t, self.summing.regions.assign(torch.arange(N)), P)

    @cached_property
    def _template(self) -> Server:
        s, dropout = self.summing, replace(self.summing.dropout)
        object.__setattr__(dropout, "lost", _once_a_round(dropout.lost, 1))
        return replace(s, epsilon=NoEpsilon(), weighting=_once_a_round(s.weighting, 0), dropout=dropout, kept=None)

    def copy(self, entropy: Entropy, ledger: Ledger, inference: bool = False) -> Server | PriorServer:
        """Return a copy of the server for one replay.

        inference: True if the copy of a `PriorServer` is to infer the prior, which is slow. If False, the copy
            broadcasts the release with zeros in place of the inferred prior.
        """
        copied = self._with(replace(self._template, entropy=entropy, ledger=ledger))
        if isinstance(copied, PriorServer) and not inference:
            object.__setattr__(copied, "infer", _release_alone)
        return copied

    def run_round(
        self, entropy: Entropy, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Tensor | None, Ledger]:
        """Run round t alone, without inferring a shared prior; return the release (P x M, or None) and ledger."""
        ledger = Ledger()
        return _values(self.copy(entropy, ledger).round(t, messages, late)[0]), ledger

    def run(self, entropy: Entropy, messages: Messages | None) -> tuple[list[Tensor | None], Ledger]:
        """Run all rounds, with the same messages in each; return the releases and the ledger."""
        ledger = Ledger()
        server = self.copy(entropy, ledger)
        return [_values(server.round(t, messages)[0]) for t in range(self.rounds)], ledger

    def whole_round(
        self, entropy: Entropy, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Broadcast | None, Ledger]:
        """Run round t without the rounds before it; return the whole broadcast and the ledger of this round.

        A `PriorServer` also infers the shared prior.
        """
        ledger = Ledger()
        return self.copy(entropy, ledger, inference=True).round(t, messages, late)[0], ledger


def seeded(*label: object) -> SeededEntropy:
    """Return an entropy source whose seed is a hash of the label."""
    words = "/".join(map(str, label)).encode()
    return SeededEntropy(Streams(int.from_bytes(hashlib.blake2b(words, digest_size=16).digest(), "big")))


def _once_a_round(call: Callable[..., Tensor], place: int) -> Callable[..., Tensor]:
    """Return `call` with one cached result for each round; the cache ignores the other arguments.

    place: the position of the round among the arguments.
    """
    known: dict[int, Tensor] = {}

    def once(*given: object) -> Tensor:
        t: int = given[place]  # type: ignore[assignment]
        if t not in known:
            known[t] = call(*given)
        return known[t]

    return once


def _values(broadcast: object) -> Tensor | None:
    if broadcast is None:
        return None
    if not isinstance(broadcast, RegionVectors | SharedPrior):
        raise ValueError(
            f"an audit needs a server that broadcasts region vectors or a prior, got {type(broadcast).__name__}"
        )
    return broadcast.values


def _release_alone(values: Tensor, sigma: float) -> SharedPrior:
    """Return the private prior's broadcast with `values` as its release and zeros in all other fields."""
    M = values.shape[1]
    vector, number = values.new_zeros(M * (M + 1) // 2), values.new_zeros(())
    return SharedPrior(values, vector[:M], vector, vector[:1], number, number)
