"""Regret at equal privacy: what each private algorithm reaches at a target epsilon, beside what needs none.

`python -m analysis.figures NAME` draws it for an experiment whose private runs have targets (`privacy.epsilon`): one
row of two panels for each variant of the problem, and a CSV of the numbers. The panels are the mean regret over rounds
1..T and the one after round T, or, where the targets were run for several T, the mean regret for each. Each point
stands at the epsilon that its runs spent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.drawing.axes import label_metric
from analysis.drawing.curves import name_left_only
from analysis.drawing.equal_epsilon.points import FrontierPanel, FrontierPoint
from analysis.drawing.looks import Style, stretched, variants
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.tradeoff import error_bars
from dpfbo.formats.words import metric_in_words

X_LABEL = "privacy loss ε of the whole run"


@dataclass(frozen=True)
class _View:
    """One pair of axes. values: the attribute of the points that it shows."""

    panel: FrontierPanel
    title: str
    values: str


def figure(found: Sequence[FrontierPanel], aside: str = "", style: PageStyle = SCREEN) -> Figure:
    """Rows of two panels: the average over the rounds, and the last round, against epsilon. aside: ends the caption."""
    rows = [
        [
            _View(panel, f"{panel.title}: mean over rounds 1 to {panel.t}", "average"),
            _View(panel, f"{panel.title}: after round {panel.t}", "last"),
        ]
        for panel in found
    ]
    return _drawn(rows, aside, style)


def figure_by_length(found: Sequence[Sequence[FrontierPanel]], aside: str = "", style: PageStyle = SCREEN) -> Figure:
    """Rows of panels: the average over rounds 1..T, one panel for each T, against epsilon.

    found: for each T, the panels of all variants; a variant that lacks a T has an empty place there.
    """
    lengths = sorted({panel.t for panels in found for panel in panels})
    by_title: dict[str, dict[int, _View]] = {}
    for panel in (panel for panels in found for panel in panels):
        view = _View(panel, f"{panel.title}: mean over rounds 1 to T = {panel.t}", "average")
        by_title.setdefault(panel.title, {})[panel.t] = view
    note = (
        f"Methods that spend ε round by round were run for T = {' or '.join(map(str, lengths))} with noise of their "
        "own; the others begin alike whatever T is."
    )
    rows = [[views.get(t) for t in lengths] for views in by_title.values()]
    return _drawn(rows, f"{note} {aside}".strip(), style)


def _drawn(rows: Sequence[Sequence[_View | None]], aside: str, style: PageStyle) -> Figure:
    views = [view for row in rows for view in row]
    panels = [view.panel for view in views if view is not None]
    looks = _looks(panels)
    by = "" if style.captioned else f" ({panels[0].epsilon_in_words.partition(' (')[0].rpartition(', ')[0]})"
    heads = [None if view is None else PanelHead(view.title, (), X_LABEL + by) for view in views]
    title = f"{metric_in_words(panels[0].metric)} at equal privacy"
    caption = " ".join(filter(None, (_caption(panels), aside)))
    found, axes_of = page(
        f"{title[0].upper()}{title[1:]}", _entries(panels, looks), heads, caption, style, columns=len(rows[0])
    )
    for axes, view in zip(axes_of, (view for view in views if view is not None), strict=True):
        _draw(axes, view.panel, view.values, looks)
        label_metric(axes, metric_in_words(view.panel.metric))
    name_left_only(axes_of)
    return found


_Key = tuple[str, int]  # an algorithm and its P


def _key(point: FrontierPoint) -> _Key:
    return point.name, point.regions


def _looks(panels: Sequence[FrontierPanel]) -> dict[_Key, Style]:
    """One look for each algorithm in all panels; where it is there with several P, variants of it."""
    keys = sorted({_key(p) for panel in panels for p in _all(panel)})
    by_name = {name: [key for key in keys if key[0] == name] for name, _ in keys}
    return {
        key: stretched(look, i)
        for name, alike in by_name.items()
        for i, (key, look) in enumerate(zip(alike, variants(name, len(alike)), strict=True))
    }


def _entries(panels: Sequence[FrontierPanel], looks: dict[_Key, Style]) -> list[Line2D]:
    """The legend: what shares nothing or is not private, then the private algorithms."""
    found: dict[str, Line2D] = {}
    for p in (p for panel in panels for p in panel.references):
        look, why = looks[_key(p)], "not private" if p.epsilon is None else "ε = 0"
        label = f"{p.label} ({why})"
        found.setdefault(label, Line2D([], [], color=look.colour, linestyle=look.line, label=label))
    for p in (curve[0] for panel in panels for curve in panel.curves):
        look = looks[_key(p)]
        entry = Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=p.label)
        found.setdefault(p.label, entry)
    return list(found.values())


def _draw(axes: Axes, panel: FrontierPanel, values: str, looks: dict[_Key, Style]) -> None:
    thin = 0.8 * mpl.rcParams["lines.linewidth"]
    for p in panel.references:
        look, (mean, se) = looks[_key(p)], getattr(p, values)
        axes.axhline(mean, color=look.colour, linestyle=look.line, linewidth=thin, label=p.label)
        axes.axhspan(mean - _shown(se), mean + _shown(se), color=look.colour, alpha=0.1, linewidth=0)
    for layer, points in enumerate(panel.curves):
        look = looks[_key(points[0])]
        mean, se = np.array([getattr(p, values) for p in points]).T
        axes.plot(_x(points), mean, color=look.colour, linestyle=look.line, label=points[0].label, zorder=2.9)
        for x, y, error in zip(_x(points), mean, np.nan_to_num(se), strict=True):
            error_bars(axes, x, y, error, look, layer)
    _set_axes(axes, panel, values)


def _x(points: Sequence[FrontierPoint]) -> list[float]:
    """The epsilon that the runs spent; the target where that is not finite."""
    return [float(p.epsilon or p.target or 0.0) for p in points]


def _set_axes(axes: Axes, panel: FrontierPanel, values: str) -> None:
    targets = sorted({p.target for p in panel.points if p.target is not None})
    axes.set_xscale("log")
    xs = [*targets, *_x(panel.points)]
    axes.set_xlim(min(xs) / 1.25, max(xs) * 1.25)
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
    errors = f"Mean over agents and seeds; bands and bars: ± one standard error over {several} seeds"
    if counts[-1] == 1:
        errors = "Mean over agents, one seed"
    words = "; ".join(dict.fromkeys(panel.epsilon_in_words for panel in found))
    sharing = "; ".join(dict.fromkeys(panel.sharing for panel in found))
    return f"{sharing}. ε: {words}. Horizontal lines: nothing shared (ε = 0), or shared without privacy. {errors}."
