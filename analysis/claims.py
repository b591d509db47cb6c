"""python -m analysis.claims: a verdict on every published claim, from the runs that are there."""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.arguments import add_results_dir, results_dir_as_option
from analysis.evidence import outsourced, paper, paper_real
from analysis.evidence import table as claims_table
from analysis.evidence.comparisons import AGREEMENT, BAND, EPSILON, Contrast, Outcome, Test
from analysis.evidence.family import CONTROL, OWN, PAPER, Claim
from analysis.evidence.selection import Case, NotRun, Unclear, named_in
from analysis.evidence.verdicts import NOT_RUN, OPEN
from analysis.load import LoadError, Run, load

HELP = """A verdict on every claim of the paper, and on the findings of a prototype, from the runs that are there.

Examples
  python -m analysis.claims                          all experiments in results; writes figures/claims.md and .csv
  python -m analysis.claims fig2a                    one of them, printed; written only with --out
  python -m analysis.claims fig2a fig4 --json        two of them, for a program; the same
  python -m analysis.claims results_dir=elsewhere --out elsewhere/figures

Exit code: 0, 1 where there are no results (nothing is written) or some cannot be read, 2 for unknown options."""


@dataclass(frozen=True)
class Finding:
    """A claim and what became of it.

    source: "paper", "prototype", "control" or "own". published: what was seen there. ours: estimate ± standard error, a
    difference positive where it supports the claim. standard_errors: the estimate in its standard errors, positive in
    support; of a number to agree with, minus the distance; None where there is no error. units: what n counts.
    verdict: one of `analysis.evidence.verdicts.VERDICTS`. kind: "effect", "agreement", "epsilon", "control" or
    "own". form: of the test, "superiority", "margin", "band", "agreement" or "epsilon". repeats: id of an earlier claim
    with the same settings and test, or, of an own finding, with runs that are the same. reverse_of: id of the published
    claim of the contrary. Both empty where there is none.
    """

    id: str
    figure: str
    experiment: str
    claim: str
    source: str
    published: str
    ours: str
    standard_errors: float | None
    units: str
    verdict: str
    kind: str = "effect"
    form: str = "superiority"
    repeats: str = ""
    reverse_of: str = ""


def findings(results_dir: Path, experiment: str | None = None) -> list[Finding]:
    """What became of every claim, or of those of one experiment, in the order of the paper; none for other experiments.

    A claim whose settings have no finished run, or none that can be read, is "not run"; one that could be about several
    settings is "not decided".
    """
    return [finding for finding, _ in tested(results_dir, None if experiment is None else [experiment])]


def tested(results_dir: Path, experiments: Sequence[str] | None) -> list[tuple[Finding, float | None]]:
    """The findings, each with the p of the test that would make it hold; None where there was none."""
    return _judged(results_dir, experiments)[0]


def _judged(
    results_dir: Path, experiments: Sequence[str] | None
) -> tuple[list[tuple[Finding, float | None]], list[str]]:
    """The findings with their p, and why experiments could not be read."""
    found, unread = [], []
    runs: dict[str, list[Run] | LoadError] = {}
    seen: dict[tuple[object, ...], str] = {}  # by the numbers of an own finding, the first with them
    related = _relations()
    for claim in claims(experiments):
        if claim.experiment not in runs:
            try:
                runs[claim.experiment] = _runs(results_dir, claim.experiment)
            except LoadError as error:
                runs[claim.experiment] = error
                unread.append(f"the claims about {claim.experiment} were not judged: {error}")
        outcome = _outcome(claim, runs[claim.experiment])
        repeats, reverse_of = related[claim.id]
        if claim.source == OWN and outcome.p is not None:
            first = seen.setdefault(_numbers(claim, runs[claim.experiment]), claim.id)
            repeats = repeats or ("" if first == claim.id else first)
        found.append((_finding(claim, outcome, repeats, reverse_of), outcome.p))
    return found, unread


def claims(experiments: Sequence[str] | None = None) -> list[Claim]:
    """The list, or what it has on some experiments."""
    known = sorted([*paper.claims(), *paper_real.claims(), *outsourced.claims()], key=_figure_number)
    return known if experiments is None else [claim for claim in known if claim.experiment in experiments]


def shown_in(found: Sequence[Finding], runs: Sequence[Run]) -> list[Finding]:
    """The findings whose settings are all among the runs."""
    tests = {claim.id: claim.test for claim in claims(list({f.experiment for f in found}))}
    return [f for f in found if all(any(where.matches(run) for run in runs) for where in named_in(tests[f.id]))]


def _figure_number(claim: Claim) -> float:
    """Of the paper; what is no figure comes last."""
    match = re.match(r"fig(\d+)", claim.experiment)
    return int(match[1]) if match else math.inf


def _runs(results_dir: Path, experiment: str) -> list[Run]:
    if not any((results_dir / experiment).glob("*/*/summary.json")):
        return []
    return load(results_dir, experiment)


def _relations() -> dict[str, tuple[str, str]]:
    """By id: the claim that it repeats, and the published one whose contrary it is."""
    known = claims()
    first: dict[tuple[Case, Test], str] = {}
    for claim in known:
        first.setdefault(claim.tested, claim.id)
    found = {}
    for claim in known:
        repeats = first[claim.tested]
        contrary = "" if claim.contrary is None or claim.source == PAPER else first.get(claim.contrary, "")
        found[claim.id] = ("" if repeats == claim.id else repeats, contrary)
    return found


def _outcome(claim: Claim, runs: Sequence[Run] | LoadError) -> Outcome:
    if isinstance(runs, LoadError):
        return Outcome(f"results cannot be read: {runs}", None, "–", NOT_RUN, None)
    if not runs:
        return Outcome(f"no finished run of {claim.experiment}", None, "–", NOT_RUN, None)
    try:
        return claim.test.outcome([run for run in runs if run in claim.case])
    except NotRun as error:
        return Outcome(f"no finished run of {error} ({claim.case})", None, "–", NOT_RUN, None)
    except Unclear as error:
        return Outcome(str(error), None, "–", OPEN, None)


def _numbers(claim: Claim, runs: Sequence[Run] | LoadError) -> tuple[object, ...]:
    """What a test of an own finding is made of: the same for settings whose runs are, seed by seed."""
    test = claim.test
    if not isinstance(test, Contrast) or isinstance(runs, LoadError):
        return (claim.id,)
    about = [run for run in runs if run in claim.case]
    terms = [(weight, test.measure.by_unit(where.among(about))) for weight, where in test.terms]
    return claim.case, test.words, *((weight, tuple(sorted(values.items()))) for weight, values in terms)


def _finding(claim: Claim, outcome: Outcome, repeats: str, reverse_of: str) -> Finding:
    case, test = claim.case, claim.test
    words = f"{claim.claim}; {test.words}".format(metric=case.metric_in_words, T=case.T)
    form = test.form
    of_form = AGREEMENT if form in (AGREEMENT, BAND) else EPSILON if form == EPSILON else "effect"
    kind = claim.source if claim.source in (CONTROL, OWN) else of_form
    return Finding(
        claim.id, claim.figure, claim.experiment, words, claim.source, claim.published, outcome.ours,
        outcome.standard_errors, outcome.units, outcome.verdict, kind, form, repeats, reverse_of,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write it if it is whole or a folder is named.

    The exit code is 0, or 1 when there is nothing to judge or an experiment cannot be read.
    """
    args = _parse(argv)
    out = args.out or (None if args.experiments or args.json else Path("figures"))
    try:
        found, unread = _judged(args.results_dir, _checked(args))
        paths = [] if out is None else claims_table.write(found, out)
        if args.json:
            print(json.dumps(_as_json(found), indent=1, ensure_ascii=False))
        else:
            claims_table.show(found, paths)
    except (LoadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for reason in unread:
        print(f"error: {reason}", file=sys.stderr)
    return 1 if unread else 0


def _as_json(found: Sequence[tuple[Finding, float | None]]) -> dict[str, Any]:
    return {
        "summary": claims_table.counts(found),
        "kinds": dict(claims_table.kinds(found)),
        "notes": claims_table.notes(found),
        "findings": [{**asdict(finding), "p": p} for finding, p in found],
    }


def _checked(args: argparse.Namespace) -> list[str] | None:
    """The experiments asked for. Raises LoadError where there is no claim on one, or no finished run at all."""
    names = list(dict.fromkeys(claim.experiment for claim in claims()))
    for name in args.experiments:
        if name not in names:
            raise LoadError(f"there is no claim about {name!r}: there are claims about {', '.join(names)}")
    asked = args.experiments or names
    if not any(any((args.results_dir / name).glob("*/*/summary.json")) for name in asked):
        of = f"of {', '.join(asked)} " if args.experiments else ""
        raise LoadError(f"no finished run {of}in {args.results_dir}: run python -m runners.sweep experiment={asked[0]}")
    return args.experiments or None


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.claims", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="its experiment_name; default: all")
    parser.add_argument(
        "--out", type=Path, help="folder of the tables (default: figures; nothing for some experiments, or --json)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_results_dir(parser)
    return parser.parse_args(results_dir_as_option(argv))


if __name__ == "__main__":
    sys.exit(main())
