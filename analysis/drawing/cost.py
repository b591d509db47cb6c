"""The cost of a query: milliseconds an agent and round by phase, with P = 1 and with P sub-regions, and their ratio."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.picture import GREY
from analysis.load import LoadError, SettingRuns, seeds_phrase

EXPERIMENT = "cost"
PUBLISHED = 1.24  # P = 4 over P = 1, as the paper says
PHASES = {
    "objective": "evaluating the objective", "fit": "fitting the own GP", "own_draw": "drawing from it",
    "acquisition": "maximising the draw", "message": "the message", "server": "the server",
}  # fmt: skip
MARGIN = 1.9  # inches for the names of the phases


def compared(groups: Sequence[SettingRuns]) -> list[SettingRuns]:
    """The settings with the least and the most sub-regions. Raises LoadError where they cannot be compared."""
    by_regions = sorted(groups, key=_regions)
    pair = [by_regions[0], by_regions[-1]]
    if len({_regions(g) for g in pair}) < 2:
        raise LoadError("cost needs runs with two numbers of sub-regions: run python -m runners.sweep experiment=cost")
    if not {run.seed for run in pair[0].runs} & {run.seed for run in pair[1].runs}:
        raise LoadError(f"{pair[0].label!r} and {pair[1].label!r} have no seed in common: run the missing seeds")
    return pair


def table(groups: Sequence[SettingRuns]) -> pd.DataFrame:
    """A row for each phase and setting, and for the sums; ratio: the second setting's over the first's, by seed."""
    pair = compared(groups)
    first, second = (pd.DataFrame({run.seed: _milliseconds(g, run.seed) for run in g.runs}) for g in pair)
    first, second = first.align(second, join="inner", axis=1)  # phases x seeds
    ratio = (second / first)[((first > 0) & (second > 0)).all(axis=1)]
    rows: list[dict[str, object]] = []
    for phase in ratio.index:
        for group, costs in zip(pair, (first.loc[phase], second.loc[phase]), strict=True):
            rows.append({"phase": phase, "setting": group.label, "milliseconds": costs.mean(), "se": costs.sem()})
        rows[-1] |= {"ratio": ratio.loc[phase].mean(), "ratio_se": ratio.loc[phase].sem()}
    return pd.DataFrame(rows)


def seconds_per_query(groups: Sequence[SettingRuns], style: PageStyle = SCREEN) -> Figure:
    """The ratio of the costs of each phase with its error, beside the published one, and the costs in words."""
    pair, found = compared(groups), table(groups)
    s, P = pair[0].first.summary, [_regions(g) for g in pair]
    text = (
        f"{s['problem'].replace('_', ' ').capitalize()} problem, N = {s['n_agents']} agents, T = {s['rounds']} rounds. "
        "Right: milliseconds for each agent and round, those of the initial points included; ratios seed by seed."
    )
    if min(len(g.runs) for g in pair) > 1:
        text += f" Means; bars: ± one standard error over {seeds_phrase(pair)}."
    entries = [
        Line2D([], [], color="black", marker="o", linestyle="", label=f"{pair[1].label} over {pair[0].label}"),
        Line2D([], [], color=GREY, linestyle=":", label=f"published ratio {PUBLISHED:g}"),
    ]
    title = f"The cost of a query, P = {P[1]} against P = {P[0]}"
    heads = [PanelHead(x_label=f"ratio of the cost, P = {P[1]} over P = {P[0]}")]
    figure, (axes,) = page(title, entries, heads, text, style, MARGIN)
    ratios, costs = found.dropna(subset="ratio"), found.pivot(index="phase", columns="setting", values="milliseconds")
    axes.errorbar(
        ratios["ratio"], range(len(ratios)), xerr=ratios["ratio_se"].fillna(0.0), color="black", marker="o",
        linestyle="", capsize=3,
    )  # fmt: skip
    for i, (phase, mean, se) in enumerate(ratios[["phase", "ratio", "ratio_se"]].to_numpy().tolist()):
        before, after = costs.loc[phase, [g.label for g in pair]].tolist()
        words = f"{mean:.2f}" + ("" if np.isnan(se) else f" ± {se:.2f}")
        axes.annotate(
            f"{words}  ({before:.3g} to {after:.3g} ms)", (0.995, i), xycoords=axes.get_yaxis_transform(),
            horizontalalignment="right", verticalalignment="center", fontsize=0.9 * mpl.rcParams["font.size"],
        )  # fmt: skip
    axes.axvline(PUBLISHED, color=GREY, linestyle=":")
    axes.set_yticks(range(len(ratios)), [PHASES.get(phase, phase) for phase in ratios["phase"]])
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.9 * (high - low))  # for the words
    axes.set_ylim(len(ratios) - 0.4, -0.6)
    return figure


def _regions(group: SettingRuns) -> int:
    return int(group.first.config["algorithm"]["P"])


def _milliseconds(group: SettingRuns, seed: int) -> dict[str, float]:
    (s,) = [run.summary for run in group.runs if run.seed == seed]
    scale = 1000 / (s["n_agents"] * s["rounds"])
    phases = {name: scale * s["seconds"].get(name, 0.0) for name in PHASES}
    total = scale * s["seconds"]["total"]
    return {**phases, "all but the objective": total - phases["objective"], "all": total}
