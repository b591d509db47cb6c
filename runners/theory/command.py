"""python -m runners.theory: the terms of the paper's regret bound and privacy proposition for finished runs."""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpfbo import checks
from dpfbo.formats.bounded import MOST_RECORD, read_plain
from runners.arguments import Parser
from runners.compose.instantiate import allowed_names
from runners.record.run_folder import RunFolder
from runners.record.terminal import say_error
from runners.sweep.trials import read_plan
from runners.theory.run import TheoryError, read
from runners.theory.terms import terms

HELP = """The terms of the paper's Theorem 1 (gamma_t, psi_t, vartheta_t, the clipped set C_t) and the condition of its
Proposition 1 for finished private runs: upper bounds up to constants and logarithms, beside the regret that was
measured. Writes theory.json into the folder of each run.

The messages of all agents are computed again from the recorded queries; no objective is evaluated again.

Examples
  python -m runners.theory fig2c                                 every finished run of an experiment
  python -m runners.theory fig3_landmine --seeds first --json    one of each setting, for a program

Exit code: 0, 1 if there is no finished run or one cannot be replayed, 2 for unknown options."""

FILE = "theory.json"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. skipped: the reason to compute no terms, None if they are computed."""

    folder: Path
    setting: str
    seed: int
    label: str
    n_agents: int
    accountant: str
    skipped: str | None


Computed = list[tuple[FinishedRun, dict[str, Any]]]  # runs with the contents of their theory.json


def finished(experiment: Path, seeds: str) -> list[FinishedRun]:
    """The finished runs in an experiment's folder, sorted by setting and seed. seeds: all, or first of each setting.

    Raises TheoryError if there is none, or if a summary cannot be read.
    """
    labels = {trial.setting: trial.label for trial in read_plan(experiment)}
    runs = [_found(path, labels) for path in experiment.glob("*/*/summary.json")]
    if not runs:
        raise TheoryError(f"no finished run of {experiment.name!r} in {experiment.parent}")
    runs.sort(key=lambda run: (run.label, run.setting, run.seed))
    return list({run.setting: run for run in reversed(runs)}.values())[::-1] if seeds == "first" else runs


def _found(summary: Path, labels: dict[str, str]) -> FinishedRun:
    try:
        s, skipped = json.loads(read_plain(summary, MOST_RECORD)), None
        if not s["private"]:
            skipped = "it shares nothing, or not privately: nothing is clipped"
        elif s["rng"] == "os":
            skipped = "its releases are real, and who was clipped is not among them"
        elif not s["n_charges"]:
            skipped = "it released nothing"
        label = labels.get(s["setting"], f"{s['algorithm']} {s['setting'][:6]}")
        return FinishedRun(summary.parent, s["setting"], int(s["seed"]), label, s["n_agents"], s["accountant"], skipped)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise TheoryError(f"{summary} cannot be read: {error!r}") from error


def totals(content: dict[str, Any], accountant: str) -> dict[str, float | None]:
    """The numbers of a run's theory.json that one row of the table shows."""
    rounds, condition = content["rounds"], content["proposition_1"]
    sums = {f"sum_{name}": math.fsum(row[name] for row in rounds) for name in ("psi", "vartheta")}
    sent = [row["clipped"] for row in rounds if row["follow"]] or [0]
    return {
        "gamma": rounds[-1]["gamma"],
        **sums,
        "clipped": statistics.fmean(sent),
        "c1": condition.get(f"c1_{accountant}"),
        "c2": condition.get(f"c2_{accountant}"),
        "regret": rounds[-1].get("regret"),
    }


def table(rows: Sequence[tuple[FinishedRun, dict[str, float | None]]]) -> Table:
    """One row for each setting, means over its runs."""
    shown = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="upper bounds up to constants and logarithms; regret measured"
    )
    shown.add_column("setting", overflow="fold")
    for title in ("runs", "γ_T", "Σψ", "Σϑ", "mean |C_t|", "c1 >", "c2 ≤", "regret"):
        shown.add_column(title, justify="right", no_wrap=True)
    for setting in dict.fromkeys(run.setting for run, _ in rows):
        alike = [(run, values) for run, values in rows if run.setting == setting]
        cells = {name: _mean([values[name] for _, values in alike]) for name in alike[0][1]}
        cells["clipped"] += f"/{alike[0][0].n_agents}"
        shown.add_row(alike[0][0].label, str(len(alike)), *cells.values())
    return shown


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.3g}" if known else "-"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit code is 0, 1 if a run cannot be computed, 130 when interrupted."""
    args = _parse(argv)
    try:
        checks.positive("--norm-bound", args.norm_bound)
        allowed_names(args.allow)
        runs = finished(args.results_dir / args.experiment, args.seeds)
        skipped = [run for run in runs if run.skipped]
        done, failed = _compute([run for run in runs if not run.skipped], args)
        (_print_json if args.json else _print_table)(done, skipped)
        for message in failed:
            say_error(message)
        return int(bool(failed))
    except (TheoryError, ValueError, OSError) as error:
        say_error(str(error))
        return 1
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130


def _compute(runs: Sequence[FinishedRun], args: argparse.Namespace) -> tuple[Computed, list[str]]:
    """Compute the terms of all runs and write each theory.json; returns the terms by run, and the errors."""
    console, done, failed = Console(stderr=True), [], []
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        for run in bar.track(runs, description="replaying"):
            try:
                content = terms(read(run.folder, args.data_dir, args.allow), args.norm_bound)
                _write(RunFolder(run.folder), json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
            except TheoryError as error:
                failed.append(str(error))
                continue
            done.append((run, content))
    return done, failed


def _write(folder: RunFolder, content: bytes) -> None:
    try:
        folder.replace(FILE, lambda f: f.write(content))
    except OSError as error:
        raise TheoryError(f"{folder.path / FILE} cannot be written: {error.strerror}") from error


def _print_json(done: Computed, skipped: Sequence[FinishedRun]) -> None:
    rows = [
        {"setting": run.setting, "seed": run.seed, "file": str(run.folder / FILE), **totals(content, run.accountant)}
        | {key: content[key] for key in ("proposition_1", "inputs", "note")}
        for run, content in done
    ]
    left = [{"setting": run.setting, "seed": run.seed, "why": run.skipped} for run in skipped]
    print(json.dumps({"runs": rows, "skipped": left}, indent=1, allow_nan=False))


def _print_table(done: Computed, skipped: Sequence[FinishedRun]) -> None:
    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=not console.is_terminal)

    if done:
        console.print(table([(run, totals(content, run.accountant)) for run, content in done]))
        for note in dict.fromkeys(content["note"] for _, content in done):
            say(f"{note}.")
        say(
            "c1, c2: what Proposition 1's constants may be for the accountant's epsilon. regret: measured, cumulative, "
            "mean over the agents."
        )
        say(f"{FILE} written into {len(done)} folders.")
    for label, why in dict.fromkeys((run.label, run.skipped) for run in skipped):
        say(f"skipped {label}: {why}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.theory",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="its experiment_name")
    parser.add_argument("--seeds", choices=("all", "first"), default="all", help="of each setting (default: all)")
    parser.add_argument("--norm-bound", type=float, default=1.0, metavar="B", help="of the objectives (default: 1)")
    parser.add_argument("--json", action="store_true", help="for a program, on standard output")
    says = "a package or module whose classes or functions a run's config.yaml may name; may be repeated"
    parser.add_argument("--allow", action="append", default=[], metavar="PACKAGE", help=says)
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    parser.add_folder("data_dir", None, "folder of data files (default: where the run found them)")
    args = parser.parse_args(argv)
    if Path(args.experiment).name != args.experiment:
        parser.error(f"EXPERIMENT must be the name of a folder in {args.results_dir}, got {args.experiment!r}")
    return args
