"""Families of outsourced settings: the settings of one family differ in one number only.

This number is the claimed epsilon (published, but not guaranteed), the guaranteed epsilon, or r, the number of released
columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.drawing.looks import UNAWARE, Style, of_algorithm, stretched, variants
from analysis.drawing.sweeps import Curve, SweepPanel
from analysis.labels import AWARE, NAMES, adds_noise, in_words, telling
from analysis.load import SettingRuns

SWEPT = ("transform.r", "transform.epsilon", "privacy.epsilon")
FEWEST = 3  # least number of r for a sweep at a claimed epsilon other than the most frequent one


@dataclass(frozen=True)
class CurveFamily:
    """Settings that differ in one number, such as the claimed epsilon.

    Some pictures draw each setting as a curve. Other pictures draw the family as one line, with a point for each
    setting. title: title of the panel. name, style: label and look of the family's line. x: for each setting, the value
    of the number in which the settings differ. curves: the settings, each with the label and look of its own curve.
    """

    title: str
    name: str
    style: Style
    x: tuple[float, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class CurveFamilies:
    """Families of settings; the settings of one family differ in one number only.

    A setting has a guaranteed epsilon, a claimed epsilon (published, but not guaranteed), or no epsilon. references:
    settings with no epsilon. claimed: families in which the claimed epsilon varies. columns: families in which the
    number of released columns varies. guaranteed: families in which the guaranteed epsilon varies. left_out: labels of
    the settings that have a claimed epsilon but are in no family.
    """

    references: tuple[Curve, ...]
    claimed: tuple[CurveFamily, ...]
    columns: tuple[CurveFamily, ...]
    guaranteed: tuple[CurveFamily, ...]
    left_out: tuple[str, ...]

    @staticmethod
    def by_title(found: Sequence[CurveFamily]) -> list[SweepPanel]:
        """Return a panel for each title."""
        titles = dict.fromkeys(f.title for f in found)
        return [SweepPanel(title, tuple(c for f in found if f.title == title for c in f.curves)) for title in titles]


def families(groups: Sequence[SettingRuns]) -> CurveFamilies:
    """Put settings into one family if they differ in one number only, such as the claimed epsilon."""
    claimed = [g for g in groups if g.first.claimed_epsilon is not None]
    by_epsilon, by_r = _swept(claimed)
    shown = {c.setting.label for family in (*by_epsilon, *by_r) for c in family.curves}
    return CurveFamilies(
        _references([g for g in groups if g not in claimed and not g.private]),
        by_epsilon,
        by_r,
        _guaranteed(groups),
        tuple(g.label for g in claimed if g.label not in shown),
    )


def _references(groups: Sequence[SettingRuns]) -> tuple[Curve, ...]:
    names = [str(g.first.config["algorithm"]["name"]) for g in groups]
    looks = [_one_of(of_algorithm(name), names[:i].count(name), names.count(name)) for i, name in enumerate(names)]
    return tuple(Curve(g, g.label, look) for g, look in zip(groups, looks, strict=True))


def _one_of(look: Style, i: int, n: int) -> Style:
    return stretched(variants(look, n)[i], i)


def _swept(claimed: Sequence[SettingRuns]) -> tuple[tuple[CurveFamily, ...], tuple[CurveFamily, ...]]:
    """Return the families in which the claimed epsilon varies, and the families in which r varies.

    claimed: settings whose epsilon is claimed in a paper, but not guaranteed. r is the number of released columns.
    """
    if not claimed:
        return (), ()
    r_of = {g.label: float(g.first.config["transform"]["r"]) for g in claimed}
    epsilon_of = {g.label: float(g.first.claimed_epsilon or 0.0) for g in claimed}
    r, most = pd.Series(r_of).mode()[0], pd.Series(epsilon_of).mode()[0]  # the smallest if several are most frequent
    columns: dict[float, set[float]] = {}
    for label, epsilon in sorted(epsilon_of.items(), key=lambda item: item[1]):
        columns.setdefault(epsilon, set()).add(r_of[label])
    name = NAMES.get(claimed[0].first.config["algorithm"]["name"], "")
    at_r = [g for g in claimed if r_of[g.label] == r]
    title = f"{name}, r = {r:g}: claimed ε, no guarantee"
    by_epsilon = _alike(title, at_r, epsilon_of, "claimed ε = {:.2f}", among=claimed)
    by_r: list[CurveFamily] = []
    for epsilon, values in columns.items():
        if epsilon == most or len(values) >= FEWEST:
            at_epsilon = [g for g in claimed if epsilon_of[g.label] == epsilon]
            title = f"{name}, claimed ε = {epsilon:.2f} (no guarantee): r"
            by_r += _alike(title, at_epsilon, r_of, "r = {:g}", among=claimed)
    return by_epsilon, tuple(by_r)


def _guaranteed(groups: Sequence[SettingRuns]) -> tuple[CurveFamily, ...]:
    found: dict[tuple[str, str], list[SettingRuns]] = {}
    for g in groups:
        if g.private:
            a = g.first.config["algorithm"]
            knows = AWARE[a["modeler"]["noise_aware"]] if adds_noise(g.first.config) else ""
            found.setdefault((a["name"], knows), []).append(g)
    made: list[CurveFamily] = []
    for (name, knows), members in found.items():
        epsilon_of = {g.label: float(g.first.config["privacy"]["epsilon"]) for g in members}
        made += _alike(f"{NAMES.get(name, name)}: guaranteed ε", members, epsilon_of, "ε = {:.2f}", knows)
    return tuple(made)


def _alike(
    title: str, members: Sequence[SettingRuns], x_of: Mapping[str, float], text: str, knows: str = "",
    among: Sequence[SettingRuns] = (),
) -> tuple[CurveFamily, ...]:  # fmt: skip
    """Group `members` into families; settings of one family differ only in the keys `SWEPT`.

    among: further settings. Labels and looks are chosen for these and `members` together.
    """
    rest = {g.label: {k: v for k, v in g.first.flat.items() if k not in SWEPT} for g in (*among, *members)}
    keys = telling([*rest.values()])
    words_of = {label: tuple(in_words(k, flat[k]) for k in keys if k in flat) for label, flat in rest.items()}
    combinations, found = list(dict.fromkeys(words_of.values())), []
    for i, words in enumerate(combinations):
        ordered = sorted((g for g in members if words_of[g.label] == words), key=lambda g: x_of[g.label])
        if not ordered:
            continue
        told = [*filter(None, [knows]), *words]
        own = UNAWARE if AWARE[False] in told else of_algorithm(ordered[0].first.config["algorithm"]["name"])
        style = _one_of(own, i, len(combinations))
        xs = tuple(x_of[g.label] for g in ordered)
        looks = variants(style, len(ordered))
        curves = tuple(
            Curve(g, ", ".join([text.format(x), *told]), look) for g, x, look in zip(ordered, xs, looks, strict=True)
        )
        found.append(CurveFamily(title, _told(title.rpartition(":")[0], told), style, xs, curves))
    return tuple(found)


def _told(name: str, told: Sequence[str]) -> str:
    if not told:
        return name
    return f"{name[:-1]}, {', '.join(told)})" if name.endswith(")") else f"{name} ({', '.join(told)})"
