"""Finished runs: told from others, continued with more rounds, or put aside for a repetition.

lineage.json         the setting without its rounds, by which a run of another length finds the folder and its ledger;
                     written before anything is released, and never moved
rounds.zip           the finished rounds (`dpfbo.checkpoint`) of a run that a longer one may continue; as private as
                     rounds.parquet
summary.before.json  the summary of a finished run, while a longer one continues it
earlier/k/           the records of a run that was repeated. The ledger of real releases stays in the run's folder and
                     goes on; that of a simulation goes with its records
"""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import MOST_RECORD, read_plain
from dpfbo.formats.files import replace_file, sync_folder
from runners.record.run_folder import ResultsError, RunFolder

ROUNDS, LINEAGE, SUMMARY, BEFORE = "rounds.zip", "lineage.json", "summary.json", "summary.before.json"
EARLIER = "earlier"
_CERTIFICATE = ("certificate.md", "certificate.json")
_RECORDS = ("config.yaml", "rounds.parquet", "server.parquet", "theory.json", ROUNDS, "failures.log", *_CERTIFICATE)
_KEPT = ("round-*.npz", "curator.npz")  # files of a checkpoint that a longer run needs


@dataclass(frozen=True)
class Lineage:
    """The identity that a run shares with those of other lengths.

    family: a digest of the setting without `rounds`. any_noise: the same without the noise multiplier.
    """

    family: str
    any_noise: str


def summary_of(folder: RunFolder, rounds: int = 1) -> dict[str, Any] | None:
    """The summary of a finished run; None if there is none, or it has fewer rounds.

    While the run is continued, it is that of the shorter one.
    """
    for name in (SUMMARY, BEFORE):
        try:
            summary = json.loads(read_plain(folder.path / name, MOST_RECORD))
            if isinstance(summary["rounds"], int):
                return summary if summary["rounds"] >= rounds else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def check_ledger(folder: RunFolder, n_charges: int, seeded: bool) -> None:
    """Raise ResultsError if a summary tells of more charges than the ledger has: it was lost or cut.

    Summaries of earlier runs count where the releases were real; a simulation's ledger was put aside with them.
    """
    earlier = [] if seeded else folder.path.glob(f"{EARLIER}/*/{SUMMARY}")
    for path in (folder.path / SUMMARY, folder.path / BEFORE, *earlier):
        try:
            known = int(json.loads(read_plain(path, MOST_RECORD))["n_charges"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if known > n_charges:
            raise ResultsError(
                f"ledger {folder.ledger_path} has {n_charges} broadcasts and {path.relative_to(folder.path)} tells of "
                f"{known}: restore the ledger, or delete the folder"
            )


def reopen(folder: RunFolder) -> None:
    """Make a finished run one that goes on; its summary stays as summary.before.json."""
    (folder.path / SUMMARY).rename(folder.path / BEFORE)
    (folder.path / "theory.json").unlink(missing_ok=True)
    sync_folder(folder.path)


def put_aside(folder: RunFolder, with_ledger: bool) -> Path:
    """Move the records of a finished run to `earlier/k`. A move that was interrupted is finished by `finish_move`."""
    k = 1
    while (folder.path / EARLIER / str(k)).exists():
        k += 1
    part = folder.path / EARLIER / f".{k}"
    part.mkdir(parents=True)
    if with_ledger:
        (part / ".with_ledger").touch()
    sync_folder(part)
    finish_move(folder)
    return folder.path / EARLIER / str(k)


def moving(folder: RunFolder) -> Iterator[Path]:
    """The folders of a move to `earlier` that is not finished."""
    return (folder.path / EARLIER).glob(".[0-9]*")


def finish_move(folder: RunFolder) -> None:
    """Finish what `put_aside` began."""
    for part in moving(folder):
        ledger = [folder.ledger_path.name] if (part / ".with_ledger").exists() else []
        for name in (*_RECORDS, *ledger, BEFORE, SUMMARY):
            if (folder.path / name).exists():
                (folder.path / name).rename(part / (SUMMARY if name == BEFORE else name))
        (part / ".with_ledger").unlink(missing_ok=True)
        part.rename(part.with_name(part.name[1:]))
        sync_folder(part.parent)
        sync_folder(folder.path)


def keep_rounds(folder: RunFolder) -> None:
    """Write rounds.zip from the checkpoint."""

    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(path for pattern in _KEPT for path in folder.checkpoint_path.glob(pattern)):
                archive.write(path, path.name)

    replace_file(folder.path / ROUNDS, write, mode=0o600)


def take_rounds(folder: RunFolder) -> None:
    """Make rounds.zip the checkpoint. Raises ResultsError if it is damaged or missing."""
    part = folder.checkpoint_path.with_name(".continued")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        with zipfile.ZipFile(folder.path / ROUNDS) as archive:
            for info in archive.infolist():
                name = info.filename
                if Path(name).name != name or not name.endswith(".npz"):
                    raise ResultsError(f"{folder.path / ROUNDS} holds {name!r}, which is no round")
                if info.compress_type != zipfile.ZIP_STORED:  # and so might unpack to anything
                    raise ResultsError(f"{folder.path / ROUNDS} holds {name!r} compressed, as no run writes it")
                with (
                    archive.open(name) as round,
                    open(part / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file,
                ):
                    shutil.copyfileobj(round, file)
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        shutil.rmtree(part)
        reason = str(error) if isinstance(error, ResultsError) else f"{folder.path / ROUNDS} cannot be read ({error})"
        raise ResultsError(f"{reason}: more rounds cannot go on there; --again runs all of them anew") from error
    shutil.rmtree(folder.checkpoint_path, ignore_errors=True)
    part.rename(folder.checkpoint_path)


def note_lineage(folder: RunFolder, lineage: Lineage) -> None:
    """Write lineage.json, durably, unless it is there."""
    if not (folder.path / LINEAGE).exists():
        folder.replace(LINEAGE, lambda file: file.write(json.dumps(asdict(lineage)).encode()))


def relatives(experiment: Path, seed: int, lineage: Lineage) -> list[tuple[Path, Lineage]]:
    """The runs of the same seed that differ in rounds, and perhaps in noise; those with the longest ledgers first."""
    found = []
    for path in experiment.glob(f"*/{seed}/{LINEAGE}"):
        try:
            other = Lineage(**json.loads(read_plain(path, MOST_RECORD)))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ResultsError(f"{path} cannot be read ({error}): restore it, or delete the folder") from error
        if other.any_noise == lineage.any_noise:
            found.append((path.parent, other))
    return sorted(found, key=lambda pair: (-_size(pair[0] / "ledger.jsonl"), str(pair[0])))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
