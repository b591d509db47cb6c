"""python -m runners.run --replay FOLDER: repeat a recorded run, and compare the records byte for byte."""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from dpfbo.privacy.ledger import Ledger, LedgerError
from runners.compose.composition import Composition
from runners.compose.configuration import composed
from runners.compose.instantiate import check_function, check_targets
from runners.identity.setting import RunIdentity
from runners.record.environment import commit, environment
from runners.record.run_folder import ResultsError
from runners.record.terminal import RoundProgress, say_error
from runners.recorded_run import record_run
from runners.user_errors import USER_ERRORS

LEDGER = "ledger.jsonl"
RECORDS = ("rounds.parquet", "server.parquet", LEDGER)
ALLOW = "allow={}"  # the word that lets a config.yaml name classes of another package
_UNREADABLE = (
    OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError, OmegaConfBaseException, YAMLError,
)  # fmt: skip
_ELSEWHERE = ("executor", "tracker", "results_dir", "again", "progress")  # they say where and how a run is made


def main(folder: Path, allow: Sequence[str] = ()) -> int:
    """Replay the run in a folder and print the comparison; returns 0 if all records are the same, else 1.

    allow: packages and modules whose classes and functions its config.yaml may name.
    """
    try:
        cfg, summary = recorded(folder, allow, ALLOW)
        if summary["rng"] != "seeded":
            raise ResultsError(f"{folder} cannot be repeated: its noise came from the system and is not kept")
        with tempfile.TemporaryDirectory(prefix="replay") as scratch:
            cfg.results_dir = scratch
            composition = Composition.of(cfg)
            run = _named_as_in(folder / LEDGER, RunIdentity.of(composition.given, composition.settings))
            title, rounds = f"replay {summary['problem']} {summary['algorithm']}", composition.settings.rounds
            epsilon = composition.experiment.plan.epsilon_of_nothing
            with RoundProgress(title, rounds, "mean", sys.stderr.isatty(), epsilon) as progress:
                _, again = record_run(composition, progress, identity=run)
            found = list(differences(folder, again))
    except KeyboardInterrupt:
        say_error("interrupted; nothing was changed")
        return 130
    except USER_ERRORS as error:
        say_error(str(error))
        return 1
    if not found:
        print(f"{folder}: repeated, {', '.join(RECORDS)} are the same to the byte")
        return 0
    print(*(f"{folder}: {difference}" for difference in found), sep="\n")
    for difference in changed_environment(summary):
        print(f"  made with {difference}")
    return 1


def _named_as_in(ledger: Path, run: RunIdentity) -> RunIdentity:
    """The run with the name of its family in the ledger, which was made before the seed was filled in."""
    try:
        covers = Ledger(ledger).covers
    except LedgerError:  # the comparison says more
        return run
    if covers is None:
        return run
    return replace(run, names=replace(run.names, family=covers.setting))


def recorded(folder: Path, allow: Sequence[str], option: str) -> tuple[DictConfig, dict[str, Any]]:
    """The configuration of a finished run, to be run in this process without a tracker, and its summary.

    allow, option: see `compose.instantiate.check_targets`. Raises ResultsError if there is none, ValueError if its
    configuration names what is not allowed.
    """
    if not folder.is_dir():
        raise ResultsError(f"{str(folder)!r} is no folder of a finished run")
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
    """A sentence for each record that is not the same in two folders."""
    for name in RECORDS:
        try:
            first, second = (_bytes(folder / name) for folder in (recorded, again))
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror or error}"
            continue
        if first != second:
            try:
                where = _first_row(recorded / name, again / name) if name.endswith("parquet") else _line(first, second)
            except (OSError, pa.ArrowException) as error:
                where = f"it cannot be read: {error}"
            yield f"{name} differs: {where}"


def _bytes(path: Path) -> bytes:
    with open_file(path, "rb") as file:
        return file.read()


def _first_row(recorded: Path, again: Path) -> str:
    a, b = pq.read_table(recorded), pq.read_table(again)
    if a.schema.names != b.schema.names or len(a) != len(b):
        return f"{len(a)} rows of {', '.join(a.schema.names)} recorded, {len(b)} of {', '.join(b.schema.names)} now"
    for name in a.schema.names:
        ours, theirs = a[name].to_pylist(), b[name].to_pylist()
        # NaN is no number that equals itself
        row = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=True)) if repr(x) != repr(y)), None)
        if row is not None:
            n = sum(repr(x) != repr(y) for x, y in zip(ours, theirs, strict=True))
            return f"{name} in {n} of {len(a)} rows, first in row {row}: {ours[row]!r} recorded, {theirs[row]!r} now"
    return "the same numbers are written otherwise, by other versions of the Parquet library perhaps"


def _line(recorded: bytes, again: bytes) -> str:
    a, b = recorded.splitlines(), again.splitlines()
    if len(a) != len(b):
        return f"{len(a)} charges recorded, {len(b)} now"
    number = next((i for i, (x, y) in enumerate(zip(a, b, strict=True), start=1) if x != y), 0)
    return f"first in line {number}" if number else "its line ends"


def changed_environment(summary: dict[str, Any]) -> Iterator[str]:
    """`torch 2.6.0, here 2.7.1` for whatever differs between the run's environment and this one's."""
    was, now = summary.get("environment"), environment()
    if not isinstance(was, dict):
        yield "an environment that summary.json does not tell"
        return
    for key in now.keys() | was.keys():
        a, b = was.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from (f"{n} {a.get(n)}, here {b.get(n)}" for n in sorted(a.keys() | b.keys()) if a.get(n) != b.get(n))
        elif a != b:
            yield f"{key} {a}, here {b}"
    if summary.get("commit") != commit():
        yield f"commit {summary.get('commit')}, here {commit()}"
