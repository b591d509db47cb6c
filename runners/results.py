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
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq


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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "a")
        except OSError as error:
            raise ResultsError(f"results folder {self.path} cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ResultsError(
                    f"another run is writing to {self.path}: wait for it, or change results_dir"
                ) from error
            try:
                yield
            finally:
                (self.path / ".lock").unlink(missing_ok=True)
                if created and not any(self.path.iterdir()):
                    self._remove_empty_folders()

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
