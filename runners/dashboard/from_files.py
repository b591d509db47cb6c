"""Finished runs reach W&B from their files, as a tracker would have logged them while they ran.

config.yaml, summary.json, rounds.parquet and server.parquet hold the same history, config, summary, tags and picture;
only the seconds of each round are not in them (their sums are). `show: auto` means what it means for a live run.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from dpfbo.formats.bounded import MOST_RECORD, check_yaml, plain, read_plain
from dpfbo.formats.record_tables import SERVER_SCHEMA, released
from dpfbo.formats.round_metrics import QUANTILES, regret_metrics, server_metrics
from runners.record import picture
from runners.record import wandb_attempts as attempts
from runners.record import wandb_layout as layout
from runners.record.wandb_tracker import WandbTracker

# errors of reading files that are not those of a finished run
DAMAGED = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, yaml.YAMLError,
)  # fmt: skip


@dataclass(frozen=True)
class RunOnDisk:
    """A finished run in its folder. Reading raises OSError, ValueError or KeyError where a file is damaged."""

    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(read_plain(self.folder / "summary.json", MOST_RECORD))
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        check_yaml(self.folder / "config.yaml")  # the loader would crash on deep nesting
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found: dict[str, Any] = yaml.load(read_plain(self.folder / "config.yaml", MOST_RECORD), loader)
        return found

    @cached_property
    def wandb(self) -> dict[str, Any]:
        """The settings `tracker.wandb` of the run."""
        found: dict[str, Any] = self.config["tracker"]["wandb"]
        return found

    @property
    def is_real(self) -> bool:
        """True unless both its summary and its settings say that it is a simulation ."""
        return not self.summary["rng"] == self.config["privacy"]["rng"] == "seeded"

    @property
    def shown(self) -> bool:
        """True if metrics that are not released may be shown of it."""
        show = self.wandb["show"]
        return bool(show == "all" or (show == "auto" and not self.is_real))

    @property
    def is_logged(self) -> bool:
        return attempts.was_logged(self.folder, self.summary["rounds"])

    def rounds(self) -> Iterator[dict[str, float | None]]:
        """Yield the metrics of each round, as `WandbTracker.log_round` takes them."""
        table = pq.read_table(plain(self.folder / "rounds.parquet"), columns=["round", "agent", "regret"])
        number, agent, regret = (np.asarray(table[name]) for name in ("round", "agent", "regret"))
        columns = released(SERVER_SCHEMA).names if self.is_real else None
        table = pq.read_table(plain(self.folder / "server.parquet"), columns=columns)
        server = {row.pop("round"): row for row in table.to_pylist()}
        for round, mean in enumerate(self.summary["curve"]["mean"]):
            at = number == round
            last = regret[at].reshape(len(np.unique(agent[at])), -1)[:, -1]  # of each agent's queries in the round
            known = last[~np.isnan(last)]
            quantiles = [float(np.quantile(known, level)) for level in QUANTILES.values()] if len(known) else []
            yield regret_metrics(mean, quantiles) | server_metrics(server.get(round, {}))

    def epsilons(self) -> list[float]:
        """After each broadcast and up to the last round, by the run's accountant; inf if there is no finite one."""
        found = pq.read_table(plain(self.folder / "server.parquet"), columns=["epsilon"])["epsilon"].to_pylist()
        spent = [np.inf if epsilon is None else float(epsilon) for epsilon in found]
        return spent + spent[-1:] * (self.summary["rounds"] - len(spent))


def finished_runs(experiment: Path) -> list[RunOnDisk]:
    """The finished runs in the folder of an experiment, in the order of their names."""
    paths = (path.parent for path in experiment.glob("*/*/summary.json") if path.parent.name.isdecimal())
    return [RunOnDisk(path) for path in sorted(paths)]


def log_run(run: RunOnDisk, mode: str) -> None:
    """Log a finished run to W&B. mode: `online` or `offline`; nothing happens if it is `disabled`.

    Nobody else may use the run's folder. As for a tracker, a failure of W&B is a warning.
    """
    summary, wandb = run.summary, run.wandb
    tracker = WandbTracker(
        mode=mode, project=wandb["project"], entity=wandb["entity"], show="all" if run.shown else "released"
    )
    name, setting, seed = (str(summary[key]) for key in ("algorithm", "setting", "seed"))
    tracker.start(
        run.config, run.folder, f"{summary['problem']}-{name}-{setting}-{seed}", summary["experiment"],
        [summary["problem"], name], summary["commit"], summary["epsilon_before"], setting, summary["label"],
        folder=run.folder.parents[1],
    )  # fmt: skip
    for number, metrics in enumerate(run.rounds()):
        tracker.log_round(number, metrics)
    tracker.finish(summary, lambda path: _draw(run, path))


def _draw(run: RunOnDisk, path: Path) -> None:
    """Write the picture of a run to `path`: that of a copy of the run in another experiment if W&B has it, or anew."""
    if (drawn := _picture_of_copy(run)) is not None:
        shutil.copyfile(drawn, path)
    else:
        picture.draw(run.summary, run.epsilons(), path)


def _picture_of_copy(run: RunOnDisk) -> Path | None:
    """The picture that W&B has of the same run in another experiment of the results folder.

    The summaries are equal but for the experiment, which no picture names, and so are the records of the server.
    """
    setting, seed = run.folder.parts[-2:]
    for other in run.folder.parents[2].glob(f"*/{setting}/{seed}/{attempts.NOTE}"):
        note, copy = attempts.read_note(other.parent), RunOnDisk(other.parent)
        if note is None or not note.finished or other.parent == run.folder:
            continue
        try:
            same = {**copy.summary, "experiment": None} == {**run.summary, "experiment": None}
            name = "server.parquet"
            if same and (copy.folder / name).read_bytes() == (run.folder / name).read_bytes():
                found = other.parents[2].glob(f"wandb/*run-*-{note.id}/files/media/images/{layout.FIGURE}_*.png")
                if (drawn := next(found, None)) is not None:
                    return drawn
        except DAMAGED:
            continue
    return None
