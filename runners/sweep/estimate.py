"""Estimate a sweep before it starts: number of trials, core hours, disk space and expected end.

The costs come from finished trials, or from a probe that runs the first rounds of one trial in a temporary folder.
"""

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import torch
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table

from dpfbo.run_result import Round
from runners.compose.typed import plain_tree
from runners.recorded_run import run_configuration
from runners.sweep.durations import OVERHEAD, FinishedTrials, TrialCost, kind
from runners.sweep.plan import PlannedSetting, SweepPlan
from runners.sweep.shared_runs import each_once
from runners.sweep.trials import States

_PROBE_ROUNDS, _PROBE_SECONDS = 2, 1.0  # a probe lasts at least this many rounds and seconds
_START = 10.0  # seconds until the workers of an experiment have imported the library


@dataclass(frozen=True)
class ExperimentEstimate:
    """The estimate for the trials of one experiment.

    to_run: number of trials to run; a trial shared with an earlier experiment counts only there. unknown: number of
    trials to run whose cost is unknown; the hours, bytes and seconds leave these trials out. source: where the costs
    come from. wall_seconds: time to run the trials of known cost on the sweep's resources.
    """

    experiment: str
    to_run: int
    finished: int
    unknown: int
    seconds_per_trial: float
    source: str
    core_hours: float
    gpu_hours: float
    bytes: float
    wall_seconds: float


class Costs:
    """Predicts the cost of a trial of each setting, from finished trials or a probe.

    probing: called with a message before each probe; None to run no probes.
    """

    def __init__(self, sweeps: Sequence[SweepPlan], probing: Callable[[str], None] | None) -> None:
        self._results_dir, self._probing = sweeps[0].folder.parent, probing
        self._probes: dict[str, TrialCost | None] = {}

    @cached_property
    def _finished(self) -> FinishedTrials:
        return FinishedTrials(self._results_dir.glob("*/*/"))

    def of(self, setting: PlannedSetting) -> tuple[TrialCost | None, str]:
        """Return the cost of one trial (None if it is unknown) and the source of the cost."""
        config = plain_tree(setting.cfg)
        known = self._finished.cost(setting.name, setting.problem, config, setting.rounds)
        if known is not None or self._probing is None:
            return known, "finished trials"
        name = kind(config)
        if name not in self._probes:
            self._probing(f"probing {setting.problem}, {setting.cfg.algorithm.name}")
            # with real noise, a probe would make releases that no ledger records
            self._probes[name] = _probe(setting) if config["privacy"]["rng"] == "seeded" else None
        if (probed := self._probes[name]) is None:
            return None, "probe"
        return TrialCost(probed.seconds * setting.rounds + OVERHEAD, probed.bytes * setting.rounds), "probe"


def estimates(sweeps: Sequence[SweepPlan], states: Sequence[States], costs: Costs) -> list[ExperimentEstimate]:
    """Estimate each experiment of a sweep, given the states of its trials."""
    todo = [each for each in each_once(sweeps, states) if each.sweep.options.is_to_run(each.state)]
    found = []
    for sweep, known in zip(sweeps, states, strict=True):
        wanted = [each.setting for each in todo if each.sweep is sweep]
        by_name = {setting.name: costs.of(setting) for setting in {s.name: s for s in wanted}.values()}
        priced = [(setting, cost) for setting in wanted if (cost := by_name[setting.name][0]) is not None]
        gpu_seconds = sum(cost.seconds * _gpus_of(sweep, setting) for setting, cost in priced)
        seconds = sum(cost.seconds for _, cost in priced)
        wall = max(seconds / _at_a_time(sweep), *(cost.seconds for _, cost in priced)) + _START if priced else 0.0
        finished, options = sum(state.phase == "done" for state in known.values()), sweep.options
        found.append(
            ExperimentEstimate(
                sweep.experiment, len(wanted), finished, len(wanted) - len(priced), seconds / max(len(priced), 1),
                " and ".join(dict.fromkeys(source for cost, source in by_name.values() if cost is not None)),
                seconds * (options.cpus_per_trial or 1) / 3600, gpu_seconds / 3600,
                sum(cost.bytes for _, cost in priced), wall,
            )
        )  # fmt: skip
    return found


def report(sweeps: Sequence[SweepPlan], found: Sequence[ExperimentEstimate]) -> Group:
    """Return a table with a row for each experiment, and a line with the totals."""
    table, gpus = Table(), any(each.gpu_hours for each in found)
    for name in ("experiment", "to run", "finished", "seconds\na trial", "from", "core\nhours", "GPU\nhours", "disk"):
        if gpus or not name.startswith("GPU"):
            table.add_column(name, justify="left" if name in ("experiment", "from") else "right")
    for each in found:
        known = each.to_run > each.unknown
        cells = [f"{each.seconds_per_trial:.1f}" if known else "", each.source, _hours(each.core_hours)]
        cells += [_hours(each.gpu_hours)] if gpus else []
        table.add_row(each.experiment, str(each.to_run), str(each.finished), *cells, decimal(int(each.bytes)))
    shared = " (a trial that several experiments share counts in the first one)" if len(found) > 1 else ""
    return Group(table, f"{line(sweeps, found)}, {decimal(int(sum(each.bytes for each in found)))}{shared}")


def line(sweeps: Sequence[SweepPlan], found: Sequence[ExperimentEstimate]) -> str:
    """Describe the number of trials to run and, if their cost is known, the hours and the expected end."""
    n, unknown = sum(each.to_run for each in found), sum(each.unknown for each in found)
    said = f"{n} trial{'s' * (n != 1)} to run"
    if unknown == n:
        return said if not n else f"{said}, of unknown length: --estimate probes them"
    least = f", not counting {unknown} of unknown length" if unknown else ""
    gpu_hours = sum(each.gpu_hours for each in found)
    hours = f"about {_hours(sum(each.core_hours for each in found))} core hours"
    hours += f" and {_hours(gpu_hours)} GPU hours" if gpu_hours else ""
    end = datetime.now() + timedelta(seconds=sum(each.wall_seconds for each in found))
    cpus, _ = _resources(sweeps[0])
    return f"{said}: {hours}{least}, until {end:%a %d %b %H:%M} on {cpus} CPU{'s' * (cpus != 1)}"


def _hours(hours: float) -> str:
    return f"{hours:.2g}" if hours < 10 else f"{hours:.0f}"


def _resources(sweep: SweepPlan) -> tuple[int, int]:
    if sweep.slurm is not None:
        return sweep.slurm.nodes * sweep.slurm.cpus_per_task, sweep.slurm.nodes * sweep.slurm.gpus_per_node
    return len(os.sched_getaffinity(0)), torch.cuda.device_count() if sweep.options.gpus_per_trial else 0


def _gpus_of(sweep: SweepPlan, setting: PlannedSetting) -> float:
    """Return the number of GPUs that a trial holds, including those of its actors."""
    executor, own = setting.cfg.executor, sweep.options.gpus_per_trial
    if executor.name != "ray" or not executor.num_gpus:
        return own
    N, wanted = setting.cfg.problem.get("n_agents"), executor.agents_per_actor
    if isinstance(wanted, int) and N is not None:
        return own + math.ceil(N / wanted) * float(executor.num_gpus)
    return own + max(torch.cuda.device_count(), float(executor.num_gpus))


def _at_a_time(sweep: SweepPlan) -> int:
    options = sweep.options
    held = zip(_resources(sweep), (options.cpus_per_trial, options.gpus_per_trial), strict=True)
    fits = [int(count / each) for count, each in held if each]
    return max(1, min([*fits, *([options.max_concurrent] if options.max_concurrent else [])], default=1))


class _Enough(Exception):
    """Raised to end a probe that has run enough rounds."""


def _probe(setting: PlannedSetting) -> TrialCost:
    """Run a trial's first rounds in a temporary folder; return the cost per round."""
    seen: list[float] = []

    def stop(done: Round) -> None:
        seen.append(time.monotonic())
        if len(seen) > _PROBE_ROUNDS and seen[-1] > seen[0] + _PROBE_SECONDS:
            raise _Enough

    with tempfile.TemporaryDirectory(prefix="dpfbo-estimate-") as folder, ExitStack() as after:
        after.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.WARNING)
        cfg = setting.cfg.copy()
        cfg.results_dir, cfg.tracker.wandb.mode = folder, "disabled"
        if cfg.executor.name != "local":  # actors would do the same work
            cfg.executor = {"name": "local", "device": cfg.executor.device, "threads": cfg.executor.threads}
        begin = time.monotonic()
        with suppress(_Enough):
            run_configuration(cfg, stop)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    rounds = len(seen) - 1  # the first entry belongs to the initial points
    return TrialCost((seen[0] - begin) / setting.rounds + (seen[-1] - seen[0]) / rounds, size / len(seen))
