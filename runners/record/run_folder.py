"""A run's folder on disk: `results/<experiment>/<setting-hash>/<seed>/`.

config.yaml     resolved settings
rounds.parquet  one row for each agent and query
server.parquet  one row for each broadcast
ledger.jsonl    every charge, written before its broadcast
summary.json    written last: a folder with it is a finished run
theory.json     by `runners.theory`, of a finished run
checkpoint/     while it runs, or after it was interrupted: the rounds that are done
progress.json   likewise: how far it is
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from dpfbo.files import replace_file, sync_folder

_SERVER_SECONDS = 60.0  # for a server without a driver to be gone
_LOCK_SECONDS = 0.5  # to wait for somebody who only looks whether the folder is busy


class ResultsError(RuntimeError):
    """The results folder cannot be used."""


@dataclass(frozen=True)
class Progress:
    """After which round of how many a run is, and what it has reached. epsilon: None if there is no finite one."""

    round: int
    rounds: int
    mean: float
    epsilon: float | None


class RunFolder:
    """One run's folder; every file appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder, prove that it can be written, and hold its lock.

        Raises ResultsError if it cannot be written, or another process is running the same setting and seed there.
        """
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        with self._lock():
            try:
                yield
            finally:
                (self.path / ".lock").unlink(missing_ok=True)
                if missing:
                    self._remove_what_is_empty(missing)

    def _lock(self) -> TextIO:
        """The locked lock file, in a folder whose entry in every parent is on disk."""
        give_up = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                _make_durable_folder(self.path)
                lock = open(self.path / ".lock", "a")
            except OSError as error:
                raise ResultsError(f"results folder {self.path} cannot be written: {error.strerror}") from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                if time.monotonic() > give_up:
                    raise ResultsError(
                        f"another run is writing to {self.path}: wait for it, or change results_dir"
                    ) from error
                time.sleep(0.05)
                continue
            if _is_file_at(lock, self.path / ".lock"):
                return lock
            lock.close()  # its holder removed it between our open and our lock: it locks nothing any more

    def begin(self, n_charges: int) -> None:
        """A run begins on a ledger of `n_charges`: a summary of an earlier one would soon tell too small an epsilon.

        Raises ResultsError if that summary knows of more charges: the ledger was lost or cut.
        """
        summary = self.path / "summary.json"
        try:
            known = int(json.loads(summary.read_bytes())["n_charges"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            known = 0
        if known > n_charges:
            raise ResultsError(
                f"ledger {self.ledger_path} has {n_charges} broadcasts and summary.json tells of {known}: "
                "restore the ledger, or delete the folder"
            )
        summary.unlink(missing_ok=True)
        (self.path / "theory.json").unlink(missing_ok=True)
        sync_folder(self.path)

    def hold_ledger(self) -> BinaryIO:
        """The ledger, open, and nobody else's while it is; waits for a server whose driver was killed.

        Raises ResultsError if another process keeps it.
        """
        ledger = open(self.ledger_path, "ab")
        give_up = time.monotonic() + _SERVER_SECONDS
        while True:
            try:
                fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return ledger
            except OSError as error:
                if time.monotonic() > give_up:
                    ledger.close()
                    raise ResultsError(f"another server is writing to {self.ledger_path}: wait for it") from error
                time.sleep(0.1)

    def write(self, config: str, rounds: pa.Table, server: pa.Table, summary: dict[str, Any]) -> None:
        """Write all files of a finished run, the summary last."""
        (self.path / "summary.json").unlink(missing_ok=True)  # of an earlier run of the same setting
        self.ledger_path.touch()
        self.replace("config.yaml", lambda f: f.write(config.encode()))
        self.replace("rounds.parquet", lambda f: pq.write_table(rounds, f))
        self.replace("server.parquet", lambda f: pq.write_table(server, f))
        self.replace("summary.json", lambda f: f.write(json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n"))
        for name in ("progress.json", "failure.json"):
            (self.path / name).unlink(missing_ok=True)

    def replace(self, name: str, write: Callable[[BinaryIO], object], durable: bool = True) -> None:
        """Write one file of the folder, whole or not at all."""
        replace_file(self.path / name, write, durable)

    def note_progress(self, progress: Progress) -> None:
        """Say how far the run is, for `progress`."""
        self.replace("progress.json", lambda f: f.write(json.dumps(asdict(progress)).encode()), durable=False)

    def progress(self) -> Progress | None:
        """How far a run that is not finished has come; None if it never began."""
        try:
            return Progress(**json.loads((self.path / "progress.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def busy(self) -> bool:
        """Whether a process is running there now."""
        try:
            with open(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def _remove_what_is_empty(self, folders: Sequence[Path]) -> None:
        """The ledger of a run that ended before its first broadcast, and the folders that were made for nothing."""
        only_a_ledger = {path.name for path in self.path.iterdir()} == {"ledger.jsonl"}
        if only_a_ledger and not self.ledger_path.stat().st_size:
            self.ledger_path.unlink()
        for folder in folders:
            try:
                folder.rmdir()
            except OSError:
                return


def _is_file_at(file: TextIO, path: Path) -> bool:
    """Whether an open file is still the one that a path names."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _make_durable_folder(path: Path) -> None:
    """Create a folder and its parents, each synced into the one above before anything depends on it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)
