"""The federated loop: T rounds of agents, server and broadcast, in one process or in several behind the protocols."""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import Broadcast, averaged
from dpfbo.federated.messages import PartialSum, Summation
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard, Turn
from dpfbo.federated.server import RoundOutput
from dpfbo.problems.problem import Problem
from dpfbo.records import RoundRecord
from dpfbo.run_result import OnRound, Result, Round


@dataclass
class FederatedResult(Result):
    """The result of a federated run so far.

    broadcast: the running average of all broadcasts with `momentum`, which agents follow in the next round.
    """

    momentum: float = 0.0
    broadcast: Broadcast | None = None

    def add(self, done: Round) -> None:
        if not isinstance(done.broadcast, Broadcast | None):
            raise ValueError(f"a server sends no {type(done.broadcast).__name__}: this is another run's round")
        super().add(done)
        self.broadcast = averaged(self.broadcast, done.broadcast, self.momentum)


class Step(Protocol):
    """A round that the agents have begun."""

    def reported_to(self, server: "Aggregator") -> RoundOutput:
        """The server's answer to the messages of the round, or to None if none were asked for."""

    def record(self) -> RoundRecord:
        """All queries of the round; waits for every agent."""

    def seconds(self) -> dict[str, float]:
        """Seconds of the round by phase."""


class Population(Protocol):
    """All agents, in this process or in others."""

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> Step:
        """Let all agents do round t, with messages at the end if `send`."""


class Aggregator(Protocol):
    """A `dpfbo.federated.server.AnyServer`, or a proxy of one, for the messages of its own kind of population."""

    @property
    def uses_messages(self) -> bool: ...

    def round(self, t: int, messages: Any) -> RoundOutput: ...


def run(
    population: Population,
    server: Aggregator | None,
    rounds: int,
    on_round: OnRound = lambda done: None,
    result: FederatedResult | None = None,
    broadcasts: int | None = None,
) -> FederatedResult:
    """Algorithms 1 and 2 together.

    Rounds 0..T-1 end with a broadcast, used in the next round; round T is the last query, after which nothing
    is sent. server: None for agents that work alone. on_round: called after every round, 0..T. result: the finished
    rounds of a resumed run, to which the others are added. broadcasts: their largest number (None: T); after them
    nothing is sent and the agents query alone, as they do after a round in which the server sends nothing.
    """
    result = FederatedResult() if result is None else result
    broadcasts = rounds if broadcasts is None else min(broadcasts, rounds)
    for t in range(len(result.rounds), rounds + 1):
        to = server if t < broadcasts else None  # after the last query nothing is sent or charged
        step = population.step(t, result.broadcast, send=to is not None and to.uses_messages)
        answer = (None, None, None) if to is None else step.reported_to(to)
        done = Round(step.record(), *answer, step.seconds())
        result.add(done)
        on_round(done)
    return result


@dataclass(frozen=True)
class LocalPopulation:
    """All agents as one shard in this process.

    sums: True for a server that adds up messages; then only the agents that it chooses make one.
    """

    shard: Shard
    sums: bool = False

    @staticmethod
    def of(problem: Problem, agents: Agents, sums: bool = False, threads: int = 1) -> "LocalPopulation":
        """All agents of the problem, on the CPU. threads: see `Shard`."""
        return LocalPopulation(Shard(problem, agents, torch.arange(problem.n_agents, device="cpu"), threads), sums)

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> "LocalStep":
        self.shard.take_seconds()
        turn = self.shard.step(t, broadcast, send and not self.sums)
        return LocalStep(self.shard, turn, ShardMessages(self.shard, t) if send and self.sums else None)


@dataclass(frozen=True)
class LocalStep:
    """A finished round of `LocalPopulation`. to_add_up: the messages that the server has added up, if it does that."""

    shard: Shard
    turn: Turn
    to_add_up: "ShardMessages | None"
    clock: PhaseClock = field(default_factory=PhaseClock)

    def reported_to(self, server: Aggregator) -> RoundOutput:
        sent = None if self.turn.messages is None else self.turn.messages.cpu()
        with self.clock("server"):
            answer = server.round(self.turn.record.round, self.to_add_up or sent)
        if self.to_add_up is not None:  # making messages is the agents' work
            self.clock.seconds["server"] -= self.to_add_up.seconds
        return answer

    def record(self) -> RoundRecord:
        return self.turn.record

    def seconds(self) -> dict[str, float]:
        return {**self.shard.take_seconds(), **self.clock.seconds}


@dataclass
class ShardMessages:
    """The messages of one round, made when they are added up (`dpfbo.federated.messages.Contributions`).

    seconds: the time that it took.
    """

    shard: Shard
    round: int
    seconds: float = 0.0

    def add_up(self, summation: Summation, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        begin = time.perf_counter()
        part = self.shard.add_up(self.round, chosen, weights[:, chosen], summation)
        self.seconds += time.perf_counter() - begin
        return part
