"""The content of one trial's files, checked value by value: a file may be of another program, damaged or hostile."""

import json
import math
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import yaml

from dpfbo.formats.bounded import check_yaml
from runners.record.curve_points import epsilon_before, shown_rounds
from runners.record.run_folder import RunFolder
from runners.sweep.trials import Phase, Trial, quantiles_in, state

BoardPhase = Phase | Literal["unreadable"]
MOST_BYTES = 50_000_000  # of a file that is read
MOST_LETTERS = 300  # of a name or a sentence
MOST_ROUNDS = 10_000_000
MOST_LEVELS = 9  # of quantiles


class UnreadableFile(ValueError):
    """A file is not what its name says; the message is one sentence."""


@dataclass(frozen=True)
class TrialFacts:
    """The public settings of a run, as far as they are known. target, budget: limits of epsilon."""

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
    claim: str | None = None
    target: float | None = None
    budget: float | None = None
    budget_delta: float | None = None


@dataclass(frozen=True)
class TrialCurve:
    """The metric and the epsilon spent before each round of `shown_rounds`, as far as the run is; NaN where unknown."""

    mean: np.ndarray
    epsilon: np.ndarray


@dataclass(frozen=True)
class TrialReading:
    """The files of one trial at one moment.

    mean: the metric after `round`. epsilon: spent so far, inf if there is no finite one, None if not known. changed:
    the time of the newest file. fault: a sentence about a file that cannot be read. quantiles: of the final metric over
    the agents by percent, of a finished run with many agents.
    """

    phase: BoardPhase
    facts: TrialFacts = TrialFacts()
    round: int | None = None
    rounds: int | None = None
    mean: float | None = None
    epsilon: float | None = None
    curve: TrialCurve | None = None
    n_charges: int | None = None
    error: str | None = None
    changed: float | None = None
    fault: str | None = None
    quantiles: dict[str, float] | None = None


def read_trial(trial: Trial, folder: RunFolder) -> TrialReading:
    """The reading of one trial; a finished one has no epsilon in its curve yet (see `epsilon_curve`)."""
    summary = folder.path / "summary.json"
    try:
        try:
            return _finished(read_object(summary), summary.stat().st_mtime)
        except FileNotFoundError:
            return _unfinished(trial, folder)
    except UnreadableFile as error:
        return TrialReading("unreadable", fault=str(error))
    except OSError as error:
        return TrialReading("unreadable", fault=f"the run's folder cannot be read: {error.strerror}")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises UnreadableFile if it is none, and OSError."""
    try:
        content = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnreadableFile(f"{path.name} cannot be read: it holds no object")
    return content


def limits_in_config(path: Path) -> tuple[float | None, float | None, float | None]:
    """(target epsilon, epsilon and delta of the budget) in a config.yaml; None where there is none to read."""
    try:
        check_yaml(path)  # the loader would crash on deep nesting
        privacy = yaml.load(_bytes(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["privacy"]
        budget = privacy.get("budget") or {}
        return number(privacy.get("epsilon")), number(budget.get("epsilon")), number(budget.get("delta"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
        return None, None, None


def epsilon_curve(path: Path, rounds: int, n_charges: int | None) -> np.ndarray:
    """Epsilon before each of the shown rounds of a finished run, from its server.parquet.

    NaN before the first release where the ledger holds more of them than this run made. Raises UnreadableFile.
    """
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise UnreadableFile(f"{path.name} is missing or too large: no curve against epsilon")
        table = pq.read_table(path, columns=["round", "epsilon"])
        sent, spent = (table[name].to_numpy().astype(float) for name in ("round", "epsilon"))
    except UnreadableFile:
        raise
    except Exception as error:  # of many kinds: the format is pyarrow's
        raise UnreadableFile(f"{path.name} cannot be read: no curve against epsilon ({_short(error)})") from error
    first = 0.0 if n_charges is None or n_charges <= len(sent) else math.nan
    found = epsilon_before(shown_rounds(rounds), sent.tolist(), spent.tolist(), first)
    return np.array([math.nan if value is None else value for value in found])


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _finished(summary: dict[str, Any], changed: float) -> TrialReading:
    facts, rounds = _facts(summary), _count(summary.get("rounds"))
    final, epsilons = summary.get("final"), summary.get("epsilon")
    if rounds is None or not isinstance(final, dict) or not isinstance(epsilons, dict) or facts.accountant is None:
        raise UnreadableFile("summary.json lacks rounds, final, epsilon or accountant")
    given = epsilons.get(facts.accountant)
    if given is not None and number(given) is None:
        raise UnreadableFile(f"summary.json has {_short(repr(given))} as its epsilon")
    curve, mean = _curve(summary.get("curve"), rounds, rounds), number(final.get("mean"))
    charges = _count(summary.get("n_charges"))
    spent = math.inf if given is None else float(given)
    spread = quantiles_in(summary)
    known = (
        None if spread is None else {_short(percent): value for percent, value in list(spread.items())[:MOST_LEVELS]}
    )
    return TrialReading("done", facts, rounds, rounds, mean, spent, curve, charges, changed=changed, quantiles=known)


def _unfinished(trial: Trial, folder: RunFolder) -> TrialReading:
    """The reading of a trial that has no summary."""
    now = state(folder)
    error = None if now.error is None else _text(now.error)
    files = [folder.path / name for name in ("progress.json", "failure.json")]
    changed = max((path.stat().st_mtime for path in files if path.is_file()), default=None)
    facts = TrialFacts(rng=trial.rng, metric=trial.metric)
    progress = folder.progress()
    reached, rounds = (None, None) if progress is None else (_count(progress.round), _count(progress.rounds))
    if progress is None or reached is None or rounds is None or reached > rounds:
        fault = None if progress is None else "progress.json has no rounds"
        return TrialReading(now.phase, facts, rounds=trial.rounds, error=error, changed=changed, fault=fault)
    known = progress.facts if isinstance(progress.facts, dict) else {}
    facts = _facts({"rng": trial.rng, "metric": trial.metric, **known})
    given = progress.curve if isinstance(progress.curve, dict) else {}
    curve, mean = _curve(given, rounds, reached), number(progress.mean)
    spent = math.inf if progress.epsilon is None else number(progress.epsilon)
    return TrialReading(now.phase, facts, reached, rounds, mean, spent, curve, error=error, changed=changed)


def _facts(given: dict[str, Any]) -> TrialFacts:
    def text(key: str) -> str | None:
        return _text(given.get(key))

    delta = number(given.get("delta"))
    return TrialFacts(
        text("problem"), text("algorithm"), text("label"), text("metric"), given.get("lower_is_better") is not False,
        given.get("private") is not False, delta if delta is not None and 0 < delta < 1 else None, text("relation"),
        text("accountant"), text("rng"), text("published_claim"), number(given.get("target_epsilon")),
        number(given.get("budget_epsilon")), number(given.get("budget_delta")),
    )  # fmt: skip


def _curve(given: Any, rounds: int, reached: int) -> TrialCurve | None:
    """The shown rounds of a curve with lists `round`, `mean` and perhaps `epsilon`; None if there is none."""
    if (
        not isinstance(given, dict)
        or not isinstance(given.get("round"), list)
        or not isinstance(given.get("mean"), list)
    ):
        return None
    at = {t: k for k, t in enumerate(given["round"]) if isinstance(t, int)}
    places = [at.get(t) for t in shown_rounds(rounds) if t <= reached]
    return TrialCurve(_values(given["mean"], places), _values(given.get("epsilon"), places))


def _values(given: object, places: Sequence[int | None]) -> np.ndarray:
    """The numbers at some places of a list; NaN where there is none."""
    values = given if isinstance(given, list) else []
    found = [number(values[k]) if k is not None and k < len(values) else None for k in places]
    return np.array([math.nan if value is None else value for value in found], float)


def _bytes(path: Path) -> bytes:
    """The content of an ordinary file. Raises UnreadableFile for another kind or a very large one, and OSError."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise UnreadableFile(f"{path.name} is no file of at most {MOST_BYTES // 1_000_000} MB")
    return path.read_bytes()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_ROUNDS else None


def _text(value: object) -> str | None:
    return _short(value) if isinstance(value, str) else None


def _short(text: object) -> str:
    words = str(text)
    return words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]}…"
