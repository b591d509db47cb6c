"""python -m runners.sweep: many settings times many seeds on Ray Tune (grid search), resumable from their files."""

import argparse
import logging
from collections.abc import Sequence

from dpfbo import lazy
from runners.arguments import Parser
from runners.compose.conf_folder import groups
from runners.compose.overrides import no_setting, quoted
from runners.user_errors import exit_code

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
  python -m runners.sweep problem=branin 'privacy.q=interval(0.1,1)' algorithm.P=1,2,4 sweep.search=optuna seeds=0..2
  python -m runners.sweep experiment=fig2c launcher=slurm launcher.nodes=4 launcher.cpus_per_task=16
  python -m runners.sweep --cancel experiment=fig2c                  ends its Slurm job
  python -m runners.status fig2c                                     how far it is, from anywhere
"""

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
  sweep.scheduler          asha or median: Ray Tune stops simulations early whose metric is poor; the command without
                           it continues them; sweep.scheduler_options.grace_period, .reduction_factor (asha),
                           .min_samples_required (median)
  sweep.search             optuna or random: choose the settings of simulations from the values above and from
                           key=interval(0.1,1), key=int(interval(1,9)), key=tag(log,interval(0.5,4))
  sweep.num_samples        settings of a search (default 20); sweep.search_batch of them (4) are chosen together
  sweep.objective          of a search: final (metric) or curve (its mean over the rounds); the mean over the seeds
  sweep.search_seed        of a search (default 0)
  sweep.tensorboard        true: write curves for TensorBoard, into results_dir/EXPERIMENT/tensorboard
  sweep.address            HOST:PORT of a Ray cluster; null: RAY_ADDRESS, or a Ray on this machine, else its own;
                           local: always its own
  launcher                 local or slurm; launcher.nodes, .cpus_per_task, .gpus_per_node, .mem, .time, .partition,
                           .account, .qos, .setup, and +launcher.options.KEY=VALUE for any other option of sbatch
  sweep.settings           list of settings (in conf/experiment/*.yaml), each its overrides

All settings of a trial: python -m runners.run --help. On a cluster every node needs this code and results_dir at the
same paths.
Exit code: 0 all finished, or stopped early by sweep.scheduler, 1 a trial failed, a result was not written or a value is
refused, 2 unknown overrides, 130 interrupted (Ctrl-C or SIGTERM)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with lazy.uncollected(for_good=True):  # it makes planning 20 % faster
        from runners.sweep import execution  # here: it takes a second, and --help and unknown options need none of it
    goes_on = "interrupted; the same command goes on, finished trials are kept, begun ones resume"
    return exit_code(lambda: execution.cancel(args.overrides) if args.cancel else execution.run(args), goes_on)


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
        if override.startswith("hydra/"):
            parser.error(f"{override} is for python -m runners.run -m; Ray runs the trials of a sweep")
    return args
