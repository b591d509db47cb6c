"""python -m runners.run --replay FOLDER: repeat a recorded run, and compare the records byte for byte."""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dpfbo.formats.bounded import MOST_RECORD, check_yaml, read_plain
from dpfbo.formats.files import open_file
from dpfbo.formats.run_folder import ResultsError
from dpfbo.privacy.ledger import Ledger, LedgerError
from runners.compose.composition import Composition
from runners.compose.configuration import composed
from runners.compose.instantiate import check_function, check_targets
from runners.identity.setting import RunIdentity
from runners.record.environment import commit, environment
from runners.record.terminal import RoundProgress
from runners.recorded_run import record_run
from runners.user_errors import exit_code

LEDGER = "ledger.jsonl"
RECORDS = ("rounds.parquet", "server.parquet", LEDGER)
_UNREADABLE = (
    OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError, OmegaConfBaseException, YAMLError,
)  # fmt: skip
_ELSEWHERE = ("executor", "tracker", "results_dir", "again", "progress")  # they determine where and how a run is made


def main(folder: Path, allow: Sequence[str] = ()) -> int:
    """Replay the run in a folder and print the comparison; return 0 if all records are the same, else 1.

    allow: packages and modules whose classes and functions config.yaml may name.
    """
    return exit_code(lambda: _replay(folder, allow), "interrupted; nothing was changed")


def _replay(folder: Path, allow: Sequence[str]) -> int:
    cfg, summary = recorded(folder, allow, "allow={}")
    if summary["rng"] != "seeded":
        raise ResultsError(f"{folder} cannot be repeated: its noise came from the system and is not kept")
    with tempfile.TemporaryDirectory(prefix="replay") as scratch:
        cfg.results_dir = scratch
        composition = Composition.of(cfg)
        run = RunIdentity.of(composition.given, composition.settings)
        with suppress(LedgerError):  # the ledger named the setting before the seed was filled in
            if (covers := Ledger(folder / LEDGER).covers) is not None:
                run = replace(run, names=replace(run.names, family=covers.setting))
        title, rounds = f"replay {summary['problem']} {summary['algorithm']}", composition.settings.rounds
        epsilon = composition.experiment.plan.epsilon_of_nothing
        with RoundProgress(title, rounds, "mean", sys.stderr.isatty(), epsilon) as progress:
            _, again = record_run(composition, progress, identity=run)
        found = list(differences(folder, again))
    if not found:
        print(f"{folder}: repeated, {', '.join(RECORDS)} are the same to the byte")
        return 0
    print(*(f"{folder}: {difference}" for difference in found), sep="\n")
    for difference in changed_environment(summary):
        print(f"  made with {difference}")
    return 1


def recorded(folder: Path, allow: Sequence[str], option: str) -> tuple[DictConfig, dict[str, Any]]:
    """Return the configuration and the summary of a finished run.

    In the returned configuration, the executor is `local` (this process) and the tracker is disabled, whatever the run
    used. allow, option: see `compose.instantiate.check_targets`. Raises ResultsError if `folder` has no readable
    finished run. Raises ValueError if the configuration names a class or function that is not allowed.
    """
    if not folder.is_dir():
        raise ResultsError(f"{str(folder)!r} is not the folder of a finished run")
    try:
        summary = json.loads(read_plain(folder / "summary.json", MOST_RECORD))
        check_yaml(folder / "config.yaml")
        settings: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
        if not isinstance(summary, dict) or not {"rng", "problem", "algorithm"} <= summary.keys():
            raise ValueError("summary.json is not that of a run")
        problem = dict(settings["problem"])
    except FileNotFoundError as error:
        raise ResultsError(f"{folder} holds no finished run: {Path(error.filename).name} is missing") from error
    except _UNREADABLE as error:
        raise ResultsError(f"{folder} cannot be read: {error}") from error
    check_targets(settings, allow, option)
    check_function(problem, allow, option)
    here = composed(["tracker.wandb.mode=disabled", "progress=false"])
    elsewhere = {key: here[key] for key in _ELSEWHERE if key in here}
    return OmegaConf.create({**settings, **elsewhere, "allow": list(allow)}), summary


def differences(recorded: Path, again: Path) -> Iterator[str]:
    """Yield a sentence for each record that differs between two run folders."""
    for name in RECORDS:
        try:
            if _bytes(recorded / name) == _bytes(again / name):
                continue
            first, second = _rows(recorded / name), _rows(again / name)
        except (OSError, pa.ArrowException) as error:
            yield f"{name} cannot be read: {error}"
            continue
        changed = [i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
        if len(first) != len(second):
            yield f"{name} differs: {len(first)} rows recorded, {len(second)} now"
        elif changed:
            a, b = first[changed[0]], second[changed[0]]
            values = [f"{key} {a.get(key)} recorded, {b.get(key)} now" for key in a | b if a.get(key) != b.get(key)]
            yield f"{name} differs in {len(changed)} of {len(first)} rows, first in row {changed[0]}: {values[0]}"
        else:
            yield f"{name} has the same content, written otherwise, perhaps by another version of the Parquet library"


def _bytes(path: Path) -> bytes:
    with open_file(path, "rb") as file:
        return file.read()


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table or a ledger. The values are text, so that two NaN are equal."""
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [_fields(line) for line in _bytes(path).splitlines()]
    return [{name: repr(value) for name, value in row.items()} for row in rows]


def _fields(line: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return {"line": line}


def changed_environment(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the differences between the run's environment and this one, such as `torch 2.6.0, here 2.7.1`."""
    recorded = summary.get("environment")
    if not isinstance(recorded, dict):
        yield "an environment that summary.json does not have"
        return
    was = {**_flat(recorded), "commit": summary.get("commit")}
    now = {**_flat(environment()), "commit": commit()}
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            yield f"{name} {was.get(name)}, here {now.get(name)}"


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= value if isinstance(value, dict) else {key: value}
    return found
