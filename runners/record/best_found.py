"""Find every agent's best query. The query is private to the agent, and epsilon does not cover it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from dpfbo.formats.bounded import plain, read_yaml

SUMMARY_AGENTS = 100  # a summary lists the best queries of at most this many agents


def best_found(rounds: Iterable[pa.Table], maximize: bool = True) -> pa.Table:
    """Return a table of best queries: agent, round, value (as the objective returned it), parameters in natural units.

    Agents without a value are left out. rounds: the rows of rounds.parquet in one or more tables. Parameters without
    names are x1, x2, ..; an inactive parameter is null.
    """
    found: pa.Table | None = None
    for table in rounds:
        named = [name for name in table.schema.names if name.startswith("x.")]
        table = table.select(["agent", "round", "y", *(named or ["x"])])
        table = table if found is None else pa.concat_tables([found, table])
        y = table["y"].to_numpy()
        found = table.take(pa.array(_first_of_largest(table["agent"].to_numpy(), y if maximize else -y)))
    if found is None:
        raise ValueError("rounds.parquet holds no round")
    value = found["y"].to_numpy()
    columns = {"agent": found["agent"], "round": found["round"], "value": value}
    for name in found.schema.names[3:]:
        columns[name.removeprefix("x.")] = found[name]
    if "x" in found.schema.names:
        points = pc.list_flatten(columns.pop("x")).to_numpy()
        points = points.reshape(len(value), len(points) // max(len(value), 1))
        columns |= {f"x{i}": numbers for i, numbers in enumerate(points.T, start=1)}
    return pa.table(columns)


def _first_of_largest(agent: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return for each agent the index of the first row with the agent's largest value; NaN is skipped."""
    agents, own = np.unique(agent, return_inverse=True)
    largest = np.full(len(agents), -np.inf)
    known = np.flatnonzero(~np.isnan(y))
    np.maximum.at(largest, own[known], y[known])
    rows = known[y[known] == largest[own[known]]][::-1]
    first = np.full(len(agents), -1)
    first[own[rows]] = rows  # in reverse order: the last row assigned to an agent is its first
    return first[first >= 0]


def best_in(folder: Path) -> pa.Table:
    """Return `best_found` of the finished run in `folder`. Raises OSError or ValueError if a file is unreadable."""
    config = folder / "config.yaml"
    try:
        maximize = read_yaml(config)["problem"].get("maximize", True) is not False
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{config} cannot be read ({said}): delete its folder and run it again") from error
    with pq.ParquetFile(plain(folder / "rounds.parquet")) as file:
        wanted = [n for n in file.schema_arrow.names if n in ("agent", "round", "y", "x") or n.startswith("x.")]
        tables = (file.read_row_group(k, columns=wanted) for k in range(file.num_row_groups))
        return best_found(tables, maximize)


def best_in_words(best: dict[str, Any], objective: str) -> str:
    """Describe an agent's best query: `agent 3: AUC 0.812 in round 17 at rate=0.0132` (active parameters only)."""
    apart = ("agent", "round", "value")
    values = {name: value for name, value in best.items() if name not in apart and value is not None}
    parameters = ", ".join(f"{name}={v:.4g}" if isinstance(v, float) else f"{name}={v}" for name, v in values.items())
    return f"agent {best['agent']}: {objective} {best['value']:.4g} in round {best['round']} at {parameters}"
