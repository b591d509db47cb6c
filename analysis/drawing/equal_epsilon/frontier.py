"""Regret at equal privacy: what each private algorithm reaches at a target epsilon, beside what needs none.

`python -m analysis.figures NAME` draws it for an experiment whose private runs have targets (`privacy.epsilon`): one
row of two panels for each variant of the problem, and a CSV of the numbers. The panels are the mean regret over rounds
1..T and the one after round T, or, where the targets were run for several T, the mean regret for each.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis.drawing.equal_epsilon.points import FrontierPanel, FrontierPoint
from analysis.drawing.looks import Style, another, of_algorithm, plain
from analysis.drawing.page import write_below
from analysis.labels import metric_label

WIDTH, PANEL_HEIGHT, ABOVE, BELOW = 7.8, 2.8, 0.65, 1.15  # inches
LEFT, GAP, TITLE = 0.95, 0.85, 0.95  # left margin, between the two panels, between rows
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.185  # inches
ASIDE = 0.05  # inches between the points of two algorithms at one epsilon
CAPTION_COLUMNS = 118


@dataclass(frozen=True)
class _View:
    """One pair of axes. values: the attribute of the points that it shows."""

    panel: FrontierPanel
    title: str
    values: str


def figure(found: Sequence[FrontierPanel], aside: str = "") -> Figure:
    """Rows of two panels: the average over the rounds, and the last round, against epsilon. aside: ends the caption."""
    rows = [
        [
            _View(panel, f"{panel.title}: mean over rounds 1 to {panel.t}", "average"),
            _View(panel, f"{panel.title}: after round {panel.t}", "last"),
        ]
        for panel in found
    ]
    return _drawn(rows, aside)


def figure_by_length(found: Sequence[Sequence[FrontierPanel]], aside: str = "") -> Figure:
    """Rows of panels: the average over rounds 1..T, one panel for each T, against epsilon.

    found: for each T, the panels of all variants; a variant that lacks a T has an empty place there.
    """
    by_title: dict[str, list[_View]] = {}
    for panel in (panel for panels in found for panel in panels):
        view = _View(panel, f"{panel.title}\nmean over rounds 1 to T = {panel.t}", "average")
        by_title.setdefault(panel.title, []).append(view)
    lengths = " or ".join(str(t) for t in sorted({panel.t for panels in found for panel in panels}))
    note = (
        f"Methods that spend ε round by round were run for T = {lengths} with noise of their own; the others begin "
        "alike whatever T is."
    )
    return _drawn(list(by_title.values()), f"{note} {aside}".strip())


def _drawn(rows: Sequence[Sequence[_View]], aside: str) -> Figure:
    panels = [view.panel for row in rows for view in row]
    labels = {label: None for panel in panels for label in (*map(_label, panel.references), *_names(panel))}
    above = ABOVE + LEGEND_ROW * math.ceil(len(labels) / LEGEND_COLUMNS)
    height = above + len(rows) * PANEL_HEIGHT + (len(rows) - 1) * TITLE + BELOW
    columns = max(len(row) for row in rows)
    wide = (WIDTH - LEFT - GAP * (columns - 1) - 0.15) / columns
    result = Figure(figsize=(WIDTH, height))
    entries: dict[str, Artist] = {}
    for k, row in enumerate(rows):
        bottom = height - above - (k + 1) * PANEL_HEIGHT - k * TITLE
        for column, view in enumerate(row):
            left = LEFT + column * (wide + GAP)
            axes = result.add_axes((left / WIDTH, bottom / height, wide / WIDTH, PANEL_HEIGHT / height))
            _draw(axes, result, view.panel, view.values)
            axes.set_title(plain(view.title), fontsize=9)
            if column == 0:
                axes.set_ylabel(plain(metric_label(view.panel.metric)))
            axes.set_xlabel("target privacy loss ε of the whole run")
            handles, texts = axes.get_legend_handles_labels()
            entries |= {text: handle for handle, text in zip(handles, texts, strict=True) if text not in entries}
    result.legend(
        list(entries.values()), list(entries), loc="upper left", bbox_to_anchor=(0.55 / WIDTH, 1 - 0.05 / height),
        ncols=LEGEND_COLUMNS, handlelength=3.0, fontsize=9, columnspacing=1.2,
    )  # fmt: skip
    caption = " ".join(filter(None, (_caption(panels), aside)))
    write_below(result, textwrap.wrap(caption, CAPTION_COLUMNS), caption)
    return result


def _label(reference: FrontierPoint) -> str:
    why = "not private" if reference.epsilon is None else "ε = 0"
    return plain(f"{reference.label} ({why})")


def _names(panel: FrontierPanel) -> list[str]:
    return [plain(points[0].label) for points in panel.curves]


def _looks(points: Sequence[FrontierPoint]) -> list[Style]:
    """The look of the algorithm of each; where one stands there again, with another P, another tone of it."""
    names = [p.name for p in points]
    return [another(of_algorithm(name), names[:i].count(name)) for i, name in enumerate(names)]


def _draw(axes: Axes, drawn_in: Figure, panel: FrontierPanel, values: str) -> None:
    for p, look in zip(panel.references, _looks(panel.references), strict=True):
        mean, se = getattr(p, values)
        axes.axhline(mean, color=look.colour, linestyle=look.line, linewidth=1.3, label=_label(p))
        axes.axhspan(mean - _shown(se), mean + _shown(se), color=look.colour, alpha=0.1, linewidth=0)
    curves = panel.curves
    looks = _looks([points[0] for points in curves])
    for i, (points, look) in enumerate(zip(curves, looks, strict=True)):
        x = np.array([p.target for p in points], float)
        mean, se = np.array([getattr(p, values) for p in points]).T
        shift = ScaledTranslation((i - (len(curves) - 1) / 2) * ASIDE, 0, drawn_in.dpi_scale_trans)
        axes.errorbar(
            x, mean, np.nan_to_num(se), color=look.colour, linestyle=look.line, marker=look.marker, capsize=3,
            label=plain(points[0].label), transform=axes.transData + shift, zorder=3,
        )  # fmt: skip
    _set_axes(axes, panel, values)


def _set_axes(axes: Axes, panel: FrontierPanel, values: str) -> None:
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
