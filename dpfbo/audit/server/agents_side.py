"""The agents' end of the message path: real agents on real objectives, from the public design to the messages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard, Turn
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams


@dataclass(frozen=True)
class AgentsSide:
    """All agents of a problem in round 0, whose points are public. shard: the class that runs them."""

    problem: Problem
    agents: Agents
    shard: type[Shard] = Shard
    _observed: dict[bytes, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def first_turn(self, agent: int = 0, change: Callable[[Tensor], Tensor] | None = None) -> Turn:
        """Queries and messages of round 0. change: applied to all observations of one agent, 1 x k."""
        return self._shard(agent, change).step(0, None, send=True)

    def _shard(self, agent: int, change: Callable[[Tensor], Tensor] | None) -> Shard:
        problem = cast(Problem, _ChangedData(self.problem, agent, change or torch.clone, self._observed))
        return self.shard(problem, self.agents, torch.arange(self.problem.n_agents))


class _ChangedData:
    """A problem in which one agent observes something else. known: observations so far, so that none is made twice."""

    def __init__(
        self, problem: Problem, agent: int, change: Callable[[Tensor], Tensor], known: dict[bytes, Tensor]
    ) -> None:
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
