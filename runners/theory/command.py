"""python -m runners.theory: the terms of the paper's regret bound and privacy proposition for finished runs."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dpfbo import checks
from dpfbo.formats.files import replace_text
from dpfbo.formats.run_folder import ResultsError
from runners.arguments import Parser
from runners.compose.instantiate import allowed_names
from runners.record.terminal import say_error
from runners.sweep.trials import read_plan
from runners.theory.terms import DELTA, NoTerms, read, terms
from runners.user_errors import exit_code, user_errors

HELP = """The terms of the paper's Theorem 1 (gamma_t, psi_t, vartheta_t, the clipped set C_t) and the condition of its
Proposition 1 for finished private runs: upper bounds up to constants and logarithms, and the measured regret.
Writes theory.json, with the terms of every round, into the folder of each run.

The messages of all agents are recomputed from the recorded queries and observations; no objective is evaluated again.

Example
  python -m runners.theory fig2c                                 every finished run of an experiment

Exit code: 0, 1 if there is no finished run or one cannot be replayed, 2 for unknown options."""

FILE = "theory.json"
_UNREPLAYABLE = (*user_errors(), LookupError, AttributeError, ArithmeticError, pa.ArrowException)
_NUMBERS = {
    "γ_T": "gamma", "Σψ": "sum_psi", "Σϑ": "sum_vartheta", "mean |C_t|": "clipped", "c1 >": "c1", "c2 ≤": "c2",
    "regret": "regret",
}  # fmt: skip


def totals(content: dict[str, Any], accountant: str) -> dict[str, float | None]:
    """Return the totals and final values of one run from the content of its theory.json."""
    rounds, condition = pd.DataFrame(content["rounds"]), content["proposition_1"]
    return {
        "gamma": rounds["gamma"].iloc[-1],
        "sum_psi": math.fsum(rounds["psi"]),
        "sum_vartheta": math.fsum(rounds["vartheta"]),
        "clipped": rounds["clipped"][rounds["follow"] > 0].mean(),
        "c1": condition.get(f"c1_{accountant}"),
        "c2": condition.get(f"c2_{accountant}"),
        "regret": rounds["regret"].iloc[-1] if "regret" in rounds else None,
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table of means over each setting's runs. rows: for each run, its `totals`, `label` and `n_agents`."""
    title = "upper bounds up to constants and logarithms; regret measured"
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title)
    shown.add_column("setting", overflow="fold")
    for name in ("runs", *_NUMBERS):
        shown.add_column(name, justify="right", no_wrap=True)
    for (label, n_agents), runs in pd.DataFrame(rows).groupby(["label", "n_agents"], sort=False):
        means = runs[list(_NUMBERS.values())].astype(float).mean()
        cells = {name: "-" if math.isnan(mean) else f"{mean:.3g}" for name, mean in means.items()}
        cells["clipped"] += f"/{n_agents}"
        shown.add_row(str(label), str(len(runs)), *cells.values())
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; return 0, or 1 after an error, or 130 if interrupted.

    A run that cannot be replayed does not stop the others.
    """
    args = _parse(argv)
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    checks.positive("--norm-bound", args.norm_bound)
    checks.probability("--failure-probability", args.failure_probability)
    if args.noise_sd is not None:
        checks.positive("--noise-sd", args.noise_sd)
    allowed_names(args.allow)
    experiment = args.results_dir / args.experiment
    runs = sorted(path.parent for path in experiment.glob("*/*/summary.json"))
    if not runs:
        raise ResultsError(f"no finished run of {args.experiment!r} in {args.results_dir}")
    labels = {trial.setting: trial.label for trial in read_plan(experiment)}
    console, rows, code = Console(stderr=True), [], 0
    said: dict[str, None] = {}  # lines to print below the table, each once
    for folder in track(runs, "replaying", console=console, disable=not console.is_terminal, transient=True):
        label = labels.get(folder.parent.name, folder.parent.name)
        try:
            run = read(folder, args.data_dir, args.allow)
            content = terms(run, args.norm_bound, args.noise_sd, args.failure_probability)
            text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        except NoTerms as reason:
            said[f"skipped {label}: {reason}"] = None
        except _UNREPLAYABLE as error:
            say_error(f"{folder} cannot be replayed: {error}")
            code = 1
        else:
            replace_text(folder / FILE, text)
            said[f"{content['note']}."] = None
            counts = {"label": label, "n_agents": run.summary["n_agents"]}
            rows.append({**counts, **totals(content, run.summary["accountant"])})
    if rows:
        Console(highlight=False).print(table(rows))
        said["c1, c2: bounds on Proposition 1's constants that follow from the accountant's epsilon."] = None
        said["regret: measured, cumulative, mean over the agents."] = None
        said[
            f"{FILE} written into {len(rows)} folders; where R is known, psi_explicit has the constants of Lemma 6."
        ] = None
    for line in said:
        print(line)
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.theory", description=HELP)
    parser.add_argument("experiment", metavar="EXPERIMENT", help="experiment_name of the runs")
    parser.add_argument("--norm-bound", type=float, default=1.0, metavar="B", help="for every objective (default: 1)")
    says = "standard deviation of the noise, for the explicit constants (default: that of the problem, if known)"
    parser.add_argument("--noise-sd", type=float, metavar="R", help=says)
    says = f"probability that the bounds with explicit constants fail (default: {DELTA})"
    parser.add_argument("--failure-probability", type=float, default=DELTA, metavar="D", help=says)
    says = "a package or module whose classes or functions a run's config.yaml may name; may be repeated"
    parser.add_argument("--allow", action="append", default=[], metavar="PACKAGE", help=says)
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    parser.add_folder("data_dir", None, "folder of data files (default: where the run found them)")
    args = parser.parse_args(argv)
    if Path(args.experiment).name != args.experiment:
        parser.error(f"EXPERIMENT must be the name of a folder in {args.results_dir}, got {args.experiment!r}")
    return args
