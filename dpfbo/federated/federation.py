"""The federated loop: T rounds in which agents query and a server broadcasts."""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import Broadcast, averaged
from dpfbo.federated.mechanism import Mechanism, PartialSum
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.server import RoundOutput
from dpfbo.problems.problem import Problem
from dpfbo.run_result import OnRound, Result, Round


@dataclass
class FederatedResult(Result):
    """The finished rounds of a federated run, and the broadcast that the agents receive in the next round.

    Attributes:
        momentum: The weight of earlier broadcasts in the running average of region vectors, in [0, 1).
        broadcast: The last broadcast; None before the first broadcast. If the server sends `RegionVectors`, the running
            average of the broadcasts is stored instead of the last broadcast. After a round without a broadcast, a
            `SharedPrior` stays, and any other broadcast is reset to None.

    Raises:
        ValueError: `add` receives a round of a run that is not federated.
    """

    momentum: float = 0.0
    broadcast: Broadcast | None = None

    def add(self, done: Round) -> None:
        if not isinstance(done.broadcast, Broadcast | None):
            raise ValueError(f"the round is not of a federated run: it has a {type(done.broadcast).__name__}")
        super().add(done)
        self.broadcast = averaged(self.broadcast, done.broadcast, self.momentum)


class Aggregator(Protocol):
    """A server (`dpfbo.federated.server.ServerKind`), or the proxy of a server in another process."""

    @property
    def uses_messages(self) -> bool: ...

    def round(self, t: int, messages: Any) -> RoundOutput: ...


class Population(Protocol):
    """All agents, which run in this process or in others."""

    def do_round(self, t: int, broadcast: Broadcast | None, server: Aggregator | None) -> Round:
        """Run round t of all agents; then the server, if any, answers their messages."""


def run(
    population: Population,
    server: Aggregator | None,
    rounds: int,
    on_round: OnRound = lambda done: None,
    result: FederatedResult | None = None,
    broadcasts: int | None = None,
) -> FederatedResult:
    """Run all rounds of Algorithms 1 (server) and 2 (agents) of DP-FTS-DE.

    In rounds 0..T-1 the agents query, and the server then sends a broadcast for the next round. In round T the agents
    query and send nothing.

    Args:
        population: The agents.
        server: The server; None if the agents work alone.
        rounds: T.
        on_round: A function that is called with each finished round, 0..T.
        result: The finished rounds of a resumed run, to which this call adds the rest; None for a new run.
        broadcasts: The largest number of broadcasts; None for T. After a round without a broadcast,
            agents drop the earlier one, unless it is a `SharedPrior`, which they keep.

    Returns:
        `result` with all rounds, 0..T; a new `FederatedResult` if `result` is None.

    Example:
        >>> import dpfbo
        >>> problem = dpfbo.problems.Branin(n_agents=4)
        >>> study = dpfbo.create_study(problem.domain, n_agents=4, delta=1e-3, rounds=2, rng="seeded")
        >>> server = study.server(dpfbo.Ledger())
        >>> result = run(study.population(problem), server, rounds=2, broadcasts=study.broadcasts)
        >>> len(result.rounds), len(result.server)
        (3, 1)
    """
    result = FederatedResult() if result is None else result
    broadcasts = rounds if broadcasts is None else min(broadcasts, rounds)
    for t in range(len(result.rounds), rounds + 1):
        # without a server nothing is sent or charged
        done = population.do_round(t, result.broadcast, server if t < broadcasts else None)
        result.add(done)
        on_round(done)
    return result


@dataclass(frozen=True)
class LocalPopulation:
    """Runs all agents in this process, as one `Shard`.

    Args:
        shard: The agents.
        sums: If True, the server receives the weighted sum of the sampled agents' messages, and the messages of the
            other agents are not computed. If False, the server receives the messages of all agents.
    """

    shard: Shard
    sums: bool = False

    @staticmethod
    def of(problem: Problem, agents: Agents, sums: bool = False, threads: int = 1) -> "LocalPopulation":
        """Make the population of all agents of a problem, on the CPU. threads: as in `Shard`."""
        return LocalPopulation(Shard(problem, agents, torch.arange(problem.n_agents, device="cpu"), threads), sums)

    def do_round(self, t: int, broadcast: Broadcast | None, server: Aggregator | None) -> Round:
        self.shard.take_seconds()
        asked, clock = server is not None and server.uses_messages, PhaseClock()
        turn = self.shard.step(t, broadcast, asked and not self.sums)
        answer: RoundOutput = (None, None, None)
        if server is not None:
            held = ShardMessages(self.shard, t)
            sent = None if turn.messages is None else turn.messages.cpu()
            with clock("server"):
                answer = server.round(t, held if asked and self.sums else sent)
            clock.seconds["server"] -= held.seconds  # the time of computing messages belongs to the agents
        return Round(turn.record, *answer, {**self.shard.take_seconds(), **clock.seconds})


@dataclass
class ShardMessages:
    """The messages of one round, which are computed only when the server calls `add_up`.

    Implements `mechanism.Contributions`. seconds: the time spent in `add_up`.
    """

    shard: Shard
    t: int
    seconds: float = 0.0

    def add_up(self, mechanism: Mechanism, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        begin = time.perf_counter()
        part = self.shard.add_up(self.t, chosen, weights[:, chosen], mechanism)
        self.seconds += time.perf_counter() - begin
        return part
