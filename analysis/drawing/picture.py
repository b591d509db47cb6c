"""Pictures that compare settings in panels of curves, points and horizontal lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from analysis.drawing.looks import Style, plain
from analysis.drawing.page import PanelHead, page, text_width
from analysis.drawing.page_style import PageStyle
from analysis.labels import problem_label, variant_in_words
from analysis.load import SettingRuns
from dpfbo.formats.words import metric_in_words

LOGARITHMIC_FROM = 4.0  # ratio of largest to smallest value from which an axis is logarithmic
LOWEST = 4.0  # a logarithmic axis shows error bars down to the mean divided by this
CLOSE = 1.02  # largest ratio of x values whose points may overlap
SIZES = (2.0, 1.55, 1.3)  # of overlapping points, the lowest first, relative to markers of lines
CURVE, JOINED, POINT, LEVEL = "curve", "joined", "point", "level"
GREY = "#444444"


@dataclass(frozen=True)
class Series:
    """The numbers of one setting, or of several settings that are drawn as joined points.

    kind: `CURVE` (with a band), `JOINED` or `POINT` (with error bars), or `LEVEL` (a horizontal line; x is not used).
    se: standard errors, 0 if there are none. published: published values by x.
    """

    label: str
    style: Style
    kind: str
    x: np.ndarray
    mean: np.ndarray
    se: np.ndarray
    published: Mapping[float, float] = field(default_factory=dict)

    def ends(self, since: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the arrays mean - se and mean + se; the values in `published` are appended to each array.

        For a curve, `se` counts as 0, so the two arrays are equal. A curve's means and published values before round
        `since` are left out. Other series do not use `since`.
        """
        if self.kind == CURVE:
            known = [value for t, value in self.published.items() if t >= since]
            return (values := np.append(self.mean[since:], known)), values
        known = [*self.published.values()]
        return np.append(self.mean - self.se, known), np.append(self.mean + self.se, known)


def curve(group: SettingRuns, label: str, style: Style, published: Mapping[float, float]) -> Series:
    """Return the setting's curve: mean metric and standard error by round. published: published values by round."""
    found = group.curve()
    x, mean, se = found.index.to_numpy(), found["mean"].to_numpy(), np.nan_to_num(found["se"].to_numpy())
    return Series(label, style, CURVE, x, mean, se, published)


def points(
    groups: Sequence[SettingRuns], t: int, x: Sequence[float], label: str, style: Style, kind: str,
    published: Mapping[str, dict[float, float]],
) -> Series:  # fmt: skip
    """Return one series with a value for each setting: the metric after round t, at the setting's x.

    published: published values by label and round.
    """
    at = np.array([[mean, se or 0.0] for mean, se in (g.at(t) for g in groups)])
    known = {
        where: published[g.label][t] for where, g in zip(x, groups, strict=True) if t in published.get(g.label, {})
    }
    return Series(label, style, kind, np.array(x, float), at[:, 0], at[:, 1], known)


@dataclass(frozen=True)
class Span:
    """The range of the metric on an axis."""

    logarithmic: bool
    low: float
    high: float


@dataclass(frozen=True)
class XAxis:
    """The horizontal axis. ticks: positions, empty for matplotlib's choice. number: format of their labels."""

    label: str
    low: float
    high: float
    logarithmic: bool = False
    ticks: Sequence[float] = ()
    number: str = "g"
    integer: bool = False

    def set(self, axes: Axes) -> None:
        if self.logarithmic:
            axes.set_xscale("log")
        axes.set_xlim(self.low, self.high)
        if self.ticks:
            axes.xaxis.set_major_locator(FixedLocator(self.ticks))
            axes.xaxis.set_minor_locator(NullLocator())
        elif self.integer:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format(value, self.number)))


@dataclass(frozen=True)
class PicturePanel:
    """Series on one pair of axes."""

    title: str
    series: Sequence[Series]
    x: XAxis
    y: Span


def span(drawn: Sequence[Series], lower_is_better: bool, headroom: float, late: int = 0) -> Span:
    """Choose the range and the scale of the vertical axis.

    headroom: a logarithmic axis ends at headroom times the largest value. On a linear axis, the space above the largest
    value is (headroom - 1) / 2 times the range of the values. late: a linear axis need not show the values of curves
    before this round.
    """
    high = np.concatenate([one.ends()[1] for one in drawn])
    middle = np.concatenate([one.mean for one in drawn])
    positive = np.append(middle, high)[np.append(middle, high) > 0]
    if lower_is_better and (middle >= 0).all() and positive.size:
        least = np.concatenate([np.maximum(one.ends()[0][: len(one.mean)], one.mean / LOWEST) for one in drawn])
        if high.max() / positive.min() >= LOGARITHMIC_FROM:
            low = min(positive.min(), least[least > 0].min(initial=np.inf))
            return Span(True, float(low) / 1.3, float(high.max()) * headroom)
    ends = [one.ends(min(late, len(one.mean) - 1)) for one in drawn]
    bottom, top = min(float(low.min()) for low, _ in ends), max(float(high.max()) for _, high in ends)
    size = top - bottom or abs(top) or 1.0
    return Span(False, bottom - 0.08 * size, top + (headroom - 1) / 2 * size)


def title(groups: Sequence[SettingRuns], what: str) -> str:
    """Return a title such as `1 − AUC by iteration: landmine problem, platt score`."""
    s, score = groups[0].first.summary, groups[0].first.config["problem"].get("score")
    metric = metric_in_words(s["metric"])
    of = problem_label(s["problem"]) + ("" if groups[0].first.outsourced else " problem")
    of += variant_in_words(groups[0].first.config["problem"]) + (f", {score} score" if score else "")
    return f"{metric[0].upper()}{metric[1:]} {what}: {of}"


def metric_label(groups: Sequence[SettingRuns]) -> tuple[str, str]:
    """Return the metric in words, and a text such as ` (mean over agents)` to append if the axis is long enough."""
    over = "units of σ_y" if groups[0].first.outsourced else "mean over agents"
    return metric_in_words(groups[0].first.summary["metric"]), f" ({over})"


def picture(
    title: str, panels: Sequence[PicturePanel | None], caption: str, metric: tuple[str, str], style: PageStyle,
    columns: int | None = None, legend_above: bool = False,
) -> Figure:  # fmt: skip
    """Draw panels, row by row; None leaves a gap.

    The figure's axes are in the order of the panels. A legend above the panels lists the series that every panel has.
    legend_above: True if the legend above lists the remaining series too; False if each panel has a legend of its own
    for its remaining series. metric: result of `metric_label`.
    """
    shown = [panel for panel in panels if panel is not None]
    by_label = {one.label: one for panel in shown for one in panel.series}
    everywhere = [
        label for label in by_label
        if legend_above or all(label in [one.label for one in panel.series] for panel in shown)
    ]  # fmt: skip
    shared = [_entry(by_label[label]) for label in everywhere]
    if any(one.published for panel in shown for one in panel.series):
        shared.append(Line2D([], [], color=GREY, marker="o", label="published", **published_look()))
    heads = [
        None if p is None else PanelHead(p.title, [_entry(s) for s in p.series if s.label not in everywhere], p.x.label)
        for p in panels
    ]
    figure = page(title, shared, heads, caption, style, columns=columns)
    first = min(axes.get_position().x0 for axes in figure.axes)
    for axes, panel in zip(figure.axes, shown, strict=True):
        _draw_panel(axes, panel)
        panel.x.set(axes)
        _set_metric(axes, panel.y, metric)
        if axes.get_position().x0 > first:
            axes.set_ylabel("")
    return figure


def _entry(one: Series) -> Line2D:
    look: dict[str, Any] = {"linestyle": one.style.line, "marker": one.style.marker}
    if one.kind == LEVEL:
        look["marker"] = ""
    if one.kind == POINT:
        look |= {"linestyle": "", "markersize": SIZES[1] * mpl.rcParams["lines.markersize"]}
    return Line2D([], [], color=one.style.colour, label=one.label, **look)


def _draw_panel(axes: Axes, panel: PicturePanel) -> None:
    drawn = list[float]()  # x of the points so far
    for i, one in enumerate(panel.series):
        look = one.style
        hollow = {"color": look.colour, "marker": look.marker, **published_look()}
        if one.kind == CURVE:
            every = (i, max(len(panel.series), (len(one.x) - 1) // 5))
            axes.plot(
                one.x, one.mean, label=one.label, color=look.colour, linestyle=look.line, marker=look.marker,
                markevery=every,
            )  # fmt: skip
            if one.se.any():
                axes.fill_between(
                    one.x, one.mean - one.se, one.mean + one.se, color=look.colour, alpha=0.12, linewidth=0
                )
            if one.published:
                axes.plot([*one.published], [*one.published.values()], zorder=3, **hollow)
        elif one.kind == LEVEL:
            mean, se = one.mean[0], one.se[0]
            axes.axhline(mean, color=look.colour, linestyle=look.line, label=one.label, zorder=1.5)
            axes.axhspan(mean - se, mean + se, color=look.colour, alpha=0.08, linewidth=0)
            for value in one.published.values():
                axes.axhline(value, color=look.colour, linestyle=":", linewidth=hollow["linewidth"], zorder=1.4)
                axes.plot([0.985], [value], transform=axes.get_yaxis_transform(), **hollow)
        else:
            if one.kind == JOINED:
                axes.plot(one.x, one.mean, color=look.colour, linestyle=look.line, label=one.label, zorder=2.9)
            for x, mean, se in zip(one.x, one.mean, one.se, strict=True):
                error_bars(axes, x, mean, se, look, sum(max(x, b) <= CLOSE * min(x, b) for b in drawn))
            drawn += one.x.tolist()
            if one.published:
                axes.plot([*one.published], [*one.published.values()], zorder=3.5, **hollow | {"linestyle": ""})


def error_bars(axes: Axes, x: float, mean: float, se: float, look: Style, layer: int) -> None:
    """Draw a point with its error bar.

    layer: number of points already drawn at nearly the same x; more of them make the point smaller.
    """
    size, line = mpl.rcParams["lines.markersize"], mpl.rcParams["lines.linewidth"]
    factor = SIZES[min(layer, len(SIZES) - 1)]
    drawn = axes.errorbar(
        [x], [mean], [se] if se else None, color=look.colour, marker=look.marker, linestyle="",
        markersize=factor * size, elinewidth=0.6 * factor * line, capthick=0.6 * factor * line,
        capsize=0.75 * factor * size, zorder=3 + 0.01 * layer,
    )  # fmt: skip
    drawn.lines[0].set(markeredgecolor="white", markeredgewidth=0.3 * line)


def published_look() -> dict[str, Any]:
    """Return the look of published values: hollow markers and a thin dotted line."""
    thin, small = 0.55 * mpl.rcParams["lines.linewidth"], 1.1 * mpl.rcParams["lines.markersize"]
    return {"linestyle": ":", "linewidth": thin, "markerfacecolor": "white", "markersize": small}


def _set_metric(axes: Axes, shown: Span, metric: tuple[str, str]) -> None:
    if shown.logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if shown.high / shown.low < 1e3 else (1.0,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylim(shown.low, shown.high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    label_metric(axes, *metric)


def label_metric(axes: Axes, metric: str, more: str = "") -> None:
    """Label the vertical axis. more: text to append if the axis is long enough."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    long = axes.get_position().height * figure.get_size_inches()[1]
    label = axes.set_ylabel(plain(f"{metric}{more}"))
    if text_width(metric + more, label.get_fontsize()) > long:
        axes.set_ylabel(plain(metric))
