"""The cost of a query: milliseconds an agent and round by phase, with P = 1 and with P sub-regions, and their ratio."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.drawing.looks import variants
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.load import LoadError, SettingRuns, seeds_phrase

EXPERIMENT = "cost"
PUBLISHED = 1.24  # P = 4 over P = 1, as the paper says
PHASES = {
    "objective": "evaluating the objective", "fit": "fitting the own GP", "own_draw": "drawing from it",
    "acquisition": "maximising the draw", "message": "the message", "server": "the server",
}  # fmt: skip
MARGIN = 1.9  # inches for the names of the phases
WITHOUT, ALL = "all but the objective", "all"


@dataclass(frozen=True)
class PhaseCost:
    """A phase. cost: for each setting, mean and standard error; ratio: last setting over first, by pairs of seeds."""

    phase: str
    cost: tuple[tuple[float, float], ...]
    ratio: tuple[float, float]


def compared(groups: Sequence[SettingRuns]) -> list[SettingRuns]:
    """The settings with the least and the most sub-regions. Raises LoadError where they cannot be compared."""
    by_regions = sorted(groups, key=lambda g: g.first.config["algorithm"]["P"])
    pair = [by_regions[0], by_regions[-1]]
    if len({g.first.config["algorithm"]["P"] for g in pair}) < 2:
        raise LoadError("cost needs runs with two numbers of sub-regions: run python -m runners.sweep experiment=cost")
    if not {run.seed for run in pair[0].runs} & {run.seed for run in pair[1].runs}:
        raise LoadError(f"{pair[0].label!r} and {pair[1].label!r} have no seed in common: run the missing seeds")
    missing = [run.path for g in pair for run in g.runs if not run.summary.get("seconds")]
    if missing:
        raise LoadError(f"{missing[0] / 'summary.json'} has no seconds: delete its folder and run it again")
    return pair


def rows(groups: Sequence[SettingRuns]) -> list[PhaseCost]:
    """The phases, and their sums with and without the objective."""
    pair = compared(groups)
    seeds = sorted({run.seed for run in pair[0].runs} & {run.seed for run in pair[1].runs})
    costs = [{run.seed: _milliseconds(g, run.seed) for run in g.runs if run.seed in seeds} for g in pair]
    found = []
    for phase in [*PHASES, WITHOUT, ALL]:
        values = np.array([[cost[seed][phase] for seed in seeds] for cost in costs])  # settings x seeds
        if (values > 0).all():
            found.append(PhaseCost(phase, tuple(_mean_and_se(v) for v in values), _mean_and_se(values[1] / values[0])))
    return found


def table(groups: Sequence[SettingRuns]) -> pd.DataFrame:
    """The numbers of the picture."""
    pair = compared(groups)
    return pd.DataFrame(
        [
            {
                "phase": row.phase, "setting": group.label, "milliseconds": mean, "se": se,
                "ratio": row.ratio[0] if group is pair[1] else None,
                "ratio_se": row.ratio[1] if group is pair[1] else None,
            }
            for row in rows(groups)
            for group, (mean, se) in zip(pair, row.cost, strict=True)
        ]
    )  # fmt: skip


def seconds_per_query(groups: Sequence[SettingRuns], style: PageStyle = SCREEN) -> Figure:
    """Left: the cost of each phase; right: the ratio, with the published one."""
    pair, found = compared(groups), rows(groups)
    looks = variants(pair[0].first.config["algorithm"]["name"], 2)
    s = pair[0].first.summary
    text = (
        f"{s['problem'].replace('_', ' ').capitalize()} problem, N = {s['n_agents']} agents, T = {s['rounds']} rounds. "
        "Seconds of a run over its agents and rounds, those of the initial points included; ratios seed by seed. "
    )
    errors = (
        f"Means; bars: ± one standard error over {seeds_phrase(pair)}." if min(len(g.runs) for g in pair) > 1 else ""
    )
    entries = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="", label=g.label)
        for g, look in zip(pair, looks, strict=True)
    ]
    entries.append(Line2D([], [], color="#444444", linestyle=":", label=f"published ratio {PUBLISHED:g}"))
    P = [g.first.config["algorithm"]["P"] for g in pair]
    heads = [
        PanelHead(x_label="milliseconds for each agent and round"),
        PanelHead(x_label=f"ratio, P = {P[1]} over P = {P[0]}"),
    ]
    title = f"The cost of a query, P = {P[1]} against P = {P[0]}"
    figure, (left, right) = page(title, entries, heads, (text + errors).strip(), style, MARGIN)
    for i, row in enumerate(found):
        for j, ((mean, se), look) in enumerate(zip(row.cost, looks, strict=True)):
            left.errorbar(
                [mean], [i + 0.24 * (j - 0.5)], xerr=[_shown(se)], color=look.colour, marker=look.marker, capsize=3
            )
        mean, se = row.ratio
        right.errorbar([mean], [i], xerr=[_shown(se)], color="black", marker="o", capsize=3)
        right.annotate(
            f"{mean:.2f}" + ("" if np.isnan(se) else f" ± {se:.2f}"), (0.995, i), xycoords=right.get_yaxis_transform(),
            horizontalalignment="right", verticalalignment="center",
            fontsize=0.9 * mpl.rcParams["font.size"],
        )  # fmt: skip
    right.axvline(PUBLISHED, color="#444444", linestyle=":")
    _finish(left, right, [PHASES.get(row.phase, row.phase) for row in found])
    return figure


def _finish(left: Axes, right: Axes, names: Sequence[str]) -> None:
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_yticks(range(len(names)), names)
    beside = right.get_position().x0 > left.get_position().x0
    right.set_yticks(range(len(names)), [""] * len(names) if beside else names)
    low, high = right.get_xlim()
    right.set_xlim(low, high + 0.35 * (high - low))  # for the numbers
    for axes in (left, right):
        axes.set_ylim(len(names) - 0.4, -0.6)


def _milliseconds(group: SettingRuns, seed: int) -> dict[str, float]:
    (run,) = [run for run in group.runs if run.seed == seed]
    s = run.summary
    scale = 1000 / (s["n_agents"] * s["rounds"])
    phases = {name: scale * s["seconds"].get(name, 0.0) for name in PHASES}
    total = scale * s["seconds"]["total"]
    return {**phases, WITHOUT: total - phases["objective"], ALL: total}


def _mean_and_se(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def _shown(se: float) -> float:
    return 0.0 if np.isnan(se) else se
