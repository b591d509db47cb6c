"""The queries of one run round by round, from its files, while it goes on or after it has ended.

A finished run has them in rounds.parquet. One that goes on, or was interrupted, has a file for each finished round in
its checkpoint. Either way one row group or one round is in memory at a time, and of it the wanted columns alone.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.load import LoadError, why
from dpfbo.formats.bounded import plain, read_plain
from dpfbo.formats.checkpoint_file import CheckpointError, queries_of, round_path
from dpfbo.formats.record_tables import ROUNDS_SCHEMA


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
        if not round_path(folder / "checkpoint", 0).is_file():
            raise LoadError(f"there is no run with a finished round in {folder}")
        known = {} if progress is None else progress
        facts = known.get("facts")
        return RunFiles(folder, {**(facts if isinstance(facts, dict) else {}), "rounds": known.get("rounds")}, False)

    def tables(self, columns: Sequence[str] = tuple(ROUNDS_SCHEMA.names)) -> Iterator[pa.Table]:
        """Yield some columns of rounds.parquet, in its order: of a run that goes on those of the rounds so far.

        Columns of named parameters are in rounds.parquet alone. Raises LoadError where a file cannot be read.
        """
        for name in columns:
            if name not in ROUNDS_SCHEMA.names and not (self.finished and name.startswith("x.")):
                raise LoadError(f"a column must be one of {', '.join(ROUNDS_SCHEMA.names)}, got {name!r}")
        path = self.folder / ("rounds.parquet" if self.finished else "checkpoint")
        try:
            yield from _row_groups(path, list(columns)) if self.finished else _rounds_so_far(path, columns)
        except (OSError, ValueError, KeyError, pa.ArrowException, CheckpointError) as error:
            raise LoadError(f"{path} cannot be read ({why(path, error)})") from error

    def metric_by_round(self) -> Iterator[np.ndarray]:
        """Yield the metric of every agent after rounds 0, 1, ..; NaN for one without a value."""
        rest: list[pd.DataFrame] = []
        for table in self.tables(["round", "agent", "regret"]):
            rows = pd.concat([*rest, table.to_pandas()])
            ended = rows["round"] < rows["round"].max()  # the last round may go on in the next table
            yield from _last_of_each(rows[ended])
            rest = [rows[~ended]]
        for rows in rest:
            yield from _last_of_each(rows)


def _row_groups(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(plain(path)) as file:
        for k in range(file.num_row_groups):
            yield file.read_row_group(k, columns=columns).select(columns)


def _rounds_so_far(checkpoint: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rounds up to the first whose file is absent, or was not whole when a process ended."""
    for t in count():
        if (table := queries_of(checkpoint, t, columns)) is None:
            return
        yield table


def _last_of_each(rows: pd.DataFrame) -> Iterator[np.ndarray]:
    """Yield, round by round, the last of the values of each agent, whose rows in a round follow each other."""
    for _, of_round in rows.groupby("round"):
        agent, regret = of_round["agent"].to_numpy(), of_round["regret"].to_numpy()
        yield regret[np.append(agent[1:] != agent[:-1], True)]


def _object(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
