"""Plan the sweeps of a command line, then estimate, run, submit or cancel them."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.live import Live

from dpfbo.extras import needing
from runners.compose.overrides import name_of
from runners.compose.sweep_line import base_of
from runners.sweep import estimate, preview, progress_table
from runners.sweep.plan import PlannedSetting, SweepPlan, folder_of, outcome
from runners.sweep.results_folder import write_results
from runners.sweep.shared_runs import command_lines, copy_shared, each_once, plan_all, sharing
from runners.sweep.slurm import SlurmError, SlurmLauncher, cancelling, read, submit, where
from runners.sweep.trials import States, TrialState, states_of, write_plan
from runners.wandb.backfill import log_sweep

_CANCEL_SECONDS = 90.0  # longest wait for the end of a cancelled job


def run(args: argparse.Namespace) -> int:
    """Plan the sweeps of the command line; list, estimate, submit or run them; return the exit code."""
    console, out, begin = Console(stderr=True, highlight=False), Console(highlight=False), time.monotonic()
    with console.status("composing") as status:
        composed: dict[tuple[str, ...], PlannedSetting] = {}
        sweeps = plan_all(args.overrides, status.update, composed)
        states = [_states(sweep) for sweep in sweeps]
        costs = estimate.Costs(sweeps, status.update if args.estimate else None)
        estimated = [] if args.dry_run or args.cfg else estimate.estimates(sweeps, states, costs)
    if args.cfg is not None:
        return _print_settings(sweeps[0], args.package)
    if args.estimate:
        report = estimate.report(sweeps, estimated)
        print(json.dumps(list(map(asdict, estimated)), indent=1)) if args.json else out.print(report)
        return 0
    once, warnings = each_once(sweeps, states), list[str]()
    n_to_run = sum(each.sweep.options.is_to_run(each.state) for each in once)
    if n_to_run and not args.dry_run:
        console.print(estimate.line(sweeps, estimated), soft_wrap=True)
    if n_to_run and sweeps[0].slurm is not None and not args.dry_run:
        return _submit(sweeps[0].slurm, sweeps, args)
    if not args.dry_run:
        with ExitStack() as ray:
            for number, sweep in enumerate(sweeps):
                states[number], said = _run(sweep, sharing(sweep, sweeps), ray, console)
                warnings += said
                while sweep.options.search is not None:  # its next settings depend on the results of the last ones
                    (more,) = plan_all(args.overrides, composed=composed)
                    if len(more.settings) == len(sweep.settings):
                        break
                    # Ray is connected already, so it accepts no arguments
                    sweep = sweeps[number] = replace(more, options=replace(more.options, ray={}))
                    states[number], said = _run(sweep, [], ray, console)
                    warnings += said
                _log(sweep, states[number], console, ended=True)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if args.json:
        content = [preview.as_json(sweep, found) for sweep, found in zip(sweeps, states, strict=True)]
        print(json.dumps(content if len(content) > 1 else content[0], indent=1))
    else:
        for sweep, found in zip(sweeps, states, strict=True):
            trials = [trial for _, trial in sweep.trials]
            out.print(preview.report(sweep, found) if args.dry_run else progress_table.report(trials, found))
            counts = "" if args.dry_run else f"{progress_table.counts(found)}; "
            if sweep.options.search is not None and not args.dry_run:
                out.print(_best(sweep), soft_wrap=True)
            out.print(f"{counts}results: {sweep.folder}", soft_wrap=True)
        if not args.dry_run:
            out.print(f"{time.monotonic() - begin:.0f} s")
        elif len(sweeps) > 1:
            out.print(f"together, with shared trials counted once: {len(once)} trials, {n_to_run} to run")
    if args.dry_run:
        return 0
    unfinished = any(s.phase != "done" and s.stopped_by is None for found in states for s in found.values())
    written = not sweeps[0].options.report or write_results(sweeps, states, args.overrides, console)
    if sweeps[0].options.report:
        for sweep, found in zip(sweeps, states, strict=True):
            _log(sweep, found, console)  # with the figures, if tracker.wandb.artifacts asks for them
    return int(unfinished or not written)


def _print_settings(sweep: SweepPlan, package: str | None) -> int:
    """Print the settings of the first trial as YAML. package: a group or key to print instead of all."""
    cfg = sweep.settings[0].cfg
    found = cfg if package is None else OmegaConf.select(cfg, package)
    if found is None:
        raise ValueError(f"--package must be a group or a key of the settings, got {package!r}")
    print(OmegaConf.to_yaml(found) if OmegaConf.is_config(found) else found, end="")
    return 0


def _states(sweep: SweepPlan) -> States:
    return states_of(sweep.folder, (trial for _, trial in sweep.trials))


def _submit(slurm: SlurmLauncher, sweeps: Sequence[SweepPlan], args: argparse.Namespace) -> int:
    kept = [o for o in args.overrides if name_of(o).partition(".")[0] != "launcher"]
    first, names = sweeps[0].folder, [sweep.experiment for sweep in sweeps]
    log = first / "slurm" / "%j.log"
    script = slurm.script("+".join(names), log, kept, Path.cwd())
    job = submit(script, [sweep.folder for sweep in sweeps], kept, log)
    for sweep in sweeps:
        write_plan(sweep.folder, [trial for _, trial in sweep.trials])
    if args.json:
        print(json.dumps({"job": job.job, "log": job.log, "experiments": names}))
        return 0
    print(f"Slurm job {job.job}, log {job.log}")
    print(f"progress:  python -m runners.status {' '.join(names)}{where(first.parent)}")
    print(f"to end it: {cancelling(first)}")
    return 0


def cancel(overrides: Sequence[str]) -> int:
    """Cancel the Slurm jobs of the experiments that the overrides name.

    Waits up to 90 s until the jobs have ended.
    """
    if not any(name_of(o) in ("experiment", "experiment_name") for o in overrides):
        raise SlurmError("--cancel needs experiment=NAME or experiment_name=NAME, whose job it ends")
    folders = [folder_of(base_of(line)) for line in command_lines(overrides)]
    jobs = {job.job: job for folder in folders if (job := read(folder)) is not None}
    waiting = [job for job in jobs.values() if job.state() is not None]
    if not waiting:
        raise SlurmError(f"no Slurm job of {', '.join(folder.name for folder in folders)} is in the queue")
    for job in waiting:
        job.cancel()
    give_up = time.monotonic() + _CANCEL_SECONDS
    for job in waiting:
        while (state := job.state()) is not None and time.monotonic() < give_up:
            time.sleep(0.5)
        print(f"Slurm job {job.job}: " + ("cancelled" if state is None else f"cancelled, and still {state}"))
    return 0


def _run(sweep: SweepPlan, others: Sequence[SweepPlan], ray: ExitStack, console: Console) -> tuple[States, list[str]]:
    """Run the unfinished trials of an experiment; return the states of all trials, and the warnings."""
    copy_shared(sweep, others)
    states, warnings, trials = _states(sweep), list[str](), [trial for _, trial in sweep.trials]
    todo = [(setting, trial) for setting, trial in sweep.trials if sweep.options.is_to_run(states[trial.key])]
    todo.sort(key=lambda pair: states[pair[1].key].phase == "running")  # last, because another process may finish these
    phases = [state.phase for state in states.values()]
    if done := phases.count("done"):
        console.print(f"{done} of {len(phases)} trials are finished and skipped")
    if (failed := phases.count("failed")) and not sweep.options.retry_failed:
        console.print(f"{failed} failed before and are skipped; sweep.retry_failed=true runs them again")
    if sweep.options.early_stopping and (stopped := sum(s.stopped_by is not None for s in states.values())):
        console.print(
            f"{stopped} were stopped early and are skipped; the command without sweep.scheduler continues them"
        )
    if todo:
        with console.status("starting Ray"):
            with needing("ray", "a sweep"):
                from runners.sweep import tune
            ray.enter_context(tune.cluster(sweep.options))
        write_plan(sweep.folder, trials)
        os.environ.setdefault("WANDB_MODE", _wandb(sweep)["mode"])  # W&B must not prompt for an API key
        waiting = {trial.key: TrialState("waiting") for _, trial in todo}
        table = progress_table.ProgressTable(trials, {**states, **waiting}, console)
        shown = Live(table, console=console, refresh_per_second=4) if console.is_terminal else nullcontext()
        with shown as live:
            warnings = tune.run_trials(todo, sweep.options, table)
            if live is not None:
                live.transient = True  # remove the live table, which stays only if the sweep is interrupted
        states = table.states
    elif others:
        write_plan(sweep.folder, trials)
    return states, warnings


def _wandb(sweep: SweepPlan) -> dict[str, Any]:
    return OmegaConf.to_container(sweep.settings[0].cfg.tracker.wandb, resolve=True)  # type: ignore[return-value]


def _log(sweep: SweepPlan, states: States, console: Console, ended: bool = False) -> None:
    """Log finished trials and a summary to W&B. ended: True to send an alert too, if alerts are on."""
    trials = [trial for _, trial in sweep.trials]
    finished = [trial.folder(sweep.folder).path for trial in trials if states[trial.key].phase == "done"]
    counts = progress_table.counts(states) if ended else ""
    log_sweep(sweep.folder, finished, _wandb(sweep), console, counts)


def _best(sweep: SweepPlan) -> str:
    """Describe the best of the settings that a search tried; a setting with an unfinished trial does not count."""
    found = [
        (ended.value, s)
        for s in sweep.settings
        if (ended := outcome(s, sweep.seeds, sweep.options)) and ended.value is not None and ended.stopped is None
    ]
    if not found or sweep.options.search is None:
        return "no setting of the search has finished"
    value, best = (min if found[0][1].lower_is_better else max)(found, key=lambda pair: pair[0])
    of = "final" if sweep.options.search.objective == "final" else "mean of the curve of"
    return f"best of {len(sweep.settings)} settings: {best.label}, {of} {best.metric} {value:.4f}"
