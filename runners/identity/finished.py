"""Recognise finished runs, continue them with more rounds, or move them aside before a repetition.

rounds.zip           the finished rounds (`dpfbo.checkpoint`), for a longer run; as private as rounds.parquet
summary.before.json  the previous summary of a finished run that is being continued with more rounds
earlier/k/           the records of a run that was repeated; in a simulation, also its ledger. The ledger of a real run
                     (rng `os`) stays in the run's folder, and the repetition adds to it
"""

import os
import shutil
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import read_object
from dpfbo.formats.files import replace_file, sync_folder
from dpfbo.formats.run_folder import ResultsError, RunFolder

ROUNDS, SUMMARY, BEFORE, EARLIER = "rounds.zip", "summary.json", "summary.before.json", "earlier"
_CERTIFICATE = ("certificate.md", "certificate.json")
_RECORDS = ("config.yaml", "rounds.parquet", "server.parquet", "theory.json", ROUNDS, "failures.log", *_CERTIFICATE)
_KEPT = ("round-*.npz", "curator.npz")  # files of a checkpoint that a longer run needs


def summary_of(folder: RunFolder, rounds: int = 1) -> dict[str, Any] | None:
    """Return the summary of a finished run; None if there is none, or if the run has fewer than `rounds` rounds.

    While a longer run continues the finished run, the summary is read from summary.before.json.
    """
    for name in (SUMMARY, BEFORE):
        summary = read_object(folder.path / name)
        if summary is not None and isinstance(summary.get("rounds"), int):
            return summary if summary["rounds"] >= rounds else None
    return None


def settled(folder: RunFolder) -> bool:
    """Return False if the folder has both the summary of a finished run and temporary files.

    This is so if the run's process was killed between writing the summary and removing the temporary files.
    """
    return not ((folder.path / SUMMARY).exists() and folder.untidy())


def check_ledger(folder: RunFolder, n_charges: int, seeded: bool) -> None:
    """Raise ResultsError if a summary states more charges than the ledger has: the ledger was lost or truncated.

    Each repetition of a run moves the previous summary to the folder `earlier`. The summaries there are checked only if
    the run is real (rng `os`, `seeded` is False), because each repetition of a simulation starts a new ledger.
    """
    earlier = [] if seeded else folder.path.glob(f"{EARLIER}/*/{SUMMARY}")
    for path in (folder.path / SUMMARY, folder.path / BEFORE, *earlier):
        known = (read_object(path) or {}).get("n_charges")
        if isinstance(known, int) and known > n_charges:
            raise ResultsError(
                f"ledger {folder.ledger_path} has {n_charges} broadcasts and {path.relative_to(folder.path)} tells of "
                f"{known}: restore the ledger, or delete the folder"
            )


def reopen(folder: RunFolder) -> None:
    """Mark a finished run as unfinished: rename its summary to summary.before.json, and delete theory.json."""
    (folder.path / SUMMARY).rename(folder.path / BEFORE)
    (folder.path / "theory.json").unlink(missing_ok=True)
    sync_folder(folder.path)


def put_aside(folder: RunFolder, with_ledger: bool) -> Path:
    """Move the records of a finished run to a new folder `earlier/k`, and return this folder."""
    earlier, k = folder.path / EARLIER, 1
    while (earlier / str(k)).exists():
        k += 1
    part = earlier / f".{k}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    summary = SUMMARY if (folder.path / SUMMARY).exists() else BEFORE
    names = {name: name for name in (*_RECORDS, *([folder.ledger_path.name] if with_ledger else []))}
    for name, new in {**names, summary: SUMMARY}.items():
        if (folder.path / name).exists():
            try:
                os.link(folder.path / name, part / new)
            except OSError:  # the file system has no hard links
                shutil.copy2(folder.path / name, part / new)
    sync_folder(part)
    part.rename(earlier / str(k))
    sync_folder(earlier)
    for name in (BEFORE, SUMMARY, *names):
        (folder.path / name).unlink(missing_ok=True)
    sync_folder(folder.path)
    return earlier / str(k)


def keep_rounds(folder: RunFolder) -> None:
    """Write the rounds of the checkpoint to rounds.zip."""

    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(path for pattern in _KEPT for path in folder.checkpoint_path.glob(pattern)):
                archive.write(path, path.name)

    replace_file(folder.path / ROUNDS, write, mode=0o600)


def take_rounds(folder: RunFolder) -> None:
    """Replace the checkpoint by the rounds in rounds.zip. Raises ResultsError if rounds.zip is damaged or missing."""
    part, path = folder.checkpoint_path.with_name(".continued"), folder.path / ROUNDS
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename
                if Path(name).name != name or not name.endswith(".npz"):
                    raise ResultsError(f"{path} holds {name!r}, which is no round")
                if info.compress_type != zipfile.ZIP_STORED:  # it might unpack to any size
                    raise ResultsError(f"{path} holds {name!r} compressed, as no run writes it")
                with archive.open(name) as round:
                    replace_file(part / name, partial(shutil.copyfileobj, round), durable=False, mode=0o600)
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        shutil.rmtree(part)
        reason = str(error) if isinstance(error, ResultsError) else f"{path} cannot be read ({error})"
        raise ResultsError(f"{reason}: the run cannot be continued; --again runs all rounds anew") from error
    shutil.rmtree(folder.checkpoint_path, ignore_errors=True)
    part.rename(folder.checkpoint_path)
