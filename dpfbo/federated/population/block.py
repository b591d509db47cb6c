"""A block: so many agents of a shard that the numbers of a step fit the processor's cache.

The numbers of an agent do not depend on the other agents of its block. A single agent is therefore duplicated, so that
products round as in larger batches (`dpfbo.gp.batches`).
"""

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import Broadcast
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.state import AgentsState, Query
from dpfbo.federated.prior.received import OnGrid
from dpfbo.gp import batches


class Block:
    """The agents `ids` and what they know. clock: seconds of their steps, by phase."""

    def __init__(self, agents: Agents, ids: Tensor) -> None:
        self.ids, self.clock, self._agents = ids, PhaseClock(), agents
        self._batch = batches.filled(len(ids), batches.PRODUCTS, ids.device)
        self.forget()

    def forget(self) -> None:
        """Go back to the state without observations."""
        self.state: AgentsState = self._agents.initial_state(self.ids[self._batch])
        self._valued = torch.zeros(len(self.ids), dtype=torch.bool, device=self.ids.device)  # have a value so far

    def fit(self, last: int | None = None) -> None:
        """Refit the agents' own GPs if that is due; last: see `Agents.fit_hyperparameters`."""
        self.state = self._agents.fit_hyperparameters(self.state, self.clock, last)

    def query(self, t: int, broadcast: Broadcast | None, tables: OnGrid | None = None) -> Query:
        """The queries of round t. tables: those of a shared prior, if they are known."""
        n = len(self.ids)
        if t == 0:
            query = self._agents.initial_query(self.state)
        else:
            query = self._agents.query(self.state, broadcast, t, self.clock, tables)
        return Query(query.u[:n], query.source[:n])

    def observe(self, u: Tensor, y: Tensor) -> None:
        """Append observations y (n x k, NaN where the evaluation failed) at u (n x k x D)."""
        y = self._imputed(y)
        self.state = self._agents.observe(self.state, u[self._batch], y[self._batch], self.clock)

    def messages(self, t: int, rows: Tensor | None = None) -> Tensor:
        """The messages of round t of all agents, or of those at some rows; n x M."""
        n = len(self.ids)
        if rows is None or len(rows) == n:
            made = self._agents.messages(self.state, t, self.clock)[:n]
            return made if rows is None else made[rows]
        filled = rows[batches.filled(len(rows), batches.PRODUCTS, rows.device)]
        return self._agents.messages(self.state.select(filled), t, self.clock)[: len(rows)]

    def _imputed(self, y: Tensor) -> Tensor:
        """The observations (n x k) for the agents' models: each failed one (NaN) is the agent's worst value so far.

        Until an agent has a value its failures stand at 0; its first one or more values replace them.
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
            self.state.history.replace_values(first[self._batch], worst[self._batch])
        self._valued = self._valued | first
        return torch.where(failed, worst[:, None], y)
