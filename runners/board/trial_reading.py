"""Checked reading of one trial's files, which may be damaged, hostile or written by another program."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import yaml

from dpfbo.formats.bounded import plain, read_plain, read_yaml
from dpfbo.formats.curve_points import epsilon_before, shown_rounds
from dpfbo.formats.run_folder import RunFolder
from runners.sweep.trials import Phase, Trial, quantiles_in, state

BoardPhase = Phase | Literal["unreadable"]
MOST_BYTES = 50_000_000  # largest size of a file that is read
MOST_LETTERS = 300  # largest length of a name or a sentence
MOST_ROUNDS = 10_000_000
MOST_LEVELS = 9  # largest number of quantiles


class UnreadableFile(ValueError):
    """A file does not have the content that its name promises; the message is one sentence."""


@dataclass(frozen=True)
class TrialFacts:
    """The public settings of a run, as far as known; target_epsilon and budget_epsilon are upper limits."""

    problem: str | None = None
    algorithm: str | None = None
    label: str | None = None
    metric: str | None = None
    lower_is_better: bool = True
    private: bool = True
    delta: float | None = None
    relation: str | None = None
    accountant: str | None = None
    rng: str | None = None
    published_claim: str | None = None
    target_epsilon: float | None = None
    budget_epsilon: float | None = None
    budget_delta: float | None = None


@dataclass(frozen=True)
class TrialReading:
    """The contents of one trial's files at one moment.

    mean: the metric after `round`, the last finished round. epsilon: spent so far, inf if not finite, None if unknown.
    curve: the lists `round`, `mean` and `epsilon` (spent before the round). changed: time of the newest file. fault: a
    sentence on a file that cannot be read. quantiles: the quantiles of the final metric over the agents, by percent;
    only finished runs with many agents have them.
    """

    phase: BoardPhase
    facts: TrialFacts = TrialFacts()
    round: int | None = None
    rounds: int | None = None
    mean: float | None = None
    epsilon: float | None = None
    curve: dict[str, list[Any]] | None = None
    n_charges: int | None = None
    error: str | None = None
    changed: float | None = None
    fault: str | None = None
    quantiles: dict[str, float] | None = None


def number(value: object) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def rounded(value: object, digits: int = 6) -> float | None:
    """Return a finite number, rounded to `digits` significant digits, and None for anything else."""
    known = number(value)
    return None if known is None else float(f"{known:.{digits}g}")


def text(value: object) -> str | None:
    """Shorten a value that is a string; return None for any other value."""
    return short(value) if isinstance(value, str) else None


def short(value: object) -> str:
    words = str(value)
    return words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]}…"


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_ROUNDS else None


def _facts(given: dict[str, Any]) -> TrialFacts:
    """Return the facts in a summary or a progress file. Invalid flags become True; other invalid values become None."""
    readers: dict[Any, Callable[[object], Any]] = {
        str | None: text, float | None: number, bool: lambda value: value is not False
    }  # fmt: skip
    found = {field.name: readers[field.type](given.get(field.name)) for field in fields(TrialFacts)}
    return TrialFacts(**{**found, "delta": found["delta"] if 0 < (found["delta"] or 0) < 1 else None})


def read_trial(trial: Trial, folder: RunFolder) -> TrialReading:
    """Read one trial. The curve of a finished trial lacks epsilon; see `epsilon_curve`."""
    summary = folder.path / "summary.json"
    try:
        return _finished(read_object(summary), summary.stat().st_mtime) if summary.exists() else _begun(trial, folder)
    except UnreadableFile as error:
        return TrialReading("unreadable", fault=str(error))
    except OSError as error:
        return TrialReading("unreadable", fault=f"the run's folder cannot be read: {error.strerror}")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UnreadableFile for other content, and OSError if the file cannot be read."""
    try:
        content = json.loads(read_plain(path, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnreadableFile(f"{path.name} cannot be read: it holds no JSON object")
    return content


def limits_in_config(path: Path) -> dict[str, float | None]:
    """Return the target epsilon and the budget in a config.yaml; {} if the file is unreadable.

    The keys are fields of `TrialFacts`: target_epsilon, budget_epsilon and budget_delta.
    """
    try:
        privacy = read_yaml(path)["privacy"]
        budget = privacy.get("budget") or {}
        limits = {f"budget_{name}": number(budget.get(name)) for name in ("epsilon", "delta")}
        return {"target_epsilon": number(privacy.get("epsilon")), **limits}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
        return {}


def epsilon_curve(path: Path, rounds: int, n_charges: int | None) -> list[float | None]:
    """Return the epsilon before each of the `shown_rounds` of a finished run, from the run's server.parquet.

    If the ledger has more charges (`n_charges`) than the run has releases, earlier runs made some of the charges. The
    epsilon before the first release is then unknown (None); otherwise it is 0. Raises UnreadableFile if the file cannot
    be read.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        table = pq.read_table(plain(path), columns=["round", "epsilon"])
        sent, spent = (table[name].to_numpy().astype(float).tolist() for name in ("round", "epsilon"))
    except Exception as error:  # pyarrow raises many kinds
        raise UnreadableFile(f"{path.name} cannot be read: no curve against epsilon ({short(error)})") from error
    first = 0.0 if n_charges is None or n_charges <= len(sent) else None
    return epsilon_before(shown_rounds(rounds), sent, spent, first)


def _finished(summary: dict[str, Any], changed: float) -> TrialReading:
    facts, rounds = _facts(summary), _count(summary.get("rounds"))
    final, epsilons = summary.get("final"), summary.get("epsilon")
    if rounds is None or not isinstance(final, dict) or not isinstance(epsilons, dict) or facts.accountant is None:
        raise UnreadableFile("summary.json lacks rounds, final, epsilon or accountant")
    given = epsilons.get(facts.accountant)
    if given is not None and number(given) is None:
        raise UnreadableFile(f"summary.json has {short(repr(given))} as its epsilon")
    spread = quantiles_in(summary)
    return TrialReading(
        "done", facts, rounds, rounds, number(final.get("mean")), math.inf if given is None else float(given),
        _curve(summary.get("curve"), rounds, rounds), _count(summary.get("n_charges")), changed=changed,
        quantiles=None if spread is None else {short(p): value for p, value in list(spread.items())[:MOST_LEVELS]},
    )  # fmt: skip


def _begun(trial: Trial, folder: RunFolder) -> TrialReading:
    now, progress = state(folder), folder.progress()
    files = [folder.path / name for name in ("progress.json", "failure.json")]
    changed = max((path.stat().st_mtime for path in files if path.is_file()), default=None)
    seen: dict[str, Any] = {"phase": now.phase, "error": text(now.error), "changed": changed}
    facts = {"rng": trial.rng, "metric": trial.metric}
    reached, rounds = (None, None) if progress is None else (_count(progress.round), _count(progress.rounds))
    if progress is None or reached is None or rounds is None or reached > rounds:
        fault = None if progress is None else "progress.json has no valid rounds"
        return TrialReading(facts=_facts(facts), rounds=trial.rounds, fault=fault, **seen)
    facts |= progress.facts if isinstance(progress.facts, dict) else {}
    seen |= {"mean": number(progress.mean), "curve": _curve(progress.curve, rounds, reached)}
    spent = math.inf if progress.epsilon is None else number(progress.epsilon)
    return TrialReading(facts=_facts(facts), round=reached, rounds=rounds, epsilon=spent, **seen)


def _curve(given: Any, rounds: int, reached: int) -> dict[str, list[Any]] | None:
    if not isinstance(given, dict) or not all(isinstance(given.get(name), list) for name in ("round", "mean")):
        return None
    at = {t: k for k, t in enumerate(given["round"]) if isinstance(t, int)}
    shown = [t for t in shown_rounds(rounds) if t <= reached]

    def values(name: str) -> list[float | None]:
        column = given[name] if isinstance(given.get(name), list) else []
        return [number(column[at[t]]) if at.get(t, len(column)) < len(column) else None for t in shown]

    return {"round": shown, "mean": values("mean"), "epsilon": values("epsilon")}
