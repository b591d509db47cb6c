"""A run's folder on disk: `results/<experiment>/<setting-hash>/<seed>/`.

config.yaml     resolved settings
rounds.parquet  one row for each agent and query
server.parquet  one row for each broadcast
ledger.jsonl    every charge, written before its broadcast
summary.json    written last: a folder with it is a finished run
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from dpfbo.ledger import sync_folder


class ResultsError(RuntimeError):
    """The results folder cannot be used."""


class RunFolder:
    """One run's folder; every file appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder, prove that it can be written, and hold its lock.

        Raises ResultsError if it cannot be written, or another process is running the same setting and seed there.
        """
        created = not self.path.exists()
        with self._lock():
            try:
                yield
            finally:
                (self.path / ".lock").unlink(missing_ok=True)
                if created and not any(self.path.iterdir()):
                    self._remove_empty_folders()

    def _lock(self) -> TextIO:
        """The locked lock file, in a folder whose entry in every parent is on disk."""
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
                raise ResultsError(
                    f"another run is writing to {self.path}: wait for it, or change results_dir"
                ) from error
            if _is_file_at(lock, self.path / ".lock"):
                return lock
            lock.close()  # its holder removed it between our open and our lock: it locks nothing any more

    def write(self, config: str, rounds: pa.Table, server: pa.Table, summary: dict[str, Any]) -> None:
        """Write all files of a finished run, the summary last."""
        (self.path / "summary.json").unlink(missing_ok=True)  # of an earlier run of the same setting
        self.ledger_path.touch()
        self._replace("config.yaml", lambda f: f.write(config.encode()))
        self._replace("rounds.parquet", lambda f: pq.write_table(rounds, f))
        self._replace("server.parquet", lambda f: pq.write_table(server, f))
        self._replace(
            "summary.json", lambda f: f.write(json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n")
        )

    def _replace(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.path / name)
        except BaseException:
            os.unlink(temporary)
            raise

    def _remove_empty_folders(self) -> None:
        for folder in (self.path, self.path.parent, self.path.parent.parent):
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
