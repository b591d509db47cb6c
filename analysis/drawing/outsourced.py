"""Regret by iteration of an outsourced experiment: a page of what is claimed, and one of what is guaranteed.

In all its pictures a published epsilon that is no guarantee is a claimed ε: dashed, in panels of its own. Guaranteed
ones are solid. Hollow markers are published values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import cut_off, metric_axis, span, title
from analysis.drawing.captions import release_in_words
from analysis.drawing.curves import PUBLISHED_LINE, draw_line, entry
from analysis.drawing.families import Families, families
from analysis.drawing.overlay import WORDS, published
from analysis.drawing.page import page
from analysis.drawing.sweeps import Curve
from analysis.load import Setting

GREY = "#444444"


@dataclass(frozen=True)
class Part:
    """A panel: its title and the curves that only it has."""

    title: str
    curves: tuple[Curve, ...]


def by_iteration(groups: Sequence[Setting], claims: str = "") -> list[tuple[str, Figure]]:
    """Names and pictures: what is claimed (epsilon, and r), and what is guaranteed (each transform)."""
    found = families(groups)
    claimed = [Part(f.title, f.curves) for f in (found.claimed, found.columns) if f is not None and len(f.curves) > 1]
    if not claimed and found.claimed is not None:
        claimed = [Part(found.claimed.title, found.claimed.curves)]
    names = dict.fromkeys(f.title for f in found.guaranteed)
    guaranteed = [Part(name, tuple(c for f in found.guaranteed if f.title == name for c in f.curves)) for name in names]
    drawn = []
    if claimed or not guaranteed:
        drawn.append(("regret_by_iteration", _lines(groups, found, claimed or [Part("", ())], claims)))
    if guaranteed:
        drawn.append(("guaranteed_regret_by_iteration", _lines(groups, found, guaranteed, claims)))
    return drawn


def _lines(groups: Sequence[Setting], found: Families, parts: Sequence[Part], claims: str) -> Figure:
    """The panels, the references in each of them."""
    shown = [*(c for part in parts for c in part.curves), *found.references]
    known = {label: p for label, p in published(groups).items() if label in {c.setting.label for c in shown}}
    drawn = [c.setting for c in shown]
    values = [g.curve()["mean"].to_numpy() for g in drawn]
    limits = span(groups, np.concatenate([*values, *([*p.values] for p in known.values())]), headroom=1.3)
    shared = [entry(c) for c in found.references]
    if known:
        shared.append(Line2D([], [], color=GREY, marker="o", label=WORDS, **PUBLISHED_LINE))
    equal = _equal(parts)
    caption = " ".join(filter(None, (release_in_words(drawn), cut_off(drawn, limits), equal, left_out(found), claims)))
    heads = [(part.title, [entry(c) for c in part.curves]) for part in parts]
    figure, all_axes = page(title(groups, "by iteration"), shared, heads, caption)
    for axes, part in zip(all_axes, parts, strict=True):
        curves = (*found.references, *part.curves)
        for i, curve in enumerate(curves):
            draw_line(axes, curve, (i, len(curves)), known.get(curve.setting.label))
        axes.set_xlabel("iteration t (measurements after the first)")
        axes.set_xlim(0, max(g.rounds for g in groups) * 1.01)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        metric_axis(axes, groups, limits)
    for axes in all_axes[1:]:
        axes.set_ylabel("")
    return figure


def _equal(parts: Sequence[Part]) -> str:
    """Which curves lie on each other because their runs are the same, seed by seed."""
    for part in parts:
        by_runs: dict[tuple[tuple[int, tuple[float, ...]], ...], list[str]] = {}
        for curve in part.curves:
            runs = tuple((run.seed, tuple(run.curve)) for run in curve.setting.runs)
            by_runs.setdefault(runs, []).append(curve.label)
        for labels in by_runs.values():
            if len(labels) > 1:
                return f"The same in every run, so that their lines are one: {'; '.join(labels)}."
    return ""


def left_out(found: Families) -> str:
    """A sentence for the caption; empty where all is drawn."""
    return f"Not in the picture: {'; '.join(found.left_out)}." if found.left_out else ""
