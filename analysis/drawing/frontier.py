"""Regret at equal privacy: what each private algorithm reaches at a target epsilon, beside what needs none.

`python -m analysis.figures NAME` draws it for an experiment whose private runs have targets (`privacy.epsilon`), such
as frontier: one row of two panels for each variant of the problem, mean regret over rounds 1..T and after round T,
and a CSV of the numbers.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis.drawing.looks import of_algorithm, plain
from analysis.drawing.page import write_below
from analysis.labels import NAMES, metric_label, value_in_words
from analysis.load import LoadError, Run

WIDTH, PANEL_HEIGHT, ABOVE, BELOW = 7.8, 2.8, 1.0, 1.0  # inches
LEFT, GAP, TITLE = 0.95, 0.85, 0.85  # left margin, between the two panels, between rows
ASIDE = 0.05  # inches between the points of two algorithms at one epsilon
LINES = ("-", "--", "-.")
MARKERS = ("o", "s", "^", "D", "v")
CAPTION_COLUMNS = 118


@dataclass(frozen=True)
class FrontierPoint:
    """One algorithm at one target. Means and errors over the seeds.

    target: None for a reference. epsilon: what the runs cost by their accountant, the largest; 0 where nothing was
    shared, None where nothing is private. average: of the metric over rounds 1..t; last: after
    round t.
    """

    name: str
    regions: int
    target: float | None
    epsilon: float | None
    noise_multiplier: float | None
    seeds: tuple[int, ...]
    average: tuple[float, float]
    last: tuple[float, float]

    @property
    def label(self) -> str:
        name = NAMES.get(self.name, self.name)
        return f"{name}, P = {self.regions}" if self.regions > 1 else name


@dataclass(frozen=True)
class FrontierPanel:
    """One variant of the problem: the algorithms' points at their targets, and the references'. t: the last round."""

    title: str
    metric: str
    t: int
    epsilon_in_words: str
    points: tuple[FrontierPoint, ...]
    references: tuple[FrontierPoint, ...]

    @property
    def curves(self) -> list[list[FrontierPoint]]:
        """The points of each algorithm, by target."""
        names = dict.fromkeys((p.name, p.regions) for p in self.points)
        return [sorted((p for p in self.points if (p.name, p.regions) == n), key=lambda p: p.target) for n in names]  # type: ignore[arg-type, return-value]


def has_targets(runs: Iterable[Run]) -> bool:
    """True where the private runs were calibrated to more than one epsilon."""
    return len({target for run in runs if (target := _target(run)) is not None}) > 1


def panels(runs: Sequence[Run], t: int | None = None) -> list[FrontierPanel]:
    """The runs by variant of the problem; agents that share nothing (`ts`, the controls) belong to each variant.

    t: the last round to count, T where not given. Raises LoadError where a variant has no private run, where two
    settings claim one point, or where a round is not there.
    """
    everywhere = [run for run in runs if not _shares(run)]
    variants: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if _shares(run):
            variants.setdefault(_variant(run), []).append(run)
    several = len({key[-1] for key in variants}) > 1
    alike = [(key, group + [r for r in everywhere if _variant(r)[:-1] == key[:-1]]) for key, group in variants.items()]
    return [_panel(group, several, t) for _, group in sorted(alike, key=lambda pair: str(pair[0]))]


def table(found: Sequence[FrontierPanel]) -> pd.DataFrame:
    """One row for each point and reference; standard errors are over the seeds, empty with one."""
    return pd.DataFrame(
        [
            {
                "panel": panel.title, "metric": panel.metric, "rounds": panel.t, "algorithm": p.name, "P": p.regions,
                "target_epsilon": p.target, "epsilon": p.epsilon, "privacy": panel.epsilon_in_words,
                "z": p.noise_multiplier, "seeds": len(p.seeds),
                "average": p.average[0], "average_se": p.average[1], "last": p.last[0], "last_se": p.last[1],
            }
            for panel in found
            for p in (*panel.points, *panel.references)
        ]
    )  # fmt: skip


def figure(found: Sequence[FrontierPanel], aside: str = "") -> Figure:
    """Rows of two panels: the average over the rounds, and the last round, against epsilon. aside: ends the caption."""
    height = ABOVE + len(found) * PANEL_HEIGHT + (len(found) - 1) * TITLE + BELOW
    result = Figure(figsize=(WIDTH, height))
    wide = (WIDTH - LEFT - GAP - 0.15) / 2
    for row, panel in enumerate(found):
        bottom = height - ABOVE - (row + 1) * PANEL_HEIGHT - row * TITLE
        for column, (what, values) in enumerate(
            ((f"mean over rounds 1 to {panel.t}", "average"), (f"after round {panel.t}", "last"))
        ):
            axes = result.add_axes(
                ((LEFT + column * (wide + GAP)) / WIDTH, bottom / height, wide / WIDTH, PANEL_HEIGHT / height)
            )
            _draw(axes, result, panel, values)
            axes.set_title(plain(f"{panel.title}: {what}"), fontsize=9)
            if column == 0:
                axes.set_ylabel(plain(metric_label(panel.metric)))
            axes.set_xlabel("target privacy loss ε of the whole run")
    handles, labels = result.axes[0].get_legend_handles_labels()
    result.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.55 / WIDTH, 1 - 0.05 / height), ncols=3, handlelength=3.0,
        fontsize=9, columnspacing=1.2,
    )  # fmt: skip
    caption = " ".join(filter(None, (_caption(found), aside)))
    write_below(result, textwrap.wrap(caption, CAPTION_COLUMNS), caption)
    return result


def _draw(axes: Axes, drawn_in: Figure, panel: FrontierPanel, values: str) -> None:
    for i, p in enumerate(panel.references):
        mean, se = getattr(p, values)
        colour = of_algorithm(p.name).colour
        why = "not private" if p.epsilon is None else "ε = 0"
        axes.axhline(
            mean, color=colour, linestyle=(0, (1 + 2 * i, 1.5)), linewidth=1.3, label=plain(f"{p.label} ({why})")
        )
        axes.axhspan(mean - _shown(se), mean + _shown(se), color=colour, alpha=0.1, linewidth=0)
    curves = panel.curves
    for i, points in enumerate(curves):
        look = of_algorithm(points[0].name).colour
        x = np.array([p.target for p in points], float)
        mean, se = np.array([getattr(p, values) for p in points]).T
        shift = ScaledTranslation((i - (len(curves) - 1) / 2) * ASIDE, 0, drawn_in.dpi_scale_trans)
        axes.errorbar(
            x, mean, np.nan_to_num(se), color=look, linestyle=LINES[i % len(LINES)], marker=MARKERS[i % len(MARKERS)],
            capsize=3, label=plain(points[0].label), transform=axes.transData + shift, zorder=3,
        )  # fmt: skip
    targets = sorted({p.target for p in panel.points if p.target is not None})
    axes.set_xscale("log")
    axes.set_xlim(targets[0] / 1.25, targets[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(targets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ends = np.array([[m - _shown(s), m + _shown(s)] for m, s in (getattr(p, values) for p in _all(panel))])
    low, high = ends.min(), ends.max()
    margin = 0.06 * (high - low) or 0.01
    axes.set_ylim(max(0.0, low - margin) if low >= 0 else low - margin, high + margin)
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _all(panel: FrontierPanel) -> tuple[FrontierPoint, ...]:
    return (*panel.points, *panel.references)


def _shown(se: float) -> float:
    return 0.0 if math.isnan(se) else se


def _caption(found: Sequence[FrontierPanel]) -> str:
    counts = sorted({len(p.seeds) for panel in found for p in _all(panel)})
    several = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    errors = f"Mean over the agents ± standard error over {several} seeds"
    if counts[-1] == 1:
        errors = "Mean over the agents, one seed"
    words = "; ".join(dict.fromkeys(panel.epsilon_in_words for panel in found))
    return (
        f"{errors}. ε: {words}. Points at one ε are drawn side by side; horizontal lines share nothing (ε = 0), "
        "or share without privacy."
    )


def _panel(runs: Sequence[Run], name_lengthscale: bool, t: int | None) -> FrontierPanel:
    first = runs[0].summary
    rounds = min(run.summary["rounds"] for run in runs)
    if t is not None and not 1 <= t <= rounds:
        raise LoadError(f"round {t} cannot be drawn: all settings have rounds 1 to {rounds}")
    last = t or rounds
    title = first["problem"].replace("_", " ")
    if name_lengthscale:
        title += f", length-scale {value_in_words(runs[0].config['algorithm'].get('lengthscale'))}"
    by_point: dict[tuple[str, int, float | None], list[Run]] = {}
    for run in runs:
        a, target = run.config["algorithm"], _target(run)
        if target is not None or not run.summary["private"]:
            by_point.setdefault((a["name"], a["P"], target), []).append(run)
    found = [_point(key, group, last) for key, group in by_point.items()]
    order = list(NAMES)
    found.sort(key=lambda p: (order.index(p.name) if p.name in order else len(order), p.name, p.regions, p.target or 0))
    points = tuple(p for p in found if p.target is not None)
    if not points:
        raise LoadError(
            f"{title} has no private run at a target epsilon: run python -m runners.sweep experiment=frontier"
        )
    private = [run for run in runs if _target(run) is not None]
    return FrontierPanel(
        title, first["metric"], last, _epsilon_in_words(private), points,
        tuple(p for p in found if p.target is None),
    )  # fmt: skip


def _point(key: tuple[str, int, float | None], runs: Sequence[Run], t: int) -> FrontierPoint:
    name, P, target = key
    if len(settings := {run.setting for run in runs}) > 1:
        at = "" if target is None else f" at epsilon {target:g}"
        raise LoadError(
            f"{NAMES.get(name, name)}{at} was run with {len(settings)} settings ({', '.join(sorted(settings))}): keep "
            "the folder of one"
        )
    curves = np.array([run.curve[1 : t + 1] for run in runs])  # seeds x t
    epsilons = [run.summary["epsilon"][run.summary["accountant"]] for run in runs]
    epsilon = None if None in epsilons else max(epsilons)
    z = runs[0].config["privacy"]["z"] if target is not None else None
    return FrontierPoint(
        name, P, target, epsilon, z, tuple(run.seed for run in runs), _mean_and_se(curves.mean(1)),
        _mean_and_se(curves[:, -1]),
    )  # fmt: skip


def _mean_and_se(values: np.ndarray) -> tuple[float, float]:
    """Over the seeds; the error is nan with one."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else math.nan


def _epsilon_in_words(runs: Sequence[Run]) -> str:
    s = runs[0].summary
    by = f"{s['accountant'].upper()} accountant, δ = {s['delta']:.3g}, {s['relation']}, user level"
    return f"{by}, N = {s['n_agents']}"


def _shares(run: Run) -> bool:
    """True where agents send messages, so that the shared features count."""
    return run.config["algorithm"].get("server", "aggregate") in ("aggregate", "peer")


def _target(run: Run) -> float | None:
    return run.config["privacy"].get("epsilon") if run.summary["private"] else None


def _variant(run: Run) -> tuple[object, ...]:
    """The key that tells panels apart, the length-scale of the shared features last."""
    s, problem = run.summary, run.config["problem"]
    lengthscale = run.config["algorithm"].get("lengthscale")
    return s["problem"], s["metric"], s["n_agents"], problem.get("score"), s["rounds"], lengthscale
