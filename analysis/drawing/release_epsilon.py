"""Regret of an outsourced experiment against epsilon: claimed on one side, guaranteed on the other."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.drawing.axes import metric_axis, span, title
from analysis.drawing.captions import deltas, release_in_words
from analysis.drawing.families import Family, families
from analysis.drawing.looks import plain
from analysis.drawing.outsourced import GREY, left_out
from analysis.drawing.overlay import WORDS, published
from analysis.drawing.page import page
from analysis.drawing.sweeps import Curve
from analysis.drawing.tradeoff import HOLLOW
from analysis.load import Setting


def by_epsilon(groups: Sequence[Setting], t: int, claims: str = "") -> Figure:
    """Regret after round t: against the claimed epsilon, and beside it against guaranteed ones."""
    found = families(groups)
    sides: list[tuple[str, str, list[Family]]] = []
    if found.claimed is not None:
        sides.append(("claimed ε, no guarantee", "claimed ε, no guarantee", [found.claimed]))
    if found.guaranteed:
        sides.append(("guaranteed ε", f"ε (guaranteed, δ = {deltas(groups)})", list(found.guaranteed)))
    known = published_at(groups, t)
    drawn = [c.setting for _, _, parts in sides for f in parts for c in f.curves]
    drawn += [c.setting for c in found.references]
    limits = span(groups, ends(drawn, t, known), headroom=1.6)
    heads = [(head, [family_entry(f) for f in parts]) for head, _, parts in sides]
    caption = " ".join(filter(None, (release_in_words(drawn), "Horizontal lines: no ε.", left_out(found), claims)))
    shared = reference_entries(found.references, known)
    figure, all_axes = page(title(groups, f"after {t} rounds, against ε"), shared, heads, caption)
    ticks = sorted({x for _, _, parts in sides for f in parts for x in f.x})
    for axes, (_, label, parts) in zip(all_axes, sides, strict=True):
        draw_references(axes, found.references, t, known)
        for family in parts:
            draw_points(axes, family, t, known)
        axes.set_xlabel(plain(label))
        axes.set_xscale("log")
        axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        metric_axis(axes, groups, limits)
    for axes in all_axes[1:]:
        axes.set_ylabel("")
    return figure


def table(groups: Sequence[Setting], t: int) -> pd.DataFrame:
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


def sigma_min(group: Setting) -> float | None:
    """The smallest singular value of the scaled, centred rows over the runs; None where they do not tell."""
    values = [run.summary.get("release", {}).get("sigma_min") for run in group.runs]
    return None if None in values else min(values)


def published_at(groups: Sequence[Setting], t: int) -> dict[str, float]:
    """By label, what was published of round t."""
    return {label: value for label, p in published(groups).items() if (value := p.at(t)) is not None}


def ends(groups: Sequence[Setting], t: int, known: Mapping[str, float]) -> np.ndarray:
    """What the axis must show: means with their errors, and published values."""
    at = [g.at(t) for g in groups]
    values = [value for mean, se in at for value in (mean, mean + (se or 0.0))]
    return np.array([*values, *(known[g.label] for g in groups if g.label in known)])


def family_entry(family: Family) -> Line2D:
    """Of the legend: the line through a family's points."""
    look = family.style
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=family.name)


def reference_entries(references: Sequence[Curve], known: Mapping[str, float]) -> list[Line2D]:
    """Of the legend: the horizontal lines, and what hollow markers are."""
    found = [Line2D([], [], color=c.style.colour, linestyle=c.style.line, label=c.label) for c in references]
    if known:
        found.append(Line2D([], [], color=GREY, linestyle="", marker="o", label=WORDS, **HOLLOW))
    return found


def draw_references(axes: Axes, references: Sequence[Curve], t: int, known: Mapping[str, float]) -> None:
    """Horizontal lines with their errors; a hollow marker at the right for a published value."""
    for curve in references:
        look, (mean, se) = curve.style, curve.setting.at(t)
        axes.axhline(mean, color=look.colour, linestyle=look.line, zorder=1.5)
        if se:
            axes.axhspan(mean - se, mean + se, color=look.colour, alpha=0.08, linewidth=0)
        if (value := known.get(curve.setting.label)) is not None:
            axes.plot(
                [0.985], [value], transform=axes.get_yaxis_transform(), color=look.colour, marker=look.marker, **HOLLOW
            )


def draw_points(axes: Axes, family: Family, t: int, known: Mapping[str, float]) -> None:
    """A family's line through its points with their errors; hollow markers for published values."""
    look, at = family.style, [c.setting.at(t) for c in family.curves]
    means, errors = [mean for mean, _ in at], [se or 0.0 for _, se in at]
    axes.errorbar(
        family.x, means, errors, color=look.colour, linestyle=look.line, marker=look.marker, markersize=6, capsize=3
    )
    for x, curve in zip(family.x, family.curves, strict=True):
        if (value := known.get(curve.setting.label)) is not None:
            axes.plot([x], [value], color=look.colour, marker=look.marker, linestyle="", zorder=3.5, **HOLLOW)
