"""The panels of a figure, with the label and look of each setting."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.drawing.looks import Style, of_algorithm, variants
from analysis.labels import NAMES, in_words, key_in_words, telling
from analysis.load import SettingRuns

TITLES = {"privacy.z": "noise multiplier z", "privacy.q": "sampling probability q", "privacy.S": "clip norm S"}

SWEPT = 2  # least number of settings of a sweep other than its centre


@dataclass(frozen=True)
class Curve:
    """A setting in a panel."""

    setting: SettingRuns
    label: str
    style: Style


@dataclass(frozen=True)
class SweepPanel:
    """The curves of a panel, one for each setting. title: empty if it is the only panel."""

    title: str
    curves: tuple[Curve, ...]


def panels(groups: Sequence[SettingRuns]) -> list[SweepPanel]:
    """Return one panel, or two panels if a private algorithm was swept over two keys.

    Two panels need a central setting (see `_centre`): each other setting of the algorithm must differ from the central
    setting in exactly one of the two keys. Each key then has a panel, which also shows the other algorithms.
    """
    families: dict[str, list[SettingRuns]] = {}
    for group in groups:
        families.setdefault(group.first.config["algorithm"]["name"], []).append(group)
    looks = {}
    for name, family in families.items():
        for group, look in zip(family, variants(of_algorithm(name), len(family)), strict=True):
            looks[group.label] = look
    for name, family in families.items():
        keys = telling([g.first.flat for g in family])
        centre = _centre(family, keys) if family[0].private and len(keys) == 2 else None
        if centre is not None:
            rest = [Curve(g, g.label, looks[g.label]) for g in groups if g not in family]
            return [_swept(name, family, centre, key, keys, rest) for key in keys]
    return [SweepPanel("", tuple(Curve(g, g.label, looks[g.label]) for g in groups))]


def _swept(
    name: str, family: Sequence[SettingRuns], centre: SettingRuns, key: str, keys: Sequence[str], rest: Sequence[Curve]
) -> SweepPanel:
    """Return the panel of the sweep over `key` around the setting `centre`.

    The panel has a curve for each setting of `family` that equals `centre` in all `keys` except `key`. The panel also
    has the curves `rest`.
    """
    line = [g for g in family if all(g.first.flat.get(k) == centre.first.flat.get(k) for k in keys if k != key)]
    values = {g.label: g.first.flat.get(key) for g in line}
    if all(isinstance(value, int | float) for value in values.values()):
        line.sort(key=lambda g: values[g.label] or 0)
    if line[-1] is centre:
        line.reverse()
    styles = variants(of_algorithm(name), len(line))
    own = tuple(Curve(g, in_words(key, g.first.flat.get(key)), look) for g, look in zip(line, styles, strict=True))
    P = centre.first.config["algorithm"]["P"]
    fixed = [NAMES.get(name, name), *([f"P = {P}"] if P > 1 and "algorithm.P" not in keys else [])]
    fixed += [in_words(k, centre.first.flat.get(k)) for k in keys if k != key]
    title = TITLES.get(key, key_in_words(key))
    return SweepPanel(f"{title} ({', '.join(fixed)})", (*rest, *own))


def _centre(family: Sequence[SettingRuns], keys: Sequence[str]) -> SettingRuns | None:
    """Return the setting from which all others differ in exactly one of `keys`; None if there is none.

    For each key, at least `SWEPT` settings must differ from the centre in this key.
    """
    for candidate in family:
        at = candidate.first.flat
        apart = [[k for k in keys if g.first.flat.get(k) != at.get(k)] for g in family if g is not candidate]
        if all(len(differ) == 1 for differ in apart) and all(apart.count([k]) >= SWEPT for k in keys):
            return candidate
    return None
