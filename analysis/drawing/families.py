"""What an outsourced experiment sweeps: a claimed epsilon at one r, r at one claimed epsilon, guaranteed epsilons."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.drawing.looks import MARKERS, UNAWARE, Style, hues, of_algorithm
from analysis.drawing.sweeps import Curve
from analysis.labels import AWARE, NAMES, adds_noise
from analysis.load import Setting

DOTTED = (0.0, (1.0, 1.2))


@dataclass(frozen=True)
class Family:
    """Settings that differ in one number. title: of their panel; name: of the line through their points, in `style`;
    x: the number of each curve."""

    title: str
    name: str
    style: Style
    x: tuple[float, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Families:
    """claimed: by epsilon at the most common r; columns: by r at the most common epsilon; None without such settings.
    guaranteed: by epsilon, of each algorithm. left_out: labels of the settings in none of these."""

    references: tuple[Curve, ...]
    claimed: Family | None
    columns: Family | None
    guaranteed: tuple[Family, ...]
    left_out: tuple[str, ...]


def families(groups: Sequence[Setting]) -> Families:
    """The settings by what they are there for."""
    claimed = [g for g in groups if g.first.claimed_epsilon is not None]
    rest = [g for g in groups if g not in claimed and not g.private]
    by_epsilon, by_r = _swept(claimed)
    shown = {c.setting.label for family in (by_epsilon, by_r) if family is not None for c in family.curves}
    return Families(
        tuple(Curve(g, g.label, of_algorithm(g.first.config["algorithm"]["name"]), True) for g in rest),
        by_epsilon,
        by_r,
        tuple(_guaranteed(groups)),
        tuple(g.label for g in claimed if g.label not in shown),
    )


def _swept(claimed: Sequence[Setting]) -> tuple[Family | None, Family | None]:
    """By the claimed epsilon, and by r."""
    if not claimed:
        return None, None
    r_of = {g.label: int(g.first.config["transform"]["r"]) for g in claimed}
    epsilon_of = {g.label: float(g.first.claimed_epsilon or 0.0) for g in claimed}
    r, epsilon = _most_common(list(r_of.values())), _most_common(list(epsilon_of.values()))
    name = NAMES.get(claimed[0].first.config["algorithm"]["name"], "")
    at_r = [g for g in claimed if r_of[g.label] == r]
    at_epsilon = [g for g in claimed if epsilon_of[g.label] == epsilon]
    by_epsilon = _family(f"{name}, r = {r}: claimed ε, no guarantee", at_r, epsilon_of, "claimed ε = {:.2f}")
    by_r = _family(f"{name}, claimed ε = {epsilon:.2f} (no guarantee): r", at_epsilon, r_of, "r = {:g}")
    return by_epsilon, by_r


def _most_common(values: Sequence[float]) -> float:
    """The value with the most settings; the smaller of two."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _guaranteed(groups: Sequence[Setting]) -> list[Family]:
    """One for each algorithm, and for a modeler that knows the noise and one that does not."""
    found: dict[tuple[str, str], list[Setting]] = {}
    for g in groups:
        if g.private:
            a = g.first.config["algorithm"]
            knows = AWARE[a["modeler"]["noise_aware"]] if adds_noise(g.first.config) else ""
            found.setdefault((a["name"], knows), []).append(g)
    made = []
    for (name, knows), members in found.items():
        epsilon_of = {g.label: float(g.first.config["privacy"]["epsilon"]) for g in members}
        title = f"{NAMES.get(name, name)}: guaranteed ε"
        made.append(_family(title, members, epsilon_of, f"ε = {{:.2f}}{', ' * bool(knows)}{knows}", knows))
    return made


def _family(title: str, members: Sequence[Setting], x_of: Mapping[str, float], text: str, knows: str = "") -> Family:
    """Curves in the order of x, in a ramp of colours; with the whole label where two have the same x."""
    ordered = sorted(members, key=lambda g: x_of[g.label])
    unaware = knows == AWARE[False]
    style = UNAWARE if unaware else of_algorithm(ordered[0].first.config["algorithm"]["name"])
    line = DOTTED if unaware else style.line  # beside the aware ones in the same colours
    xs = tuple(x_of[g.label] for g in ordered)
    curves = tuple(
        Curve(g, text.format(x) if xs.count(x) == 1 else g.label, Style(colour, line, MARKERS[i % len(MARKERS)]), False)
        for i, (g, x, colour) in enumerate(zip(ordered, xs, hues(len(ordered)), strict=True))
    )
    name = title.rpartition(":")[0] + (f" ({knows})" if knows else "")
    return Family(title, name, style, xs, curves)
