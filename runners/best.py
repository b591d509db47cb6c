"""python -m runners.best: print or export the best configuration of each agent."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table

from dpfbo.formats.bounded import read_object
from dpfbo.formats.files import replace_text
from dpfbo.formats.words import objective_in_words
from runners.arguments import Parser
from runners.identity.finished import EARLIER
from runners.record.best_found import best_in
from runners.record.terminal import say_error

HELP = """The best configuration that every agent of a finished run found, in natural units, from the run's files.

No epsilon covers an agent's configuration: give it to that agent alone.

Examples
  python -m runners.best results/single/4f0c2a91b3de/0            one run
  python -m runners.best results/mine                              all runs below a folder
  python -m runners.best results/mine --output best.csv            or .json, .yaml"""
FORMATS = ("csv", "json", "yaml")
MOST_SHOWN, FEW = 1000, 20  # `_show` prints at most the first FEW agents of a run with more than MOST_SHOWN


def main(argv: Sequence[str] | None = None) -> int:
    """Print or export the best configurations; return 0, or 1 if there is no finished run."""
    args = _parse(argv)
    try:
        best = {run: best_in(run) for folder in args.folders for run in _runs(folder)}
        if args.output is not None:
            replace_text(args.output, _text(best, args.output.suffix.removeprefix(".")))
            print(args.output)
        else:
            _show(best)
    except BrokenPipeError:  # `head` closes its pipe
        pass
    except (OSError, ValueError) as error:
        say_error(str(error))
        return 1
    return 0


def _runs(folder: Path) -> list[Path]:
    runs = sorted(path.parent for path in folder.glob("**/summary.json") if path.parts[-3] != EARLIER)
    if not runs:
        raise FileNotFoundError(f"there is no finished run in {folder}")
    return runs


def _text(best: Mapping[Path, pa.Table], kind: str) -> str:
    rows = [{"run": str(run), **row} for run, found in best.items() for row in found.to_pylist()]
    if kind == "json":
        return json.dumps(rows, indent=1) + "\n"
    if kind == "yaml":
        return str(yaml.safe_dump(rows, sort_keys=False))
    return pd.DataFrame(rows, dtype=object).to_csv(index=False)


def _show(best: Mapping[Path, pa.Table]) -> None:
    console = Console(highlight=False)
    for run, found in best.items():
        table = Table(title=str(run), title_justify="left", title_style="none")
        objective = objective_in_words((read_object(run / "summary.json") or {}).get("metric", ""))
        for name in found.schema.names:
            table.add_column(objective if name == "value" else name, justify="right")
        for row in found.slice(0, len(found) if len(found) <= MOST_SHOWN else FEW).to_pylist():
            table.add_row(*(f"{v:.5g}" if isinstance(v, float) else "" if v is None else str(v) for v in row.values()))
        console.print(table)
        if len(found) > MOST_SHOWN:
            console.print(f"the first {FEW} of {len(found)} agents; --output FILE.csv has all", soft_wrap=True)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.best", description=HELP)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folder of a run or of several runs")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a file: .csv, .json or .yaml")
    args = parser.parse_args(argv)
    if args.output is not None and args.output.suffix.removeprefix(".") not in FORMATS:
        parser.error(f"--output must end in .csv, .json or .yaml, got {args.output}")
    return args


if __name__ == "__main__":
    sys.exit(main())
