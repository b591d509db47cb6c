"""The loop: T rounds of agents, server and broadcast, in one process or over whatever stands behind the protocols."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dpfbo.clock import PhaseClock
from dpfbo.federated.agents import Agents
from dpfbo.federated.broadcast import Broadcast, averaged
from dpfbo.federated.messages import Messages
from dpfbo.federated.server import RoundOutput
from dpfbo.federated.shard import Shard, Turn
from dpfbo.privacy.release import Diagnostics
from dpfbo.problems import Problem
from dpfbo.records import RoundRecord, ServerRecord


@dataclass(frozen=True)
class Round:
    """One round of a run. broadcast: what the server sent, None for nothing; server, diagnostics: its public record and
    its private numbers, None where nothing was released.

    seconds: by phase; of shards that work at the same time, the slowest one's.
    """

    agents: RoundRecord
    broadcast: Broadcast | None
    server: ServerRecord | None
    diagnostics: Diagnostics | None
    seconds: dict[str, float]


@dataclass
class Result:
    """What a run knows so far: every round, and where the seconds went.

    momentum: of the broadcasts. broadcast: what the next round follows, their running average. first_broadcast: that of
    round 0, the only one of an outsourced run.
    """

    momentum: float = 0.0
    rounds: list[RoundRecord] = field(default_factory=list)
    server: list[ServerRecord] = field(default_factory=list)
    diagnostics: list[Diagnostics] = field(default_factory=list)
    broadcast: Broadcast | None = None
    first_broadcast: Broadcast | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, done: Round) -> None:
        if not self.rounds:
            self.first_broadcast = done.broadcast
        self.rounds.append(done.agents)
        if done.server is not None and done.diagnostics is not None:
            self.server.append(done.server)
            self.diagnostics.append(done.diagnostics)
        self.broadcast = averaged(self.broadcast, done.broadcast, self.momentum)
        for phase, seconds in done.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


class Step(Protocol):
    """A round that the agents have begun."""

    def messages(self) -> Any:
        """What the server gets; None if nothing was to be sent."""

    def record(self) -> RoundRecord:
        """All queries of the round; waits for every agent."""

    def seconds(self) -> dict[str, float]:
        """Seconds of the round by phase."""


class Population(Protocol):
    """All agents, wherever they are."""

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> Step:
        """Let all agents do round t, with messages at the end if `send`."""


class Aggregator(Protocol):
    """A `dpfbo.federated.server.AnyServer`, or whatever reaches one; it takes what `Step.messages` gives."""

    @property
    def uses_messages(self) -> bool: ...

    def round(self, t: int, messages: Any) -> RoundOutput: ...


OnRound = Callable[[Round], None]


def run(
    population: Population,
    server: Aggregator | None,
    rounds: int,
    on_round: OnRound = lambda done: None,
    result: Result | None = None,
    broadcasts: int | None = None,
) -> Result:
    """Algorithms 1 and 2 together.

    Rounds 0..T-1 end with a broadcast, used in the next round; round T is the last query, after which nothing
    is sent. server: None for agents that work alone. on_round: called after every round, 0..T. result: of the
    rounds that are done already (a resumed run), and filled as the rounds go by; a new one otherwise.
    broadcasts: how many there are at most (None: T); after them nothing is sent, and the agents go on alone, as they
    do after a round in which the server sends nothing.
    """
    result = Result() if result is None else result
    broadcasts = rounds if broadcasts is None else min(broadcasts, rounds)
    for t in range(len(result.rounds), rounds + 1):
        clock = PhaseClock()
        to = server if t < broadcasts else None  # nothing is sent after the last query, and nothing charged
        step = population.step(t, result.broadcast, send=to is not None and to.uses_messages)
        broadcast, record, diagnostics = None, None, None
        if to is not None:
            messages = step.messages()
            with clock("server"):
                broadcast, record, diagnostics = to.round(t, messages)
        done = Round(step.record(), broadcast, record, diagnostics, {**step.seconds(), **clock.seconds})
        result.add(done)
        on_round(done)
    return result


@dataclass(frozen=True)
class Together:
    """All agents as one shard in this process."""

    shard: Shard

    @staticmethod
    def of(problem: Problem, agents: Agents) -> "Together":
        """On the CPU."""
        return Together(Shard(problem, agents, torch.arange(problem.n_agents)))

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> "TogetherStep":
        self.shard.clock.seconds.clear()
        return TogetherStep(self.shard.step(t, broadcast, send), dict(self.shard.clock.seconds))


@dataclass(frozen=True)
class TogetherStep:
    """A round of `Together`, done when it is made."""

    turn: Turn
    phases: dict[str, float]

    def messages(self) -> Messages | None:
        return None if self.turn.messages is None else self.turn.messages.cpu()

    def record(self) -> RoundRecord:
        return self.turn.record

    def seconds(self) -> dict[str, float]:
        return self.phases
