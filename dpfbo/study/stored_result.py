"""Write results to folders and restore them, without their objectives.

A result that `Optimization.save` wrote lacks the broadcasts, so its study cannot be continued.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpfbo.checkpoint import Checkpoint, check_charged
from dpfbo.federated.federation import FederatedResult
from dpfbo.formats.bounded import read_object, read_plain
from dpfbo.formats.files import make_folder, replace_file
from dpfbo.formats.journal import StateError, read_events
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.run_result import Round
from dpfbo.space.domain import Domain
from dpfbo.space.parameters import Space
from dpfbo.study.evaluations import DESCRIPTION, FILE, Evaluation
from dpfbo.study.study import Study

_LEDGER, _ROUNDS = "ledger.jsonl", "rounds"
_SAVED = ("server", "stopped", "unfinished")
_MOST_BYTES = 2**28
_MOST_NAMES = 20  # the maximum number of subfolders that an error lists
_MADE_OF = (  # modules and packages whose classes a file may name: creating an object of them only runs its checks
    "dpfbo.federated", "dpfbo.gp", "dpfbo.privacy", "dpfbo.records", "dpfbo.rng", "dpfbo.space",
    "dpfbo.study.algorithm", "dpfbo.study.evaluations", "dpfbo.study.study",
)  # fmt: skip
_UNREADABLE = (
    ValueError, TypeError, KeyError, AttributeError, ImportError, OverflowError, RecursionError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class StoredProblem:
    """The problem of a loaded result; it cannot evaluate anything."""

    name: str
    metric: str
    lower_is_better: bool
    maximize: bool
    n_agents: int
    domain: Domain
    space: Space | None
    reference: Tensor | None

    noise_variance = None

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        raise StateError("a loaded result has no objective: it cannot be continued")

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return y


class StoredResult(NamedTuple):
    """The arguments of an `Optimization`."""

    study: Study
    problem: Problem
    result: FederatedResult
    ledger: Ledger
    stopped: str | None
    unfinished: Sequence[Evaluation]
    folder: Path


def description(study: Study, problem: Problem, saved: dict[str, Any] | None = None) -> bytes:
    """Return the content of `optimization.json`. saved: the entries that only `Optimization.save` writes."""
    content = {
        "problem": {
            "name": problem.name, "metric": problem.metric, "lower_is_better": problem.lower_is_better,
            "maximize": getattr(problem, "maximize", True), "space": _plain(getattr(problem, "space", None)),
            "reference": _plain(problem.reference),
        },
        "digest": study.digest, "study": _plain(study), "saved": _plain(saved),
    }  # fmt: skip
    return json.dumps(content, indent=1).encode() + b"\n"


def save(stored: StoredResult) -> None:
    """Write a result to its folder. Raises StateError unless the folder is new or empty."""
    folder = stored.folder
    if folder.exists() and any(folder.iterdir()):
        raise StateError(f"{folder} must be a new folder or an empty one")
    make_folder(folder, private=True)
    checkpoint, ledger = Checkpoint(folder / _ROUNDS, stored.study.digest), Ledger(folder / _LEDGER)
    for record in stored.result.rounds:
        checkpoint.append(Round(record, None, None, None, {}))
    for charge in stored.ledger.charges:
        ledger.charge(charge)
    saved = (stored.result.server, stored.stopped, stored.unfinished)
    content = description(stored.study, stored.problem, dict(zip(_SAVED, saved, strict=True)))
    replace_file(folder / DESCRIPTION, lambda file: file.write(content), mode=0o600)


def load(path: Path, ledger: Ledger | None) -> StoredResult:
    """Read a result from a folder; `Optimization.load` describes the folder and the errors."""
    folder = _folder_in(path.absolute())
    with _readable(folder / DESCRIPTION):
        content = json.loads(read_plain(folder / DESCRIPTION, _MOST_BYTES))
        study, saved = _made(content["study"]), _made(content["saved"])
        facts = {name: _made(plain) for name, plain in content["problem"].items()}
        problem = StoredProblem(**facts, n_agents=study.n_agents, domain=study.domain)
        server, stopped, unfinished = [[], None, []] if saved is None else (saved[key] for key in _SAVED)
        if study.digest != content["digest"]:
            raise ValueError("the study does not match its digest")
    ledger, result = Ledger(folder / _LEDGER) if ledger is None else ledger, study.result()
    checkpoint = Checkpoint(folder / ("checkpoint" if saved is None else _ROUNDS), study.digest)
    ledger.check_covers(study.coverage())
    known = len(check_charged(checkpoint.rounds(), ledger))
    result.rounds.read_back = checkpoint.record
    for done in checkpoint.rounds(known):
        result.add(done)
    result.server.extend(server)
    if saved is None:
        stopped, unfinished = _stopped(folder, study, known), _unfinished(folder / FILE, study, known, problem.space)
    return StoredResult(study, problem, result, ledger, stopped, unfinished, folder)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise StateError in place of the errors that a file with invalid content causes."""
    try:
        yield
    except _UNREADABLE as error:
        reasons = "edited, made by another version of dpfbo, or with a class from elsewhere"
        raise StateError(f"{path} cannot be loaded ({reasons}): {error!r}") from error


def _folder_in(path: Path) -> Path:
    if (path / DESCRIPTION).exists():
        return path
    found = sorted(file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{DESCRIPTION}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise StateError(f"{path} holds no result: neither it nor a folder in it has the file {DESCRIPTION}")
    names = [str(folder.relative_to(path)) for folder in found[:_MOST_NAMES]]
    raise StateError(
        f"{path} holds {len(found)} results: load one of {', '.join(names)}{', ..' * (len(found) > len(names))}"
    )


def _stopped(folder: Path, study: Study, known: int) -> str | None:
    """Return the reason why a study ended early; `not finished` if it is unknown, None if all rounds are finished."""
    if known > study.rounds:
        return None
    summary = read_object(folder / "summary.json") or {}
    stopped: str | None = summary.get("stopped") if summary.get("rounds") == known - 1 else None
    return stopped or "not finished"


def _unfinished(path: Path, study: Study, known: int, space: Any) -> list[Evaluation]:
    """Return the evaluations after the finished rounds; `known` is the number of finished rounds."""
    if not path.exists():
        return []
    with _readable(path):
        first, *events = read_events(path)
        if first["study"] != study.digest:
            raise ValueError("it belongs to another study")
        late = [event for event in events if event["round"] >= known]
        late.sort(key=lambda event: (event["agent"], event["round"], event["place"]))
        return [Evaluation(e["agent"], e["round"], space.configuration(e["x"]), e["value"]) for e in late]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, type):
        return {"named": f"{value.__module__}.{value.__qualname__}"}
    if isinstance(value, Mapping):
        return {"mapping": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return {"list": _plain(tuple(value))}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    settings = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {"class": _plain(type(value))["named"], "settings": settings}


def _made(plain: Any) -> Any:
    """Decode the result of `_plain`; refuse classes from modules outside `_MADE_OF`."""
    if isinstance(plain, list):
        return tuple(map(_made, plain))
    if not isinstance(plain, dict):
        return plain
    if "list" in plain:
        return list(_made(plain["list"]))
    if "tensor" in plain:
        return torch.tensor(plain["tensor"], dtype={"float64": torch.float64, "int64": torch.int64}[plain["dtype"]])
    if "mapping" in plain:
        return {_made(key): _made(item) for key, item in plain["mapping"]}
    if "named" in plain:
        return _class_named(plain["named"])
    return _class_named(plain["class"])(**{name: _made(item) for name, item in plain["settings"].items()})


def _class_named(path: str) -> type[Any]:
    module, _, name = path.rpartition(".")
    if not f"{module}.".startswith(tuple(f"{allowed}." for allowed in _MADE_OF)):
        raise ValueError(f"{path} is not a class that a result may contain")
    found = getattr(import_module(module), name)
    if not (isinstance(found, type) and is_dataclass(found) and found.__module__ == module):
        raise ValueError(f"{path} is not a dataclass")
    return found
