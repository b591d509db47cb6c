"""The board's content as JSON, by experiment and setting."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pandas as pd

from dpfbo.formats.words import METHODS, delta_in_words, metric_in_words, neighbours
from runners.board.experiment_folder import ExperimentFolder, ReadSetting
from runners.board.trial_reading import BoardPhase, TrialFacts, TrialReading, number, rounded
from runners.sweep.trials import PHASES, seeds_in_words

DRAWN = 20  # settings that are drawn by default
MOST_DRAWN = 40  # curves in one experiment
LISTED = 200  # largest number of settings in the table
MOST_FAILED = 50  # largest number of failed or unreadable trials in a list
BOARD_PHASES: tuple[BoardPhase, ...] = (*PHASES, "unreadable")

_COUNTED = ("done", "running", "interrupted")  # phases of trials whose rounds count
_REAL = (
    "of real releases (privacy.rng=os): metric, best configurations and error messages are private and not shown; "
    "--private shows them"
)
_UNKNOWN = "not known yet to be a simulation: the metric is not shown; --private shows it"


def experiment_content(
    folder: ExperimentFolder, private: bool, drawn: Collection[str] | None, find: str = "", most: int = MOST_DRAWN
) -> dict[str, Any]:
    """Return the content of one experiment.

    private: True to show also the private records of real releases. drawn: names of the settings whose curves are
    wanted, None for the first ones. find: a text to search for in the labels, used only if there are more than `LISTED`
    settings. most: the largest number of curves.
    """
    settings = folder.read()
    listed = _listed(settings, private, find)
    first = [setting.name for setting in listed[:DRAWN]]
    shown = set((first if drawn is None else [s.name for s in settings if s.name in drawn])[:most])
    in_table = shown | {setting.name for setting in listed}
    inside = {s.name: folder.completed(s) for s in settings if s.name in in_table}
    notes: list[str] = []  # texts on accountant, delta and relation; settings refer to them by index
    rows = [
        {**_row(setting, private, name in shown, notes), "drawn_first": name in first}
        for name, setting in inside.items()
    ]
    trials = [pair for s in settings for pair in zip(s.trials, s.readings, strict=True)]
    total = sum((trial.rounds or r.rounds or 1) for trial, r in trials)
    ended = sum((r.rounds or 1) if r.phase in ("done", "failed") else (r.round or 0) for _, r in trials)
    return {
        "key": folder.key,
        "name": folder.path.resolve().name,
        "folder": str(folder.path),
        "exists": folder.path.is_dir(),
        "trials": len(trials),
        "counts": _counts(reading for _, reading in trials),
        "rounds": {"ended": min(ended, total), "all": total},
        "changed": max((r.changed for _, r in trials if r.changed is not None), default=None),
        "n_settings": len(settings),
        "settings": rows,
        "panels": _panels(rows),
        "notes": notes,
        "private": _privacy_notes(settings, private),
        **_troubles(folder, [inside.get(setting.name, setting) for setting in settings], private),
    }


def hidden(setting: ReadSetting, private: bool) -> str | None:
    """Return the reason to hide a setting's private records, or None to show them.

    If `private` is True, the records are shown. Otherwise, they are shown only if at least one trial is a simulation
    (rng `seeded`) and no trial is real (rng `os`). Waiting and unreadable trials with an unknown rng are ignored. Any
    other trial with an unknown rng hides the records.
    """
    kinds = {r.facts.rng for r in setting.readings if r.phase not in ("waiting", "unreadable") or r.facts.rng}
    if private or kinds == {"seeded"}:
        return None
    return _REAL if kinds - {None, "seeded"} else _UNKNOWN


def _listed(settings: Sequence[ReadSetting], private: bool, find: str) -> list[ReadSetting]:
    """Return the settings of the table, at most `LISTED`.

    If there are at most `LISTED` settings, all are returned in the given order, and `find` is ignored. Otherwise, the
    settings whose label contains `find` are sorted, and the first `LISTED` are returned. Settings with a running trial
    come first, and better settings come before worse ones.
    """
    if len(settings) <= LISTED:
        return list(settings)

    def order(setting: ReadSetting) -> tuple[bool, bool, float]:
        now = None if hidden(setting, private) else _mean(setting, _COUNTED)
        running = any(r.phase == "running" for r in setting.readings)
        sign = 1 if _facts_of(setting).lower_is_better else -1
        return not running, now is None, 0.0 if now is None else sign * now["mean"]

    return sorted((s for s in settings if find.casefold() in s.label.casefold()), key=order)[:LISTED]


def _row(setting: ReadSetting, private: bool, draw: bool, notes: list[str]) -> dict[str, Any]:
    """Return a setting's row of the table, with its curve if `draw`. Adds the note on epsilon to `notes`, if new."""
    facts, why_hidden = _facts_of(setting), hidden(setting, private)
    visible = why_hidden is None
    under_way = [r.round or 0 for r in setting.readings if r.phase in ("running", "interrupted")]
    return {
        "name": setting.name,
        "label": setting.label,
        "problem": facts.problem,
        "metric": facts.metric,
        "lower_is_better": facts.lower_is_better,
        "seeds": seeds_in_words([trial.seed for trial in setting.trials]),
        "trials": len(setting.trials),
        "counts": _counts(setting.readings),
        "rounds": max((r.rounds for r in setting.readings if r.rounds is not None), default=None),
        "at": [min(under_way), max(under_way)] if under_way else None,
        "hidden": why_hidden,
        "final": _mean(setting, ("done",)) if visible else None,
        "spread": _spread(setting) if visible else {},
        "so_far": _mean(setting, _COUNTED) if visible else None,
        "epsilon": _epsilon(setting, facts, notes),
        "curve": _curve(setting, visible) if draw else None,
    }


def _facts_of(setting: ReadSetting) -> TrialFacts:
    return max(setting.readings, key=lambda r: (r.phase == "done", r.facts.accountant is not None)).facts


def _mean(setting: ReadSetting, phases: Collection[str]) -> dict[str, Any] | None:
    """Average the metric over those trials of a setting that are in one of the `phases`.

    Trials whose metric is unknown are left out. Returns `mean`, `se` (the standard error; None for a single trial) and
    `n` (the number of trials averaged). Returns None if no trial is left.
    """
    known = [r.mean for r in setting.readings if r.phase in phases and r.mean is not None]
    if not known:
        return None
    n, mean = len(known), math.fsum(known) / len(known)
    se = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1) / n) if n > 1 else None
    return {"mean": rounded(mean), "se": rounded(se), "n": n}


def _spread(setting: ReadSetting) -> dict[str, float | None]:
    known = [r.quantiles for r in setting.readings if r.phase == "done" and r.quantiles]
    if not known or any(q.keys() != known[0].keys() for q in known):
        return {}
    return {percent: rounded(math.fsum(q[percent] for q in known) / len(known)) for percent in known[0]}


def _curve(setting: ReadSetting, visible: bool) -> dict[str, Any] | None:
    """Return a setting's curve as columns: round, epsilon, the metric's mean and standard error, and number n of seeds.

    The epsilon of a round is the largest that any seed has spent before the round. If `visible` is False, only the
    columns round and epsilon are returned.
    """
    found = [r.curve for r in setting.readings if r.phase in _COUNTED and r.curve is not None]
    if not found:
        return None
    joined = {name: [value for curve in found for value in curve[name]] for name in found[0]}
    by_round = pd.DataFrame(joined, dtype=float).groupby("round")
    epsilon, metric = by_round["epsilon"].max(), by_round["mean"]
    columns = {"round": epsilon.index.astype(int).tolist(), "epsilon": list(map(rounded, epsilon))}
    if visible:
        means, errors = (list(map(rounded, column)) for column in (metric.mean(), metric.sem()))
        columns |= {"mean": means, "se": errors, "n": metric.count().tolist()}
    return columns


def _epsilon(setting: ReadSetting, facts: TrialFacts, notes: list[str]) -> dict[str, Any] | None:
    """Return the facts about a setting's epsilon, or None if no run's epsilon is known.

    Among the facts are `spent`, the largest epsilon of a run; `target`, the epsilon to which the noise is calibrated;
    and `budget`, the limit of epsilon for the ledger. If the setting's note on epsilon is new, it is added to `notes`.
    """
    known = [r.epsilon for r in setting.readings if r.epsilon is not None]
    if not known:
        return None
    note = None
    if facts.accountant is not None and facts.delta is not None and facts.relation is not None:
        method = METHODS.get(facts.accountant, facts.accountant)
        note = f"ε by {method} at {delta_in_words(facts.delta)}, {neighbours(facts.relation)}"
        if note not in notes:
            notes.append(note)
    return {
        "spent": number(max(known)),
        "nothing": max(known) == 0 and not facts.private,  # a private release may cost 0 at a large delta
        "none": math.isinf(max(known)),
        "so_far": all(r.phase != "done" for r in setting.readings),
        "target": facts.target_epsilon if facts.private else None,
        "budget": facts.budget_epsilon,
        "budget_delta": None if facts.budget_delta in (None, facts.delta) else delta_in_words(facts.budget_delta or 0),
        "claim": facts.published_claim,
        "note": None if note is None else notes.index(note),
        "real": any(r.facts.rng == "os" for r in setting.readings) and len(setting.readings) > 1,
    }


def _panels(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    panels: dict[tuple[str, str, bool], list[str]] = {}
    for row in rows:
        if row["problem"] is not None and row["metric"] is not None:
            panels.setdefault((row["problem"], row["metric"], row["lower_is_better"]), []).append(row["name"])
    return [
        {"problem": problem.replace("_", " "), "metric": metric_in_words(metric), "lower_is_better": low, "settings": s}
        for (problem, metric, low), s in panels.items()
    ]


def _troubles(folder: ExperimentFolder, settings: Sequence[ReadSetting], private: bool) -> dict[str, Any]:
    """Return the failed trials and the unreadable files.

    private: True to show all error messages. Otherwise, the error messages of a setting are shown only if its trials
    are known to be simulations.
    """
    failed: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    if folder.fault is not None:
        faults.append({"label": folder.path.name, "seed": None, "words": folder.fault})
    for setting in settings:
        public = hidden(setting, private) is None
        for trial, reading in zip(setting.trials, setting.readings, strict=True):
            entry = {"label": setting.label, "seed": trial.seed}
            if reading.phase == "failed":
                words = (reading.error or "not recorded") if public else "the error may be private"
                failed.append({**entry, "words": words})
            if reading.fault is not None:
                faults.append({**entry, "words": reading.fault})
    lists = {"failed": failed[:MOST_FAILED], "faults": faults[:MOST_FAILED]}
    return {**lists, "n_failed": len(failed), "n_faults": len(faults)}


def _privacy_notes(settings: Sequence[ReadSetting], private: bool) -> list[str]:
    """Return the page's notes on private records; there may be none.

    If `private` is True, the page shows private records, and the only note is a warning. This warning is left out if
    all started trials are simulations. If `private` is False, each note gives one reason to hide records, and the
    number of settings to which the reason applies.
    """
    begun = [s for s in settings if any(r.phase != "waiting" for r in s.readings)]
    if private and any(r.facts.rng != "seeded" for s in begun for r in s.readings if r.phase != "waiting"):
        return ["this page shows private records of real releases (--private): keep it to yourself"]
    reasons = Counter(reason for s in begun if (reason := hidden(s, private)) is not None)
    return [f"{n} {'setting' if n == 1 else 'settings'} {reason}" for reason, n in reasons.items()]


def _counts(readings: Iterable[TrialReading]) -> dict[str, int]:
    found = Counter(reading.phase for reading in readings)
    return {phase: found[phase] for phase in BOARD_PHASES if found[phase]}
