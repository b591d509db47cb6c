"""Regret by iteration: the mean over the seeds with a band of one standard error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing import captions
from analysis.drawing.families import CurveFamilies, families
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.picture import PicturePanel, Span, XAxis, curve, metric_label, picture, span, title
from analysis.drawing.sweeps import Curve, SweepPanel, panels
from analysis.evidence.claim import published_values
from analysis.load import SettingRuns
from dpfbo.formats.summary import NOISE

BEFORE = 6  # a linear axis spans the rounds after the first sixth of all; earlier values may lie outside
X_LABEL = "iteration t (rounds after the initial points)"


@dataclass(frozen=True)
class Page:
    """A picture, the end of its file name, and the settings in it."""

    name: str
    figure: Figure
    settings: tuple[SettingRuns, ...]


def regret_by_iteration(
    groups: Sequence[SettingRuns], accountant: str = captions.ACCOUNTANT, style: PageStyle = SCREEN
) -> Figure:
    """Draw regret by iteration; the legend states the epsilon of each private setting after its last round."""

    def label(one: Curve) -> str:
        epsilon = one.setting.epsilon(captions.accountant_of(one.setting, accountant))
        return captions.with_epsilon(one.label, one.setting, epsilon, accountant)

    def caption(shown: Span) -> str:
        return captions.joined(captions.settings_in_words(groups, accountant), captions.cut_off(groups, shown))

    return _drawn(panels(groups), groups, published_values(groups), X_LABEL, label, caption, style)


def releases_by_iteration(groups: Sequence[SettingRuns], style: PageStyle = SCREEN) -> list[Page]:
    """Draw the settings with a claimed epsilon on one page, and those with a guaranteed epsilon on another.

    Each panel of the first page compares either claimed epsilons or values of r, the number of released columns.
    Settings without an epsilon are in every panel. If no setting has a guaranteed epsilon, only the first page is
    drawn. If some settings have a guaranteed epsilon, but none has a claimed epsilon, only the second page is drawn.
    """
    found = families(groups)
    claimed, guaranteed = found.by_title((*found.claimed, *found.columns)), found.by_title(found.guaranteed)
    claimed = [part for part in claimed if len(part.curves) > 1] or claimed[:1]
    pages = []
    if claimed or not guaranteed:
        parts = claimed or [SweepPanel("", ())]
        pages.append(_page("regret_by_iteration", parts, found, published_values(groups), style))
    if guaranteed:
        pages.append(_page("guaranteed_regret_by_iteration", guaranteed, found, {}, style))
    return pages


def _page(
    name: str, parts: Sequence[SweepPanel], found: CurveFamilies, known: dict[str, dict[float, float]], style: PageStyle
) -> Page:
    parts = [SweepPanel(part.title, (*found.references, *part.curves)) for part in parts]
    drawn = list({c.setting.label: c.setting for part in parts for c in part.curves}.values())

    def caption(shown: Span) -> str:
        text = (
            captions.release_in_words(drawn),
            captions.cut_off(drawn, shown),
            captions.equal_runs(drawn),
            captions.zeros(drawn, shown.logarithmic),
        )
        return captions.joined(*text, captions.left_out(found.left_out))

    x_label = "iteration t (measurements after the first)"
    figure = _drawn(parts, drawn, known, x_label, lambda one: one.label, caption, style)
    return Page(name, figure, tuple(drawn))


def _drawn(
    parts: Sequence[SweepPanel], groups: Sequence[SettingRuns], known: dict[str, dict[float, float]], x_label: str,
    label: Callable[[Curve], str], caption: Callable[[Span], str], style: PageStyle,
) -> Figure:  # fmt: skip
    series = [[curve(c.setting, label(c), c.style, known.get(c.setting.label, {})) for c in p.curves] for p in parts]
    T = max(g.rounds for g in groups)
    everything = [one for several in series for one in several]
    shown = span(everything, groups[0].first.summary["lower_is_better"], 1.3, T // BEFORE)
    x = XAxis(x_label, 0, 1.01 * T, integer=True)
    drawn = [PicturePanel(part.title, several, x, shown) for part, several in zip(parts, series, strict=True)]
    return picture(title(groups, "by iteration"), drawn, caption(shown), metric_label(groups), style)


def table(groups: Sequence[SettingRuns]) -> pd.DataFrame:
    """Return the numbers of the picture, with a row for each setting and round."""
    frames = [
        g.curve().reset_index().assign(setting=g.label, seeds=len(g.runs), source="run", **g.noise) for g in groups
    ]
    for label, values in published_values(groups).items():
        known = {"round": [*values], "mean": [*values.values()], "setting": label, "source": "published"}
        frames.append(pd.DataFrame(known))
    columns = ["setting", "source", *NOISE, "round", "mean", "se", "seeds"]
    return pd.concat(frames, ignore_index=True)[columns].astype({"seeds": "Int64"})
