"""The finished runs of an experiment, and its settings over the seeds, read from their files."""

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

# errors of reading files that are not those of a finished run
DAMAGED = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, yaml.YAMLError,
)  # fmt: skip


@dataclass(frozen=True)
class RunOnDisk:
    """A finished run in its folder. Reading it raises one of `DAMAGED` where a file is damaged."""

    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads(read_plain(self.folder / "summary.json", MOST_RECORD))

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_yaml(self.folder / "config.yaml")

    @property
    def is_real(self) -> bool:
        """True unless both its summary and its settings say that it is a simulation."""
        return not self.summary["rng"] == self.config["privacy"]["rng"] == "seeded"

    @property
    def shown(self) -> bool:
        """True if metrics that are not released may be shown of it."""
        return not layout.released_only(self.config["tracker"]["wandb"]["show"], self.is_real)

    @property
    def is_logged(self) -> bool:
        """True if W&B has all its rounds."""
        note = read_note(self.folder)
        return note is not None and note.finished and note.rounds == self.summary["rounds"]

    def rounds(self) -> Iterator[Metrics]:
        """Yield the metrics of each round, as `WandbTracker.log_round` takes them."""
        rounds = pq.read_table(plain(self.folder / "rounds.parquet"), columns=["round", "agent", "regret"])
        number, agent, regret = (np.asarray(column) for column in rounds.columns)
        columns = released(SERVER_SCHEMA).names if self.is_real else None
        table = pq.read_table(plain(self.folder / "server.parquet"), columns=columns)
        server = {row["round"]: row for row in table.to_pylist()}
        levels = list(layout.QUANTILES.values())
        for round, mean in enumerate(self.summary["curve"]["mean"]):
            at = number == round
            last = regret[at].reshape(len(np.unique(agent[at])), -1)[:, -1]  # of each agent's queries in the round
            known = last[~np.isnan(last)]
            quantiles = np.quantile(known, levels).tolist() if len(known) else []
            yield layout.regret_metrics(mean, quantiles) | layout.server_metrics(server.get(round, {}))


class SettingResult:
    """The finished runs of one setting, one for each seed.

    summary: of the first seed, for what all seeds share. shown: metrics that are not released may be shown of all of
    them. mean: T + 1 values, over the seeds; NaN where a value lacks. error: its standard error; NaN for one seed.
    """

    def __init__(self, runs: Sequence[RunOnDisk]) -> None:
        self.runs, self.summary = runs, runs[0].summary
        self.label = layout.unique_label(self.summary["label"], self.summary["setting"])
        self.shown = all(run.shown for run in runs)
        curves = zip(*(run.summary["curve"]["mean"] for run in runs), strict=False)
        values, n = np.array(list(curves), dtype=float), len(runs)  # T + 1 x n
        self.mean = values.mean(1)
        self.error = values.std(1, ddof=1) / np.sqrt(n) if n > 1 else np.full(len(values), np.nan)
        self.final_epsilon = self.epsilon(self.summary["accountant"])

    def epsilon(self, accountant: str) -> float | None:
        """The largest of the seeds; None if there is no finite one."""
        found = [run.summary["epsilon"].get(accountant) for run in self.runs]
        return None if None in found else max(found)

    def row(self, accountants: Sequence[str]) -> dict[str, Any]:
        """The setting's row; the final metric is null where it is not released."""
        s, seeds = self.summary, sorted(run.summary["seed"] for run in self.runs)
        final, error = (float(v[-1]) if self.shown and np.isfinite(v[-1]) else None for v in (self.mean, self.error))
        return {
            "label": self.label, "method": s["algorithm"], "problem": s["problem"], "setting": s["setting"],
            "rounds": s["rounds"], "agents": s["n_agents"], "seeds": ", ".join(map(str, seeds)), "n_seeds": len(seeds),
            "metric": s["metric"], "final": final, "final_se_over_seeds": error,
            **{f"epsilon_{name}": self.epsilon(name) for name in accountants},
            "accountant": s["accountant"], "delta": s["delta"], "delta_in_words": delta_in_words(s["delta"]),
            "relation": s["relation"],
        }  # fmt: skip


def finished_runs(experiment: Path) -> list[RunOnDisk]:
    """The finished runs in the folder of an experiment, in the order of their names."""
    paths = (path.parent for path in experiment.glob("*/*/summary.json") if path.parent.name.isdecimal())
    return [RunOnDisk(path) for path in sorted(paths)]


def results_of(runs: Sequence[RunOnDisk]) -> list[SettingResult]:
    """The runs by setting, in the order of their labels."""
    by_setting: dict[str, list[RunOnDisk]] = {}
    for run in runs:
        by_setting.setdefault(run.summary["setting"], []).append(run)
    return sorted(map(SettingResult, by_setting.values()), key=lambda result: result.label)


def settings_table(results: Sequence[SettingResult]) -> list[dict[str, Any]]:
    """A row for each setting, with a column for each accountant that one of them has."""
    accountants = list(dict.fromkeys(name for r in results for name in r.summary["epsilon"]))
    return [result.row(accountants) for result in results]
