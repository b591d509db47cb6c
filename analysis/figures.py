"""python -m analysis.figures NAME...: the pictures of experiments, with their numbers and texts."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.arguments import exit_code, parsed
from analysis.drawing.files import UNDATED, USUAL, save, writable
from analysis.drawing.page_style import SCREEN, STYLES
from analysis.load import LoadError, finished_experiments, load, with_parts


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in names:
        if name not in UNDATED:
            raise argparse.ArgumentTypeError(f"must name some of {', '.join(UNDATED)}, got {name!r}")
    return names


@exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Draw the pictures and print their paths; return 1 if an experiment cannot be drawn, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.figures",
        description="Regret against the iteration and against epsilon: pictures, their numbers as CSV, and title, "
        "caption and verdicts on claims as Markdown. Fonts are embedded (PDF: TrueType; SVG: text as outlines).",
    )
    sizes = ", ".join(f"{style.name} {style.width:g} or {style.wide:g}" for style in STYLES.values())
    width = f"width of a picture (defaults, for one panel or several: {sizes})"
    known = f"one or more of {', '.join(UNDATED)} (default: png,pdf)"
    style = "screen (default), paper (a column; text of 8 points, no title, no caption), talk (large) or web (small)"
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="experiment: a folder in the results folder")
    add("--all", action="store_true", help="all experiments in the results folder")
    add("--out", type=Path, default=Path("figures"), help="folder of the pictures (default: figures)")
    add("--accountant", help="accountant of the epsilon axis: pld (default), moments, rdp, gdp")
    add("--style", choices=STYLES, default=SCREEN.name, metavar="STYLE", help=style)
    add("--format", type=_formats, default=USUAL, metavar="LIST", help=known)
    add("--width", type=float, metavar="INCHES", help=width)
    args = parsed(parser, argv)
    if args.all == bool(args.names):
        parser.error("give the names of experiments, or --all")
    try:
        look = STYLES[args.style].of_width(args.width)
    except ValueError as error:
        parser.error(str(error))
    names = finished_experiments(args.results_dir) if args.all else with_parts(args.results_dir, args.names)
    if not names:
        raise LoadError(f"no finished run in {args.results_dir}: run python -m runners.sweep experiment=demo")
    from analysis.pictures import draw_experiment  # imported here, so that --help does not load matplotlib

    failed = False
    for name in names:
        try:
            writable(args.out)
            runs = load(args.results_dir, name)
            private = any(run.real for run in runs)
            for drawn in draw_experiment(name, runs, args.accountant, look):
                paths = save(drawn.figure, drawn.table, drawn.claims, args.out, drawn.name, args.format, look, private)
                print(*paths, sep="\n")
        except (LoadError, OSError) as error:
            said = str(error)
            if isinstance(error, OSError):
                why = error.strerror or error
                said = f"nothing can be written to {args.out} ({why}): give another place with --out"
            print(f"error: {said}" if len(names) == 1 else f"error: {name}: {said}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
