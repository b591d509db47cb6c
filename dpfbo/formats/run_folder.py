"""A run's folder on disk, `results/<experiment>/<setting-hash>/<seed>/`; docs/reference/files.md lists its files.

summary.json is written last: a folder with it is a finished run.
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dpfbo.formats.bounded import MOST_RECORD, read_object, read_plain
from dpfbo.formats.files import locked_file, make_folder, open_file, replace_file

if TYPE_CHECKING:
    import pyarrow as pa  # imported where it is used, so that a folder can be watched without it

PROBLEMS = "dpfbo.problems"  # the logger that reports failed evaluations
_UNTIL_THE_END = ("progress.json", "failure.json", "summary.before.json")
_UNDER_LOCK = (
    "config.yaml", "rounds.parquet", "server.parquet", "summary.json", "progress.json", "rounds.zip", "lineage.json",
)  # fmt: skip
_SERVER_SECONDS = 60.0  # seconds to wait until the server of a killed driver has ended
_LOCK_SECONDS = 0.5  # seconds to wait for a process that only tests the lock


class ResultsError(RuntimeError):
    """The results folder cannot be used."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run: the last finished `round`, the number of `rounds`, the mean metric, and epsilon.

    epsilon: None if it is not finite. facts: the entries of the summary that are known before the run ends. In some
    runs, facts also has the target epsilon and the privacy budget. curve: the lists `round`, `mean` and `epsilon`, for
    the rounds that `curve_points` selects.
    """

    round: int
    rounds: int
    mean: float
    epsilon: float | None
    facts: dict[str, Any]
    curve: dict[str, list[Any]]


class RunFolder:
    """The folder of one run. Its files are written atomically, except the ledger and the logs, which grow by lines."""

    def __init__(self, path: Path) -> None:
        self.path, self.ledger_path, self.checkpoint_path = path, path / "ledger.jsonl", path / "checkpoint"
        self.preemptions_path = path / "preemptions.jsonl"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder, and hold its lock until the `with` block ends.

        Raises ResultsError if another process holds the lock, or the folder cannot be written.
        """
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        with self._lock():
            for path in self.path.glob(".*.????????"):  # left behind by `replace` in a process that was killed
                if path.name[1:-9] in _UNDER_LOCK:
                    path.unlink(missing_ok=True)
            try:
                yield
            finally:
                (self.path / ".lock").unlink(missing_ok=True)
                if missing:
                    self._remove_empty(missing)

    @contextmanager
    def failures_kept(self) -> Iterator[None]:
        """Write failed evaluations with their tracebacks to failures.log until the `with` block ends."""
        handler, logger = _FailuresLog(self), logging.getLogger(PROBLEMS)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def note_failure(self, message: str, error: object) -> None:
        """Add a failure to failures.log, with the traceback of `error` if it has one.

        Only the owner of failures.log can read it.
        """
        traceback = getattr(error, "traceback", "").rstrip()
        with open(self.path / "failures.log", "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"{message}\n" + f"{traceback}\n" * bool(traceback))

    def _lock(self) -> BinaryIO:
        while True:
            try:
                make_folder(self.path)
                lock = locked_file(self.path / ".lock", _LOCK_SECONDS)
                os.fchmod(lock.fileno(), 0o644)  # other users may see that the run is in progress
                return lock
            except FileNotFoundError:  # the last holder has removed the folder
                continue
            except BlockingIOError as error:
                raise ResultsError(
                    f"another run is writing to {self.path}: wait for it, or choose another folder"
                ) from error
            except OSError as error:
                raise ResultsError(
                    f"results folder {self.path} cannot be written: {error.strerror or error}"
                ) from error

    def hold_ledger(self) -> BinaryIO:
        """Open the ledger's file and lock it; closing the returned file releases the lock.

        This method waits up to a minute for the lock. While the file is locked, only a `Ledger` that was given the
        returned file as its argument `held` can write charges. Raises ResultsError if another process keeps the lock,
        NoFile if the path names a pipe, a device or a folder.
        """
        try:
            return locked_file(self.ledger_path, _SERVER_SECONDS)
        except BlockingIOError as error:
            raise ResultsError(f"another server is writing to {self.ledger_path}: wait for it") from error

    def write(self, config: str, rounds: "Iterable[pa.Table]", server: "pa.Table", summary: dict[str, Any]) -> None:
        """Write all files of a finished run, the summary last. rounds: the row groups of rounds.parquet, in order."""
        import pyarrow.parquet as pq

        (self.path / "summary.json").unlink(missing_ok=True)  # of an earlier run
        open_file(self.ledger_path, "ab+").close()
        self.replace("config.yaml", lambda f: f.write(config.encode()))
        own = summary.get("rng") != "seeded"  # the data are real: only the owner may read the queries
        text = json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n"
        self.replace("rounds.parquet", lambda f: _write_row_groups(rounds, f), private=own)
        self.replace("server.parquet", lambda f: pq.write_table(server, f))
        self.replace("summary.json", lambda f: f.write(text), private=own)
        self.tidy()

    def tidy(self) -> None:
        """Remove the files that only an unfinished run needs."""
        for name in _UNTIL_THE_END:
            (self.path / name).unlink(missing_ok=True)

    def untidy(self) -> bool:
        """Return True if the checkpoint, or a file that `tidy` removes, exists."""
        return any((self.path / name).exists() for name in (*_UNTIL_THE_END, "checkpoint", ".checkpoint"))

    def replace(
        self, name: str, write: Callable[[BinaryIO], object], durable: bool = True, private: bool = False
    ) -> None:
        """Write one file of the folder atomically. private: True to let only its owner read it."""
        replace_file(self.path / name, write, durable, mode=0o600 if private else 0o644)

    def note_progress(self, progress: Progress) -> None:
        """Write progress.json; if the run is real (rng `os`), only the file's owner can read it."""
        content, own = json.dumps(asdict(progress)).encode(), progress.facts.get("rng") == "os"
        self.replace("progress.json", lambda f: f.write(content), durable=False, private=own)

    def progress(self) -> Progress | None:
        """Return the progress in progress.json; None if the file is absent or cannot be read."""
        try:
            return Progress(**(read_object(self.path / "progress.json") or {}))
        except TypeError:
            return None

    def preemptions(self) -> int:
        """Return the number of preemptions in preemptions.jsonl; 0 if the file is absent or cannot be read."""
        try:
            return read_plain(self.preemptions_path, MOST_RECORD).count(b"\n")
        except (OSError, ValueError):
            return 0

    def busy(self) -> bool:
        """Return True if a process holds the lock that `opened` takes."""
        try:
            with open(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return False

    def _is_charged(self) -> bool:
        """Return True if the ledger has charges or cannot be read."""
        try:
            content = read_plain(self.ledger_path) if self.ledger_path.exists() else b""
        except (OSError, ValueError):
            return True
        only_coverage = b'"setting"' in content and b'"digest"' not in content and content.count(b"\n") <= 1
        return bool(content) and not only_coverage

    def _remove_empty(self, folders: Sequence[Path]) -> None:
        """Remove `folders` in order, and stop at the first that is not empty.

        If the run has only the files ledger.jsonl and lineage.json, and the ledger has no charge, these files are
        deleted first.
        """
        names = {path.name for path in self.path.iterdir()}
        if names <= {"ledger.jsonl", "lineage.json"} and not self._is_charged():
            for name in names:
                (self.path / name).unlink()
        with suppress(OSError):
            for folder in folders:
                folder.rmdir()


def _write_row_groups(tables: "Iterable[pa.Table]", file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    rest = iter(tables)
    first = next(rest)
    with pq.ParquetWriter(file, first.schema) as writer:
        for table in chain([first], rest):
            writer.write_table(table)


class _FailuresLog(logging.Handler):
    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._folder.note_failure(self.format(record), record)
        except OSError:
            self.handleError(record)
