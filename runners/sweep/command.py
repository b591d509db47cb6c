"""python -m runners.sweep: run many settings with many seeds on Ray Tune; a sweep resumes from its files."""

import argparse
import logging
from collections.abc import Sequence

from dpfbo import lazy
from runners.arguments import Parser
from runners.compose.conf_folder import groups
from runners.compose.overrides import no_setting, quoted
from runners.user_errors import exit_code

HELP = """dpfbo: a sweep, many settings of one experiment times many seeds, side by side on Ray.

Writes results/<experiment_name>/<setting>/<seed>/ for each trial, and results/<experiment_name>/sweep.json. Finished
trials are skipped and interrupted ones resume: after a Ctrl-C or a crash, run the same command again.

Examples
  python -m runners.sweep experiment=fig2c                           a figure of the paper
  python -m runners.sweep experiment=fig2c scale=paper               with all its seeds
  python -m runners.sweep experiment=fig2a,fig2b,fig2c               several figures; shared trials run once
  python -m runners.sweep experiment=fig2c --dry-run                 list the trials and predict their epsilon
  python -m runners.sweep experiment=paper --estimate                trials, hours, disk, before anything starts
  python -m runners.sweep experiment=paper scale=paper               all of both papers, then figures and a report
  python -m runners.sweep problem=branin algorithm=ts,dp_fts_de privacy.z=1,2 seeds=0..4 experiment_name=mine
  python -m runners.sweep experiment=fig2c rounds=10 results_dir=try overrides for every trial
  python -m runners.sweep problem=branin 'privacy.q=interval(0.1,1)' algorithm.P=1,2,4 sweep.search=optuna seeds=0..2
  python -m runners.sweep experiment=fig2c launcher=slurm launcher.nodes=4 launcher.cpus_per_task=16
  python -m runners.sweep --cancel experiment=fig2c                  cancel its Slurm job
  python -m runners.status fig2c                                     show its progress, on any machine
"""

KEYS = """Values to sweep over (commas multiply)
  key=a,b   key=range(1,5)   key=choice(a,b)   group=glob(dp_*)      as in runners.run -m

Keys of a sweep
  scale                    quick or paper: chooses the seeds, and perhaps more settings, if the experiment has scales
  seeds                    0..4 (both ends count), 3, or 0,1,5
  sweep.max_concurrent     trials at a time; null: as many as fit, or 1 with executor=ray
  sweep.cpus_per_trial     null: 1, or 0 with executor=ray, where the CPUs belong to the actors
  sweep.gpus_per_trial     may be a fraction
  sweep.max_retries        restarts of a trial whose node or process goes away (default 5)
  sweep.retry_failed       true: run again the trials that failed before
  sweep.skip_missing       true: of several experiments, leave out those whose data files are missing
  sweep.report             true: at the end, write figures, tables, verdicts, report.html to results_dir/EXPERIMENT
  sweep.scheduler          asha or median: Ray Tune stops simulations with a poor metric early; the same command
                           without this key continues them. Options: sweep.scheduler_options.grace_period,
                           .reduction_factor (asha) and .min_samples_required (median)
  sweep.search             optuna or random: choose the settings of simulations from the values above and from
                           key=interval(0.1,1), key=int(interval(1,9)), key=tag(log,interval(0.5,4))
  sweep.num_samples        number of settings that a search tries (default 20), sweep.search_batch (4) at a time
  sweep.objective          what a search optimises, averaged over the seeds: final (the metric after the last round)
                           or curve (the mean of the metric over the rounds)
  sweep.search_seed        seed of a search (default 0)
  sweep.tensorboard        true: write curves for TensorBoard to results_dir/EXPERIMENT/tensorboard
  sweep.address            HOST:PORT of a Ray cluster; null: RAY_ADDRESS, else a Ray on this machine, else a new one;
                           local: always a new one
  launcher                 local or slurm; launcher.nodes, .cpus_per_task, .gpus_per_node, .mem, .time, .partition,
                           .account, .qos, .setup, and +launcher.options.KEY=VALUE for any other option of sbatch
  sweep.settings           list of settings, each given by its overrides (in conf/experiment/*.yaml)

All settings of a trial: python -m runners.run --help. On a cluster every node needs this code and results_dir at the
same paths.
Exit code: 0 if all trials finished or were stopped early by sweep.scheduler, 1 if a trial failed, a result was not
written or a value is invalid, 2 for unknown overrides, 130 if interrupted (Ctrl-C or SIGTERM)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code."""
    args = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with lazy.uncollected(for_good=True):  # freezing the imported objects makes planning 20 % faster
        from runners.sweep import execution  # imported here: it takes a second, which --help need not wait for
    goes_on = "interrupted; the same command continues: finished trials are kept, unfinished ones resume"
    return exit_code(lambda: execution.cancel(args.overrides) if args.cancel else execution.run(args), goes_on)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options_of_groups = "".join(f"  {name}: {', '.join(options)}\n" for name, options in groups().items())
    parser = Parser(
        prog="python -m runners.sweep",
        usage="%(prog)s [--dry-run | --estimate | --cfg job | --cancel] [--json] [KEY=VALUE ...]",
        description=HELP,
        epilog=f"Groups (choose with group=option)\n{options_of_groups}\n{KEYS}",
    )
    parser.add_argument("--dry-run", action="store_true", help="list trials and predicted epsilon, run nothing")
    add_estimate = "estimate core hours, disk and end time from finished trials or short probes, run nothing else"
    parser.add_argument("--estimate", action="store_true", help=add_estimate)
    parser.add_argument("--cancel", action="store_true", help="cancel the Slurm job of the experiment, run nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    parser.add_argument("-m", "--multirun", action="store_true", help="no effect: a sweep is always a multirun")
    parser.add_argument("-c", "--cfg", choices=["job"], help="print the settings of the first trial, run nothing")
    parser.add_argument("-p", "--package", help="with --cfg: print only this group or key, such as privacy")
    parser.add_argument("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="settings, as for runners.run")
    args = parser.parse_intermixed_args(argv)
    for override in args.overrides:
        if "=" not in override and not override.startswith("~"):
            parser.error(no_setting(override))
        if override.startswith("hydra/"):
            parser.error(f"{override} is for python -m runners.run -m; Ray runs the trials of a sweep")
    return args
