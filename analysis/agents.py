"""python -m analysis.agents RUN...: the distribution of the metric over the agents of a run, after each round."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.drawing.files import save, writable
from analysis.drawing.page_style import SCREEN
from analysis.load import LoadError


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table and, with --out, draw a picture of each run; return 1 after an error, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.agents",
        description="Mean and quantiles of the metric over the agents after each round of a run, finished or not.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of a run, with its seed as its name")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write pictures, CSV and Markdown there")
    args = parser.parse_args(argv)
    import matplotlib as mpl  # imported here, so that --help does not load it

    from analysis.drawing import by_agent
    from analysis.rounds import RunFiles

    failed = False
    for folder in args.runs:
        try:
            run = RunFiles.of(folder)
            found = by_agent.table(run)
            print(by_agent.in_words(run, found))
            if args.out is not None:
                writable(args.out)
                name = "_".join([*folder.absolute().parts[-3:], "agents"])
                with mpl.rc_context(SCREEN.rc):
                    picture = by_agent.figure(run, found)
                private = run.facts.get("rng") != "seeded"
                print(*save(picture, found, (), args.out, name, private=private), sep="\n")
        except LoadError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
