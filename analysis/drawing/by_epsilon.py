"""Regret by epsilon: a point with its error bar for each private setting, a horizontal line for the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing.captions import (
    ACCOUNTANT,
    accountant_in_words,
    accountant_of,
    deltas,
    settings_in_words,
    with_epsilon,
)
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


@dataclass(frozen=True)
class EpsilonSpent:
    """Epsilon of a setting after a round, by the axis' accountant or, where that does not apply, its own.

    epsilon: 0 where nothing was shared, None where none is finite. before: after the rounds until then; empty where
    another accountant reported them.
    """

    accountant: str
    epsilon: float | None
    before: tuple[float, ...]


def spent(group: SettingRuns, t: int, accountant: str) -> EpsilonSpent:
    """Epsilon of all that was released before the query of round t. Raises LoadError where the runs do not tell."""
    own = accountant_of(group, accountant)
    epsilon, reported = group.epsilon(own), group.first.summary["accountant"] == own
    if epsilon and t < group.rounds:
        if not reported:
            raise LoadError(f"{group.label!r} has its {own} epsilon at the end only: leave out --round")
        epsilon = max(run.epsilon_spent[t] for run in group.runs)
    before = tuple(group.first.epsilon_spent[: t + 1]) if epsilon and reported else ()
    return EpsilonSpent(own, epsilon, before)


def check_accountant(groups: Sequence[SettingRuns], accountant: str) -> None:
    """Raise LoadError for an accountant that no setting has."""
    names = {name for g in groups for name in g.first.summary["epsilon"]}
    if accountant not in names:
        raise LoadError(f"accountant must be one that the runs have ({', '.join(sorted(names))}), got {accountant!r}")


def regret_by_epsilon(
    groups: Sequence[SettingRuns], t: int, accountant: str = ACCOUNTANT, style: PageStyle = SCREEN
) -> Figure:
    """The points at the epsilon spent by round t; the way there, faintly."""
    check_accountant(groups, accountant)
    parts, known = panels(groups), published(groups)
    at = {g.label: spent(g, t, accountant) for g in groups}

    def series(one: Curve) -> Series:
        group, found = one.setting, at[one.setting.label]
        if not found.epsilon:
            nothing = "ε = 0, nothing shared"
            why = nothing if found.epsilon == 0 else "no noise" if group.private else "not private"
            return points([group], t, [0.0], f"{one.label} ({why})", one.style, LEVEL, known)
        label = with_epsilon(one.label, group, found.epsilon, accountant)
        way = found.before, group.curve()["mean"].tolist()[: len(found.before)]
        return points([group], t, [found.epsilon], label, one.style, POINT, known, way)

    drawn = [[series(one) for one in part.curves] for part in parts]
    everything = [one for several in drawn for one in several]
    shown = span(everything, groups[0].first.summary["lower_is_better"], 2.0)
    epsilons = [found.epsilon for found in at.values() if found.epsilon]
    low, high = (min(epsilons), max(epsilons)) if epsilons else (1.0, 1.0)
    wide = high / low > LOGARITHMIC_FROM
    label = f"privacy loss ε ({accountant_in_words(accountant)} accountant, δ = {deltas(groups)})"
    x = XAxis(label, low / 2 if wide else 0.0, 1.4 * high if wide else 1.1 * high, wide)
    text = settings_in_words(groups, accountant)
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


def table(groups: Sequence[SettingRuns], t: int, accountant: str = ACCOUNTANT) -> pd.DataFrame:
    """The numbers of the picture: the points (round t) and the rounds before, where their epsilon is known."""
    check_accountant(groups, accountant)
    known, frames = published(groups), []
    for group in groups:
        found = spent(group, t, accountant)
        shown = group.curve().reset_index()
        shown = shown[shown["round"] <= t] if found.before else shown[shown["round"] == t]
        delta = group.first.summary["delta"] if group.private else None
        shown = shown.assign(setting=group.label, source="run", accountant=found.accountant, delta=delta)
        frames.append(shown.assign(seeds=len(group.runs), epsilon=found.before or found.epsilon))
        frames[-1].loc[frames[-1]["round"] == t, "epsilon"] = found.epsilon
        if t in known.get(group.label, {}):
            row = {"setting": group.label, "source": WORDS, "round": t, "mean": known[group.label][t]}
            frames.append(pd.DataFrame([row]))
    columns = ["setting", "source", "round", "epsilon", "accountant", "delta", "mean", "se", "seeds"]
    return pd.concat(frames, ignore_index=True)[columns].astype({"seeds": "Int64"})
