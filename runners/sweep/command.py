"""python -m runners.sweep: many settings times many seeds on Ray Tune (grid search), resumable from their files."""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dpfbo.extras import needing
from dpfbo.formats.words import delta_in_words, neighbours
from runners.arguments import Parser
from runners.compose.conf_folder import groups
from runners.compose.overrides import no_setting, one_sentence, quoted
from runners.record.terminal import say_error
from runners.sweep import progress_table
from runners.sweep.garbage import leave_modules_alone
from runners.sweep.plan import PlannedSetting, SweepPlan, launcher
from runners.sweep.shared_runs import (
    States,
    copy_finished,
    distinct_trials,
    experiment_folders,
    other_folders,
    plan_all,
)
from runners.sweep.slurm import SlurmError, SlurmLauncher, read, submit
from runners.sweep.trials import Trial, TrialState, seeds_in_words, states_of, write_plan
from runners.user_errors import USER_ERRORS
from runners.wandb.backfill import log_sweep

HELP = """dpfbo: a sweep, many settings of one experiment times many seeds, side by side on Ray.

Writes results/<experiment_name>/<setting>/<seed>/ for each trial, and sweep.json beside them. Finished trials are
skipped and interrupted ones go on: after a Ctrl-C or a crash, give the same command again.

Examples
  python -m runners.sweep experiment=fig2c                           a figure of the paper
  python -m runners.sweep experiment=fig2c scale=paper               with all its seeds
  python -m runners.sweep experiment=fig2a,fig2b,fig2c               several; what they share runs once
  python -m runners.sweep experiment=fig2c --dry-run                 what would run, at which epsilon
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
  sweep.address            HOST:PORT of a Ray cluster; null: RAY_ADDRESS, or a Ray on this machine, else its own;
                           local: always its own
  launcher                 local or slurm; launcher.nodes, .cpus_per_task, .gpus_per_node, .mem, .time, .partition,
                           .account, .qos, .setup, and +launcher.options.KEY=VALUE for any other option of sbatch
  sweep.settings           list of settings (in conf/experiment/*.yaml), each its overrides

All settings of a trial: python -m runners.run --help. On a cluster every node needs this code and results_dir at the
same paths.
Exit code: 0 all finished, 1 a trial failed or a value is refused, 2 unknown overrides, 130 interrupted
(Ctrl-C or SIGTERM)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    console = Console(stderr=True, highlight=False)
    begin = time.monotonic()
    leave_modules_alone()
    try:
        if args.cancel:
            if not any(o.partition("=")[0] in ("experiment", "experiment_name") for o in args.overrides):
                raise SlurmError("--cancel needs experiment=NAME or experiment_name=NAME, whose job it ends")
            return _cancel(experiment_folders(args.overrides), console)
        chosen = launcher(args.overrides)
        slurm = SlurmLauncher.of(chosen) if chosen["name"] == "slurm" else None
        with _busy(console, "composing") as say:
            sweeps = plan_all(args.overrides, say)
        found = [states_of(sweep.folder, (trial for _, trial in sweep.trials)) for sweep in sweeps]
        if args.dry_run:
            _print(sweeps, found, args.json, _preview)
            if len(sweeps) > 1 and not args.json:
                planned, known = distinct_trials(sweeps, found)
                to_run = sum(_is_to_run(sweeps[0], s) for s in known.values())
                print(f"together, without what they share: {len(planned)} trials, {to_run} to run")
            return 0
        if slurm is not None and _is_anything_to_run(sweeps, found):
            return _submit(slurm, sweeps, args)
        after, warnings = _run(sweeps, found, console)
        _finish_wandb(sweeps, after, console)
    except KeyboardInterrupt:
        say_error("interrupted; the same command goes on, finished trials are kept, begun ones resume")
        return 130
    except (HydraException, OmegaConfBaseException) as error:
        say_error(one_sentence(str(error)))
        return 2
    except (SlurmError, *USER_ERRORS) as error:
        say_error(str(error))
        return 1
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    _print(sweeps, after, args.json, _conclude)
    if not args.json:
        Console(highlight=False).print(f"{time.monotonic() - begin:.0f} s")
    return int(any(s.phase != "done" for states in after for s in states.values()))


def _is_anything_to_run(sweeps: Sequence[SweepPlan], found: Sequence[States]) -> bool:
    _, known = distinct_trials(sweeps, found)
    return any(_is_to_run(sweeps[0], state) for state in known.values())


def _submit(slurm: SlurmLauncher, sweeps: Sequence[SweepPlan], args: argparse.Namespace) -> int:
    """Hand the sweep to Slurm, and tell its job."""
    slurm.check_trials(sweeps[0].options.cpus_per_trial, sweeps[0].options.gpus_per_trial)
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


def _cancel(folders: Sequence[Path], console: Console) -> int:
    """Cancel the Slurm jobs of experiments, and wait until they are over."""
    jobs = {job.job: job for folder in folders if (job := read(folder)) is not None}
    waiting = [job for job in jobs.values() if job.state() is not None]
    if not waiting:
        raise SlurmError(f"no Slurm job of {', '.join(folder.name for folder in folders)} is in the queue")
    for job in waiting:
        job.cancel()
    give_up = time.monotonic() + _CANCEL_SECONDS
    with _busy(console, "waiting for the end"):
        while any(job.state() is not None for job in waiting) and time.monotonic() < give_up:
            time.sleep(0.5)
    for job in waiting:
        state = job.state()
        print(f"Slurm job {job.job}: " + ("cancelled" if state is None else f"cancelled, and still {state}"))
    return 0


def _run(sweeps: Sequence[SweepPlan], found: Sequence[States], console: Console) -> tuple[list[States], list[str]]:
    """Run each unfinished trial once; returns the states of each experiment afterwards, and the trials' warnings."""
    planned, known = distinct_trials(sweeps, found)
    trials = [trial for _, trial in planned.values()]
    todo = [pair for key, pair in planned.items() if _is_to_run(sweeps[0], known[key])]
    todo.sort(key=lambda pair: known[pair[1].key].phase == "running")  # another process may finish these
    _say_what_is_skipped(sweeps[0], known, console)
    if not todo:
        return copy_finished(sweeps, found, known), []
    others = other_folders(sweeps, found) if len(sweeps) > 1 else {}
    os.environ.setdefault("WANDB_MODE", str(todo[0][0].cfg.tracker.wandb.mode))  # nothing may ask for a key
    with ExitStack() as stack:
        with _busy(console, "starting Ray"):
            with needing("ray", "a sweep"):
                from runners.sweep import tune
            stack.enter_context(tune.cluster(sweeps[0].options))
        for sweep in sweeps:
            write_plan(sweep.folder, [trial for _, trial in sweep.trials])
        table = progress_table.ProgressTable(
            trials, {**known, **{trial.key: TrialState("waiting") for _, trial in todo}}, console
        )
        try:
            with _shown(table, console):
                warnings = tune.run_trials(todo, sweeps[0].options, table, others)
        finally:  # an interrupted sweep also copies its finished trials
            after = copy_finished(sweeps, found, table.states)
    return after, warnings


def _finish_wandb(sweeps: Sequence[SweepPlan], after: Sequence[States], console: Console) -> None:
    """Log copied trials, those that W&B lost, and the summary of each experiment."""
    for sweep, states in zip(sweeps, after, strict=True):
        done = [trial.folder(sweep.folder).path for _, trial in sweep.trials if states[trial.key].phase == "done"]
        log_sweep(sweep.folder, done, str(sweep.settings[0].cfg.tracker.wandb.mode), console)


@contextmanager
def _busy(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on a terminal; yields the function that changes it."""
    if not console.is_terminal:
        yield lambda message: None
        return
    with console.status(what) as status:
        yield status.update


@contextmanager
def _shown(table: progress_table.ProgressTable, console: Console) -> Iterator[None]:
    """Show the table live on a terminal; it stays there only if the sweep is interrupted."""
    if not console.is_terminal:
        yield
        return
    with Live(table, console=console, refresh_per_second=4) as live:
        yield
        live.transient = True


def _is_to_run(sweep: SweepPlan, known: TrialState) -> bool:
    return known.phase != "done" and (known.phase != "failed" or sweep.options.retry_failed)


def _say_what_is_skipped(sweep: SweepPlan, states: States, console: Console) -> None:
    phases = [s.phase for s in states.values()]
    if done := phases.count("done"):
        console.print(f"{done} of {len(phases)} trials are finished and skipped")
    if (failed := phases.count("failed")) and not sweep.options.retry_failed:
        console.print(f"{failed} failed before and are skipped; sweep.retry_failed=true runs them again")


def _print(
    sweeps: Sequence[SweepPlan],
    found: Sequence[States],
    as_json: bool,
    show: Callable[[SweepPlan, States, Console], None],
) -> None:  # fmt: skip
    """Print the experiments one after another; as JSON, one object or a list of several."""
    if as_json:
        content = [_as_json(sweep, states) for sweep, states in zip(sweeps, found, strict=True)]
        print(json.dumps(content if len(content) > 1 else content[0], indent=1))
        return
    for sweep, states in zip(sweeps, found, strict=True):
        show(sweep, states, Console(highlight=False))


def _conclude(sweep: SweepPlan, states: States, console: Console) -> None:
    """Print the final table and the failed trials."""
    trials = [trial for _, trial in sweep.trials]
    rows = progress_table.rows(trials, states)
    console.print(progress_table.table(rows, progress_table.MOST_ROWS))
    console.print(progress_table.footnote(rows))
    if (failed := progress_table.failures(trials, states)) is not None:
        console.print(failed)
    console.print(f"{progress_table.counts(rows)}; results: {sweep.folder}", soft_wrap=True)


def _preview(sweep: SweepPlan, states: States, console: Console) -> None:
    """Print the settings of a sweep with their predicted epsilon, and the number of trials to run."""
    accountants = list(dict.fromkeys(name for setting in sweep.settings for name in setting.epsilon))
    rough = {name for setting in sweep.settings for name in setting.approximations}
    deltas = [f"{setting.delta:.3g}" for setting in sweep.settings]
    table = Table()
    for name in ("setting", "seeds"):
        table.add_column(name, overflow="fold", min_width=12)
    for name in (
        "T",
        *(f"epsilon\n{name}{' (≈)' * (name in rough)}" for name in accountants),
        *(["delta"] if len(set(deltas)) > 1 else []),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for setting, delta in list(zip(sweep.settings, deltas, strict=True))[: progress_table.MOST_ROWS]:
        known = setting.epsilon
        epsilons = [progress_table.epsilon_in_words(known[name]) if name in known else "–" for name in accountants]
        seeds = _seeds_by_state(sweep, setting, states)
        table.add_row(setting.label, seeds, str(setting.rounds), *epsilons, *([delta] if len(set(deltas)) > 1 else []))
    if len(sweep.settings) > progress_table.MOST_ROWS:
        table.caption = f"and {len(sweep.settings) - progress_table.MOST_ROWS} more settings; --json has all"
    console.print(table)
    at = f"at {delta_in_words(sweep.settings[0].delta)}, " if len(set(deltas)) == 1 else ""
    relations = dict.fromkeys(neighbours(s.relation) for s in sweep.settings if s.relation)
    console.print(
        f"epsilon: predicted of one run of T rounds, {at}{' or '.join(relations) or 'none'}; several runs add up"
    )
    to_run = sum(_is_to_run(sweep, s) for s in states.values())
    console.print(f"{len(sweep.settings)} settings x {len(sweep.seeds)} seeds = {len(states)} trials, {to_run} to run")
    console.print(f"results: {sweep.folder}", soft_wrap=True)


def _seeds_by_state(sweep: SweepPlan, setting: PlannedSetting, states: Mapping[tuple[str, int], TrialState]) -> str:
    """`0..2 done, 3 resumes at round 7, 4 to run`."""
    groups: dict[str, list[int]] = {}
    for seed in sweep.seeds:
        groups.setdefault(_in_words(sweep, states[setting.trial(seed).key]), []).append(seed)
    return "\n".join(f"{seeds_in_words(seeds)} {words}" for words, seeds in groups.items())


def _in_words(sweep: SweepPlan, known: TrialState) -> str:
    if known.phase == "interrupted":
        return f"resumes after round {known.round}"
    if known.phase == "failed":
        return "failed, to run again" if sweep.options.retry_failed else "failed, skipped"
    return {"done": "done", "running": "running elsewhere", "waiting": "to run"}[known.phase]


def _as_json(sweep: SweepPlan, states: States) -> dict[str, Any]:
    def entry(setting: PlannedSetting, trial: Trial) -> dict[str, Any]:
        known = states[trial.key]
        predicted = {
            "epsilon": setting.epsilon, "delta": setting.delta, "relation": setting.relation,
            "approximations": setting.approximations,
        }  # fmt: skip
        return {
            "label": trial.label, "overrides": trial.overrides, "setting": trial.setting, "seed": trial.seed,
            "rounds": trial.rounds, "metric": trial.metric, "to_run": _is_to_run(sweep, known), **known.as_json(),
            "predicted": predicted,
        }  # fmt: skip

    trials = [entry(setting, trial) for setting, trial in sweep.trials]
    return {"experiment": sweep.experiment, "results": str(sweep.folder), "trials": trials}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options_of_groups = "".join(f"  {name}: {', '.join(options)}\n" for name, options in groups().items())
    parser = Parser(
        prog="python -m runners.sweep", usage="%(prog)s [--dry-run | --cancel] [--json] [KEY=VALUE ...]",
        description=HELP,
        epilog=f"Groups (choose with group=option)\n{options_of_groups}\n{KEYS}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="list trials and predicted epsilon, run nothing")
    parser.add_argument("--cancel", action="store_true", help="end the Slurm job of the experiment, run nothing")
    parser.add_argument("--json", action="store_true", help="the result for a program, on standard output")
    parser.add_argument("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="settings, as for runners.run")
    args = parser.parse_intermixed_args(argv)
    for override in args.overrides:
        if "=" not in override and not override.startswith("~"):
            parser.error(no_setting(override))
    return args


if __name__ == "__main__":
    sys.exit(main())
