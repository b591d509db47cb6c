"""Regret by iteration: one line with its band for each setting, mean and standard error over the seeds."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.drawing.axes import cut_off, metric_axis, span, title
from analysis.drawing.captions import ACCOUNTANT, accountant_of, settings_in_words, with_epsilon
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.published_values import WORDS, published
from analysis.drawing.sweeps import Curve, panels
from analysis.load import SettingRuns

BEFORE = 6  # a linear axis may leave out what is higher than all rounds after the first sixth


X_LABEL = "iteration t (rounds after the initial points)"


def regret_by_iteration(
    groups: Sequence[SettingRuns], accountant: str = ACCOUNTANT, style: PageStyle = SCREEN
) -> Figure:
    """accountant: of the epsilons in the legend, which are those of the whole runs."""
    parts, known = panels(groups), published(groups)
    values, late = _values(groups, known, 0), _values(groups, known, max(g.rounds for g in groups) // BEFORE)
    shown = span(groups, values, headroom=1.3, late=late)
    caption = " ".join(filter(None, (settings_in_words(groups, accountant), cut_off(groups, shown))))
    shared = [entry(c, accountant) for c in parts[0].curves if c.everywhere]
    if known:
        shared.append(Line2D([], [], color="#444444", marker="o", label=WORDS, **published_line()))
    heads = [
        PanelHead(part.title, [entry(c, accountant) for c in part.curves if not c.everywhere], X_LABEL)
        for part in parts
    ]
    figure, found = page(title(groups, "by iteration"), shared, heads, caption, style)
    for axes, part in zip(found, parts, strict=True):
        for i, curve in enumerate(part.curves):
            draw_line(axes, curve, (i, len(part.curves)), known.get(curve.setting.label))
        axes.set_xlim(0, max(g.rounds for g in groups) * 1.01)
        metric_axis(axes, groups, shown)
    name_left_only(found)
    return figure


def name_left_only(found: Sequence[Axes]) -> None:
    """Leave the label of the vertical axis to the first panel of each row."""
    first = min(axes.get_position().x0 for axes in found)
    for axes in found:
        if axes.get_position().x0 > first:
            axes.set_ylabel("")


def table(groups: Sequence[SettingRuns]) -> pd.DataFrame:
    """The numbers of the picture: one row for each setting and round; published values have no error."""
    frames = [
        group.curve().reset_index().assign(setting=group.label, seeds=len(group.runs), source="run") for group in groups
    ]
    for label, values in published(groups).items():
        frames.append(pd.DataFrame({"round": [*values], "mean": [*values.values()], "setting": label, "source": WORDS}))
    columns = ["setting", "source", "round", "mean", "se", "seeds"]
    return pd.concat(frames, ignore_index=True)[columns].astype({"seeds": "Int64"})


def _values(groups: Sequence[SettingRuns], known: dict[str, dict[int, float]], since: int) -> np.ndarray:
    """All that is drawn, from a round on."""
    drawn = [g.curve()["mean"].to_numpy()[since:] for g in groups]
    shown = [[value for t, value in p.items() if t >= since] for p in known.values()]
    return np.concatenate([*drawn, *shown])


def draw_line(axes: Axes, curve: Curve, marks: tuple[int, int], known: dict[int, float] | None) -> None:
    """A setting with its band, and its published values. marks: its place among the lines, and how many there are."""
    look, frame = curve.style, curve.setting.curve()
    x, mean, se = frame.index.to_numpy(), frame["mean"].to_numpy(), frame["se"].to_numpy()
    first, n = marks
    axes.plot(
        x, mean, label=curve.label, color=look.colour, linestyle=look.line, marker=look.marker,
        markevery=(first, max(n, curve.setting.rounds // 5)),
    )  # fmt: skip
    if len(curve.setting.runs) > 1:
        axes.fill_between(x, mean - se, mean + se, color=look.colour, alpha=0.12, linewidth=0)
    if known is not None:
        axes.plot(
            [*known], [*known.values()], color=look.colour, marker=look.marker, zorder=3, **published_line()
        )  # fmt: skip


def published_line() -> dict[str, Any]:
    """The look of published values: hollow markers, a thin dotted line."""
    thin, small = 0.55 * mpl.rcParams["lines.linewidth"], 0.9 * mpl.rcParams["lines.markersize"]
    return {"linestyle": ":", "linewidth": thin, "markerfacecolor": "white", "markersize": small}


def entry(curve: Curve, accountant: str = ACCOUNTANT) -> Line2D:
    """The entry of a curve in the legend, with the epsilon of the whole run."""
    look, label = curve.style, curve.label
    if not curve.setting.first.outsourced:
        epsilon = curve.setting.epsilon(accountant_of(curve.setting, accountant))
        label = with_epsilon(label, curve.setting, epsilon, accountant)
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=label)
