"""The federated loop: T rounds of agents, server and broadcast, in one process or in several behind the protocols."""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import Broadcast, averaged
from dpfbo.federated.mechanism import Mechanism
from dpfbo.federated.messages import Messages, PartialSum
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard, Turn
from dpfbo.federated.server import RoundOutput
from dpfbo.problems import Problem
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

    def messages(self) -> Any:
        """The messages for the server; None if none were asked for."""

    def record(self) -> RoundRecord:
        """All queries of the round; waits for every agent."""

    def seconds(self) -> dict[str, float]:
        """Seconds of the round by phase."""


class Population(Protocol):
    """All agents, in this process or in others."""

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> Step:
        """Let all agents do round t, with messages at the end if `send`."""


class Aggregator(Protocol):
    """A `dpfbo.federated.server.AnyServer`, or a proxy of one; it takes the result of `Step.messages`."""

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
        clock = PhaseClock()
        to = server if t < broadcasts else None  # after the last query nothing is sent or charged
        step = population.step(t, result.broadcast, send=to is not None and to.uses_messages)
        broadcast, record, diagnostics = None, None, None
        if to is not None:
            messages = step.messages()
            with clock("server"):
                broadcast, record, diagnostics = to.round(t, messages)
            if isinstance(messages, ShardMessages):  # making them is the agents' work
                clock.seconds["server"] -= messages.seconds
        done = Round(step.record(), broadcast, record, diagnostics, {**step.seconds(), **clock.seconds})
        result.add(done)
        on_round(done)
    return result


@dataclass(frozen=True)
class LocalPopulation:
    """All agents as one shard in this process.

    mechanism: the server's, if it takes sums; then only the agents that it chooses make a message. None: the server
    gets the messages of all.
    """

    shard: Shard
    mechanism: Mechanism | None = None

    @staticmethod
    def of(problem: Problem, agents: Agents, mechanism: Mechanism | None = None, threads: int = 1) -> "LocalPopulation":
        """All agents of the problem, on the CPU. threads: see `Shard`."""
        return LocalPopulation(Shard(problem, agents, torch.arange(problem.n_agents, device="cpu"), threads), mechanism)

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> "LocalStep":
        self.shard.take_seconds()
        turn = self.shard.step(t, broadcast, send and self.mechanism is None)
        return LocalStep(self, turn, send)


@dataclass(frozen=True)
class LocalStep:
    """A finished round of `LocalPopulation`."""

    population: LocalPopulation
    turn: Turn
    send: bool

    def messages(self) -> Messages | None:
        if not self.send:
            return None
        if self.population.mechanism is None:
            return None if self.turn.messages is None else self.turn.messages.cpu()
        return ShardMessages(self.population.shard, self.turn.record.round, self.population.mechanism)

    def record(self) -> RoundRecord:
        return self.turn.record

    def seconds(self) -> dict[str, float]:
        return self.population.shard.take_seconds()


@dataclass
class ShardMessages:
    """The messages of one round, made when they are added up (`dpfbo.federated.messages.Contributions`).

    seconds: the time that it took.
    """

    shard: Shard
    round: int
    mechanism: Mechanism
    seconds: float = 0.0

    def add_up(self, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        begin = time.perf_counter()
        part = self.shard.add_up(self.round, chosen, weights[:, chosen], self.mechanism)
        self.seconds += time.perf_counter() - begin
        return part
