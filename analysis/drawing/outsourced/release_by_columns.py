"""Regret of an outsourced experiment against the columns r of the release, at one claimed epsilon."""

import itertools
import math
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from analysis.drawing.axes import metric_axis, title
from analysis.drawing.captions import release_in_words
from analysis.drawing.outsourced.families import drawn, families
from analysis.drawing.outsourced.notes import equal_runs, zeros_at
from analysis.drawing.outsourced.release_by_epsilon import (
    draw_points,
    draw_references,
    entries,
    point_span,
    published_at,
    reference_entry,
    sigma_min,
)
from analysis.drawing.outsourced.release_by_iteration import Page
from analysis.drawing.page import PanelHead, page, text_width
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.load import SettingRuns

SMALL = 0.75  # of the text, the marks above r
NARROW = 5.0  # inches of a page whose marks stand upright, and need more room


def by_columns(groups: Sequence[SettingRuns], t: int, style: PageStyle = SCREEN) -> Page | None:
    """Draw regret after round t against r at one claimed epsilon, and where singular values were raised.

    Returns None without two settings of r.
    """
    found = families(groups)
    parts = found.columns
    ticks = sorted({x for family in parts for x in family.x})
    if len(ticks) < 2:
        return None
    known, shown = published_at(groups, t), drawn(parts, found.references)
    limits = point_span(shown, t, known, headroom=2.2 if style.width > NARROW else 5.0)
    legend = [*(reference_entry(c) for c in found.references), *entries(parts, found.references, known)]
    swept = [c.setting for family in parts for c in family.curves]
    caption = (
        release_in_words(shown), _thresholds(swept), equal_runs(shown), zeros_at(shown, t, limits)
    )  # fmt: skip
    text = " ".join(filter(None, caption))
    epsilon = swept[0].first.claimed_epsilon
    head = PanelHead(x_label=f"columns r of the release (claimed ε = {epsilon:.2f}, no guarantee)")
    figure, (axes,) = page(title(groups, f"after {t} rounds, against r"), legend, [head], text, style)
    draw_references(axes, found.references, t, known)
    for layer, family in enumerate(parts):
        draw_points(axes, family, t, known, layer)
    margin = 0.06 * (ticks[-1] - ticks[0])
    axes.set_xlim(ticks[0] - margin, ticks[-1] + margin)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    metric_axis(axes, groups, limits)
    _mark(axes, swept)
    return Page("regret_by_r", figure, tuple(shown))


def threshold(r: float, epsilon: float, delta: float) -> float:
    """`w = 16 sqrt(r ln(2 / delta)) / eps ln(16 r / delta)`: singular values below it are raised (Algo. 1)."""
    return 16 * math.sqrt(r * math.log(2 / delta)) / epsilon * math.log(16 * r / delta)


def _thresholds(swept: Sequence[SettingRuns]) -> str:
    """A sentence about w, and the smallest singular value where the runs tell it."""
    smallest = [s for group in swept if (s := sigma_min(group)) is not None]
    text = "Singular values below w = 16 √(r ln(2/δ)) / ε · ln(16 r/δ) are raised before the release"
    known = (
        f"the smallest (of all runs) is {min(smallest):.4g}"
        if smallest
        else "these runs do not tell the smallest singular value"
    )
    return f"{text}; {known}."


def _mark(axes: Axes, swept: Sequence[SettingRuns]) -> None:
    """Write w above each r; grey from where the smallest singular value lies below it."""
    w_of: dict[float, list[float]] = {}
    raised: dict[float, bool] = {}
    for group in swept:
        r, w, smallest = float(group.first.config["transform"]["r"]), _threshold(group), sigma_min(group)
        w_of.setdefault(r, []).append(w)
        raised[r] = raised.get(r, False) or (smallest is not None and smallest < w)
    texts = {r: f"w = {' or '.join(dict.fromkeys(f'{w:.0f}' for w in ws))}" for r, ws in w_of.items()}
    upright = _meet(axes, texts)
    for r, text in texts.items():
        axes.annotate(
            text, (r, 0.985), xycoords=axes.get_xaxis_transform(), fontsize=SMALL * mpl.rcParams["font.size"],
            color="#444444", horizontalalignment="center", verticalalignment="top", rotation=90 * upright,
        )  # fmt: skip
    if any(raised.values()):
        below = 0.93 - 0.22 * upright
        _shade(axes, sorted(w_of), min(r for r, there in raised.items() if there), below)


def _meet(axes: Axes, texts: dict[float, str]) -> bool:
    """True where texts at these places would meet if they were written level."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    low, high = axes.get_xlim()
    inches = axes.get_position().width * figure.get_size_inches()[0] / (high - low)
    half = [(r, text_width(text, SMALL * mpl.rcParams["font.size"]) / 2 + 0.02) for r, text in sorted(texts.items())]
    return any((b - a) * inches < one + other for (a, one), (b, other) in itertools.pairwise(half))


def _shade(axes: Axes, r: Sequence[float], first: float, top: float) -> None:
    """Grey from half-way to the first r whose singular values were raised. top: upper end of the words."""
    left, high = axes.get_xlim()
    low = left if first == r[0] else (r[r.index(first) - 1] + first) / 2
    axes.axvspan(low, high, color="#000000", alpha=0.06, linewidth=0)
    axes.annotate(
        "singular values raised", ((low + high) / 2, top), xycoords=axes.get_xaxis_transform(),
        fontsize=0.85 * mpl.rcParams["font.size"], color="#444444", horizontalalignment="center",
        verticalalignment="top",
    )  # fmt: skip


def _threshold(group: SettingRuns) -> float:
    transform = group.first.config["transform"]
    return threshold(transform["r"], transform["epsilon"], transform["delta"])
