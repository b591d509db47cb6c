"""The queries of one run round by round, from its files, while it goes on or after it has ended.

A finished run has them in rounds.parquet. One that goes on, or was interrupted, has a file for each finished round in
its checkpoint. Either way one row group or one round is in memory at a time, and of it the wanted columns alone.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.load import LoadError
from analysis.plain_files import check_plain, plain_bytes

COLUMNS = ("agent", "round", "region", "source", "x", "y", "best", "regret")
SOURCES = ("initial", "own", "server", "random", "modeler")  # in a checkpoint sources are indices into this
_KINDS = {"agent": pa.int32(), "round": pa.int32(), "region": pa.int16()}
_UNREADABLE = (ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class RunFiles:
    """The files of a run. facts: problem, algorithm, metric, n_agents, .., as far as its files tell them."""

    folder: Path
    facts: dict[str, Any]
    finished: bool

    @staticmethod
    def of(folder: Path) -> "RunFiles":
        """Raises LoadError where there is no run with a finished round."""
        summary, progress = _object(folder / "summary.json"), _object(folder / "progress.json")
        if summary is not None and (folder / "rounds.parquet").is_file():
            return RunFiles(folder, summary, True)
        if not (folder / "checkpoint" / "round-00000.npz").is_file():
            raise LoadError(f"there is no run with a finished round in {folder}")
        known = {} if progress is None else progress
        facts = known.get("facts")
        return RunFiles(folder, {**(facts if isinstance(facts, dict) else {}), "rounds": known.get("rounds")}, False)

    def tables(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        """Yield some columns of rounds.parquet, in its order: of a run that goes on those of the rounds so far.

        Columns of named parameters are in rounds.parquet alone. Raises LoadError where a file cannot be read.
        """
        for name in columns:
            if name not in COLUMNS and not (self.finished and name.startswith("x.")):
                raise LoadError(f"a column must be one of {', '.join(COLUMNS)}, got {name!r}")
        yield from (self._of_parquet if self.finished else self._of_checkpoint)(columns)

    def metric_by_round(self) -> Iterator[np.ndarray]:
        """Yield the metric of every agent after rounds 0, 1, ..; NaN for one without a value."""
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        now = 0
        for table in self.tables(["round", "agent", "regret"]):
            round, agent, regret = (table[name].to_numpy() for name in ("round", "agent", "regret"))
            ends = [*np.flatnonzero(np.diff(round)) + 1, len(round)]
            for first, end in zip([0, *ends[:-1]], ends, strict=True):
                if parts and round[first] != now:
                    yield _last_of_each(parts)
                    parts = []
                now = int(round[first])
                parts.append((agent[first:end], regret[first:end]))
        if parts:
            yield _last_of_each(parts)

    def _of_parquet(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        path = self.folder / "rounds.parquet"
        try:
            check_plain(path)
            with pq.ParquetFile(path) as file:
                for k in range(file.num_row_groups):
                    yield file.read_row_group(k, columns=list(columns)).select(list(columns))
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise LoadError(f"{path} cannot be read ({' '.join(str(error).split())})") from error

    def _of_checkpoint(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield rounds up to the first whose file is absent, or was not whole when a process ended."""
        for t in count():
            try:
                check_plain(path := self.folder / "checkpoint" / f"round-{t:05d}.npz")
                with np.load(path, allow_pickle=False) as file:
                    shape = file["y"].shape
                    data = [_column(name, t, shape, file.__getitem__, set(file.files)) for name in columns]
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    return
                raise LoadError(f"the checkpoint in {self.folder} cannot be read ({error})") from error
            except _UNREADABLE:
                return
            yield pa.table(data, names=list(columns))


def _column(name: str, t: int, shape: tuple[int, ...], array: Callable[[str], np.ndarray], there: set[str]) -> pa.Array:
    """A column of round t for the queries (n x k) of a file of the checkpoint. there: names of its arrays."""
    n, k = shape
    if name == "agent":
        return pa.array(np.repeat(np.arange(n, dtype=np.int32), k))
    if name == "round":
        return pa.array(np.full(n * k, t, dtype=np.int32))
    if name == "x":
        points = array("x" if "x" in there else "ux")  # those of the unit cube, where they are the same
        offsets = np.arange(0, points.size + 1, points.shape[2], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(points.reshape(-1)))
    values = pa.array(array(name).reshape(-1))
    if name == "source":
        return pa.DictionaryArray.from_arrays(values.cast(pa.int8()), pa.array(SOURCES))
    return values.cast(_KINDS.get(name, pa.float64()))


def _last_of_each(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The last of the values of each agent, whose rows in a round follow each other."""
    agent, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    last: np.ndarray = values[np.append(agent[1:] != agent[:-1], True)]
    return last


def _object(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(plain_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
