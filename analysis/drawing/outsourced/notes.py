"""Sentences below a picture of outsourced settings: which are the same, which an axis cannot show, what is left out."""

from collections.abc import Callable, Sequence

from analysis.drawing.axes import Span
from analysis.load import SettingRuns


def equal_runs(groups: Sequence[SettingRuns]) -> str:
    """Which settings are drawn on each other because their runs are the same, seed by seed; empty for none."""
    by_runs: dict[tuple[tuple[int, tuple[float, ...]], ...], dict[str, None]] = {}
    for group in groups:
        runs = tuple((run.seed, tuple(run.curve)) for run in group.runs)
        by_runs.setdefault(runs, {})[group.label] = None
    same = [_together(list(labels)) for labels in by_runs.values() if len(labels) > 1]
    return f"One and the same set of runs, number for number: {'; '.join(same)}." if same else ""


def _together(labels: Sequence[str]) -> str:
    """`PO-GP-UCB, r = 10, claimed ε = 3.00 / 4.48` where labels differ in one number only."""
    parts = [label.split(", ") for label in labels]
    places = {k for other in parts for k, part in enumerate(other) if part != dict(enumerate(parts[0])).get(k)}
    if len({len(other) for other in parts}) > 1 or len(places) != 1:
        return " and ".join(labels)
    (place,) = places
    numbers = [other[place].rpartition(" = ") for other in parts]
    if len({number[0] for number in numbers}) > 1:
        return " and ".join(labels)
    text = f"{numbers[0][0]} = {' / '.join(number[2] for number in numbers)}"
    return ", ".join([*parts[0][:place], text, *parts[0][place + 1 :]])


def zeros_at(groups: Sequence[SettingRuns], t: int, shown: Span) -> str:
    """Which settings have no regret after round t, which a logarithmic axis cannot show."""
    return _not_shown(groups, shown, lambda g: "" if g.at(t)[0] == 0 else None)


def zeros_by_round(groups: Sequence[SettingRuns], shown: Span) -> str:
    """Which settings have no regret from some round on, which a logarithmic axis cannot show."""

    def since(group: SettingRuns) -> str | None:
        above = (group.curve()["mean"] > 0).to_numpy().nonzero()[0]
        first = int(above[-1]) + 1 if above.size else 0
        return f" from t = {first}" if first <= group.rounds else None

    return _not_shown(groups, shown, since)


def _not_shown(groups: Sequence[SettingRuns], shown: Span, zero: Callable[[SettingRuns], str | None]) -> str:
    """zero: where a setting has no regret, in words; None where it has."""
    if not shown.logarithmic:
        return ""
    names = {f"{g.label}{words}": None for g in groups if (words := zero(g)) is not None}
    return f"Not on this axis: {'; '.join(names)} (regret 0)." if names else ""


def left_out(labels: Sequence[str]) -> str:
    """A sentence for the caption; empty where all is drawn."""
    return f"Not in the picture: {'; '.join(labels)}." if labels else ""
