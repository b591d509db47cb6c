"""Regret by epsilon: a point with its error bar for each private setting, a horizontal line for the others."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing import captions
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.picture import (
    LEVEL,
    POINT,
    PicturePanel,
    Series,
    XAxis,
    metric_label,
    picture,
    points,
    span,
    title,
)
from analysis.drawing.published_values import WORDS, published
from analysis.drawing.sweeps import Curve, panels
from analysis.load import LoadError, SettingRuns

LOGARITHMIC_FROM = 12.0  # ratio of the largest to the smallest epsilon


def spent(group: SettingRuns, t: int, accountant: str) -> tuple[float | None, list[float]]:
    """Epsilon of all that was released before the query of round t, and before the rounds until then.

    By the accountant or, where that does not apply, the setting's own. 0 where nothing was shared, None where none is
    finite; no earlier rounds where another accountant reported them. Raises LoadError where the runs do not tell.
    """
    own = captions.accountant_of(group, accountant)
    epsilon, reported = group.epsilon(own), group.first.summary["accountant"] == own
    if epsilon and t < group.rounds:
        if not reported:
            raise LoadError(f"{group.label!r} has its {own} epsilon after {group.rounds} rounds only, not after {t}")
        epsilon = max(run.epsilon_spent[t] for run in group.runs)
    return epsilon, group.first.epsilon_spent[: t + 1] if epsilon and reported else []


def check_accountant(groups: Sequence[SettingRuns], accountant: str) -> None:
    """Raise LoadError for an accountant that no setting has."""
    names = {name for g in groups for name in g.first.summary["epsilon"]}
    if accountant not in names:
        raise LoadError(f"accountant must be one that the runs have ({', '.join(sorted(names))}), got {accountant!r}")


def regret_by_epsilon(
    groups: Sequence[SettingRuns], t: int, accountant: str = captions.ACCOUNTANT, style: PageStyle = SCREEN
) -> Figure:
    """Draw each setting's point at the epsilon spent by round t, and faintly the points of earlier rounds."""
    check_accountant(groups, accountant)
    parts, known = panels(groups), published(groups)
    at = {g.label: spent(g, t, accountant) for g in groups}

    def series(one: Curve) -> Series:
        group, (epsilon, before) = one.setting, at[one.setting.label]
        if not epsilon:
            nothing = "ε = 0, nothing shared"
            why = nothing if epsilon == 0 else "no noise" if group.private else "not private"
            return points([group], t, [0.0], f"{one.label} ({why})", one.style, LEVEL, known)
        label = captions.with_epsilon(one.label, group, epsilon, accountant)
        way = before, group.curve()["mean"].tolist()[: len(before)]
        return points([group], t, [epsilon], label, one.style, POINT, known, way)

    drawn = [[series(one) for one in part.curves] for part in parts]
    everything = [one for several in drawn for one in several]
    shown = span(everything, groups[0].first.summary["lower_is_better"], 2.0)
    epsilons = [epsilon for epsilon, _ in at.values() if epsilon]
    low, high = (min(epsilons), max(epsilons)) if epsilons else (1.0, 1.0)
    wide = high / low > LOGARITHMIC_FROM
    label = f"privacy loss ε ({captions.accountant_in_words(accountant)} accountant, δ = {captions.deltas(groups)})"
    x = XAxis(label, low / 2 if wide else 0.0, 1.4 * high if wide else 1.1 * high, wide)
    text = captions.settings_in_words(groups, accountant)
    text += f" {'Points and horizontal' if epsilons else 'Horizontal'} lines: after {t} rounds."
    if any(one.way[0] for one in everything):
        text += " Faint lines: the rounds before, as ε is spent."
    if any(one.published for one in everything):
        by = "" if accountant == "moments" else ", at the ε of the same q and z here (its own is by moments)"
        text += f" Hollow: published{by}."
    return picture(
        title(groups, f"after {t} rounds, against privacy loss"),
        [PicturePanel(part.title, several, x, shown) for part, several in zip(parts, drawn, strict=True)],
        text,
        metric_label(groups),
        style,
    )[0]


def table(groups: Sequence[SettingRuns], t: int, accountant: str = captions.ACCOUNTANT) -> pd.DataFrame:
    """The numbers of the picture: the points (round t) and the rounds before, where their epsilon is known."""
    check_accountant(groups, accountant)
    known, frames = published(groups), []
    for group in groups:
        epsilon, before = spent(group, t, accountant)
        shown = group.curve().reset_index()
        shown = shown[shown["round"] <= t] if before else shown[shown["round"] == t]
        frames.append(
            shown.assign(
                setting=group.label, source="run", accountant=captions.accountant_of(group, accountant),
                delta=group.first.summary["delta"] if group.private else None, seeds=len(group.runs),
                epsilon=np.array([*before[:t], np.nan if epsilon is None else epsilon]),
            )
        )  # fmt: skip
        if t in known.get(group.label, {}):
            row = {"setting": group.label, "source": WORDS, "round": t, "mean": known[group.label][t]}
            frames.append(pd.DataFrame([row]))
    columns = ["setting", "source", "round", "epsilon", "accountant", "delta", "mean", "se", "seeds"]
    return pd.concat(frames, ignore_index=True)[columns].astype({"seeds": "Int64", "delta": float})
