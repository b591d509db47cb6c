"""Regret of an outsourced experiment against epsilon (claimed or guaranteed) and against r (released columns)."""

import math
from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from analysis.drawing import picture
from analysis.drawing.by_iteration import Page
from analysis.drawing.captions import deltas, equal_runs, joined, left_out, release_in_words, zeros
from analysis.drawing.families import CurveFamily, families
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.sweeps import Curve
from analysis.evidence.claim import published_values
from analysis.load import SettingRuns

SMALL = 0.75  # size of the marks above r, relative to the text
NEAR = 0.1  # least distance of ticks, as a share of a logarithmic axis, so that their labels do not touch
NARROW = 5.0  # largest width in inches of a page whose marks need more room


def releases_by_epsilon(groups: Sequence[SettingRuns], t: int, style: PageStyle = SCREEN) -> Page:
    """Draw regret after round t against epsilon.

    Settings with a guaranteed epsilon and settings with a claimed epsilon have separate panels. A claimed epsilon is
    published in a paper, but not guaranteed.
    """
    found, known, lower = families(groups), published_values(groups), groups[0].first.summary["lower_is_better"]
    claimed, guaranteed = "claimed ε, no guarantee", f"ε (guaranteed, δ = {deltas(groups)})"
    sides = [(claimed, claimed, found.claimed, known), ("guaranteed ε", guaranteed, found.guaranteed, {})]
    sides = [side for side in sides if side[2]]
    series = [_series(parts, found.references, t, values) for _, _, parts, values in sides]
    drawn = _settings([f for side in sides for f in side[2]], found.references)
    shown = picture.span([one for several in series for one in several], lower, 1.6)
    ticks = sorted({x for side in sides for f in side[2] for x in f.x})
    panels = [
        picture.PicturePanel(
            head, several, picture.XAxis(label, ticks[0] / 1.25, ticks[-1] * 1.25, True, _apart(ticks), ".2f"), shown
        )
        for (head, label, _, _), several in zip(sides, series, strict=True)
    ]
    words = release_in_words(drawn), "Horizontal lines: no ε.", equal_runs(drawn), zeros(drawn, shown.logarithmic, t)
    text = joined(*words, left_out(found.left_out))
    figure = picture.picture(
        picture.title(groups, f"after {t} rounds, against ε"), panels, text, picture.metric_label(groups), style
    )
    return Page("regret_by_epsilon", figure, tuple(drawn))


def releases_by_columns(groups: Sequence[SettingRuns], t: int, style: PageStyle = SCREEN) -> Page | None:
    """Draw regret after round t against r, the number of released columns; None if there is only one r.

    Each claimed epsilon has a panel. Above each r stands the `threshold` w of the singular values.
    """
    found, lower, known = families(groups), groups[0].first.summary["lower_is_better"], published_values(groups)
    ticks = sorted({x for family in found.columns for x in family.x})
    if len(ticks) < 2:
        return None
    by_title: dict[str, list[CurveFamily]] = {}
    for family in found.columns:
        by_title.setdefault(family.title, []).append(family)
    sides = [_series(parts, found.references, t, known) for parts in by_title.values()]
    drawn = _settings(found.columns, found.references)
    shown = picture.span([one for side in sides for one in side], lower, 2.5 if style.width > NARROW else 5.0)
    swept = [[c.setting for family in parts for c in family.curves] for parts in by_title.values()]
    panels = []
    for side, settings, parts in zip(sides, swept, by_title.values(), strict=True):
        epsilon = f"claimed ε = {settings[0].first.claimed_epsilon:.2f}, no guarantee"
        label = "columns r" if len(sides) > 1 else f"columns r of the release ({epsilon})"
        own = sorted({x for family in parts for x in family.x})
        margin = 0.06 * (own[-1] - own[0])
        axis = picture.XAxis(label, own[0] - margin, own[-1] + margin, ticks=own)
        panels.append(picture.PicturePanel(epsilon if len(sides) > 1 else "", side, axis, shown))
    every = [g for settings in swept for g in settings]
    words = release_in_words(drawn), _thresholds(every), equal_runs(drawn), zeros(drawn, shown.logarithmic, t)
    heading = picture.title(groups, f"after {t} rounds, against r")
    figure = picture.picture(heading, panels, joined(*words), picture.metric_label(groups), style)
    for axes, settings, panel in zip(figure.axes, swept, panels, strict=True):
        _mark(axes, settings, panel.x.ticks)
    return Page("regret_by_r", figure, tuple(drawn))


def table(groups: Sequence[SettingRuns], t: int) -> pd.DataFrame:
    """Return the numbers of the picture: a row for each setting, and a second row for its published mean, if any.

    The column `r` is the number of released columns.
    """
    known, rows = published_values(groups), []
    for g in groups:
        mean, se = g.at(t)
        claimed = g.first.claimed_epsilon
        kind = "claimed" if claimed is not None else "guaranteed" if g.private else "none"
        what = {
            "setting": g.label, "source": "run", "round": t, "kind_of_epsilon": kind,
            "epsilon": g.first.config["privacy"]["epsilon"] if g.private else claimed,
            "delta": None if kind == "none" else g.first.summary["delta"],
            "r": g.first.config["transform"].get("r"), "sigma_min": sigma_min(g),
        }  # fmt: skip
        rows.append({**what, "mean": mean, "se": se, "seeds": len(g.runs)})
        if t in known.get(g.label, {}):
            rows.append({**what, "source": "published", "mean": known[g.label][t]})
    return pd.DataFrame(rows).astype({"seeds": "Int64", "r": "Int64"})


def sigma_min(group: SettingRuns) -> float | None:
    """Return the smallest `sigma_min` that the runs recorded; None if a run recorded none.

    sigma_min is the least singular value of a table's scaled, centred rows.
    """
    values = [run.summary.get("release", {}).get("sigma_min") for run in group.runs]
    return None if None in values else min(values)


def threshold(r: float, epsilon: float, delta: float) -> float:
    """Return the threshold w = 16 sqrt(r ln(2 / delta)) / epsilon * ln(16 r / delta).

    If any singular value of the rows is below w, all singular values are increased before the release of r columns.
    """
    return 16 * math.sqrt(r * math.log(2 / delta)) / epsilon * math.log(16 * r / delta)


def _series(
    parts: Sequence[CurveFamily], references: Sequence[Curve], t: int, known: dict[str, dict[float, float]]
) -> list[picture.Series]:
    found = [picture.points([c.setting], t, [0.0], c.label, c.style, picture.LEVEL, known) for c in references]
    return found + [
        picture.points([c.setting for c in f.curves], t, f.x, f.name, f.style, picture.JOINED, known) for f in parts
    ]


def _settings(parts: Sequence[CurveFamily], references: Sequence[Curve]) -> list[SettingRuns]:
    curves = [*(c for family in parts for c in family.curves), *references]
    return list({c.setting.label: c.setting for c in curves}.values())


def _apart(ticks: Sequence[float]) -> list[float]:
    """Leave out each tick of a logarithmic axis that is too near the last kept tick."""
    kept = [ticks[0]]
    for tick in ticks[1:]:
        if math.log(tick / kept[-1]) >= NEAR * math.log(ticks[-1] / ticks[0]):
            kept.append(tick)
    return kept


def _thresholds(swept: Sequence[SettingRuns]) -> str:
    smallest = [s for group in swept if (s := sigma_min(group)) is not None]
    known = f"is {min(smallest):.4g}" if smallest else "is not in these runs"
    text = "If any singular value is below w = 16 √(r ln(2/δ)) / ε · ln(16 r/δ), all are raised"
    return f"{text} before the release (grey); the smallest of all runs {known}."


def _mark(axes: Axes, swept: Sequence[SettingRuns], ticks: Sequence[float]) -> None:
    """Write the threshold w above each r; shade the range of r in which w exceeds the smallest singular value.

    r is the number of released columns, w the `threshold` for r. In the shaded range, all singular values of the data
    are increased before the release.
    """
    w_of: dict[float, list[str]] = {}
    raised = []
    for group in swept:
        transform, smallest = group.first.config["transform"], sigma_min(group)
        w = threshold(transform["r"], transform["epsilon"], transform["delta"])
        w_of.setdefault(transform["r"], []).append(f"{w:.0f}")
        if smallest is not None and smallest < w:
            raised.append(float(transform["r"]))
    for r, texts in w_of.items():
        axes.annotate(
            f"w = {' or '.join(dict.fromkeys(texts))}", (r, 0.985), xycoords=axes.get_xaxis_transform(), rotation=90,
            color=picture.GREY, fontsize=SMALL * mpl.rcParams["font.size"], verticalalignment="top",
            horizontalalignment="center",
        )  # fmt: skip
    if raised:
        left, right = axes.get_xlim()
        before = [r for r in ticks if r < min(raised)]
        axes.axvspan((before[-1] + min(raised)) / 2 if before else left, right, color="black", alpha=0.06, linewidth=0)
