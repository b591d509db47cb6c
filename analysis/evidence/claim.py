"""The claims of `published/claims_*.yaml`, each with its test, and what became of them."""

import csv
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from analysis.evidence import claim_tests
from analysis.evidence.claim_tests import EPSILON, Agreement, BeatsBlind, ClaimTest, Comparison, Outcome, PrintedEpsilon
from analysis.evidence.selection import (
    MEASURES,
    PUBLISHED,
    Case,
    Measure,
    NotRun,
    SettingFilter,
    Unclear,
    at,
    blind_servers,
    published_yaml,
)
from analysis.evidence.verdicts import NOT_RUN, OPEN, PublishedMean
from analysis.load import Run

PAPER, REIMPLEMENTATION, CONTROL, OWN = "paper", "reimplementation", "control", "own"
FILES = ("claims_synthetic.yaml", "claims_real.yaml", "claims_private_prior.yaml", "claims_outsourced.yaml")
LEAF = ("for", "only", "claims")  # keys of an entry that its claims do not inherit
TESTS = {"better", "between", "trend", "no_worse", "level", "cheaper", "band", "agrees", "printed_epsilon"}
LIMITS: dict[str, tuple[Callable[..., Comparison], str]] = {
    "no_worse": (claim_tests.no_worse, "margin"),
    "level": (claim_tests.level, "margin"),
    "cheaper": (claim_tests.cheaper, "ratio"),
}


@dataclass(frozen=True)
class StatedClaim:
    """A published claim, a finding of a reimplementation, or of ours: a control of sharing, or another; and its test.

    A reimplementation is a program written independently of this one, whose numbers were not published.

    published: what was seen, in words and numbers. case: the problem and size it was seen at.
    """

    id: str
    experiment: str
    figure: str
    case: Case
    claim: str
    published: str
    test: ClaimTest
    source: str = PAPER

    @property
    def in_words(self) -> str:
        """The claim, and how it is measured."""
        return f"{self.claim}; {self.test.words}".format(metric=self.case.metric_in_words, T=self.case.T)

    @property
    def tested(self) -> tuple[Case, ClaimTest]:
        """The case and the test, equal for claims of several figures that ask the same; an epsilon needs no data."""
        return replace(self.case, variant=()) if self.test.form == EPSILON else self.case, self.test

    @property
    def contrary(self) -> tuple[Case, ClaimTest] | None:
        """The case and the test of the contrary claim; None where there is no such thing."""
        test = self.test
        if not isinstance(test, Comparison) or test.form != claim_tests.SUPERIORITY:
            return None
        return self.case, test.reversed()

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        """What the runs say. Settings without a run are "not run", those that could be several "not decided"."""
        if not runs:
            return Outcome(f"no finished run of {self.experiment}", None, "–", NOT_RUN, None)
        try:
            return self.test.outcome(self.case.among(runs))
        except NotRun as error:
            return Outcome(f"no finished run of {error} ({self.case})", None, "–", NOT_RUN, None)
        except Unclear as error:
            return Outcome(str(error), None, "–", OPEN, None)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and what became of it.

    source: "paper", "reimplementation", "control" or "own". published: what was seen there. ours: estimate ± standard
    error, a difference positive where it supports the claim. standard_errors: the estimate in its standard errors,
    positive in support; of a number to agree with, minus the distance; None where there is no error. units: what n
    counts.
    verdict: one of `analysis.evidence.verdicts.VERDICTS`. kind: "effect", "agreement", "epsilon", "control" or
    "own". form: of the test, "superiority", "margin", "band", "agreement" or "epsilon". repeats: id of an earlier claim
    with the same settings and test, or, of an own finding, with runs that are the same. reverse_of: id of the published
    claim of the contrary. Both empty where there is none. p: of the test that would make it hold; None where there was
    none.
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
    p: float | None = None


@cache
def all_claims() -> tuple[StatedClaim, ...]:
    """All of the files, in their order."""
    return tuple(claim for name in FILES for claim in _stated(published_yaml(name), {}, {}))


def _stated(entry: Mapping[str, Any], inherited: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[StatedClaim]:
    """The claims of an entry: one for each combination of `for`, or those below it, which inherit its other keys.

    for: lists by name, or a list of names with values; {name} in any text stands for the value. only: values of names
    that the entry is for.
    """
    for chosen in _combinations(entry.get("for", {})):
        known = dict(values) | {name: _filled(value, values) for name, value in chosen.items()}
        if any(known[name] not in (v if isinstance(v, list) else [v]) for name, v in entry.get("only", {}).items()):
            continue
        keys = dict(inherited) | {key: _filled(v, known) for key, v in entry.items() if key not in (*LEAF, "claim")}
        keys |= {"claim": entry["claim"]} if "claim" in entry else {}
        if "claims" not in entry:
            yield _claim(keys, known)
        for below in entry.get("claims", ()):
            yield from _stated(below, keys, known)


def _combinations(rows: Any) -> Iterator[dict[str, Any]]:
    if isinstance(rows, list):
        yield from rows
    else:
        yield from (dict(zip(rows, values, strict=True)) for values in itertools.product(*rows.values()))


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """A text with the values in it; text that is one name alone becomes its value."""
    if isinstance(value, list):
        return [_filled(part, values) for part in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    name = value[1:-1]
    if value == f"{{{name}}}" and name.isidentifier():
        return values.get(name, value)
    return value.format_map(_Known(values))


class _Known(dict[str, Any]):
    """Values whose absent names stay as they are in a text."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"


def _claim(keys: Mapping[str, Any], values: Mapping[str, Any]) -> StatedClaim:
    experiment, case = keys["experiment"], Case.named(keys["case"])
    if "T" in keys:
        case = replace(case, T=keys["T"])
    figure = keys.get("figure", f"Fig. {experiment.removeprefix('fig')}")
    id = f"{experiment}.{keys['id']}"
    measure = MEASURES[keys["measure"]]
    if "control" in keys:
        settings = SettingFilter.of(keys["control"]), *blind_servers(keys.get("servers", keys["control"]))
        words = f"Sharing helps: {settings[0].words} beats blind servers"
        published = keys["published"] if keys.get("source") == OWN else "not tested there"
        return StatedClaim(id, experiment, figure, case, words, published, BeatsBlind(settings, measure), CONTROL)
    test, value = _test(keys, case, measure)
    words = keys["claim"].format(*(where.words for where in test.settings), **values)
    published = str(keys["published"]).format(value=value)
    return StatedClaim(id, experiment, figure, case, words, published, test, keys.get("source", PAPER))


def _test(keys: Mapping[str, Any], case: Case, measure: Measure) -> tuple[ClaimTest, str]:
    """The test of a claim, and the published number in words."""
    (kind,) = TESTS & set(keys)
    of = keys[kind]
    settings = [SettingFilter.of(text) for text in ([of] if isinstance(of, str) else of)]
    if kind == "printed_epsilon":
        loss = printed_epsilon(case.problem, dict(settings[0].keys), case.N, case.T)
        if loss is None:
            raise ValueError(f"privacy_losses.csv must have {of!r} on {case.problem}")
        return PrintedEpsilon((settings[0],), loss), f"{loss:.2f}"
    if kind == "agrees":
        points = _points(keys, settings[0], measure)
        return Agreement((settings[0],), points), f"{points[-1][1].value:g}"
    if kind == "band":
        return claim_tests.band(settings, measure, keys.get("above"), keys.get("below")), ""
    if kind in LIMITS:
        make, limit = LIMITS[kind]
        return make(*settings, keys[limit], measure), ""
    if kind == "trend":
        return claim_tests.trend(settings, measure), ""
    return claim_tests.between(settings[:-1], settings[-1], measure), ""


def _points(
    keys: Mapping[str, Any], where: SettingFilter, measure: Measure
) -> tuple[tuple[Measure, PublishedMean], ...]:
    """The numbers to agree with: the claim's own value, or those of `numbers.csv`."""
    if "value" in keys:
        return ((measure, PublishedMean(keys["value"], keys.get("se"), keys["runs"])),)
    known = published_means(keys["case"], keys.get("source", PAPER))
    return tuple((at(t), mean) for t, mean in known[where].items())


@cache
def published_means(case: str, source: str) -> dict[SettingFilter, dict[int, PublishedMean]]:
    """The numbers of a case in `published/numbers.csv`, by setting and round, in the order of the file."""
    found: dict[SettingFilter, dict[int, PublishedMean]] = {}
    with (PUBLISHED / "numbers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["case"], row["source"]) == (case, source):
                mean = PublishedMean(float(row["value"]), float(row["se"]) if row["se"] else None, int(row["runs"]))
                found.setdefault(SettingFilter.of(row["setting"]), {})[int(row["round"])] = mean
    return found


def printed_epsilon(problem: str, keys: Mapping[str, Any], N: int, T: int) -> float | None:
    """The epsilon that the paper prints for q and z on a problem, by the moments accountant at delta = N^-1.1."""
    ours = (N, T, keys.get("privacy.q"), keys.get("privacy.z"))
    with (PUBLISHED / "privacy_losses.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["experiment"] == problem and tuple(float(row[key]) for key in "NTqz") == ours:
                return float(row["epsilon_moments"])
    return None


def figure_number(experiment: str) -> float:
    """The number of a figure of the paper; experiments that are no figure come last."""
    digits = "".join(itertools.takewhile(str.isdigit, experiment.removeprefix("fig")))
    return int(digits) if digits and experiment.startswith("fig") else math.inf
