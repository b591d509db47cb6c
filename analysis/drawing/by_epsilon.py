"""Regret against epsilon, with horizontal lines for settings without an epsilon."""

from collections.abc import Sequence

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
from analysis.drawing.sweeps import Curve, panels
from analysis.evidence.claim import published_values
from analysis.load import LoadError, SettingRuns
from dpfbo.formats.summary import NOISE

LOGARITHMIC_FROM = 12.0  # ratio of largest to smallest epsilon above which the axis is logarithmic


def spent(group: SettingRuns, t: int, accountant: str) -> float | None:
    """Return the epsilon of all releases before the query of round t; None if it is not finite.

    If the setting has no epsilon by `accountant`, the epsilon is by the accountant that the setting was run with.

    Raises LoadError if t is less than the number of rounds, and the epsilon by `accountant` is known for the whole run
    only.
    """
    own = captions.accountant_of(group, accountant)
    epsilon = group.epsilon(own)
    if epsilon and t < group.rounds:
        if group.first.summary["accountant"] != own:
            raise LoadError(f"{group.label!r} has its {own} epsilon after {group.rounds} rounds only, not after {t}")
        epsilon = max(run.epsilon_spent[t] for run in group.runs)
    return epsilon


def check_accountant(groups: Sequence[SettingRuns], accountant: str) -> None:
    """Raise LoadError unless at least one setting has an epsilon by this accountant."""
    names = {name for g in groups for name in g.first.summary["epsilon"]}
    if accountant not in names:
        raise LoadError(f"accountant must be one that the runs have ({', '.join(sorted(names))}), got {accountant!r}")


def regret_by_epsilon(
    groups: Sequence[SettingRuns], t: int, accountant: str = captions.ACCOUNTANT, style: PageStyle = SCREEN
) -> Figure:
    """Draw each setting's regret after round t against the epsilon spent by then."""
    check_accountant(groups, accountant)
    parts, known = panels(groups), published_values(groups)
    at = {g.label: spent(g, t, accountant) for g in groups}

    def series(one: Curve) -> Series:
        group, epsilon = one.setting, at[one.setting.label]
        if not epsilon:
            nothing = "ε = 0, nothing shared"
            why = nothing if epsilon == 0 else "no noise" if group.private else "not private"
            return points([group], t, [0.0], f"{one.label} ({why})", one.style, LEVEL, known)
        label = captions.with_epsilon(one.label, group, epsilon, accountant)
        return points([group], t, [epsilon], label, one.style, POINT, known)

    drawn = [[series(one) for one in part.curves] for part in parts]
    everything = [one for several in drawn for one in several]
    shown = span(everything, groups[0].first.summary["lower_is_better"], 2.0)
    epsilons = [epsilon for epsilon in at.values() if epsilon]
    low, high = (min(epsilons), max(epsilons)) if epsilons else (1.0, 1.0)
    wide = high / low > LOGARITHMIC_FROM
    label = f"privacy loss ε ({captions.accountant_in_words(accountant)} accountant, δ = {captions.deltas(groups)})"
    x = XAxis(label, low / 2 if wide else 0.0, 1.4 * high if wide else 1.1 * high, wide)
    text = captions.settings_in_words(groups, accountant)
    text += f" {'Points and horizontal' if epsilons else 'Horizontal'} lines: after {t} rounds."
    if any(one.published for one in everything):
        by = "" if accountant == "moments" else ", at the ε of the same q and z here (the published ε is by moments)"
        text += f" Hollow: published{by}."
    return picture(
        title(groups, f"after {t} rounds, against privacy loss"),
        [PicturePanel(part.title, several, x, shown) for part, several in zip(parts, drawn, strict=True)],
        text,
        metric_label(groups),
        style,
    )


def table(groups: Sequence[SettingRuns], t: int, accountant: str = captions.ACCOUNTANT) -> pd.DataFrame:
    """Return the numbers of the picture: a row for each setting, and a second row for its published mean, if any."""
    check_accountant(groups, accountant)
    known, rows = published_values(groups), list[dict[str, object]]()
    for group in groups:
        mean, se = group.at(t)
        rows.append({
            "setting": group.label, "source": "run", "round": t, "epsilon": spent(group, t, accountant),
            "accountant": captions.accountant_of(group, accountant), "mean": mean, "se": se, "seeds": len(group.runs),
            "delta": group.first.summary["delta"] if group.private else None, **group.noise,
        })  # fmt: skip
        if t in known.get(group.label, {}):
            rows.append({"setting": group.label, "source": "published", "round": t, "mean": known[group.label][t]})
    columns = ["setting", "source", *NOISE, "round", "epsilon", "accountant", "delta", "mean", "se", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"seeds": "Int64", "delta": float, "epsilon": float, "se": float})
