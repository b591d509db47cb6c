"""The metric of each agent of a finished or unfinished run, round by round."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.load import LoadError, why
from dpfbo.formats.bounded import plain, read_object
from dpfbo.formats.checkpoint_file import CheckpointError, queries_of, round_path

COLUMNS = ["round", "agent", "best", "regret"]


@dataclass(frozen=True)
class RunFiles:
    """The files of a run. facts: `problem`, `algorithm`, `metric`, `n_agents` and others, if recorded."""

    folder: Path
    facts: dict[str, Any]
    finished: bool

    @staticmethod
    def of(folder: Path) -> "RunFiles":
        """Find the files of the run in `folder`. Raises LoadError unless the run has finished a round."""
        summary = read_object(folder / "summary.json")
        if summary is not None and (folder / "rounds.parquet").is_file():
            return RunFiles(folder, summary, True)
        if not round_path(folder / "checkpoint", 0).is_file():
            raise LoadError(f"there is no run with a finished round in {folder}")
        known = read_object(folder / "progress.json") or {}
        facts = known.get("facts")
        return RunFiles(folder, {**(facts if isinstance(facts, dict) else {}), "rounds": known.get("rounds")}, False)

    def metric_by_round(self) -> Iterator[np.ndarray]:
        """Yield for each round 0, 1, ... an array of the agents' metric after the round, NaN if an agent has none.

        Raises LoadError if a file cannot be read.
        """
        rest: list[pd.DataFrame] = []
        for table in self._tables():
            rows = pd.concat([*rest, table.to_pandas()])
            ended = rows["round"] < rows["round"].max()  # the last round may continue in the next table
            yield from _last_of_each(rows[ended])
            rest = [rows[~ended]]
        for rows in rest:
            yield from _last_of_each(rows)

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the run's rows, table by table; if the run is unfinished, stop at the first missing or damaged file."""
        path = self.folder / ("rounds.parquet" if self.finished else "checkpoint")
        try:
            if self.finished:
                with pq.ParquetFile(plain(path)) as file:
                    for k in range(file.num_row_groups):
                        yield file.read_row_group(k, columns=COLUMNS)
                return
            for t in count():
                if (table := queries_of(path, t, COLUMNS)) is None:
                    return
                yield table
        except (OSError, ValueError, KeyError, pa.ArrowException, CheckpointError) as error:
            raise LoadError(f"{path} cannot be read ({why(path, error)})") from error


def _last_of_each(rows: pd.DataFrame) -> Iterator[np.ndarray]:
    """Yield each round's array of the agents' last metric values; an agent's rows in a round must be adjacent."""
    for _, of_round in rows.groupby("round"):
        agent, metric = of_round["agent"].to_numpy(), of_round["regret"].fillna(of_round["best"]).to_numpy()
        yield metric[np.append(agent[1:] != agent[:-1], True)]
