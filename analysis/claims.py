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

from analysis.evidence import paper, paper_real
from analysis.evidence import table as claims_table
from analysis.evidence.comparisons import Outcome
from analysis.evidence.family import Claim
from analysis.evidence.selection import NotRun
from analysis.evidence.verdicts import NOT_RUN
from analysis.load import LoadError, Run, load

HELP = """A verdict on every claim of the paper, and on the findings of a prototype, from the runs that are there.

Examples
  python -m analysis.claims                          all experiments in results; writes figures/claims.md and .csv
  python -m analysis.claims fig2a fig4 --json        two of them, for a program
  python -m analysis.claims --results-dir elsewhere --out elsewhere/figures

Exit code: 0, 1 where there are no results (nothing is written), 2 for unknown options."""


@dataclass(frozen=True)
class Finding:
    """A claim and what became of it.

    source: "paper" or "prototype". published: what was seen there. ours: estimate ± standard error, a difference
    positive where it supports the claim. standard_errors: the estimate in its standard errors, positive in support;
    of a number to agree with, minus the distance; None where there is no error. units: what n counts.
    verdict: one of `analysis.verdicts.VERDICTS`.
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


def findings(results_dir: Path, experiment: str | None = None) -> list[Finding]:
    """What became of every claim, or of those of one experiment, in the order of the paper; none for other experiments.

    A claim whose settings have no finished run is "not run". Raises LoadError where runs cannot be read, or a claim
    could be about several settings.
    """
    return [finding for finding, _ in tested(results_dir, None if experiment is None else [experiment])]


def tested(results_dir: Path, experiments: Sequence[str] | None) -> list[tuple[Finding, float | None]]:
    """The findings, each with the p of the test that would make it hold; None where there was none."""
    found, runs = [], {}
    for claim in claims(experiments):
        if claim.experiment not in runs:
            runs[claim.experiment] = _runs(results_dir, claim.experiment)
        outcome = _outcome(claim, runs[claim.experiment])
        found.append((_finding(claim, outcome), outcome.p))
    return found


def claims(experiments: Sequence[str] | None = None) -> list[Claim]:
    """The list, or what it has on some experiments."""
    known = sorted([*paper.claims(), *paper_real.claims()], key=_figure_number)
    return known if experiments is None else [claim for claim in known if claim.experiment in experiments]


def _figure_number(claim: Claim) -> float:
    """Of the paper; what is no figure comes last."""
    match = re.match(r"fig(\d+)", claim.experiment)
    return int(match[1]) if match else math.inf


def _runs(results_dir: Path, experiment: str) -> list[Run]:
    if not any((results_dir / experiment).glob("*/*/summary.json")):
        return []
    return load(results_dir, experiment)


def _outcome(claim: Claim, runs: Sequence[Run]) -> Outcome:
    if not runs:
        return Outcome(f"no finished run of {claim.experiment}", None, "–", NOT_RUN, None)
    try:
        return claim.test.outcome([run for run in runs if run in claim.case])
    except NotRun as error:
        return Outcome(f"no finished run of {error} ({claim.case})", None, "–", NOT_RUN, None)


def _finding(claim: Claim, outcome: Outcome) -> Finding:
    words = f"{claim.claim}; {claim.test.words}".format(metric=claim.case.metric, T=claim.case.T)
    return Finding(
        claim.id, claim.figure, claim.experiment, words, claim.source, claim.published, outcome.ours,
        outcome.standard_errors, outcome.units, outcome.verdict,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Write and print the table; the exit code is 0, or 1 when there is nothing to judge."""
    args = _parse(argv)
    try:
        found = tested(args.results_dir, _checked(args))
        paths = claims_table.write(found, args.out)
        if args.json:
            print(json.dumps(_as_json(found), indent=1, ensure_ascii=False))
            return 0
        claims_table.show(found, paths)
    except (LoadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _as_json(found: Sequence[tuple[Finding, float | None]]) -> dict[str, Any]:
    return {
        "summary": claims_table.counts(found),
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
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder of the tables (default: figures)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
