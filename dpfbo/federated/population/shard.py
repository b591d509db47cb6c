"""A shard: the agents that one process or one accelerator runs, with their objectives and observations.

An agent's results do not depend, up to rounding, on the other agents of its shard.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import Broadcast, moved
from dpfbo.federated.mechanism import Mechanism, PartialSum
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.state import Query
from dpfbo.gp import batches
from dpfbo.problems.problem import Problem
from dpfbo.records import RoundRecord, Shown

_SMALLEST_BLOCK = 16  # agents; in smaller blocks the overhead of calls dominates
_SUMMED = 2**16  # messages that are clipped and added up in one step

R = TypeVar("R")


class Block:
    """Agents `ids` and their state; a single thread computes all of them together.

    clock: the seconds spent in each phase of a step.
    """

    def __init__(self, agents: Agents, ids: Tensor) -> None:
        self.ids, self.clock, self._agents = ids, PhaseClock(), agents
        self._batch = batches.filled(len(ids), batches.PRODUCTS, ids.device)
        self.forget()

    def forget(self) -> None:
        """Reset the agents to the state without observations."""
        self.state = self._agents.initial_state(self.ids[self._batch])
        self._valued = torch.zeros(len(self.ids), dtype=torch.bool, device=self.ids.device)  # True: agent has a value

    def fit(self, last: int | None = None) -> None:
        """Refit the agents' own GPs if a fit is due; last: as in `Agents.fit_hyperparameters`."""
        self._agents.fit_hyperparameters(self.state, self.clock, last)

    def query(self, t: int, broadcast: Broadcast | None) -> Query:
        """Return the queries of round t."""
        n = len(self.ids)
        if t == 0:
            query = self._agents.initial_query(self.state)
        else:
            query = self._agents.query(self.state, broadcast, t, self.clock)
        return Query(query.u[:n], query.source[:n])

    def expected_gains(self, t: int, broadcast: Broadcast | None) -> Tensor:
        """Return the expected improvement at each agent's query of round t, in units of observations."""
        return self._agents.expected_gains(self.state, broadcast, t)[: len(self.ids)]

    def believing(self, u: Sequence[list[float]]) -> "Block":
        """Return a copy of the block in which each agent also has an invented observation at each pending point in u.

        The invented value is the mean of the agent's observations (constant-liar method). If u is empty, or if
        `Agents.averaged_gp` is None, the block itself is returned.
        """
        if not u or self._agents.averaged_gp is None:
            return self
        block = copy(self)
        block.state = self.state.select(torch.arange(len(self._batch), device=self.ids.device))
        points = torch.tensor(u, dtype=torch.float64, device=self.ids.device).expand(len(self._batch), -1, -1)
        block.state.append(points, self.state.y.mean(1, keepdim=True).expand(-1, len(u)))
        return block

    def observe(self, u: Tensor, y: Tensor) -> None:
        """Append observations y (n x k, NaN where the evaluation failed) at u (n x k x D)."""
        with self.clock("observe"):
            self.state.append(u[self._batch], self._imputed(y)[self._batch])

    def messages(self, t: int, rows: Tensor | None = None) -> Tensor:
        """Return the messages of round t, n x M, of all agents or of those at the given rows."""
        n = len(self.ids)
        with self.clock("message"):
            if rows is None or len(rows) == n:
                made = self._agents.messages(self.state, t)[:n]
                return made if rows is None else made[rows]
            filled = rows[batches.filled(len(rows), batches.PRODUCTS, rows.device)]
            return self._agents.messages(self.state.select(filled), t)[: len(rows)]

    def _imputed(self, y: Tensor) -> Tensor:
        """Replace each failed observation (NaN) in y, n x k, by the agent's worst value so far.

        While an agent has no value, its failures are recorded as 0. In the agent's first round with a value, these
        zeros are replaced by the worst value of this round.
        """
        failed, n = y.isnan(), len(y)
        if self._valued.all() and not failed.any():
            return y
        values = torch.where(failed, torch.inf, y)
        first = ~self._valued & ~failed.all(1)
        earlier = torch.where(self._valued[:, None], self.state.y[:n], torch.inf)
        worst = torch.cat([earlier, values], 1).amin(1)
        worst = torch.where(worst.isinf(), 0.0, worst)
        if first.any() and self.state.count:
            self.state.replace_values(first[self._batch], worst[self._batch])
        self._valued = self._valued | first
        return torch.where(failed, worst[:, None], y)


@dataclass(frozen=True)
class Turn:
    """A shard's record and messages of one round. messages: n x M on the shard's device; None if none are sent."""

    record: RoundRecord
    messages: Tensor | None


class Shard:
    """Runs some agents round after round.

    All computations run on the device of `ids`. The records of rounds are copied to the CPU.

    problem: the objectives. agents: the settings of Algorithm 2. ids: the indices of the agents to run. threads: the
    number of threads. block: the number of agents computed together by one thread; None to let threads and memory
    decide. `threads` and `block` do not change the results.
    """

    def __init__(
        self, problem: Problem, agents: Agents, ids: Tensor, threads: int = 1, block: int | None = None
    ) -> None:
        checks.integer("threads", threads, minimum=1, maximum=checks.MOST_WORKERS)
        self._problem, self._agents, self._ids = problem, agents.to(ids.device), ids
        self._threads = threads if self._agents.threads_allowed and ids.device.type == "cpu" else 1
        if block is None:  # one block for each thread, or more if a step of so many agents takes too much memory
            fitting = self._agents.agents_at_once(ids.device)
            block = max(min(fitting, -(-len(ids) // self._threads)), _SMALLEST_BLOCK)
        checks.integer("block", block, minimum=1)
        self._agents.table  # noqa: B018  (computed once, before there are threads)
        self._blocks = [Block(self._agents, part) for part in ids.split(block)]
        self._pool = ThreadPoolExecutor(self._threads) if min(self._threads, len(self._blocks)) > 1 else None
        reference = problem.reference
        self._reference = None if reference is None else reference[ids.to(reference.device)].to(ids.device)
        self._best = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        self._next = 0
        self._turn: Turn | None = None  # the last round
        self._known: RoundRecord | None = None  # the record of the next round, if it is known already
        self._clock = PhaseClock()

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> Turn:
        """Run round t of Algorithm 2: query, observe, and compute all messages if `send` is True.

        A repeated call with the same t returns the same turn. Raises ValueError for a round out of order.
        """
        if self._turn is None or t != self._turn.record.round:
            if t != self._next:
                raise ValueError(f"the shard is at round {self._next}, got {t}")
            if t:
                self._each(Block.fit)
            if self._known is None:
                record, u, y = self._queried(t, broadcast)
            else:
                record, u, y = self._known, self._known.u.to(self._ids.device), self._known.y.to(self._ids.device)
            self._known = None
            self._observe(u, y)
            self._next, self._turn = t + 1, Turn(record, None)
        if send and self._turn.messages is None:
            self._turn = replace(self._turn, messages=torch.cat(self._each(lambda block: block.messages(t))))
        return self._turn if send else replace(self._turn, messages=None)

    def add_up(self, t: int, rows: Tensor, weights: Tensor, mechanism: Mechanism) -> PartialSum:
        """Call `mechanism.add_up` for the agents `ids[rows]` in round t. rows: k, in increasing order; weights: P x k.

        Raises ValueError if t is not the round of the last `step`.
        """
        if self._turn is None or self._turn.record.round != t:
            raise ValueError(f"the shard has no messages of round {t}")
        M, device = self._agents.message_size, self._ids.device
        rows, weights = rows.to(device), weights.to(device)
        parts = [
            mechanism.add_up(self.messages(t, some), torch.arange(len(some), device=device), part, M)
            for some, part in zip(rows.split(_SUMMED), weights.split(_SUMMED, 1), strict=True)
        ]
        total = sum((part.total for part in parts[1:]), parts[0].total)
        return PartialSum(total.cpu(), sum(part.n_clipped for part in parts), sum(part.n_rejected for part in parts))

    def messages(self, t: int, rows: Tensor) -> Tensor:
        """Return the messages of the agents `ids[rows]`, k x M; rows: k, in increasing order."""
        if self._turn is not None and self._turn.messages is not None:
            return self._turn.messages[rows]
        edges = torch.tensor([0, *(len(block.ids) for block in self._blocks)], device="cpu").cumsum(0)
        cuts = torch.searchsorted(rows.cpu(), edges).tolist()
        wanted = {
            block: rows[a:b] - int(first)
            for block, first, a, b in zip(self._blocks, edges[:-1], cuts[:-1], cuts[1:], strict=True)
            if a < b
        }
        made = self._each(lambda block: block.messages(t, wanted[block]), list(wanted))
        if not made:
            return torch.zeros(0, self._agents.message_size, dtype=torch.float64, device=self._ids.device)
        return torch.cat(made)

    def restore(self, history: Sequence[RoundRecord], observed: RoundRecord | None = None) -> None:
        """Reset the shard to its state after rounds 0..k, given the records of these rounds.

        observed: the record of round k + 1, if known. `step` uses it in place of new evaluations of the objectives.
        """
        self._each(Block.forget)
        last, record = len(history) - 1, None
        for record in history:
            if record.round:
                self._each(lambda block: block.fit(last))
            self._observe(record.u.to(self._ids.device), record.y.to(self._ids.device))
        self.take_seconds()
        self._next, self._turn, self._known = len(history), None, observed
        if (newest := observed or record) is not None:
            self._best = newest.best[:, -1].to(self._ids.device).nan_to_num(nan=-torch.inf)

    def expected_gains(self, t: int, broadcast: Broadcast | None) -> Tensor:
        """Return the expected improvement at each agent's query of the next round t, in units of observations."""
        received = self._received(broadcast, t)
        return torch.cat(self._each(lambda block: block.expected_gains(t, received)))

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each phase since the last call, summed over all threads."""
        total = Counter[str]()
        for clock in (self._clock, *(block.clock for block in self._blocks)):
            total.update(clock.seconds)  # type: ignore[arg-type]  # adds numbers of any kind
            clock.seconds.clear()
        return dict(total)  # type: ignore[arg-type]

    def _queried(self, t: int, broadcast: Broadcast | None) -> tuple[RoundRecord, Tensor, Tensor]:
        received = self._received(broadcast, t)
        queries = self._each(lambda block: block.query(t, received))
        query = Query(torch.cat([q.u for q in queries]), torch.cat([q.source for q in queries]))
        x = self._problem.domain.to_natural(query.u)
        with self._clock("objective"):
            y = self._problem.evaluate(self._ids, x, self._agents.streams, t)
        with self._clock("record"):
            return self._record(t, query, x, y), query.u, y

    def _observe(self, u: Tensor, y: Tensor) -> None:
        sizes = [len(block.ids) for block in self._blocks]
        for block, block_u, block_y in zip(self._blocks, u.split(sizes), y.split(sizes), strict=True):
            block.observe(block_u, block_y)

    def _received(self, broadcast: Broadcast | None, t: int) -> Broadcast | None:
        if broadcast is None:
            return None
        with self._clock("acquisition"), batches.one_thread():
            return self._agents.followed(moved(broadcast, self._ids.device), self._ids, t)

    def _record(self, t: int, query: Query, x: Tensor, y: Tensor) -> RoundRecord:
        value = self._problem.true_value(self._ids, x, y)
        best = torch.cummax(torch.cat([self._best[:, None], value.nan_to_num(nan=-torch.inf)], 1), 1).values[:, 1:]
        self._best = best[:, -1]
        best = torch.where(best == -torch.inf, torch.nan, best)  # no value yet
        metric = Shown.of(self._problem).sign * best if self._reference is None else self._reference[:, None] - best
        region = self._agents.regions.region_of(query.u)
        tensors = (region, query.source, query.u, x, y, best, metric)
        return RoundRecord(t, *(tensor.cpu() for tensor in tensors))

    def _each(self, work: Callable[[Block], R], blocks: Sequence[Block] | None = None) -> list[R]:
        blocks = self._blocks if blocks is None else blocks
        with batches.one_thread():
            return [work(block) for block in blocks] if self._pool is None else list(self._pool.map(work, blocks))


def cut(record: RoundRecord, ids: Tensor) -> RoundRecord:
    """Reduce a record of all agents to the agents `ids`."""
    return RoundRecord(record.round, *(getattr(record, f.name)[ids] for f in fields(RoundRecord)[1:]))
