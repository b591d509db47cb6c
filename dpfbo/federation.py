"""The loop: T rounds of agents, server and broadcast, in one process or over whatever stands behind `agents`."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfbo.agents import Agents, AgentsState, PhaseClock, Query
from dpfbo.broadcast import Broadcast
from dpfbo.problems import Problem
from dpfbo.records import RoundRecord
from dpfbo.rng import Streams
from dpfbo.server import AnyServer, ServerRecord

OnRound = Callable[[RoundRecord, ServerRecord | None], None]


@dataclass
class Result:
    """What a finished run knows: the records of every round and where the seconds went."""

    rounds: list[RoundRecord] = field(default_factory=list)
    server: list[ServerRecord] = field(default_factory=list)
    clock: PhaseClock = field(default_factory=PhaseClock)


def run(
    problem: Problem,
    agents: Agents,
    server: AnyServer | None,
    rounds: int,
    streams: Streams,
    on_round: OnRound = lambda agents_record, server_record: None,
    result: Result | None = None,
) -> Result:
    """Algorithms 1 and 2 together.

    Rounds 0..T-1 end with a broadcast, used in the next round; round T is the last query, after which nothing
    is sent. server: None for agents that work alone. on_round: called after every round, 0..T. result: filled
    as the rounds go by, for a caller that wants to watch it; a new one otherwise.
    """
    result = Result() if result is None else result
    clock = result.clock
    everyone = torch.arange(problem.n_agents)
    state = agents.initial_state(everyone)
    best = torch.full((problem.n_agents,), -torch.inf, dtype=torch.float64)
    broadcast: Broadcast | None = None
    for t in range(rounds + 1):
        if t == 0:
            query = agents.initial_query(state)
        else:
            state = agents.fit_hyperparameters(state, clock)
            query = agents.query(state, broadcast, t, clock)
        x = problem.domain.to_natural(query.u)
        with clock("objective"):
            y = problem.evaluate(everyone, x, streams, t)
        record, best = _record(problem, agents, everyone, t, query, x, y, best)
        state = agents.observe(state, query, y, clock)
        broadcast, server_record = _broadcast(agents, server, state, t, rounds, clock)
        result.rounds.append(record)
        if server_record is not None:
            result.server.append(server_record)
        on_round(record, server_record)
    return result


def _broadcast(
    agents: Agents, server: AnyServer | None, state: AgentsState, t: int, rounds: int, clock: PhaseClock
) -> tuple[Broadcast | None, ServerRecord | None]:
    """The end of a round: messages in, broadcast out. None is made after the last query, and none is charged."""
    if server is None or t == rounds:
        return None, None
    messages = agents.messages(state, t, clock) if server.uses_messages else None
    with clock("server"):
        return server.round(t, messages)


def _record(
    problem: Problem, agents: Agents, ids: Tensor, t: int, query: Query, x: Tensor, y: Tensor, best: Tensor
) -> tuple[RoundRecord, Tensor]:
    value = problem.true_value(ids, x, y)
    best_so_far = torch.cummax(torch.cat([best[:, None], value], 1), 1).values[:, 1:]
    regret = problem.reference[ids][:, None] - best_so_far if problem.reference is not None else best_so_far
    region = agents.regions.region_of(query.u)
    return RoundRecord(t, region, query.source, x, y, best_so_far, regret), best_so_far[:, -1]
