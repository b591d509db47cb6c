"""python -m runners.sweep: many settings times many seeds on Ray Tune (grid search), resumable from their files."""

import argparse
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.live import Live

from dpfbo.extras import needing
from runners.arguments import Parser
from runners.compose.conf_folder import groups
from runners.compose.overrides import no_setting, quoted
from runners.sweep import estimate, preview, progress_table
from runners.sweep.plan import SweepPlan, base_of, folder_of
from runners.sweep.results_folder import write_results
from runners.sweep.shared_runs import command_lines, copy_shared, each_once, plan_all, sharing
from runners.sweep.slurm import SlurmError, SlurmLauncher, read, submit
from runners.sweep.trials import States, TrialState, states_of, write_plan
from runners.user_errors import exit_code
from runners.wandb.backfill import log_sweep

HELP = """dpfbo: a sweep, many settings of one experiment times many seeds, side by side on Ray.

Writes results/<experiment_name>/<setting>/<seed>/ for each trial, and sweep.json beside them. Finished trials are
skipped and interrupted ones go on: after a Ctrl-C or a crash, give the same command again.

Examples
  python -m runners.sweep experiment=fig2c                           a figure of the paper
  python -m runners.sweep experiment=fig2c scale=paper               with all its seeds
  python -m runners.sweep experiment=fig2a,fig2b,fig2c               several; what they share runs once
  python -m runners.sweep experiment=fig2c --dry-run                 what would run, at which epsilon
  python -m runners.sweep experiment=paper --estimate                trials, hours, disk, before anything starts
  python -m runners.sweep experiment=paper scale=paper               all of both papers, then figures and a report
  python -m runners.sweep problem=branin algorithm=ts,dp_fts_de privacy.z=1,2 seeds=0..4 experiment_name=mine
  python -m runners.sweep experiment=fig2c rounds=10 results_dir=try overrides for every trial
  python -m runners.sweep experiment=fig2c launcher=slurm launcher.nodes=4 launcher.cpus_per_task=16
  python -m runners.sweep --cancel experiment=fig2c                  ends its Slurm job
  python -m runners.status fig2c                                     how far it is, from anywhere
"""

_CANCEL_SECONDS = 90.0  # longest wait for the end of a cancelled job

KEYS = """Values to sweep over (commas multiply)
  key=a,b   key=range(1,5)   key=choice(a,b)   group=glob(dp_*)      as in runners.run -m

Keys of a sweep
  scale                    quick or paper: the seeds, and perhaps more settings, of an experiment that has scales
  seeds                    0..4 (both ends count), 3, or 0,1,5
  sweep.max_concurrent     trials at a time; null: as many as fit
  sweep.cpus_per_trial     null: 1, or with executor=ray 0, since its actors have their own
  sweep.gpus_per_trial     may be a fraction
  sweep.max_retries        of a trial whose node or process goes away (default 5)
  sweep.retry_failed       true: run trials again that failed before
  sweep.skip_missing       true: of several experiments, leave out those whose data files are missing
  sweep.report             true: then draw figures, tables, verdicts and report.html, into results_dir/EXPERIMENT
  sweep.address            HOST:PORT of a Ray cluster; null: RAY_ADDRESS, or a Ray on this machine, else its own;
                           local: always its own
  launcher                 local or slurm; launcher.nodes, .cpus_per_task, .gpus_per_node, .mem, .time, .partition,
                           .account, .qos, .setup, and +launcher.options.KEY=VALUE for any other option of sbatch
  sweep.settings           list of settings (in conf/experiment/*.yaml), each its overrides

All settings of a trial: python -m runners.run --help. On a cluster every node needs this code and results_dir at the
same paths.
Exit code: 0 all finished, 1 a trial failed, a result was not written or a value is refused, 2 unknown overrides,
130 interrupted (Ctrl-C or SIGTERM)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    gc.freeze()  # planning is 20 % faster if the imported objects are left out of garbage collection
    goes_on = "interrupted; the same command goes on, finished trials are kept, begun ones resume"
    return exit_code(lambda: _cancel(args.overrides) if args.cancel else _sweep(args), goes_on)


def _sweep(args: argparse.Namespace) -> int:
    console, out, begin = Console(stderr=True, highlight=False), Console(highlight=False), time.monotonic()
    with console.status("composing") as status:
        sweeps = plan_all(args.overrides, status.update)
        states = [_states(sweep) for sweep in sweeps]
        costs = estimate.Costs(sweeps, status.update if args.estimate else None)
        estimated = [] if args.dry_run or args.cfg else estimate.estimates(sweeps, states, costs)
    if args.cfg is not None:
        return _print_settings(sweeps[0], args.package)
    if args.estimate:
        report = estimate.report(sweeps, estimated)
        print(json.dumps(estimate.as_json(estimated), indent=1)) if args.json else out.print(report)
        return 0
    once, warnings = each_once(sweeps, states), list[str]()
    n_to_run = sum(preview.is_to_run(each.sweep, each.state) for each in once)
    if n_to_run and not args.dry_run:
        console.print(estimate.line(sweeps, estimated), soft_wrap=True)
    if n_to_run and sweeps[0].slurm is not None and not args.dry_run:
        return _submit(sweeps[0].slurm, sweeps, args)
    if not args.dry_run:
        with ExitStack() as ray:
            for number, sweep in enumerate(sweeps):
                states[number], said = _run(sweep, sharing(sweep, sweeps), ray, console)
                warnings += said
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if args.json:
        content = [preview.as_json(sweep, found) for sweep, found in zip(sweeps, states, strict=True)]
        print(json.dumps(content if len(content) > 1 else content[0], indent=1))
    else:
        for sweep, found in zip(sweeps, states, strict=True):
            trials = [trial for _, trial in sweep.trials]
            out.print(preview.report(sweep, found) if args.dry_run else progress_table.report(trials, found))
            counts = "" if args.dry_run else f"{progress_table.counts(progress_table.rows(trials, found))}; "
            out.print(f"{counts}results: {sweep.folder}", soft_wrap=True)
        together = f"together, without what they share: {len(once)} trials, {n_to_run} to run"
        out.print(together if args.dry_run else f"{time.monotonic() - begin:.0f} s")
    if args.dry_run:
        return 0
    unfinished = any(s.phase != "done" for found in states for s in found.values())
    written = not sweeps[0].options.report or write_results(sweeps, states, args.overrides, console)
    return int(unfinished or not written)


def _print_settings(sweep: SweepPlan, package: str | None) -> int:
    """Print the composed settings of the first trial as YAML, all or those of a package."""
    cfg = sweep.settings[0].cfg
    found = cfg if package is None else OmegaConf.select(cfg, package)
    if found is None:
        raise ValueError(f"--package must be a group or a key of the settings, got {package!r}")
    print(OmegaConf.to_yaml(found) if OmegaConf.is_config(found) else found, end="")
    return 0


def _states(sweep: SweepPlan) -> States:
    return states_of(sweep.folder, (trial for _, trial in sweep.trials))


def _submit(slurm: SlurmLauncher, sweeps: Sequence[SweepPlan], args: argparse.Namespace) -> int:
    """Hand the sweep to Slurm, and tell its job."""
    kept = [o for o in args.overrides if o.lstrip("+~").partition("=")[0].partition(".")[0] != "launcher"]
    first, names = sweeps[0].folder, [sweep.experiment for sweep in sweeps]
    log = first / "slurm" / "%j.log"
    script = slurm.script("+".join(names), log, kept, Path.cwd())
    job = submit(script, [sweep.folder for sweep in sweeps], kept, log)
    for sweep in sweeps:
        write_plan(sweep.folder, [trial for _, trial in sweep.trials])
    if args.json:
        print(json.dumps({"job": job.job, "log": job.log, "experiments": names}))
        return 0
    where = f" results_dir={first.parent}" if first.parent != Path("results").absolute() else ""
    print(f"Slurm job {job.job}, log {job.log}")
    print(f"progress:  python -m runners.status {' '.join(names)}{where}")
    print(f"to end it: python -m runners.sweep --cancel experiment_name={names[0]}{where}")
    return 0


def _cancel(overrides: Sequence[str]) -> int:
    """Cancel the Slurm jobs of experiments, and wait until they are over."""
    if not any(o.partition("=")[0] in ("experiment", "experiment_name") for o in overrides):
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
    """Run the unfinished trials of an experiment, unless others have them; returns the states and the warnings.

    ray: gets the connection to Ray, which is made once it is needed.
    """
    copy_shared(sweep, others)
    states, warnings, trials = _states(sweep), list[str](), [trial for _, trial in sweep.trials]
    todo = [(setting, trial) for setting, trial in sweep.trials if preview.is_to_run(sweep, states[trial.key])]
    todo.sort(key=lambda pair: states[pair[1].key].phase == "running")  # another process may finish these
    phases, wandb = [state.phase for state in states.values()], str(sweep.settings[0].cfg.tracker.wandb.mode)
    if done := phases.count("done"):
        console.print(f"{done} of {len(phases)} trials are finished and skipped")
    if (failed := phases.count("failed")) and not sweep.options.retry_failed:
        console.print(f"{failed} failed before and are skipped; sweep.retry_failed=true runs them again")
    if todo:
        with console.status("starting Ray"):
            with needing("ray", "a sweep"):
                from runners.sweep import tune
            ray.enter_context(tune.cluster(sweep.options))
        write_plan(sweep.folder, trials)
        os.environ.setdefault("WANDB_MODE", wandb)  # nothing may ask for a key
        waiting = {trial.key: TrialState("waiting") for _, trial in todo}
        table = progress_table.ProgressTable(trials, {**states, **waiting}, console)
        shown = Live(table, console=console, refresh_per_second=4) if console.is_terminal else nullcontext()
        with shown as live:
            warnings = tune.run_trials(todo, sweep.options, table)
            if live is not None:
                live.transient = True  # it stays only if the sweep is interrupted
        states = table.states
    elif others:
        write_plan(sweep.folder, trials)
    finished = [trial.folder(sweep.folder).path for trial in trials if states[trial.key].phase == "done"]
    log_sweep(sweep.folder, finished, wandb, console)
    return states, warnings


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options_of_groups = "".join(f"  {name}: {', '.join(options)}\n" for name, options in groups().items())
    parser = Parser(
        prog="python -m runners.sweep",
        usage="%(prog)s [--dry-run | --estimate | --cfg job | --cancel] [--json] [KEY=VALUE ...]",
        description=HELP,
        epilog=f"Groups (choose with group=option)\n{options_of_groups}\n{KEYS}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="list trials and predicted epsilon, run nothing")
    add_estimate = "trials, core hours, disk and end, from finished trials or short probes; run nothing else"
    parser.add_argument("--estimate", action="store_true", help=add_estimate)
    parser.add_argument("--cancel", action="store_true", help="end the Slurm job of the experiment, run nothing")
    parser.add_argument("--json", action="store_true", help="the result for a program, on standard output")
    parser.add_argument("-m", "--multirun", action="store_true", help="as for runners.run; a sweep always is one")
    parser.add_argument("-c", "--cfg", choices=["job"], help="print the settings of the first trial, run nothing")
    parser.add_argument("-p", "--package", help="of --cfg: a group or key, such as privacy, in place of all")
    parser.add_argument("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="settings, as for runners.run")
    args = parser.parse_intermixed_args(argv)
    for override in args.overrides:
        if "=" not in override and not override.startswith("~"):
            parser.error(no_setting(override))
    return args
