"""python -m analysis.agents RUN...: how the metric spreads over the agents of a run, round by round.

It reads the files of runs that are finished, that go on, or that were interrupted, and takes seconds for a million
agents: quantiles, not rows.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from analysis.drawing import spread
from analysis.drawing.files import save, writable
from analysis.drawing.page_style import SCREEN
from analysis.load import LoadError
from analysis.rounds import RunFiles
from dpfbo.formats.summary import PERCENT

MOST_LINES = 12  # rounds in the table on the terminal; the CSV file has all


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each run, and draw it if asked; the exit code is 0, or 1 if a run cannot be read."""
    args = _parse(argv)
    failed = False
    for folder in args.runs:
        try:
            run = RunFiles.of(folder)
            found = spread.table(run)
            print(in_words(run, found))
            if args.out is not None:
                writable(args.out)
                name = "_".join([*folder.absolute().parts[-3:], "agents"])
                with mpl.rc_context(SCREEN.rc):
                    picture = spread.figure(run, found)
                private = run.facts.get("rng") != "seeded"
                print(*save(picture, found, "", args.out, name, private=private), sep="\n")
        except LoadError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def in_words(run: RunFiles, found: pd.DataFrame) -> str:
    """The table of some rounds, the first and the last among them."""
    rows = np.unique(np.linspace(0, len(found) - 1, min(MOST_LINES, len(found))).round().astype(int))
    facts, state = run.facts, "" if run.finished else ", not finished"
    names = [str(facts[key]) for key in ("problem", "algorithm", "metric") if isinstance(facts.get(key), str)]
    shown = found.iloc[rows].rename(columns={f"q{p:02d}": f"{p} %" for p in PERCENT})
    text = shown.to_string(index=False, float_format=lambda value: f"{value:.4g}")
    return f"{run.folder}{state}: {' · '.join(names)}\n{text}"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.agents",
        description="Mean and quantiles over the agents of the metric after each round of a run, which may go on.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of a run, with its seed as its name")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write pictures, CSV and Markdown there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
