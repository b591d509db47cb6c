"""The result of a study: what each agent found, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfbo.extras import needing
from dpfbo.federated.federation import FederatedResult
from dpfbo.formats.words import Source, epsilon_in_words
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.records import Shown, best_queries, parameter_columns, query_columns
from dpfbo.space.parameters import Space
from dpfbo.study.evaluations import Evaluation
from dpfbo.study.study import Study

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Best:
    """Holds the best query of one agent. The agent must keep it secret, because epsilon does not cover it.

    Args:
        agent: The agent's number.
        configuration: The query in natural units: a dict if the space has named parameters, else a list.
        value: The value that the objective returned.
        round: The round of the query.

    Example:
        >>> import dpfbo
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: agent - x["x"], {"x": dpfbo.Integer(1, 3)}, n_agents=3, algorithm="ts", rounds=2
        ... )
        >>> [(best.agent, best.value) for best in result.best()]
        [(0, -1.0), (1, 0.0), (2, 1.0)]
    """

    agent: int
    configuration: dict[str, Any] | list[float]
    value: float
    round: int


@dataclass(frozen=True)
class Optimization:
    """Holds the result of a study. Epsilon covers only the broadcasts; queries, values, `curve` and `best` are secret.

    Args:
        study: The description of the run.
        problem: The objectives.
        result: All finished rounds.
        ledger: The ledger that recorded the cost of each broadcast.
        stopped: What ended the study early, in a few words; None if all rounds are finished.
        unfinished: The evaluations of a round in which it was stopped.
        folder: The folder with the files of the study; None if it was not kept.

    Example:
        >>> import dpfbo
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: -x["x"], {"x": dpfbo.Float(0, 1)}, n_agents=5, delta=1e-3, rounds=2, n_init=3
        ... )
        >>> print(result)
        dp_prior, 5 agents, 2 rounds: best_value ... (mean), epsilon 1.00 at delta 0.001, relation zero-out, user ...
        >>> result.to_pandas().shape  # one row for each agent and query
        (25, 9)
    """

    study: Study
    problem: Problem
    result: FederatedResult
    ledger: Ledger
    stopped: str | None = None
    unfinished: Sequence[Evaluation] = ()
    folder: Path | None = None

    @property
    def interrupted(self) -> bool:
        """True if the study was stopped before its last round."""
        return self.stopped is not None

    def best(self) -> list[Best]:
        """The best observed query of each agent that has an observation."""
        space, sign, best = self._space, Shown.of(self.problem).sign, dict[int, Best]()
        if len(self.result.rounds):
            round, x, y = best_queries(self.result.rounds)
            points = [space.configuration(p) if space else p for p in x.tolist()]
            found = zip(points, (sign * y).tolist(), round.tolist(), strict=True)
            best = {agent: Best(agent, *one) for agent, one in enumerate(found) if math.isfinite(one[1])}
        for e in self.unfinished:
            if e.value is not None and (e.agent not in best or sign * e.value > sign * best[e.agent].value):
                best[e.agent] = Best(e.agent, e.configuration, e.value, e.round)
        return [best[agent] for agent in sorted(best)]

    @cached_property
    def curve(self) -> list[float]:
        """The mean over the agents of the problem's metric after each round, 0..T."""
        return [record.mean for record in self.result.rounds]

    @property
    def epsilon(self) -> float | None:
        """Epsilon of all charges of the ledger, at `delta`; None if there is no finite epsilon."""
        return self.epsilons[self.study.accountant]

    @cached_property
    def epsilons(self) -> dict[str, float | None]:
        """`epsilon` by every accountant that can analyse the run."""
        return self.study.plan.epsilons(self.ledger.events())

    @property
    def delta(self) -> float:
        return self.study.plan.delta

    @property
    def relation(self) -> str:
        """The name of the neighbouring relation to which epsilon refers."""
        return self.study.plan.relation

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each agent and query, with the columns of rounds.parquet."""
        import pandas as pd

        agents = torch.arange(self.study.n_agents, device="cpu")
        rounds = [query_columns(record, agents, Shown.of(self.problem)) for record in self.result.rounds]
        if self.unfinished or not rounds:
            rounds.append(self._unfinished_columns())
        columns = {name: np.concatenate([part[name] for part in rounds]) for name in rounds[0]}
        x, sources = columns["x"], pd.Index([source.name for source in Source])
        frame = pd.DataFrame({**columns, "x": list(x), "source": pd.Categorical.from_codes(columns["source"], sources)})
        frame = frame.astype({"agent": "int32", "round": "int32", "region": "int16"})
        for name, values, places in parameter_columns(x, self._space) if self._space else ():
            inactive = places is not None and None in values[1:]  # somewhere: the column has a type with missing values
            column = pd.Series(pd.array(values) if inactive else values)
            frame[f"x.{name}"] = column if places is None else column.take(places).array
        return frame

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the mean of the metric over the agents after each round, with its standard error.

        Args:
            ax: The axes to draw on; None for a new figure.

        Returns:
            The axes.

        Raises:
            MissingPackage: Matplotlib is not installed.
        """
        with needing("analysis", "a plot"):
            import matplotlib.pyplot as plt
            from matplotlib.ticker import MaxNLocator

        ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")[1] if ax is None else ax
        errors = [record.standard_error for record in self.result.rounds]
        mean, se = (torch.tensor(values, device="cpu") for values in (self.curve, errors))
        rounds, name = range(len(mean)), self.study.algorithm.name
        label = name if self.epsilon is None else f"{name}, ε = {epsilon_in_words(self.epsilon)}"
        (line,) = ax.plot(rounds, mean, label=label)
        ax.fill_between(rounds, mean - se, mean + se, alpha=0.2, color=line.get_color(), linewidth=0)
        ax.set(xlabel="round", ylabel=f"{self.problem.metric.replace('_', ' ')}, mean of {self.study.n_agents} agents")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(frameon=False)
        return ax

    def __str__(self) -> str:
        study = self.study
        rounds = f"{study.rounds} rounds"
        if self.stopped is not None:
            rounds = f"{max(len(self.curve) - 1, 0)} of {rounds} ({self.stopped})"
        reached = f"{self.problem.metric} {self.curve[-1]:.4g} (mean)" if self.curve else "no finished round"
        return f"{study.algorithm.name}, {study.n_agents} agents, {rounds}: {reached}, {study.cost(self.epsilon)}"

    def _unfinished_columns(self) -> dict[str, np.ndarray]:
        """The columns of rounds.parquet for the evaluations of a round that is not finished."""
        points = [self._space.natural(e.configuration).numpy() for e in self.unfinished] if self._space else []
        x = np.array(points).reshape(len(points), self.study.domain.dimension)
        u = self.study.domain.to_unit(torch.from_numpy(x))
        unknown = np.full(len(x), np.nan)
        return {
            "agent": np.array([e.agent for e in self.unfinished], dtype=np.int64),
            "round": np.array([e.round for e in self.unfinished], dtype=np.int64),
            "region": self.study.agents.regions.region_of(u).numpy(),
            "source": np.full(len(x), -1),
            "x": x,
            "y": np.array([np.nan if e.value is None else e.value for e in self.unfinished], dtype=np.float64),
            "best": unknown,
            "regret": unknown,
        }

    @property
    def _space(self) -> Space | None:
        return getattr(self.problem, "space", None)
