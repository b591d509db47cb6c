"""The part of the report about an experiment: its pictures, tables and words, as text and without HTML."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis import tables
from analysis.html import privacy as report_privacy
from analysis.html.bounds import Bounds, bounds
from analysis.html.pictures import Picture, pictures
from analysis.html.text_table import RowGroup, TextTable, epsilon, number, ranges, with_error
from analysis.labels import joined_by_or, problem_label, value_in_words, variant_in_words
from analysis.load import LoadError, Run, SettingRuns, by_metric, load, seeds_phrase, settings
from dpfbo.formats.words import large_delta, metric_in_words


@dataclass(frozen=True)
class Section:
    """One experiment.

    private: its rows of the privacy table; claimed: why published epsilons are no guarantee; notes: what is missing
    here, and why.
    """

    experiment: str
    title: str = ""
    seeds: str = ""
    runs: tuple[Run, ...] = ()
    pictures: tuple[Picture, ...] = ()
    results: tuple[TextTable, ...] = ()
    best: TextTable | None = None
    differing: TextTable | None = None
    common: tuple[tuple[str, str], ...] = ()
    private: tuple[dict[str, str], ...] = ()
    claimed: tuple[str, ...] = ()
    bounds: tuple[Bounds, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        return "experiment-" + re.sub(r"[^\w-]", "-", self.experiment)


def section(results_dir: Path, experiment: str) -> Section:
    """Read and draw an experiment; what cannot be read or drawn becomes a note."""
    try:
        found, groups = _read(results_dir, experiment)
    except LoadError as error:
        return _left_out(experiment, str(error))
    try:
        found = replace(found, bounds=tuple(b for g in groups if (b := bounds(g)) is not None))
    except LoadError as error:
        found = replace(found, notes=(f"the bounds of {experiment} are left out: {error}",))
    try:
        return replace(found, pictures=pictures(experiment, found.runs, groups))
    except LoadError as error:
        return replace(found, notes=(*found.notes, f"{experiment} cannot be drawn: {error}"))


def _left_out(experiment: str, why: str) -> Section:
    return Section(experiment, notes=(f"{experiment} is left out, with the claims about it: {why}",))


def _read(results_dir: Path, experiment: str) -> tuple[Section, list[SettingRuns]]:
    runs = load(results_dir, experiment)
    by_axis = [settings(group) for group in by_metric(runs)]
    groups = [group for axis in by_axis for group in axis]
    differing, common = _settings(groups)
    found = Section(
        experiment,
        title="; ".join(_title(axis) for axis in by_axis),
        seeds=_seeds(groups),
        runs=tuple(runs),
        results=tuple(_results(axis) for axis in by_axis),
        best=_best(groups),
        differing=differing,
        common=common,
        private=tuple(report_privacy.row(g) for g in groups if g.private),
        claimed=tuple(tables.no_guarantees(groups)),
    )
    return found, groups


def _title(groups: Sequence[SettingRuns]) -> str:
    s = groups[0].first.summary
    problem = problem_label(s["problem"]) + variant_in_words(groups[0].first.config["problem"])
    return f"{metric_in_words(s['metric'])} on {problem}, {tables.participants(groups)}"


def _seeds(groups: Sequence[SettingRuns]) -> str:
    """`seeds 0–4`, and the settings that have others."""
    by_setting = [(g.label, ranges(run.seed for run in g.runs)) for g in groups]
    usual = Counter(seeds for _, seeds in by_setting).most_common(1)[0][0]
    others = [f"{label} has {seeds}" for label, seeds in by_setting if seeds != usual]
    return "; ".join([f"seeds {usual}", *others])


def _results(groups: Sequence[SettingRuns]) -> TextTable:
    """Regret at some rounds beside epsilon, as `analysis.tables` prints them."""
    rounds, names = tables.default_rounds(groups), tables.accountants(groups)
    rough = {name for g in groups for name in g.first.summary.get("approximations", [])}
    rows = tuple(
        (g.label, *(with_error(row["regret"][str(t)]) for t in rounds), *(epsilon(g, name) for name in names))
        for g, row in zip(groups, tables.rows(groups, rounds), strict=True)
    )
    columns = (*(f"t = {t}" for t in rounds), *(f"ε {name}{' (≈)' * (name in rough)}" for name in names))
    return TextTable(_caption(groups), ("setting", *columns), (RowGroup(rows),))


def _best(groups: Sequence[SettingRuns]) -> TextTable | None:
    """Each agent's best configuration in the first run of each setting; None where no summary lists them."""
    found = [(group.label, best) for group in groups for best in group.first.summary.get("best") or ()]
    if not found:
        return None
    names = list(dict.fromkeys(name for _, best in found for name in best if name not in ("agent", "round", "value")))
    rows = tuple(
        (
            label,
            str(best["agent"]),
            number(best["value"]),
            str(best["round"]),
            *(_cell(best.get(name)) for name in names),
        )
        for label, best in found
    )
    seeds = joined_by_or({group.first.seed for group in groups})
    caption = f"Each agent's best configuration, seed {seeds}. It is the agent's own knowledge: no ε covers it."
    return TextTable(caption, ("setting", "agent", "value", "round", *names), (RowGroup(rows),))


def _cell(value: object) -> str:
    return "" if value is None else number(value) if isinstance(value, float) else str(value)


def _caption(groups: Sequence[SettingRuns]) -> str:
    s = groups[0].first.summary
    title, better = _title(groups), "lower" if s["lower_is_better"] else "higher"
    errors = "Mean ± standard error over" if max(len(g.runs) for g in groups) > 1 else "Mean of"
    text = f"{title[0].upper()}{title[1:]}, after t rounds: {better} is better. {errors} {seeds_phrase(groups)}."
    text += "".join(f" Data: {said}." for said in tables.stand_ins(groups))
    private = [g.first.summary for g in groups if g.private]
    if private:
        known = [s["delta"] for s in private]
        deltas = joined_by_or(known) + large_delta(known)
        relations = " or ".join(sorted({s["relation"] for s in private}))
        level = f"relation {relations}" if groups[0].first.outsourced else f"{relations} relation, user level"
        text += f" ε at δ = {deltas}, {level}."
    unclaimed = [g for g in groups if g.first.claimed_epsilon is None]
    if any(g.epsilon(name) is None for g in unclaimed for name in g.first.summary["epsilon"]):
        text += " none: not private, or without noise."
    return text


def _settings(groups: Sequence[SettingRuns]) -> tuple[TextTable | None, tuple[tuple[str, str], ...]]:
    """The settings that differ between the groups that have them, and those that are the same."""
    known = [g.first.flat for g in groups]
    names = sorted({name for one in known for name in one})
    values = {name: [value_in_words(one[name]) if name in one else "–" for one in known] for name in names}
    differ = [name for name in names if len(set(values[name]) - {"–"}) > 1]
    common = tuple((name, (set(values[name]) - {"–"}).pop()) for name in names if name not in differ)
    rows = tuple((g.label, *(values[name][i] for name in differ)) for i, g in enumerate(groups))
    return TextTable("", ("setting", *differ), (RowGroup(rows),)) if differ else None, common
