"""python -m runners.backfill: log finished runs to Weights & Biases from their files, and sum up their experiments."""

import argparse
import importlib.util
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from runners.arguments import Parser
from runners.dashboard.from_files import finished_runs
from runners.dashboard.log_experiment import LoggedExperiment, log_experiment, on
from runners.record.terminal import say_error

HELP = """Log finished runs to Weights & Biases from their files: runs that were made without it, or that it lost.

Each gets the history, config, summary, tags and picture that it would have had live, without the seconds of each round.
Runs that were logged already are skipped. The summary of the experiment (settings, picture, claims) is logged if it
changed. Real releases (privacy.rng=os) show what is released, as live, unless the run had tracker.wandb.show=all.

Examples
  python -m runners.backfill fig2c                     into results/fig2c/wandb; upload with make wandb-sync
  python -m runners.backfill fig2c --online            to the server, needs `wandb login`
  python -m runners.backfill                           every experiment in results

Exit code: 0, 1 where there is no run, or one could not be logged, 130 when interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    names = args.experiments or sorted(path.name for path in args.results_dir.glob("*") if path.is_dir())
    folders = [args.results_dir / name for name in names]
    found = [folder for folder in folders if finished_runs(folder)]
    if args.experiments and (without := next((folder for folder in folders if folder not in found), None)):
        say_error(f"no finished run of {without.name!r} in {args.results_dir}")
        return 1
    if not found:
        say_error(f"no finished run in {args.results_dir}")
        return 1
    if importlib.util.find_spec("wandb") is None:
        say_error("W&B is not installed: pip install 'dpfbo[wandb]'")
        return 1
    try:
        results = {folder.name: _log(folder, args) for folder in found}
    except KeyboardInterrupt:
        say_error("interrupted; the same command goes on with the runs that are left")
        return 130
    if args.json:
        print(json.dumps({name: asdict(result) for name, result in results.items()}, indent=1))
    return int(any(result.failed or result.skipped for result in results.values()))


def _log(folder: Path, args: argparse.Namespace) -> LoggedExperiment:
    result = log_experiment(folder, args.mode, args.again, watched=on(Console(stderr=True), folder.name))
    if not args.json:
        print(f"{folder.name}: {_in_words(result)}")
    return result


def _in_words(result: LoggedExperiment) -> str:
    """`3 runs logged, 22 logged before, summary logged`."""
    parts = [f"{result.logged} run{'s' * (result.logged != 1)} logged"]
    parts += [f"{result.before} logged before"] if result.before else []
    parts += [f"{result.skipped} in use or damaged"] if result.skipped else []
    parts += [f"{result.failed} not taken by W&B"] if result.failed else []
    return ", ".join([*parts, "summary logged" if result.summary else "summary as before"])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.backfill", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="its experiment_name; default: all")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--offline", dest="mode", action="store_const", const="offline", help="keep files (default)")
    where.add_argument("--online", dest="mode", action="store_const", const="online", help="upload at once")
    parser.add_argument("--again", action="store_true", help="also runs that were logged already, as new runs")
    parser.add_argument("--json", action="store_true", help="the counts, for a program")
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    parser.set_defaults(mode="offline")
    args = parser.parse_args(argv)
    for name in args.experiments:
        if Path(name).name != name:
            parser.error(f"EXPERIMENT must be the name of a folder in {args.results_dir}, got {name!r}")
    return args


if __name__ == "__main__":
    sys.exit(main())
