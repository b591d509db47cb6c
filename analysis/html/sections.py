"""The report's section about an experiment: pictures, tables and notes."""

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from analysis import pictures, tables
from analysis.drawing.page import apart
from analysis.drawing.page_style import SCREEN
from analysis.html import privacy as report_privacy
from analysis.html.text_table import RowGroup, TextTable, number
from analysis.labels import problem_label, value_in_words, variant_in_words
from analysis.load import LoadError, Run, SettingRuns, by_metric, load, seeds_phrase, settings
from dpfbo.formats.words import metric_in_words

COLOURS = 256  # in an embedded picture, which at least halves its size; with 128, similar line colours would merge
ROUNDS = 5  # number of rounds at which the bounds of the theory are shown


@dataclass(frozen=True)
class Section:
    """The report's section about one experiment.

    private: its rows of the privacy table; claimed: reasons why published epsilons are no guarantee; notes: sentences
    on missing parts.
    """

    experiment: str
    title: str = ""
    seeds: str = ""
    runs: tuple[Run, ...] = ()
    pictures: tuple[Mapping[str, Any], ...] = ()
    results: tuple[TextTable, ...] = ()
    differing: TextTable | None = None
    common: tuple[tuple[str, str], ...] = ()
    private: tuple[dict[str, str], ...] = ()
    claimed: tuple[str, ...] = ()
    bounds: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        return "experiment-" + re.sub(r"[^\w-]", "-", self.experiment)


def section(results_dir: Path, experiment: str) -> Section:
    """Read and draw an experiment; a note replaces a part that cannot be read or drawn."""
    try:
        runs = load(results_dir, experiment)
        by_axis = [settings(group) for group in by_metric(runs)]
    except LoadError as error:
        return Section(experiment, notes=(f"{experiment} is left out, with the claims about it: {error}",))
    groups = [group for axis in by_axis for group in axis]
    differing, common = _settings(groups)
    found = Section(
        experiment,
        title="; ".join(_title(axis) for axis in by_axis),
        seeds=seeds_phrase(groups),
        runs=tuple(runs),
        results=tuple(_results(axis) for axis in by_axis),
        differing=differing,
        common=common,
        private=tuple(report_privacy.row(g) for g in groups if g.private),
        claimed=tuple(tables.no_guarantees(groups)),
    )
    try:
        found = replace(found, bounds=tuple(b for g in groups if (b := _bounds(g)) is not None))
    except LoadError as error:
        found = replace(found, notes=(f"the bounds of {experiment} are left out: {error}",))
    try:
        return replace(found, pictures=_pictures(experiment, runs, groups))
    except Exception as error:  # no failure of a picture may hide the tables
        why = error if isinstance(error, LoadError) else f"{type(error).__name__}: {error}"
        return replace(found, notes=(*found.notes, f"{experiment} cannot be drawn: {why}"))


def _pictures(experiment: str, runs: Sequence[Run], groups: Sequence[SettingRuns]) -> tuple[Mapping[str, Any], ...]:
    """Draw the figures of an experiment as base64 PNG, with captions and claims.

    If several figures have the same claims, only the first figure shows them.
    """
    found: list[dict[str, Any]] = []
    for drawn in pictures.draw_experiment(experiment, runs):
        large, small = io.BytesIO(), io.BytesIO()
        caption, above = apart(drawn.figure)
        drawn.figure.savefig(large, format="png", dpi=SCREEN.dpi, bbox_inches=above, pil_kwargs={"compress_level": 0})
        with Image.open(large) as image:
            palette = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        palette.save(small, "PNG")  # optimize=True makes it 8 % smaller, in five times the time
        what = drawn.name.removeprefix(experiment).replace("_", " ").strip() or "regret"
        alt = f"{experiment}, {what}: {'; '.join(g.label for g in groups)}."
        claims = () if any(drawn.claims == before["claims"] for before in found) else drawn.claims
        png, (width, height) = base64.b64encode(small.getvalue()).decode(), palette.size
        found.append({"alt": alt, "png": png, "width": width, "height": height, "caption": caption, "claims": claims})
    return tuple(found)


def _bounds(group: SettingRuns) -> Mapping[str, Any] | None:
    """Return the bounds in a setting's `theory.json`; None if they were not computed."""
    file = next((file for run in group.runs if (file := run.path / "theory.json").is_file()), None)
    if file is None:
        return None
    try:
        theory = json.loads(file.read_text())
        columns, rounds = {str(name): str(words) for name, words in theory["columns"].items()}, theory["rounds"]
        chosen = sorted({round(i * (len(rounds) - 1) / (ROUNDS - 1)) for i in range(ROUNDS)}) if rounds else []
        rows = tuple((str(rounds[i]["round"]), *(number(rounds[i].get(name)) for name in columns)) for i in chosen)
        table = TextTable("", ("t", *columns), (RowGroup(rows),))
        words = {"proposition": theory["proposition_1"]["words"], "note": theory["note"]}
        return {"setting": group.label, "table": table, "columns": list(columns.items()), **words}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{file} cannot be read ({error!r}): run python -m runners.theory again") from error


def _title(groups: Sequence[SettingRuns]) -> str:
    s = groups[0].first.summary
    problem = problem_label(s["problem"]) + variant_in_words(groups[0].first.config["problem"])
    return f"{metric_in_words(s['metric'])} on {problem}, {tables.participants(groups)}"


def _results(groups: Sequence[SettingRuns]) -> TextTable:
    rounds, names = tables.default_rounds(groups), tables.accountants(groups)
    rows = tuple(
        (g.label, *(tables.with_error(g, t) for t in rounds), *(tables.epsilons_in_words(g, [name]) for name in names))
        for g in groups
    )
    columns = (*(f"t = {t}" for t in rounds), *(f"ε {name}" for name in names.values()))
    return TextTable(_caption(groups), ("setting", *columns), (RowGroup(rows),))


def _caption(groups: Sequence[SettingRuns]) -> str:
    s = groups[0].first.summary
    title, better = _title(groups), "lower" if s["lower_is_better"] else "higher"
    lines = [f"{title[0].upper()}{title[1:]}, after t rounds: {better} is better", *tables.caption(groups)]
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in lines)


def _settings(groups: Sequence[SettingRuns]) -> tuple[TextTable | None, tuple[tuple[str, str], ...]]:
    """Return a table of the keys that differ between the groups, and the other keys with their value."""
    known = [g.first.flat for g in groups]
    names = sorted({name for one in known for name in one})
    values = {name: [value_in_words(one[name]) if name in one else "–" for one in known] for name in names}
    differ = [name for name in names if len(set(values[name]) - {"–"}) > 1]
    common = tuple((name, (set(values[name]) - {"–"}).pop()) for name in names if name not in differ)
    rows = tuple((g.label, *(values[name][i] for name in differ)) for i, g in enumerate(groups))
    return TextTable("", ("setting", *differ), (RowGroup(rows),)) if differ else None, common
