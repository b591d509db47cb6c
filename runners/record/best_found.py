"""The best query of every agent of a run, in natural units. It is the agent's own, and no epsilon covers it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

SUMMARY_AGENTS = 100  # most agents whose best queries a summary lists


def best_found(rounds: pa.Table, maximize: bool = True) -> list[dict[str, Any]]:
    """For each agent: its number, the round, the value as the objective returned it, and the parameters.

    rounds: the columns of rounds.parquet. Parameters without names are x1, x2, ..
    """
    y, agent = rounds["y"].to_numpy(), rounds["agent"].to_numpy()
    kept = ~np.isnan(y)  # the others are failed evaluations
    order = np.lexsort((np.arange(len(y)), -y, agent))
    order = order[kept[order]]
    first = order[np.unique(agent[order], return_index=True)[1]]
    named = {name.removeprefix("x."): rounds[name] for name in rounds.schema.names if name.startswith("x.")}
    found = []
    for row in first.tolist():
        parameters = {name: column[row].as_py() for name, column in named.items()}
        if not named:
            parameters = {f"x{i}": value for i, value in enumerate(rounds["x"][row].as_py(), start=1)}
        value = float(y[row]) if maximize else -float(y[row])
        found.append({"agent": int(agent[row]), "round": rounds["round"][row].as_py(), "value": value, **parameters})
    return found


def best_in(folder: Path) -> list[dict[str, Any]]:
    """`best_found` of a finished run in its folder. Raises OSError or ValueError for one without readable files."""
    rounds = pq.read_table(folder / "rounds.parquet")
    cfg = OmegaConf.load(folder / "config.yaml")
    return best_found(rounds, OmegaConf.select(cfg, "problem.maximize", default=True) is not False)


def in_words(best: dict[str, Any]) -> str:
    """One agent's best query: `agent 3: 0.412 in round 17 at rate=0.0132, depth=5`."""
    parameters = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in best.items() if name not in ("agent", "round", "value")
    )  # fmt: skip
    return f"agent {best['agent']}: {best['value']:.4g} in round {best['round']} at {parameters}"
