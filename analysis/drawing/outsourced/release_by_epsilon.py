"""Regret of an outsourced experiment against epsilon: claimed on one side, guaranteed on the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.drawing.axes import Span, metric_axis, span, title
from analysis.drawing.captions import deltas, release_in_words
from analysis.drawing.curves import name_left_only
from analysis.drawing.outsourced.families import CurveFamily, drawn, families
from analysis.drawing.outsourced.notes import equal_runs, left_out, zeros_at
from analysis.drawing.outsourced.release_by_iteration import Page
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.published_values import WORDS, published
from analysis.drawing.sweeps import Curve
from analysis.drawing.tradeoff import error_bars, hollow
from analysis.load import SettingRuns

LOWEST = 4.0  # a logarithmic axis shows an error down to this part of its mean


@dataclass(frozen=True)
class Side:
    """A panel: its title, the label of its axis, its lines, and what was published of it, by label."""

    head: str
    label: str
    parts: tuple[CurveFamily, ...]
    known: dict[str, float]


def by_epsilon(groups: Sequence[SettingRuns], t: int, style: PageStyle = SCREEN) -> Page:
    """Regret after round t: against the claimed epsilon, and beside it against guaranteed ones."""
    found = families(groups)
    sides = [
        Side("claimed ε, no guarantee", "claimed ε, no guarantee", found.claimed, published_at(groups, t)),
        Side("guaranteed ε", f"ε (guaranteed, δ = {deltas(groups)})", found.guaranteed, {}),
    ]
    sides = [side for side in sides if side.parts]
    shown = drawn([f for side in sides for f in side.parts], found.references)
    known = {label: value for side in sides for label, value in side.known.items()}
    limits = point_span(shown, t, known, headroom=1.6)
    heads = [PanelHead(s.head, entries(s.parts, found.references, s.known), s.label) for s in sides]
    caption = (
        release_in_words(shown), "Horizontal lines: no ε.", equal_runs(shown), zeros_at(shown, t, limits),
        left_out(found.left_out),
    )  # fmt: skip
    text = " ".join(filter(None, caption))
    shared = [reference_entry(c) for c in found.references]
    figure, all_axes = page(title(groups, f"after {t} rounds, against ε"), shared, heads, text, style)
    ticks = sorted({x for side in sides for f in side.parts for x in f.x})
    for axes, side in zip(all_axes, sides, strict=True):
        draw_references(axes, found.references, t, side.known)
        for layer, family in enumerate(side.parts):
            draw_points(axes, family, t, side.known, layer)
        axes.set_xscale("log")
        axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
        metric_axis(axes, groups, limits)
    name_left_only(all_axes)
    return Page("regret_by_epsilon", figure, tuple(shown))


def table(groups: Sequence[SettingRuns], t: int) -> pd.DataFrame:
    """The numbers of the picture, and of the one against r: a row for each setting, and one for a published value."""
    known, rows = published_at(groups, t), []
    for g in groups:
        mean, se = g.at(t)
        claimed = g.first.claimed_epsilon
        kind = "claimed" if claimed is not None else "guaranteed" if g.private else "none"
        epsilon = g.first.config["privacy"]["epsilon"] if g.private else claimed
        what = {"setting": g.label, "round": t, "kind_of_epsilon": kind, "epsilon": epsilon}
        what |= {"delta": None if kind == "none" else g.first.summary["delta"]}
        what |= {"r": g.first.config["transform"].get("r"), "sigma_min": sigma_min(g)}
        rows.append({**what, "source": "run", "mean": mean, "se": se, "seeds": len(g.runs)})
        if g.label in known:
            rows.append({**what, "source": WORDS, "mean": known[g.label]})
    columns = [
        "setting",
        "source",
        "round",
        "kind_of_epsilon",
        "epsilon",
        "delta",
        "r",
        "sigma_min",
        "mean",
        "se",
        "seeds",
    ]
    return pd.DataFrame(rows)[columns].astype({"seeds": "Int64", "r": "Int64"})


def sigma_min(group: SettingRuns) -> float | None:
    """The smallest singular value of the scaled, centred rows over the runs; None where they do not tell."""
    values = [run.summary.get("release", {}).get("sigma_min") for run in group.runs]
    return None if None in values else min(values)


def published_at(groups: Sequence[SettingRuns], t: int) -> dict[str, float]:
    """By label, what was published of round t."""
    return {label: value for label, p in published(groups).items() if (value := p.get(t)) is not None}


def point_span(groups: Sequence[SettingRuns], t: int, known: Mapping[str, float], headroom: float) -> Span:
    """The axis for means with their errors, and published values; on a logarithmic one an error may be cut below."""
    at = [(mean, se or 0.0) for mean, se in (g.at(t) for g in groups)]
    values = np.array([end for mean, se in at for end in (mean, mean + se)])
    values = np.append(values, [known[g.label] for g in groups if g.label in known])
    shown = span(groups, values, headroom)
    below = [max(mean - se, mean / LOWEST) if shown.logarithmic else mean - se for mean, se in at]
    return span(groups, np.append(values, below), headroom)


def entries(parts: Sequence[CurveFamily], references: Sequence[Curve], known: Mapping[str, float]) -> list[Line2D]:
    """The entries of a panel's legend: the lines through points, and what is published."""
    found = [family_entry(f) for f in parts]
    for family in parts:
        if any(c.setting.label in known for c in family.curves):
            look, words = family.style, f"{family.name}, {WORDS}"
            found.append(Line2D([], [], color=look.colour, linestyle="", marker=look.marker, label=words, **hollow()))
    for curve in references:
        if curve.setting.label in known:
            found.append(Line2D([], [], color=curve.style.colour, label=f"{curve.label}, {WORDS}", **thin()))
    return found


def family_entry(family: CurveFamily) -> Line2D:
    """The legend's entry of the line through a family's points."""
    look = family.style
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=family.name)


def reference_entry(curve: Curve) -> Line2D:
    """The legend's entry of a horizontal line."""
    return Line2D([], [], color=curve.style.colour, linestyle=curve.style.line, label=curve.label)


def draw_references(axes: Axes, references: Sequence[Curve], t: int, known: Mapping[str, float]) -> None:
    """Horizontal lines with their errors; a thin dotted one for a published value."""
    for curve in references:
        look, (mean, se) = curve.style, curve.setting.at(t)
        axes.axhline(mean, color=look.colour, linestyle=look.line, zorder=1.5)
        if se:
            axes.axhspan(mean - se, mean + se, color=look.colour, alpha=0.08, linewidth=0)
        if (value := known.get(curve.setting.label)) is not None:
            axes.axhline(value, color=look.colour, zorder=1.4, **thin())


def thin() -> dict[str, Any]:
    """The look of the line of a published value."""
    return {"linestyle": (0.0, (1.0, 4.0)), "linewidth": 0.6 * mpl.rcParams["lines.linewidth"]}


def draw_points(axes: Axes, family: CurveFamily, t: int, known: Mapping[str, float], layer: int = 0) -> None:
    """Draw a family's line through its points with their errors, each exactly at its own number.

    Markers of published values are hollow. layer: the number of families drawn below.
    """
    look, at = family.style, [c.setting.at(t) for c in family.curves]
    means, errors = [mean for mean, _ in at], [se or 0.0 for _, se in at]
    axes.plot(family.x, means, color=look.colour, linestyle=look.line, label=family.name, zorder=2.9)
    for x, mean, error in zip(family.x, means, errors, strict=True):
        error_bars(axes, x, mean, error, look, layer)
    for x, curve in zip(family.x, family.curves, strict=True):
        if (value := known.get(curve.setting.label)) is not None:
            axes.plot([x], [value], color=look.colour, marker=look.marker, linestyle="", zorder=3.5, **hollow())
