"""Regret of an outsourced experiment against the columns r of the release, at one claimed epsilon."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from analysis.drawing.axes import metric_axis, span, title
from analysis.drawing.captions import release_in_words
from analysis.drawing.families import Family, families
from analysis.drawing.looks import plain
from analysis.drawing.page import page
from analysis.drawing.release_epsilon import (
    draw_points,
    draw_references,
    ends,
    family_entry,
    published_at,
    reference_entries,
    sigma_min,
)
from analysis.load import Setting


def by_columns(groups: Sequence[Setting], t: int, claims: str = "") -> Figure | None:
    """Regret after round t against r at one claimed epsilon, and where singular values were raised; None without two
    settings of r."""
    found = families(groups)
    family = found.columns
    if family is None or len(set(family.x)) < 2:
        return None
    known = published_at(groups, t)
    drawn = [*(c.setting for c in family.curves), *(c.setting for c in found.references)]
    limits = span(groups, ends(drawn, t, known), headroom=2.2)
    shared = [family_entry(family), *reference_entries(found.references, known)]
    caption = " ".join(filter(None, (release_in_words(drawn), _thresholds(family), claims)))
    figure, (axes,) = page(title(groups, f"after {t} rounds, against r"), shared, [("", [])], caption)
    draw_references(axes, found.references, t, known)
    draw_points(axes, family, t, known)
    ticks = sorted(set(family.x))
    margin = 0.06 * (ticks[-1] - ticks[0])
    axes.set_xlim(ticks[0] - margin, ticks[-1] + margin)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    epsilon = family.curves[0].setting.first.claimed_epsilon
    axes.set_xlabel(plain(f"columns r of the release (claimed ε = {epsilon:.2f}, no guarantee)"))
    metric_axis(axes, groups, limits)
    _mark(axes, family)
    return figure


def threshold(r: float, epsilon: float, delta: float) -> float:
    """`w = 16 sqrt(r ln(2 / delta)) / eps ln(16 r / delta)`: singular values below it are raised (Algo. 1)."""
    return 16 * math.sqrt(r * math.log(2 / delta)) / epsilon * math.log(16 * r / delta)


def _thresholds(family: Family) -> str:
    """What w is, and the smallest singular value where the runs tell it."""
    smallest = {s for c in family.curves if (s := sigma_min(c.setting)) is not None}
    text = "Singular values below w = 16 √(r ln(2/δ)) / ε · ln(16 r/δ) are raised before the release"
    return f"{text}; the smallest is {min(smallest):.4g}." if smallest else f"{text}."


def _mark(axes: Axes, family: Family) -> None:
    """w above each r; grey from where the smallest singular value lies below it."""
    w = [_threshold(c.setting) for c in family.curves]
    for x, value in zip(family.x, w, strict=True):
        axes.annotate(
            f"w = {value:.0f}", (x, 0.985), xycoords=axes.get_xaxis_transform(), fontsize=7.5, color="#444444",
            horizontalalignment="center", verticalalignment="top",
        )  # fmt: skip
    smallest = [sigma_min(c.setting) for c in family.curves]
    raised = [s is not None and s < value for s, value in zip(smallest, w, strict=True)]
    if any(raised):
        first = raised.index(True)
        low, high = (
            axes.get_xlim()[0] if first == 0 else (family.x[first - 1] + family.x[first]) / 2,
            axes.get_xlim()[1],
        )
        axes.axvspan(low, high, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate(
            "singular values raised", ((low + high) / 2, 0.93), xycoords=axes.get_xaxis_transform(), fontsize=8.5,
            color="#444444", horizontalalignment="center", verticalalignment="top",
        )  # fmt: skip


def _threshold(group: Setting) -> float:
    transform = group.first.config["transform"]
    return threshold(transform["r"], transform["epsilon"], transform["delta"])
