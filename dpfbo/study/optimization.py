"""The result of a study."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpfbo.checks import SettingError
from dpfbo.federated.federation import FederatedResult
from dpfbo.formats.words import Source, delta_in_words, epsilon_in_words, metric_in_words, neighbours
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.records import Shown, best_queries, parameter_columns, query_columns
from dpfbo.space.parameters import Space
from dpfbo.study import stored_result
from dpfbo.study.best import Best, BestTable
from dpfbo.study.comparison import PairedComparison
from dpfbo.study.evaluations import Evaluation
from dpfbo.study.html_table import html_table
from dpfbo.study.plots import ResultPlots
from dpfbo.study.stored_result import StoredResult
from dpfbo.study.study import Study

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Optimization:
    """The result of a study. Epsilon covers only the broadcasts; queries, values, `curve` and `best` are secret.

    Args:
        study: The description of the run.
        problem: The objectives.
        result: All finished rounds.
        ledger: The ledger that recorded the cost of each broadcast.
        stopped: The reason for an early end; None if all rounds are finished.
        unfinished: The evaluations of the round in which the study was stopped.
        folder: The study's folder, if there is one.

    Example:
        >>> import dpfbo
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: -x["x"], {"x": dpfbo.Float(0, 1)}, n_agents=5, delta=1e-3, rounds=2, n_init=3
        ... )
        >>> print(result)
        dp_prior, 5 agents, 2 rounds: best_value ... (mean), epsilon 1.00 at delta 0.001, relation zero-out, user ...
        >>> result
        <dp_prior, 5 agents, 2 rounds: best_value ...>
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
        """True if the study ended before its last round."""
        return self.stopped is not None

    def best(self) -> BestTable:
        """Return the best observed query of each agent that has one."""
        space, sign, best = self._space, Shown.of(self.problem).sign, dict[int, Best]()
        if len(self.result.rounds):
            round, x, y = best_queries(self.result.rounds)
            points = [space.configuration(p) if space else p for p in x.tolist()]
            found = zip(points, (sign * y).tolist(), round.tolist(), strict=True)
            best = {agent: Best(agent, *one) for agent, one in enumerate(found) if math.isfinite(one[1])}
        for e in self.unfinished:
            if e.value is not None and (e.agent not in best or sign * e.value > sign * best[e.agent].value):
                best[e.agent] = Best(e.agent, e.configuration, e.value, e.round)
        return BestTable(best[agent] for agent in sorted(best))

    @cached_property
    def curve(self) -> list[float]:
        """The problem's metric after each round, 0..T, averaged over the agents."""
        return list(self.result.rounds.means)

    @property
    def epsilon(self) -> float | None:
        """Epsilon of all charges of the ledger, at `delta`; None if it is not finite."""
        return self.epsilons[self.study.accountant]

    @cached_property
    def epsilons(self) -> dict[str, float | None]:
        """Epsilon of all charges in the ledger, for each accountant that can analyse the run."""
        return self.study.plan.epsilons(self.ledger.events())

    @property
    def delta(self) -> float:
        return self.study.plan.delta

    @property
    def relation(self) -> str:
        """The neighbouring relation to which epsilon refers."""
        return self.study.plan.relation

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row for each query, with the columns of the file `rounds.parquet` in the study's folder."""
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
            inactive = places is not None and None in values[1:]  # then the column needs a dtype with missing values
            column = pd.Series(pd.array(values) if inactive else values)
            frame[f"x.{name}"] = column if places is None else column.take(places).array
        return frame

    @property
    def plot(self) -> ResultPlots:
        """Plots of the finished rounds: `plot()`, `plot.history()` and the other methods of `ResultPlots`."""
        return ResultPlots(self.study, self.problem, self.result, self.ledger)

    def compare(self, other: Optimization) -> PairedComparison:
        """Compare the final values with those of another result, agent by agent.

        The values are the metric after the last finished round; the numbers of rounds may differ.

        Args:
            other: A result for the same agents, such as one of another algorithm.

        Returns:
            The differences, this result minus the other. They say nothing about other seeds.

        Raises:
            SettingError: The results differ in the number of agents, the metric or its direction. Or fewer than two
                agents have a value in both results.
        """
        for name, own, others in (
            ("n_agents", self.study.n_agents, other.study.n_agents),
            ("metric", self.problem.metric, other.problem.metric),
            ("lower_is_better", self.problem.lower_is_better, other.problem.lower_is_better),
        ):
            if own != others:
                raise SettingError("other", f"must have {name}={own!r} like this result, got {others!r}")
        last = [one.result.rounds[-1].metric[:, -1].numpy() if one.curve else None for one in (self, other)]
        values = [np.full(self.study.n_agents, np.nan) if found is None else found for found in last]
        agents = np.flatnonzero(np.isfinite(values).all(0))
        if len(agents) < 2:
            raise SettingError(
                "other", f"must have values of at least two agents that have one in this result, got {len(agents)}"
            )
        mine, theirs = (tuple(value[agents].tolist()) for value in values)
        metric, lower = metric_in_words(self.problem.metric), self.problem.lower_is_better
        return PairedComparison(self._name, other._name, metric, lower, tuple(agents.tolist()), mine, theirs)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the finished rounds, the unfinished round's evaluations and the ledger to a folder, for `load`.

        The study cannot be continued from this folder. The ledger in the folder is a copy: make further charges to the
        original, `self.ledger`. `load` can also read the folder in which `dpfbo.optimize` stored a study.

        Args:
            folder: The folder, new or empty.

        Returns:
            The absolute path of the folder.

        Raises:
            StateError: The folder is not empty.
        """
        path = Path(folder).absolute()
        stored = StoredResult(self.study, self.problem, self.result, self.ledger, self.stopped, self.unfinished, path)
        stored_result.save(stored)
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str], ledger: Ledger | None = None) -> Optimization:
        """Read a result that `dpfbo.optimize` or `save` wrote to a folder.

        The study may be unfinished. Nothing in the folder is executed or changed.

        Args:
            folder: The folder of a result, or a folder one or two levels above it that contains no other result.
            ledger: The ledger that was passed to `dpfbo.optimize`; None for the one in the folder.

        Returns:
            The result. Its problem cannot evaluate anything. If the study is unfinished and no reason is recorded,
            `stopped` is `not finished`.

        Raises:
            StateError: The folder contains no result or several, or its files were edited, come from another version,
                or name a class from outside dpfbo.
            CheckpointError: A round was edited, or belongs to another study.
            LedgerError: The ledger was edited, belongs to another run, or lacks the broadcast of a finished round.

        Example:
            >>> import tempfile, dpfbo
            >>> space = {"x": dpfbo.Float(0, 1)}
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     made = dpfbo.optimize(lambda agent, x: x["x"], space, 3, "ts", rounds=2, folder=folder)
            ...     result = dpfbo.Optimization.load(folder)
            >>> result.best() == made.best()
            True
        """
        return cls(*stored_result.load(Path(folder), ledger))

    def __str__(self) -> str:
        return f"{self._summary}, {self.study.cost(self.epsilon)}"

    def __repr__(self) -> str:
        return f"<{self._summary}>"

    def _repr_html_(self) -> str:
        study, rounds, best = self.study, self.result.rounds, self.best()
        rows = [
            ("algorithm", study.algorithm.name),
            ("agents", study.n_agents),
            ("rounds", f"{max(len(rounds) - 1, 0)} of {study.rounds}"),
        ]
        if len(rounds):
            value = f"{self.curve[-1]:.4g} ± {rounds.standard_errors[-1]:.2g} (mean ± standard error over agents)"
            rows.append((metric_in_words(self.problem.metric), value))
        if best:
            sign = Shown.of(self.problem).sign
            top = max(best, key=lambda one: sign * one.value)
            rows.append(("best agent", f"{top.agent}: {top.value:.4g} in round {top.round}"))
        rows += [(name, found) for name, found in (("stopped", self.stopped), ("folder", self.folder)) if found]
        if study.algorithm.private and self.epsilon is not None:
            rows += [
                ("epsilon", epsilon_in_words(self.epsilon)),
                ("delta", delta_in_words(self.delta).removeprefix("delta ")),
                ("relation", neighbours(self.relation).removeprefix("relation ")),
                ("accountant", study.accountant),
                ("releases", len(self.ledger.charges)),
            ]
        else:
            rows.append(("privacy", study.cost(self.epsilon)))
        if study.simulation:
            rows.append(("simulation", "anybody who knows the seed can remove the noise"))
        return html_table(rows)

    @property
    def _name(self) -> str:
        rounds = len(self.curve) - 1
        return f"{self.study.algorithm.name} ({rounds} round{'s' * (rounds != 1)})"

    @property
    def _summary(self) -> str:
        study = self.study
        rounds = f"{study.rounds} rounds"
        if self.stopped is not None:
            rounds = f"{max(len(self.curve) - 1, 0)} of {rounds} ({self.stopped})"
        reached = f"{self.problem.metric} {self.curve[-1]:.4g} (mean)" if self.curve else "no finished round"
        return f"{study.algorithm.name}, {study.n_agents} agents, {rounds}: {reached}"

    def _unfinished_columns(self) -> dict[str, np.ndarray]:
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
