"""All that the board shows, as JSON: settings by experiment, never single trials, so that 10,000 of them stay cheap."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dpfbo.formats.words import METHODS, delta_in_words, metric_in_words, neighbours
from runners.board.experiment_folder import ExperimentFolder, ReadSetting
from runners.board.setting_curve import MeanOverSeeds, curve, facts_of, final, so_far, spent, spread
from runners.board.trial_reading import BoardPhase, TrialFacts, number
from runners.sweep.trials import PHASES, seeds_in_words

DRAWN = 20  # settings that are drawn unless others are chosen
MOST_DRAWN = 40
LISTED = 200  # settings in the table
MOST_FAILED = 50  # failed or unreadable trials in a list
BOARD_PHASES: tuple[BoardPhase, ...] = (*PHASES, "unreadable")

_REAL = (
    "of real releases (privacy.rng=os): metric, best configurations and the words of failures are private and not "
    "shown; --private shows them"
)
_UNKNOWN = "not known yet to be a simulation: the metric is not shown; --private shows it"


def experiment_content(
    folder: ExperimentFolder, private: bool, drawn: Collection[str] | None, find: str = "", most: int = MOST_DRAWN
) -> dict[str, Any]:
    """One experiment.

    Args:
        folder: read anew.
        private: show the private records of real releases, too.
        drawn: names of the settings whose curves are wanted, None for the first ones.
        find: only settings whose label has these letters are listed, if there are too many for the table.
        most: the largest number of curves.
    """
    settings = folder.read()
    listed = _listed(settings, private, find)
    first = [setting.name for setting in listed[:DRAWN]]
    shown = set((first if drawn is None else [s.name for s in settings if s.name in drawn])[:most])
    readings = [reading for setting in settings for reading in setting.readings]
    notes: list[dict[str, str]] = []
    in_table = shown | {setting.name for setting in listed}
    inside = [folder.completed(setting) for setting in settings if setting.name in in_table]
    rows = [
        {**_setting(setting, private, setting.name in shown, notes), "drawn_first": setting.name in first}
        for setting in inside
    ]
    total = sum(
        (trial.rounds or r.rounds or 1) for s in settings for trial, r in zip(s.trials, s.readings, strict=True)
    )
    ended = sum((r.rounds or 1) if r.phase in ("done", "failed") else (r.round or 0) for r in readings)
    return {
        "key": key_of(folder),
        "name": folder.path.resolve().name,
        "folder": str(folder.path),
        "exists": folder.exists,
        "trials": len(readings),
        "counts": _counts(settings),
        "rounds": {"ended": min(ended, total), "all": total},
        "changed": max((r.changed for r in readings if r.changed is not None), default=None),
        "n_settings": len(settings),
        "settings": rows,
        "panels": _panels(rows),
        "notes": notes,
        "private": _privacy_notes(settings, private),
        **_troubles(folder, settings, inside, private),
    }


def key_of(folder: ExperimentFolder) -> str:
    """A short name of an experiment's folder, the same in every run of the board."""
    return hashlib.sha256(str(folder.path.absolute()).encode()).hexdigest()[:10]


def hidden(setting: ReadSetting, private: bool) -> str | None:
    """The reason why a setting's private records are not shown; None if they are.

    Only a setting whose every begun trial is known as a simulation is shown without `private`.
    """
    kinds = {r.facts.rng for r in setting.readings if r.phase not in ("waiting", "unreadable") or r.facts.rng}
    if private or kinds == {"seeded"}:
        return None
    return _REAL if kinds - {None, "seeded"} else _UNKNOWN


def _listed(settings: Sequence[ReadSetting], private: bool, find: str) -> list[ReadSetting]:
    """The settings of the table: all in their order, or of too many the best, running ones first."""
    if len(settings) <= LISTED:
        return list(settings)

    def order(setting: ReadSetting) -> tuple[bool, bool, float]:
        now = None if hidden(setting, private) else so_far(setting)
        running = any(r.phase == "running" for r in setting.readings)
        sign = 1 if facts_of(setting).lower_is_better else -1
        return not running, now is None, 0.0 if now is None else sign * now.mean

    return sorted((s for s in settings if find.casefold() in s.label.casefold()), key=order)[:LISTED]


def _setting(setting: ReadSetting, private: bool, draw: bool, notes: list[dict[str, str]]) -> dict[str, Any]:
    """One row of the table, with its curve if it is drawn. notes: gets the words for its epsilon."""
    facts, why_hidden = facts_of(setting), hidden(setting, private)
    visible = why_hidden is None
    under_way = [r.round or 0 for r in setting.readings if r.phase in ("running", "interrupted")]
    rounds = [r.rounds for r in setting.readings if r.rounds is not None]
    return {
        "name": setting.name,
        "label": setting.label,
        "problem": facts.problem,
        "algorithm": facts.algorithm,
        "metric": facts.metric,
        "lower_is_better": facts.lower_is_better,
        "seeds": seeds_in_words([trial.seed for trial in setting.trials]),
        "trials": len(setting.trials),
        "counts": _counts([setting]),
        "rounds": max(rounds, default=None),
        "at": [min(under_way), max(under_way)] if under_way else None,
        "hidden": why_hidden,
        "final": _mean(final(setting)) if visible else None,
        "spread": {p: _number(v) for p, v in (spread(setting) or {}).items()} if visible else {},
        "so_far": _mean(so_far(setting)) if visible else None,
        "epsilon": _epsilon(setting, facts, notes),
        "curve": _curve(setting, visible) if draw else None,
    }


def _epsilon(setting: ReadSetting, facts: TrialFacts, notes: list[dict[str, str]]) -> dict[str, Any] | None:
    """Epsilon spent, with its limits. note: index of the words that say by which accountant, delta and relation."""
    found = spent(setting)
    if found is None:
        return None
    note = _note(facts)
    if note is not None and note not in notes:
        notes.append(note)
    return {
        "spent": number(found.value),
        "nothing": found.value == 0 and facts.private is False,  # a private release may cost 0 at a large delta
        "none": math.isinf(found.value),
        "so_far": found.so_far,
        "target": facts.target if facts.private else None,
        "budget": facts.budget,
        "budget_delta": None if facts.budget_delta in (None, facts.delta) else delta_in_words(facts.budget_delta or 0),
        "claim": facts.claim,
        "note": None if note is None else notes.index(note),
        "real": any(r.facts.rng == "os" for r in setting.readings) and len(setting.readings) > 1,
    }


def _note(facts: TrialFacts) -> dict[str, str] | None:
    if facts.accountant is None or facts.delta is None or facts.relation is None:
        return None
    name, at = METHODS.get(facts.accountant, facts.accountant), delta_in_words(facts.delta)
    return {"accountant": name, "delta": at, "relation": neighbours(facts.relation)}


def _curve(setting: ReadSetting, visible: bool) -> dict[str, Any] | None:
    found = curve(setting)
    if found is None:
        return None
    columns = {"round": found.rounds.tolist(), "epsilon": _numbers(found.epsilon)}
    if visible:
        columns |= {"mean": _numbers(found.mean), "se": _numbers(found.se), "n": found.n.tolist()}
    return columns


def _panels(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings by problem and metric: numbers of two metrics never share an axis."""
    panels: dict[tuple[str, str, bool], list[str]] = {}
    for row in rows:
        if row["problem"] is not None and row["metric"] is not None:
            panels.setdefault((row["problem"], row["metric"], row["lower_is_better"]), []).append(row["name"])
    return [
        {
            "problem": problem.replace("_", " "),
            "metric": metric_in_words(metric),
            "lower_is_better": lower,
            "settings": names,
        }
        for (problem, metric, lower), names in panels.items()
    ]


def _troubles(
    folder: ExperimentFolder, settings: Sequence[ReadSetting], inside: Sequence[ReadSetting], private: bool
) -> dict[str, Any]:
    """The failed trials with their sentences, and files that cannot be read. inside: settings that are read whole."""
    whole = {setting.name: setting for setting in inside}
    failed: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    if folder.fault is not None:
        faults.append({"label": folder.path.name, "seed": None, "words": folder.fault})
    for setting in (whole.get(setting.name, setting) for setting in settings):
        words_hidden = hidden(setting, private)
        for trial, reading in zip(setting.trials, setting.readings, strict=True):
            entry: dict[str, Any] = {"label": setting.label, "seed": trial.seed}
            if reading.phase == "failed":
                words = (reading.error or "not recorded") if words_hidden is None else "its words may be private"
                failed.append({**entry, "words": words})
            if reading.fault is not None:
                faults.append({**entry, "words": reading.fault})
    return {
        "failed": failed[:MOST_FAILED],
        "n_failed": len(failed),
        "faults": faults[:MOST_FAILED],
        "n_faults": len(faults),
    }


def _privacy_notes(settings: Sequence[ReadSetting], private: bool) -> list[str]:
    """A sentence for each reason why something is not shown, or that private records are."""
    begun = [s for s in settings if any(r.phase != "waiting" for r in s.readings)]
    if private and any(r.facts.rng != "seeded" for s in begun for r in s.readings if r.phase != "waiting"):
        return ["this page shows private records of real releases (--private): keep it to yourself"]
    reasons = Counter(reason for s in begun if (reason := hidden(s, private)) is not None)
    return [f"{n} {'setting' if n == 1 else 'settings'} {reason}" for reason, n in reasons.items()]


def _counts(settings: Sequence[ReadSetting]) -> dict[str, int]:
    """The number of trials in each phase that has any."""
    found = Counter(r.phase for setting in settings for r in setting.readings)
    return {phase: found[phase] for phase in BOARD_PHASES if found[phase]}


def _mean(found: MeanOverSeeds | None) -> dict[str, Any] | None:
    return None if found is None else {"mean": _number(found.mean), "se": _number(found.se), "n": found.n}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float | None) -> float | None:
    """A number with six digits, None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
