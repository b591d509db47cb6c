"""Read the finished runs of an experiment, and summarise each setting over its seeds."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from dpfbo.formats.bounded import MOST_RECORD, plain, read_plain, read_yaml
from dpfbo.formats.record_tables import SERVER_SCHEMA, released
from dpfbo.formats.words import delta_in_words
from runners.wandb import layout
from runners.wandb.attempts import read_note
from runners.wandb.layout import Metrics

# errors from reading damaged files
DAMAGED = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, yaml.YAMLError,
)  # fmt: skip


@dataclass(frozen=True)
class RunOnDisk:
    """A finished run in its folder. Its attributes raise one of the errors in `DAMAGED` if a file is damaged."""

    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads(read_plain(self.folder / "summary.json", MOST_RECORD))

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_yaml(self.folder / "config.yaml")

    @property
    def is_real(self) -> bool:
        """True unless both the run's summary and its settings say that it is a simulation."""
        return not self.summary["rng"] == self.config["privacy"]["rng"] == "seeded"

    @property
    def shown(self) -> bool:
        """True if the run's `tracker.wandb.show` lets W&B show all metrics, not only those that outsiders may see."""
        return not layout.released_only(self.config["tracker"]["wandb"]["show"], self.is_real)

    @property
    def is_logged(self) -> bool:
        """True if all rounds of the run were logged to W&B, online or offline."""
        note = read_note(self.folder)
        return note is not None and note.finished and note.rounds == self.summary["rounds"]

    def rounds(self) -> Iterator[Metrics]:
        """Yield the metrics of each round, as arguments of `WandbTracker.log_round`."""
        rounds = pq.read_table(plain(self.folder / "rounds.parquet"), columns=["round", "agent", "best", "regret"])
        number, agent, best, regret = (np.asarray(column) for column in rounds.columns)
        metric = np.where(np.isnan(regret), best, regret)  # there is no regret without a reference value
        columns = released(SERVER_SCHEMA).names if self.is_real else None
        table = pq.read_table(plain(self.folder / "server.parquet"), columns=columns)
        server = {row["round"]: row for row in table.to_pylist()}
        levels = list(layout.QUANTILES.values())
        for round, mean in enumerate(self.summary["curve"]["mean"]):
            at = number == round
            last = metric[at].reshape(len(np.unique(agent[at])), -1)[:, -1]  # the last query of each agent in the round
            known = last[~np.isnan(last)]
            quantiles = np.quantile(known, levels).tolist() if len(known) else []
            yield layout.regret_metrics(mean, quantiles) | layout.server_metrics(server.get(round, {}))


def finished_runs(experiment: Path) -> list[RunOnDisk]:
    """Return the finished runs in the folder of an experiment, sorted by path."""
    paths = (path.parent for path in experiment.glob("*/*/summary.json") if path.parent.name.isdecimal())
    return [RunOnDisk(path) for path in sorted(paths)]


def settings_table(runs: Sequence[RunOnDisk]) -> list[dict[str, Any]]:
    """Return the rows of a table, sorted by label; each row is for runs that differ only in their seeds.

    `epsilon_<accountant>` in a row is the largest epsilon over the seeds; None if a seed has no such epsilon.
    """
    by_setting: dict[str, list[RunOnDisk]] = {}
    for run in runs:
        by_setting.setdefault(run.summary["setting"], []).append(run)
    accountants = list(dict.fromkeys(name for run in runs for name in run.summary["epsilon"]))
    rows = [_row(of_setting, accountants) for of_setting in by_setting.values()]
    return sorted(rows, key=lambda row: row["label"])


def _row(runs: Sequence[RunOnDisk], accountants: Sequence[str]) -> dict[str, Any]:
    """Return the table's row for the runs of one setting.

    The final metric and its standard error are None if at least one run's `tracker.wandb.show` hides them.
    """
    s, seeds = runs[0].summary, sorted(run.summary["seed"] for run in runs)
    finals = np.array([run.summary["final"]["mean"] for run in runs], dtype=float)
    errors = finals.std(ddof=1) / len(runs) ** 0.5 if len(runs) > 1 else np.nan
    shown = all(run.shown for run in runs)
    epsilons = {name: [run.summary["epsilon"].get(name) for run in runs] for name in accountants}
    final, error = (float(v) if shown and np.isfinite(v) else None for v in (finals.mean(), errors))
    return {
        "label": layout.unique_label(s["label"], s["setting"]), "method": s["algorithm"], "problem": s["problem"],
        "setting": s["setting"], "rounds": s["rounds"], "agents": s["n_agents"], "seeds": ", ".join(map(str, seeds)),
        "n_seeds": len(seeds), "metric": s["metric"], "final": final, "final_se_over_seeds": error,
        **{f"epsilon_{name}": None if None in known else max(known) for name, known in epsilons.items()},
        "accountant": s["accountant"], "delta": s["delta"], "delta_in_words": delta_in_words(s["delta"]),
        "relation": s["relation"],
    }  # fmt: skip
