"""Regret by iteration of an outsourced experiment: a page of what is claimed, and one of what is guaranteed.

In all its pictures a published epsilon that is no guarantee is a claimed ε: dashed, in panels of its own. Guaranteed
ones are solid. Hollow markers are published values, beside what is claimed only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import cut_off, metric_axis, span, title
from analysis.drawing.captions import release_in_words
from analysis.drawing.curves import draw_line, entry, name_left_only, published_line
from analysis.drawing.outsourced.families import CurveFamilies, CurveFamily, families
from analysis.drawing.outsourced.notes import equal_runs, left_out, zeros_by_round
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.published_values import published
from analysis.drawing.sweeps import Curve
from analysis.load import SettingRuns

GREY = "#444444"
X_LABEL = "iteration t (measurements after the first)"
HOLLOW_WORDS = "published (hollow, the shape and colour of its line)"


@dataclass(frozen=True)
class Part:
    """A panel: its title and the curves that only it has."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Page:
    """A picture, the end of its name, and the settings that are drawn."""

    name: str
    figure: Figure
    settings: tuple[SettingRuns, ...]


def by_iteration(groups: Sequence[SettingRuns], style: PageStyle = SCREEN) -> list[Page]:
    """The page of what is claimed (epsilon, and r), and that of what is guaranteed (each transform)."""
    found = families(groups)
    parts = _parts((*found.claimed, *found.columns))
    claimed = [part for part in parts if len(part.curves) > 1] or parts[:1]
    guaranteed = _parts(found.guaranteed)
    pages = []
    if claimed or not guaranteed:
        known = published(groups)
        pages.append(_lines("regret_by_iteration", groups, found, claimed or [Part("", ())], known, style))
    if guaranteed:
        pages.append(_lines("guaranteed_regret_by_iteration", groups, found, guaranteed, {}, style))
    return pages


def _parts(found: Sequence[CurveFamily]) -> list[Part]:
    """A panel for each title."""
    titles = dict.fromkeys(f.title for f in found)
    return [Part(title, tuple(c for f in found if f.title == title for c in f.curves)) for title in titles]


def _lines(
    name: str, groups: Sequence[SettingRuns], found: CurveFamilies, parts: Sequence[Part],
    published_of: Mapping[str, dict[int, float]], style: PageStyle,
) -> Page:  # fmt: skip
    """The panels, the references in each of them. published_of: by label, what was published."""
    curves = [*(c for part in parts for c in part.curves), *found.references]
    drawn = list({c.setting.label: c.setting for c in curves}.values())
    known = {g.label: published_of[g.label] for g in drawn if g.label in published_of}
    values = [g.curve()["mean"].to_numpy() for g in drawn]
    limits = span(groups, np.concatenate([*values, *([*p.values()] for p in known.values())]), headroom=1.3)
    shared = [entry(c) for c in found.references]
    if known:
        shared.append(
            Line2D([], [], color=GREY, marker="o", label=HOLLOW_WORDS, **published_line() | {"linestyle": ""})
        )
    caption = (
        release_in_words(drawn), cut_off(drawn, limits), equal_runs(drawn), zeros_by_round(drawn, limits),
        left_out(found.left_out),
    )  # fmt: skip
    heads = [PanelHead(part.title, [entry(c) for c in part.curves], X_LABEL) for part in parts]
    text = " ".join(filter(None, caption))
    figure, all_axes = page(title(groups, "by iteration"), shared, heads, text, style)
    for axes, part in zip(all_axes, parts, strict=True):
        shown = (*found.references, *part.curves)
        for i, curve in enumerate(shown):
            draw_line(axes, curve, (i, len(shown)), known.get(curve.setting.label))
        axes.set_xlim(0, max(g.rounds for g in groups) * 1.01)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        metric_axis(axes, groups, limits)
    name_left_only(all_axes)
    return Page(name, figure, tuple(drawn))
