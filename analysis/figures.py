"""python -m analysis.figures NAME...: the figures of experiments, the numbers behind them and the words beside them.

An experiment's figures are regret against the iteration and, with private runs, against epsilon, for each problem and
metric in it. Runs that were calibrated to target epsilons make one figure, of regret against the target
(`analysis.drawing.equal_epsilon`), and runs of `local` with several numbers of agents one of gains
(`analysis.drawing.gains`). Outsourced runs are drawn by iteration, against epsilon, claimed and guaranteed
apart, and against r. The claims that hold stand in the text beside each picture, not in it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from analysis.arguments import exit_code, parsed
from analysis.claims import judge, shown_in
from analysis.drawing import by_epsilon, by_iteration, equal_epsilon, gains, releases
from analysis.drawing.captions import ACCOUNTANT, verdicts
from analysis.drawing.files import UNDATED, USUAL, checked_formats, save, writable
from analysis.drawing.page_style import SCREEN, STYLES, PageStyle
from analysis.evidence.claim import JudgedClaim
from analysis.labels import VARIANTS, value_in_words
from analysis.load import LoadError, Run, SettingRuns, by_metric, finished_experiments, load, settings, with_parts


@dataclass(frozen=True)
class Drawn:
    """A picture, the numbers behind it, and the name of its files. claims: the claims that hold here, in words."""

    name: str
    figure: Figure
    table: pd.DataFrame
    claims: Sequence[str] = ()


def draw_experiment(
    name: str, runs: Sequence[Run], accountant: str | None = None, style: PageStyle = SCREEN
) -> list[Drawn]:
    """All figures of an experiment, given its runs; without claims where it has several problems or metrics.

    accountant: of the epsilons of federated runs. Raises LoadError where no run has it.
    """
    with mpl.rc_context(style.rc):  # figures of their own, without pyplot: no display, nothing to close
        federated, by_axis = [run for run in runs if not run.outsourced], by_metric(runs)
        judged = judge({name: runs}) if len(by_axis) == 1 else []
        claims = verdicts(judged)
        if gains.has_gains(federated):
            table = gains.table(federated)
            return [Drawn(f"{name}_gains", gains.figure(table, style), table, claims)]
        if equal_epsilon.has_targets(federated):
            n = len({run.setting for run in runs if run.outsourced})
            aside = f"Not in the picture: {n} outsourced setting{'s' * (n > 1)}." if n else ""
            table = equal_epsilon.table(federated)
            return [Drawn(name, equal_epsilon.figure(table, aside, style), table, claims)]
        tables = [settings(group) for group in by_axis]
        if accountant is not None and len(federated) < len(runs):
            by_epsilon.check_accountant([group for groups in tables for group in groups], accountant)
        drawn: list[Drawn] = []
        for groups in tables:
            prefix = name if len(tables) == 1 else f"{name}_{slug(groups)}"
            if groups[0].first.outsourced:
                drawn += _outsourced(groups, prefix, judged, style)
            else:
                drawn += _federated(groups, prefix, accountant or ACCOUNTANT, claims, style)
        return drawn


def _federated(
    groups: Sequence[SettingRuns], prefix: str, accountant: str, claims: Sequence[str], style: PageStyle
) -> Iterator[Drawn]:
    """Yield the pictures of settings that share a metric, against epsilon too if one is private."""
    picture = by_iteration.regret_by_iteration(groups, accountant, style)
    yield Drawn(f"{prefix}_regret_by_iteration", picture, by_iteration.table(groups), claims)
    if any(group.private for group in groups):
        t = min(g.rounds for g in groups)
        picture = by_epsilon.regret_by_epsilon(groups, t, accountant, style)
        yield Drawn(f"{prefix}_regret_by_epsilon", picture, by_epsilon.table(groups, t, accountant), claims)


def _outsourced(
    groups: Sequence[SettingRuns], prefix: str, judged: Sequence[JudgedClaim], style: PageStyle
) -> Iterator[Drawn]:
    """Yield pictures of outsourced settings by iteration, against epsilon and against r, each with its claims."""
    t = min(g.rounds for g in groups)
    at_t = releases.table(groups, t)
    pages = [(page, by_iteration.table(groups)) for page in by_iteration.releases_by_iteration(groups, style)]
    if any(g.private or g.first.claimed_epsilon is not None for g in groups):
        pages.append((releases.releases_by_epsilon(groups, t, style), at_t))
    if (by_r := releases.releases_by_columns(groups, t, style)) is not None:
        pages.append((by_r, at_t))
    for page, table in pages:
        claims = verdicts(shown_in(judged, [group.first for group in page.settings]))
        yield Drawn(f"{prefix}_{page.name}", page.figure, table, claims)


def slug(groups: Sequence[SettingRuns]) -> str:
    """The part of a file's name that distinguishes problems and metrics in one experiment."""
    s = groups[0].first.summary
    problem = groups[0].first.config["problem"]
    variant = [value_in_words(problem[key]) for key in ("score", *VARIANTS) if problem.get(key) is not None]
    return "_".join(map(str, (s["problem"], s["n_agents"], s["metric"], *variant)))


def _style(name: str, width: str | None) -> PageStyle:
    """The style that the command line names. Raises ValueError for an unknown style, or an unsuitable width."""
    if name not in STYLES:
        raise ValueError(f"--style must be one of {', '.join(STYLES)}, got {name!r}")
    try:
        inches = None if width is None else float(width)
    except ValueError as error:
        raise ValueError(f"--width must be a number of inches, got {width!r}") from error
    return STYLES[name].of_width(inches)


@exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Draw the pictures and print their paths; the exit code is 0, or 1 when an experiment could not be drawn."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.figures",
        description="Regret against the iteration and against epsilon: pictures, their numbers as CSV, and title, "
        "caption and the claims that hold as Markdown. Fonts are embedded (PDF: TrueType; SVG: text as outlines).",
    )
    widths = ", ".join(f"{style.name} {style.width:g} or {style.wide:g}" for style in STYLES.values())
    known = f"of {', '.join(UNDATED)} (default: png,pdf)"
    style = "screen (default), paper (a column; text of 8 points, no title, no caption), talk (large) or web (small)"
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="experiment: a folder in the results folder")
    add("--all", action="store_true", help="all experiments in the results folder")
    add("--out", type=Path, default=Path("figures"), help="folder of the pictures (default: figures)")
    add("--accountant", help="of the epsilon axis: pld (default), moments, rdp, gdp")
    add("--style", default=SCREEN.name, metavar="STYLE", help=style)
    add("--format", default=",".join(USUAL), metavar="LIST", help=known)
    add("--width", metavar="INCHES", help=f"of each picture (default, with one panel or several: {widths})")
    args = parsed(parser, argv)
    if args.all == bool(args.names):
        parser.error("give the names of experiments, or --all")
    try:
        look, formats = _style(args.style, args.width), checked_formats(args.format)
    except ValueError as error:
        raise LoadError(str(error)) from error
    names = finished_experiments(args.results_dir) if args.all else with_parts(args.results_dir, args.names)
    if not names:
        raise LoadError(f"no finished run in {args.results_dir}: run python -m runners.sweep experiment=demo")
    failed = False
    for name in names:
        try:
            writable(args.out)
            runs = load(args.results_dir, name)
            private = any(run.real for run in runs)
            for drawn in draw_experiment(name, runs, args.accountant, look):
                paths = save(drawn.figure, drawn.table, drawn.claims, args.out, drawn.name, formats, look, private)
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
