"""Regret by epsilon: a point with its error bar for each private setting, a horizontal line for the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.drawing.axes import Span, metric_axis, span, title
from analysis.drawing.captions import (
    ACCOUNTANT,
    accountant_in_words,
    accountant_of,
    deltas,
    settings_in_words,
    with_epsilon,
)
from analysis.drawing.curves import name_left_only
from analysis.drawing.looks import Style
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.published_values import WORDS, published
from analysis.drawing.sweeps import Curve, panels
from analysis.load import LoadError, SettingRuns

LOGARITHMIC_FROM = 12.0  # ratio of the largest to the smallest epsilon
CLOSE = 1.02  # ratio of epsilons whose points may lie on each other
SIZES = (2.0, 1.55, 1.3)  # of markers that may lie on each other, the lowest first, in those of lines


@dataclass(frozen=True)
class TradeoffPoint:
    """A setting after round t. accountant: the axis', or the run's own where the axis' does not apply to it."""

    setting: SettingRuns
    epsilon: float | None
    accountant: str
    mean: float
    se: float

    @property
    def horizontal(self) -> bool:
        return not self.epsilon  # 0, or none finite

    @property
    def x(self) -> float:
        return self.epsilon or 0.0


def points(groups: Sequence[SettingRuns], t: int, accountant: str) -> dict[str, TradeoffPoint]:
    """By label. Raises LoadError where no private setting was run with the accountant."""
    check_accountant(groups, accountant)
    found = {}
    for group in groups:
        own = accountant_of(group, accountant)
        mean, se = group.at(t)
        found[group.label] = TradeoffPoint(group, epsilon_at(group, t, own), own, mean, se or 0.0)
    return found


def check_accountant(groups: Sequence[SettingRuns], accountant: str) -> None:
    """Raise LoadError for an accountant that no setting has."""
    names = {name for g in groups for name in g.first.summary["epsilon"]}
    if accountant not in names:
        raise LoadError(f"accountant must be one that the runs have ({', '.join(sorted(names))}), got {accountant!r}")


def regret_by_epsilon(
    groups: Sequence[SettingRuns], t: int, accountant: str = ACCOUNTANT, style: PageStyle = SCREEN
) -> Figure:
    """The points at the epsilon spent by round t; the way there, faintly."""
    parts, found = panels(groups), points(groups, t, accountant)
    known = {label: value for label, p in published(groups).items() if (value := p.get(t)) is not None}
    shared = [_entry(c, found, accountant) for c in parts[0].curves if c.everywhere]
    if known:
        shared.append(Line2D([], [], color="#444444", marker="o", linestyle=":", label=WORDS, **hollow()))
    x_label = f"privacy loss ε ({accountant_in_words(accountant)} accountant, δ = {deltas(groups)})"
    heads = [
        PanelHead(p.title, [_entry(c, found, accountant) for c in p.curves if not c.everywhere], x_label) for p in parts
    ]
    what = f"after {t} rounds, against privacy loss"
    ends = [end for p in found.values() for end in (p.mean - p.se, p.mean, p.mean + p.se)]
    shown = span(groups, np.array([*ends, *known.values()]), headroom=2.0)
    caption = f"{settings_in_words(groups, accountant)} {_note(t, found, known, accountant, shown)}"
    figure, all_axes = page(title(groups, what), shared, heads, caption, style)
    for axes, part in zip(all_axes, parts, strict=True):
        _draw(axes, [(c, found[c.setting.label]) for c in part.curves], t)
        for curve in part.curves:
            if curve.setting.label in known:
                _draw_published(axes, curve, found[curve.setting.label], known[curve.setting.label])
        _epsilon_axis(axes, [p.x for p in found.values() if not p.horizontal])
        metric_axis(axes, groups, shown)
    name_left_only(all_axes)
    return figure


def hollow() -> dict[str, Any]:
    """The look of published points."""
    size, thin = 1.2 * mpl.rcParams["lines.markersize"], 0.55 * mpl.rcParams["lines.linewidth"]
    return {"markerfacecolor": "white", "markersize": size, "linewidth": thin}


def error_bars(axes: Axes, x: float, mean: float, se: float, look: Style, layer: int) -> None:
    """A point exactly where it is. layer: the number of points below it at (nearly) the same place.

    Later points are smaller, with narrower caps, thinner bars and a white edge, so that those below are seen.
    """
    size, line = mpl.rcParams["lines.markersize"], mpl.rcParams["lines.linewidth"]
    factor = SIZES[min(layer, len(SIZES) - 1)]
    drawn = axes.errorbar(
        [x], [mean], [se] if se else None, color=look.colour, marker=look.marker, linestyle="",
        markersize=factor * size, elinewidth=0.6 * factor * line, capthick=0.6 * factor * line,
        capsize=0.75 * factor * size, zorder=3 + 0.01 * layer,
    )  # fmt: skip
    drawn.lines[0].set(markeredgecolor="white", markeredgewidth=0.3 * line)


def layers(xs: Sequence[float]) -> list[int]:
    """For each point, the number of earlier ones at nearly the same epsilon."""
    close = lambda a, b: max(a, b) <= CLOSE * min(a, b)
    return [sum(close(x, before) for before in xs[:i]) for i, x in enumerate(xs)]


def table(groups: Sequence[SettingRuns], t: int, accountant: str = ACCOUNTANT) -> pd.DataFrame:
    """The numbers of the picture: the points (round t) and the rounds before, where their epsilon is known."""
    known, rows = published(groups), []
    for label, point in points(groups, t, accountant).items():
        group, curve = point.setting, point.setting.curve()
        common = {"setting": label, "source": "run", "accountant": point.accountant, "seeds": len(group.runs)}
        common["delta"] = group.first.summary["delta"] if group.private else None
        way = [] if point.horizontal else list(enumerate(trajectory(group, t, point.accountant)[0]))[:t]
        for round, epsilon in [*way, (t, point.epsilon)]:
            at = {"round": round, "epsilon": epsilon, "mean": curve["mean"][round], "se": curve["se"][round]}
            rows.append({**common, **at})
        if label in known and (value := known[label].get(t)) is not None:
            rows.append({"setting": label, "source": WORDS, "round": t, "mean": value})
    columns = ["setting", "source", "round", "epsilon", "accountant", "delta", "mean", "se", "seeds"]
    return pd.DataFrame(rows)[columns].astype({"seeds": "Int64"})


def epsilon_at(group: SettingRuns, t: int, accountant: str) -> float | None:
    """Epsilon by an accountant of all that was released before the query of round t; None: none finite."""
    epsilon = group.epsilon(accountant)
    if t == group.rounds or not epsilon:
        return epsilon
    if group.first.summary["accountant"] != accountant:
        raise LoadError(f"{group.label!r} has its {accountant} epsilon at the end only: leave out --round")
    return max(run.epsilon_spent[t] for run in group.runs)


def trajectory(group: SettingRuns, t: int, accountant: str = ACCOUNTANT) -> tuple[list[float], list[float]]:
    """Epsilon spent and regret at rounds 0..t; empty where another accountant than this reported the rounds."""
    if group.first.summary["accountant"] != accountant:
        return [], []
    return group.first.epsilon_spent[: t + 1], group.curve()["mean"].tolist()[: t + 1]


def _epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> None:
    """From 0; logarithmic where the points would not be told apart."""
    low, high = (min(epsilons), max(epsilons)) if epsilons else (1.0, 1.0)
    if high / low > LOGARITHMIC_FROM:
        axes.set_xscale("log")
        axes.set_xlim(low / 2, 1.4 * high)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_xlim(0, 1.1 * high)


def _draw(axes: Axes, drawn: Sequence[tuple[Curve, TradeoffPoint]], t: int) -> None:
    layer_of = layers([point.x for _, point in drawn])
    line = mpl.rcParams["lines.linewidth"]
    for (curve, point), layer in zip(drawn, layer_of, strict=True):
        look = curve.style
        if point.horizontal:
            axes.axhline(point.mean, color=look.colour, linestyle=look.line, zorder=1.5)
            axes.axhspan(point.mean - point.se, point.mean + point.se, color=look.colour, alpha=0.08, linewidth=0)
            continue
        way = trajectory(curve.setting, t, point.accountant)
        axes.plot(*way, color=look.colour, linestyle=look.line, alpha=0.45, linewidth=0.75 * line)
        error_bars(axes, point.x, point.mean, point.se, look, layer)


def _draw_published(axes: Axes, curve: Curve, point: TradeoffPoint, value: float) -> None:
    """A hollow marker at the epsilon that the setting has here; a dotted line where it is not private."""
    look = {"color": curve.style.colour, "marker": curve.style.marker, **hollow()}
    if point.horizontal:
        axes.axhline(value, color=curve.style.colour, linestyle=":", linewidth=look["linewidth"], zorder=1.4)
        axes.plot([0.985], [value], transform=axes.get_yaxis_transform(), **look)
    else:
        axes.plot([point.x], [value], linestyle="", zorder=3.5, **look)


def _entry(curve: Curve, found: dict[str, TradeoffPoint], accountant: str) -> Line2D:
    look, point = curve.style, found[curve.setting.label]
    if point.horizontal:
        nothing = "ε = 0, nothing shared"
        why = nothing if point.epsilon == 0 else "no noise" if curve.setting.private else "not private"
        return Line2D([], [], color=look.colour, linestyle=look.line, label=f"{curve.label} ({why})")
    label = with_epsilon(curve.label, point.setting, point.epsilon, accountant)
    size = SIZES[1] * mpl.rcParams["lines.markersize"]
    return Line2D([], [], color=look.colour, linestyle="", marker=look.marker, markersize=size, label=label)


def _note(t: int, found: dict[str, TradeoffPoint], known: dict[str, float], accountant: str, shown: Span) -> str:
    private = [point for point in found.values() if not point.horizontal]
    if not private:
        return f"Horizontal lines: after {t} rounds."
    text = f"Points and horizontal lines: after {t} rounds."
    ways = [trajectory(point.setting, t, point.accountant)[1] for point in private]
    if any(ways):
        text += " Faint lines: the rounds before, as ε is spent"
        text += "; the first are outside the picture." if _cut(ways, shown) else "."
    if known:
        text += " Hollow: published"
        text += "." if accountant == "moments" else ", at the ε of the same q and z here (its own is by moments)."
    return text


def _cut(ways: Sequence[Sequence[float]], shown: Span) -> bool:
    return any(not shown.low <= value <= shown.high for way in ways for value in way)
