"""Plots of a result: the metric over the rounds and by agent, the searched parameters, and the spent epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.federated.federation import FederatedResult
from dpfbo.formats.words import epsilon_in_words, metric_in_words, objective_in_words
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.records import Shown, inactive_axes
from dpfbo.space.axes import Axis, Categorical, Float, Integer, Ordinal
from dpfbo.study.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREY = "#0072B2", "#8C8C8C"
_LABELLED = 60  # with more agents, their numbers are left out
_LONG = 24  # the maximum length of a label, in characters
_CHOICES = 12  # the maximum number of choices that are labelled on an axis
_FEWEST, _MOST = 30, 5000  # the number of evaluations on which a forest is trained
_FOLDS = 5
_COLUMNS = 3  # panels in a row


@dataclass(frozen=True)
class ResultPlots:
    """The plots of a result's finished rounds, available as `result.plot`; `result.plot()` is `result.plot.history()`.

    Each method draws on the given axes, or on a new figure, and returns the axes. Every plot except `privacy` shows
    values of agents, which epsilon does not cover.

    Args:
        study: The description of the run.
        problem: The objectives.
        result: All finished rounds.
        ledger: The ledger that recorded the cost of each broadcast.

    Raises:
        MissingPackage: Matplotlib, or scikit-learn for `importance`, is not installed.
        SettingError: The result has too few rounds or values for the plot.

    Example:
        >>> import dpfbo
        >>> space = {"x": dpfbo.Float(0, 1), "kind": dpfbo.Categorical(["a", "b"])}
        >>> result = dpfbo.optimize(lambda agent, x: x["x"], space, 5, delta=1e-3, rounds=3)
        >>> result.plot.privacy().get_ylabel()
        'ε spent, at δ = 0.001'
        >>> [ax.get_xlabel() for ax in result.plot.slice()]
        ['x', 'kind']
    """

    study: Study
    problem: Problem
    result: FederatedResult
    ledger: Ledger

    def __call__(self, ax: Axes | None = None) -> Axes:
        """Draw `history`."""
        return self.history(ax)

    def history(self, ax: Axes | None = None) -> Axes:
        """Draw the mean of the metric over the agents after each round, with its standard error."""
        rounds, name = self._rounds("history"), _plain_text(self.study.algorithm.name)
        ax = _axes(ax)
        epsilon = self.study.plan.epsilons(self.ledger.events())[self.study.accountant]
        label = name if epsilon is None else f"{name}, ε = {epsilon_in_words(epsilon)}"
        mean, error = np.array(rounds.means), np.array(rounds.standard_errors)
        (line,) = ax.plot(range(len(mean)), mean, label=label)
        ax.fill_between(range(len(mean)), mean - error, mean + error, alpha=0.2, color=line.get_color(), linewidth=0)
        ax.set(xlabel="round", ylabel=f"{self._metric}, mean of {self.study.n_agents} agents")
        _whole_numbers(ax)
        ax.legend(frameon=False)
        return ax

    def sites(self, ax: Axes | None = None) -> Axes:
        """Draw the metric of each agent after the initial points and after the last round, the best agent on top."""
        rounds = self._rounds("sites")
        first, last = (rounds[t].metric[:, -1].numpy() for t in (0, -1))
        agents = np.flatnonzero(np.isfinite(last))
        agents = agents[np.argsort(-last[agents] if self.problem.lower_is_better else last[agents], kind="stable")]
        n, labelled = len(agents), len(agents) <= _LABELLED
        ax = _axes(ax, height=min(1.3 + 0.17 * n, 9.0) if labelled else 5.0)
        places, size = np.arange(n), 28 if labelled else 6
        ax.hlines(places, first[agents], last[agents], color=_BLUE, alpha=0.35, linewidth=1.6 if labelled else 0.5)
        hollow: Any = {"facecolors": "white", "edgecolors": _GREY, "label": "after the initial points"}
        ax.scatter(first[agents], places, size, zorder=2, **hollow)
        ax.scatter(last[agents], places, size, color=_BLUE, label=f"after round {len(rounds) - 1}", zorder=3)
        ax.set_yticks(places if labelled else [], agents if labelled else [], fontsize=8)
        ax.set(xlabel=self._metric, ylabel="agent" if labelled else f"{n} agents", ylim=(-0.8, n - 0.2))
        _legend_above(ax, columns=2)
        return ax

    def slice(self, parameter: str | None = None, ax: Axes | None = None) -> Axes | np.ndarray:
        """Draw the values of all agents' queries against a parameter, coloured by round.

        Args:
            parameter: The name of a parameter; None for one panel per parameter.
            ax: Axes to draw on, only with `parameter`; None for a new figure.

        Returns:
            The axes, or an array with the axes of each parameter.
        """
        axes = self._parameters
        if parameter is not None:
            checks.one_of("parameter", parameter, axes)
        if parameter is None and ax is not None:
            raise SettingError("ax", f"needs a parameter, one of {', '.join(axes)}")
        names = list(axes) if parameter is None else [parameter]
        x, y, _, rounds = self._queries("slice")
        panels = _panels(len(names)) if ax is None else np.array([ax])
        space = getattr(self.problem, "space", None)
        active = ~inactive_axes(x, space) if space else np.ones(x.shape, dtype=bool)
        for name, panel in zip(names, panels, strict=True):
            axis, column = axes[name], list(axes).index(name)
            drawn = active[:, column]
            values = x[drawn, column]
            if isinstance(axis, Categorical | Ordinal):
                values = values + np.random.default_rng(0).uniform(-0.25, 0.25, len(values))
            points = panel.scatter(
                values, y[drawn], 12, c=rounds[drawn], cmap="viridis_r", vmin=0, vmax=max(rounds.max(), 1), alpha=0.7,
                linewidths=0,
            )  # fmt: skip
            _scale(panel, axis)
            panel.set(xlabel=_plain_text(name))
        for panel in panels[::_COLUMNS]:
            panel.set(ylabel=objective_in_words(self.problem.metric))
        panels[0].figure.colorbar(points, ax=panels.tolist(), label="round", ticks=_integers()).solids.set_alpha(1)
        return panels[0] if parameter is not None else panels

    def importance(self, ax: Axes | None = None) -> Axes:
        """Draw the permutation importance of each parameter for the observed values.

        Each agent's mean is subtracted from its values, and a random forest predicts the differences. The importance of
        a parameter is the loss of R² when its values are permuted among the held-out queries. Bars are means over five
        folds, with standard errors. A parameter that was hardly varied may have a short bar even if it matters.
        """
        x, y, agents, _ = self._queries("importance")
        axes = self._parameters
        least = max(_FEWEST, 10 * len(axes))
        if len(y) < least:
            raise SettingError("importance", f"needs at least {least} evaluations with a value, got {len(y)}")
        y = y - (np.bincount(agents, y) / np.maximum(np.bincount(agents), 1))[agents]
        if np.ptp(y) == 0:
            raise SettingError("importance", "needs values that differ within an agent, got equal ones")
        if len(y) > _MOST:
            some = np.random.default_rng(0).choice(len(y), _MOST, replace=False)
            x, y = x[some], y[some]
        unordered = [k for k, axis in enumerate(axes.values()) if isinstance(axis, Categorical)]
        losses, scores = _permutation_losses(x, y, unordered)
        mean, error = losses.mean(0), losses.std(0, ddof=1) / len(losses) ** 0.5
        order = np.argsort(mean, kind="stable")
        ax = _axes(ax, height=1.1 + 0.35 * len(axes))
        ax.barh(range(len(axes)), mean[order], xerr=error[order], color=_BLUE, ecolor=_GREY, height=0.6, capsize=3)
        ax.set_yticks(range(len(axes)), [_plain_text(list(axes)[k]) for k in order])
        ax.grid(visible=False, axis="y")
        ax.set(xlabel=f"loss of R² with the parameter permuted (R² before: {scores.mean():.2f})")
        return ax

    def privacy(self, ax: Axes | None = None) -> Axes:
        """Draw the epsilon spent up to each broadcast, and the epsilon of all planned broadcasts."""
        study, rounds = self.study, self._rounds("privacy")
        if not study.algorithm.private:
            raise SettingError("privacy", f"needs a private algorithm, got {study.algorithm.name}")
        ax = _axes(ax)
        at, spent = [r.round for r in self.result.server], [r.epsilon for r in self.result.server]
        end = max(len(rounds) - 1, 1)
        ax.step([0, *at, end], [0, *spent, spent[-1] if spent else 0], where="post", color=_BLUE)
        ax.plot(at, spent, "o", color=_BLUE, markersize=4, label=f"{len(at)} broadcast{'s' * (len(at) != 1)}")
        total = study.plan.epsilon()
        label = f"planned in total: ε = {epsilon_in_words(total)}"
        ax.axhline(total, color=_GREY, linestyle="--", linewidth=1, label=label)
        top = 1.1 * max([total, *spent])
        ax.set(xlabel="round", ylabel=f"ε spent, at δ = {study.plan.delta:.3g}", ylim=(0, top))
        _whole_numbers(ax)
        _legend_above(ax, columns=2)
        return ax

    @property
    def _metric(self) -> str:
        return _plain_text(metric_in_words(self.problem.metric))

    @property
    def _parameters(self) -> dict[str, Axis | None]:
        space = getattr(self.problem, "space", None)
        return dict(space.axes) if space else {f"x{k}": None for k in range(self.study.domain.dimension)}

    def _rounds(self, name: str) -> Any:
        if not len(self.result.rounds):
            raise SettingError(name, "needs a finished round, got none")
        return self.result.rounds

    def _queries(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return all queries that have a value: points (n x D), values as the objective gave them, agents, rounds."""
        records = list(self._rounds(name))
        x = torch.cat([r.x.flatten(0, 1) for r in records]).numpy()
        y = Shown.of(self.problem).sign * torch.cat([r.y.flatten() for r in records]).numpy()
        agents = np.concatenate([np.repeat(np.arange(len(r.y)), r.y.shape[1]) for r in records])
        rounds = np.concatenate([np.full(r.y.numel(), r.round) for r in records])
        known = np.isfinite(y)
        if not known.any():
            raise SettingError(name, "needs an evaluation with a value, got none")
        return x[known], y[known], agents[known], rounds[known]


def _permutation_losses(x: np.ndarray, y: np.ndarray, unordered: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Measure how much the R² of a random forest decreases if one column of x is permuted.

    Returns the decreases (shape folds x D), and R² without permutation (one number for each fold). R² is measured on
    the queries that the fold holds out. unordered: the indices of the categorical columns.
    """
    with needing("problems", "plot.importance"):
        from sklearn.compose import make_column_transformer
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.inspection import permutation_importance
        from sklearn.model_selection import KFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder

    one_hot = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), unordered), remainder="passthrough")
    forest = make_pipeline(one_hot, RandomForestRegressor(random_state=0))
    losses, scores = [], []
    for known, held_out in KFold(_FOLDS, shuffle=True, random_state=0).split(x):
        forest.fit(x[known], y[known])
        found = permutation_importance(forest, x[held_out], y[held_out], n_repeats=10, random_state=0)
        losses.append(found.importances_mean)
        scores.append(forest.score(x[held_out], y[held_out]))
    return np.array(losses), np.array(scores)


def _axes(ax: Axes | None, height: float = 3.5) -> Axes:
    with needing("analysis", "a plot"):
        import matplotlib.pyplot as plt
    if ax is None:
        ax = plt.subplots(figsize=(5.5, height), layout="constrained")[1]
        _tidy(ax)
    return ax


def _panels(n: int) -> np.ndarray:
    with needing("analysis", "a plot"):
        import matplotlib.pyplot as plt
    columns, rows = min(n, _COLUMNS), -(-n // _COLUMNS)
    size = (max(2.6 * columns + 0.8, 4.5), 2.9 * rows)
    grid = plt.subplots(rows, columns, sharey=True, squeeze=False, layout="constrained", figsize=size)[1]
    for panel in grid.flat[:n]:
        _tidy(panel)
    for panel in grid.flat[n:]:
        panel.remove()
    return np.array(grid.flat[:n])


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def _legend_above(ax: Axes, columns: int) -> None:
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, borderaxespad=0.2)


def _plain_text(text: str) -> str:
    """Truncate long text, and escape `$` for Matplotlib."""
    return (text if len(text) <= _LONG else f"{text[: _LONG - 2]}..").replace("$", r"\$")


def _integers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _whole_numbers(ax: Axes) -> None:
    ax.xaxis.set_major_locator(_integers())


def _scale(ax: Axes, axis: Axis | None) -> None:
    if isinstance(axis, Categorical | Ordinal):
        names = [_plain_text(str(value)) for value in axis.all_values]
        shown = range(0, len(names), -(-len(names) // _CHOICES))
        slanted = sum(len(names[k]) for k in shown) > _LONG
        ax.set_xticks(shown, [names[k] for k in shown], rotation=30 * slanted, ha="right" if slanted else "center")
        ax.set_xlim(-0.5, len(names) - 0.5)
    elif isinstance(axis, Float | Integer) and axis.log:
        ax.set_xscale("log")
    elif isinstance(axis, Integer):
        _whole_numbers(ax)
