"""A shard: the agents that one process or one accelerator holds, with their objectives and observations.

An agent's numbers do not depend on the other agents of its shard, up to rounding; nor do they change if `restore`
rebuilds the shard from its records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated.agents import Agents, AgentsState, Query
from dpfbo.federated.broadcast import Broadcast, moved
from dpfbo.federated.mechanism import Mechanism
from dpfbo.federated.messages import PartialSum
from dpfbo.gp import batches
from dpfbo.problems import Problem
from dpfbo.records import RoundRecord


@dataclass(frozen=True)
class Turn:
    """A shard's record and messages of one round. messages: n x M on the shard's device, None if none were sent."""

    record: RoundRecord
    messages: Tensor | None


class Shard:
    """Runs the agents `ids` round after round, on the device of `ids`.

    problem: the objectives; agents: the settings of Algorithm 2. Records are on the CPU.
    """

    def __init__(self, problem: Problem, agents: Agents, ids: Tensor) -> None:
        self._problem, self._agents, self._ids = problem, agents.to(ids.device), ids
        # a single agent is duplicated, so that products round as in larger batches
        self._batch = batches.filled(len(ids), batches.PRODUCTS, ids.device)
        self._state = self._agents.initial_state(ids[self._batch])
        reference = problem.reference
        self._reference = None if reference is None else reference[ids.to(reference.device)].to(ids.device)
        self._best = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        self._next = 0
        self._turn: Turn | None = None  # of the last round
        self._known: RoundRecord | None = None  # of the next round
        self._valued = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # agents with a value so far
        self.clock = PhaseClock()

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> Turn:
        """Algo. 2 of round t: query, observe, and make a message if `send`.

        A repeated call for the last round returns the same. Raises ValueError for a round out of order.
        """
        if self._turn is not None and t == self._turn.record.round:
            return self._turn
        if t != self._next:
            raise ValueError(f"the shard is at round {self._next}, got {t}")
        if t:
            self._state = self._agents.fit_hyperparameters(self._state, self.clock)
        if self._known is None:
            record, u, y = self._queried(t, broadcast)
        else:
            record, u, y = self._known, self._known.u.to(self._ids.device), self._known.y.to(self._ids.device)
        self._known = None
        self._state = self._observed(u, self._imputed(y), self.clock)
        messages = self._agents.messages(self._state, t, self.clock)[: len(self._ids)] if send else None
        self._next, self._turn = t + 1, Turn(record, messages)
        return self._turn

    def _queried(self, t: int, broadcast: Broadcast | None) -> tuple[RoundRecord, Tensor, Tensor]:
        """Ask all agents for their points u of round t, and evaluate them to y. Returns their record, u and y."""
        if t == 0:
            query = self._agents.initial_query(self._state)
        else:
            query = self._agents.query(self._state, self._received(broadcast), t, self.clock)
        n = len(self._ids)
        query = Query(query.u[:n], query.source[:n])
        x = self._problem.domain.to_natural(query.u)
        with self.clock("objective"):
            y = self._problem.evaluate(self._ids, x, self._agents.streams, t)
        return self._record(t, query, x, y), query.u, y

    def add_up(self, t: int, rows: Tensor, weights: Tensor, mechanism: Mechanism) -> PartialSum:
        """The mechanism's sum over the agents `ids[rows]` in round t. rows: k; weights: P x k."""
        if self._turn is None or self._turn.messages is None or self._turn.record.round != t:
            raise ValueError(f"the shard has no messages of round {t}")
        messages = self._turn.messages
        rows, weights = rows.to(messages.device), weights.to(messages.device)
        part = mechanism.add_up(messages, rows, weights, messages.shape[1])
        return replace(part, total=part.total.cpu())

    def restore(self, history: Sequence[RoundRecord], observed: RoundRecord | None = None) -> None:
        """Reset the shard to its state after rounds 0..k, given its records of them; the next round is k + 1.

        observed: the record of round k + 1, whose objectives are then not evaluated again.
        """
        self._state = self._agents.initial_state(self._ids[self._batch])
        self._valued = torch.zeros_like(self._valued)
        for record in history:
            if record.round:
                self._state = self._agents.fit_hyperparameters(self._state, PhaseClock(), last=history[-1].round)
            y = self._imputed(record.y.to(self._ids.device))
            self._state = self._observed(record.u.to(self._ids.device), y, PhaseClock())
        self._next, self._turn, self._known = len(history), None, observed
        last = observed if observed is not None or not history else history[-1]
        if last is not None:
            self._best = last.best[:, -1].to(self._ids.device).nan_to_num(nan=-torch.inf)

    def _observed(self, u: Tensor, y: Tensor, clock: PhaseClock) -> AgentsState:
        return self._agents.observe(self._state, u[self._batch], y[self._batch], clock)

    def _imputed(self, y: Tensor) -> Tensor:
        """The observations (n x k) for the agents' models: each failed one (NaN) is the agent's worst value so far.

        Until an agent has a value its failures stand at 0; its first one or more values replace them.
        """
        failed, n = y.isnan(), len(y)
        if self._valued.all() and not failed.any():
            return y
        values = torch.where(failed, torch.inf, y)
        first = ~self._valued & ~failed.all(1)
        earlier = torch.where(self._valued[:, None], self._state.y[:n], torch.inf)
        worst = torch.cat([earlier, values], 1).amin(1)
        worst = torch.where(worst.isinf(), 0.0, worst)
        if first.any() and self._state.count:
            self._state.history.replace_values(first[self._batch], worst[self._batch])
        self._valued = self._valued | first
        return torch.where(failed, worst[:, None], y)

    def _received(self, broadcast: Broadcast | None) -> Broadcast | None:
        return None if broadcast is None else moved(broadcast, self._ids.device)

    def _record(self, t: int, query: Query, x: Tensor, y: Tensor) -> RoundRecord:
        value = self._problem.true_value(self._ids, x, y)
        best = torch.cummax(torch.cat([self._best[:, None], value.nan_to_num(nan=-torch.inf)], 1), 1).values[:, 1:]
        self._best = best[:, -1]
        best = torch.where(best == -torch.inf, torch.nan, best)  # no value yet
        regret = best if self._reference is None else self._reference[:, None] - best
        region = self._agents.regions.region_of(query.u)
        tensors = (region, query.source, query.u, x, y, best, regret)
        return RoundRecord(t, *(tensor.cpu() for tensor in tensors))


def cut(record: RoundRecord, ids: Tensor) -> RoundRecord:
    """The part of a record that is about the agents `ids`."""
    return RoundRecord(record.round, *(getattr(record, f.name)[ids] for f in fields(RoundRecord)[1:]))
