"""python -m analysis.claims: a verdict on every published claim, from finished runs."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from analysis.arguments import exit_code, parsed
from analysis.evidence import verdict_table
from analysis.evidence.claim import CONTROL, OWN, PAPER, JudgedClaim, StatedClaim, all_claims, figure_number
from analysis.evidence.claim_tests import AGREEMENT, BAND, EPSILON, SUPERIORITY, Comparison, Outcome
from analysis.evidence.verdicts import HOLDS, NOT_RUN, OPEN, Evidence, family_verdicts
from analysis.load import LoadError, Run, finished_experiments, load, with_parts
from dpfbo.formats.files import replace_text

HELP = """A verdict on every claim of the paper, and on findings of a reimplementation, from the finished runs.

Examples
  python -m analysis.claims                          all experiments in results; writes figures/claims.md and .csv
  python -m analysis.claims fig2a fig4 --json        two of them, printed as JSON; written only with --out
  python -m analysis.claims fig2a --keep             also in its results folder, for runners.wandb backfill

Exit code: 0, 1 if there are no results (nothing is written) or some cannot be read, 2 for unknown options."""


def read(results_dir: Path, experiments: Iterable[str]) -> dict[str, Sequence[Run] | LoadError]:
    """Return the finished runs of each experiment, or the error if they cannot be read."""
    found: dict[str, Sequence[Run] | LoadError] = {}
    finished = finished_experiments(results_dir)
    for name in experiments:
        try:
            found[name] = load(results_dir, name) if name in finished else []
        except LoadError as error:
            found[name] = error
    return found


def judge(runs: Mapping[str, Sequence[Run] | LoadError]) -> list[JudgedClaim]:
    """Judge the claims about the experiments in `runs`, in the order of the paper.

    A claim is "not run" if one of its settings has no finished run, or if the runs cannot be read. A claim is "not
    decided" if the runs do not suffice to decide the claim, or if runs of several configurations match one of the
    claim's settings. The tests of all claims about one figure are corrected together for multiple testing.
    """
    stated, outcomes = claims(runs), list[Outcome]()
    seen: dict[object, str] = {}  # by the numbers of an own finding: id of the first finding with them
    first: dict[object, str] = {}
    for claim in claims():
        first.setdefault(claim.tested, claim.id)
    repeats = []
    for claim in stated:
        given = runs[claim.experiment]
        same = "" if first[claim.tested] == claim.id else first[claim.tested]
        if isinstance(given, LoadError):
            unread = f"results cannot be read: {given}"
            outcomes.append(Outcome(unread, None, "–", Evidence(otherwise=NOT_RUN)))
        else:
            outcomes.append(claim.outcome(given))
            if claim.source == OWN and outcomes[-1].evidence.p:
                of_numbers = seen.setdefault(_numbers(claim, given), claim.id)
                same = same or ("" if of_numbers == claim.id else of_numbers)
        repeats.append(same)
    families: dict[str, list[int]] = {}
    for k, claim in enumerate(stated):
        families.setdefault(claim.figure, []).append(k)
    verdicts = dict[int, tuple[str, int | None]]()
    for ks in families.values():
        looks = max(stated[k].looks for k in ks)
        verdicts |= dict(zip(ks, family_verdicts([outcomes[k].evidence for k in ks], looks), strict=True))
        for k in ks:
            if verdicts[k][0] == HOLDS and stated[k].test.form == AGREEMENT and _other_sign(k, ks, stated, outcomes):
                verdicts[k] = OPEN, None
    return [
        JudgedClaim(
            claim.id, claim.figure, claim.experiment, claim.in_words, claim.source, claim.published, outcome.ours,
            outcome.standard_errors, outcome.units, *verdicts[k][:1], _kind(claim), claim.test.form, repeats[k],
            getattr(claim.test, "margin", None), verdicts[k][1], outcome.evidence.p.get(HOLDS), claim.shows,
        )
        for k, (claim, outcome) in enumerate(zip(stated, outcomes, strict=True))
    ]  # fmt: skip


def _other_sign(k: int, family: Sequence[int], stated: Sequence[StatedClaim], outcomes: Sequence[Outcome]) -> bool:
    """Return True if the paper states a gain of claim k's setting, but our runs show a loss.

    The paper may state the gain in another claim: family has the indices of the claims to search.
    """
    (where,) = stated[k].test.settings
    effects = (
        outcomes[j].evidence.holds
        for j in family
        if stated[j].source == PAPER and stated[j].test.form == SUPERIORITY and where in stated[j].test.settings[:1]
    )
    return any(d.value < 0 for ds in effects for d in ds)


def _kind(claim: StatedClaim) -> str:
    form = claim.test.form
    of_form = AGREEMENT if form in (AGREEMENT, BAND) else EPSILON if form == EPSILON else "effect"
    return claim.source if claim.source in (CONTROL, OWN) else of_form


def claims(experiments: Iterable[str] | None = None) -> list[StatedClaim]:
    """Return all claims, or those about some experiments, in the order of the paper."""
    wanted = None if experiments is None else set(experiments)
    known = sorted(all_claims(), key=lambda claim: figure_number(claim.experiment))
    return [claim for claim in known if wanted is None or claim.experiment in wanted]


def shown_in(found: Sequence[JudgedClaim], runs: Sequence[Run]) -> list[JudgedClaim]:
    """Return the judged claims whose settings all have a run among `runs`."""
    tests = {claim.id: claim.test for claim in all_claims()}
    return [f for f in found if all(any(where.matches(run) for run in runs) for where in tests[f.id].settings)]


def _numbers(claim: StatedClaim, runs: Sequence[Run]) -> object:
    """Return a key that is equal for two claims of superiority if they compare the same numbers in the same way.

    The key of a claim that is not of superiority is the claim's id.
    """
    test = claim.test
    if not isinstance(test, Comparison) or test.form != SUPERIORITY:
        return claim.id
    about = claim.case.among(runs)
    values = [tuple(sorted(test.measure.by_unit(where.among(about)).items())) for where in test.settings]
    return claim.case, test.words, test.weights, tuple(values)


@exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Judge the claims and print the verdicts; return the exit code that `HELP` describes."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.claims", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="an experiment_name; default: all")
    parser.add_argument(
        "--out", type=Path, help="folder of the tables (default: figures, or none if experiments or --json are given)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--keep", action="store_true", help="also write claims.json into each experiment's folder")
    args = parsed(parser, argv)
    out = args.out or (None if args.experiments or args.json else Path("figures"))
    runs = read(args.results_dir, _checked(args.results_dir, args.experiments))
    found = judge(runs)
    try:
        paths = [] if out is None else verdict_table.write(found, out, _facts(runs))
        for name in dict.fromkeys(f.experiment for f in found) if args.keep else ():
            if (args.results_dir / name).is_dir():
                paths.append(args.results_dir / name / "claims.json")
                replace_text(paths[-1], _as_json([f for f in found if f.experiment == name]) + "\n", durable=False)
    except OSError as error:
        raise LoadError(str(error)) from error
    if args.json:
        print(_as_json(found))
    else:
        verdict_table.show(found, paths)
    unread = {name: why for name, why in runs.items() if isinstance(why, LoadError)}
    for name, why in unread.items():
        print(f"error: the claims about {name} were not judged: {why}", file=sys.stderr)
    return 1 if unread else 0


def _facts(runs: Mapping[str, Sequence[Run] | LoadError]) -> dict[str, str]:
    """Return a text for each experiment: how many runs it has, their core hours, and the command that makes them."""
    found = {}
    for name, given in runs.items():
        if given and not isinstance(given, LoadError):
            hours = sum(run.summary["seconds"]["total"] for run in given) / 3600
            command = f"`python -m runners.sweep experiment={name} scale=paper`"
            found[name] = f"{len(given)} runs, {hours:.2g} core hours: {command}"
    return found


def _as_json(found: Sequence[JudgedClaim]) -> str:
    content = {
        "summary": verdict_table.counts(found),
        "kinds": dict(verdict_table.kinds(found)),
        "notes": verdict_table.notes(found),
        "findings": [asdict(judged) for judged in found],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _checked(results_dir: Path, experiments: Sequence[str]) -> list[str]:
    """Return those of the named experiments that have claims; without names, all experiments that have claims."""
    names = list(dict.fromkeys(claim.experiment for claim in claims()))
    asked = with_parts(results_dir, experiments) or names
    finished = finished_experiments(results_dir)
    for name in asked:
        if name not in names and name not in finished:
            raise LoadError(f"there is no claim about {name!r}: there are claims about {', '.join(names)}")
    if not set(asked).intersection(finished):
        of = f"of {', '.join(asked)} " if experiments else ""
        raise LoadError(f"no finished run {of}in {results_dir}: run python -m runners.sweep experiment={asked[0]}")
    return [name for name in names if name in asked]


if __name__ == "__main__":
    sys.exit(main())
