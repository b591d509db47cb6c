"""The claims of `published/claims_*.yaml`, with their tests and verdicts."""

import csv
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from analysis.evidence import claim_tests, selection
from analysis.evidence.claim_tests import EPSILON, Agreement, ClaimTest, Comparison, Outcome, PrintedEpsilon
from analysis.evidence.verdicts import LOOKS, NOT_RUN, OPEN, SAME, Evidence, PublishedMean
from analysis.load import Run, SettingRuns

PAPER, REIMPLEMENTATION, CONTROL, OWN = "paper", "reimplementation", "control", "own"
FILES = ("claims_synthetic.yaml", "claims_real.yaml", "claims_private_prior.yaml", "claims_outsourced.yaml")
LEAF = ("for", "only", "claims")  # keys of an entry that its claims do not inherit
LATE = ("claim", "published")  # texts that are filled in last: they may quote settings and number of the test
TESTS = {"better", "between", "trend", "no_worse", "level", "cheaper", "band", "agrees", "printed_epsilon"}
LIMITS: dict[str, tuple[Callable[..., Comparison], str]] = {
    "no_worse": (partial(claim_tests.level, both=False), "margin"),
    "level": (claim_tests.level, "margin"),
    "cheaper": (claim_tests.cheaper, "ratio"),
}


@dataclass(frozen=True)
class StatedClaim:
    """A claim and its test.

    source: `paper`; `reimplementation`, an independent, unpublished implementation; `own`, a finding of ours;
    `control`, our comparison with servers that send random or Sobol points. published: the published result.
    case: the problem and its size. figure: the figure, table or other subject; all claims about it are tested as one
    family. shows: the message of the figure in a sentence.
    """

    id: str
    experiment: str
    figure: str
    case: selection.Case
    claim: str
    published: str
    test: ClaimTest
    source: str = PAPER
    shows: str = ""

    @property
    def in_words(self) -> str:
        """The claim and how it is measured."""
        return f"{self.claim}; {self.test.words}".format(metric=self.case.metric_in_words, T=self.case.T)

    @property
    def tested(self) -> tuple[selection.Case, ClaimTest]:
        """The key that two claims share if one repeats the other: the case and the test."""
        return replace(self.case, variant=()) if self.test.form == EPSILON else self.case, self.test

    @property
    def looks(self) -> int:
        """The number of times that the claims about the experiment may be judged."""
        return int(selection.published_yaml("settings.yaml")["looks"].get(self.experiment, LOOKS))

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        """Test the claim on `runs`.

        The claim is "not run" if one of its settings has no run. The claim is "not decided" if the runs do not allow
        the test, for example if runs of several configurations match one of the claim's settings.
        """
        if not runs:
            return Outcome(f"no finished run of {self.experiment}", None, "–", Evidence(otherwise=NOT_RUN))
        try:
            return self.test.outcome(self.case.among(runs))
        except selection.NotRun as error:
            return Outcome(f"no finished run of {error} ({self.case})", None, "–", Evidence(otherwise=NOT_RUN))
        except selection.Unclear as error:
            return Outcome(str(error), None, "–", Evidence(otherwise=OPEN))


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and its verdict.

    ours: estimate ± standard error; a difference is positive if it supports the claim. standard_errors: as in
    `claim_tests.Outcome`. units: number and kind of the independent units. kind: "effect", "agreement", "epsilon",
    "control" or "own". form: form of the test. repeats: id of the earlier claim that this claim repeats; may be empty.
    A claim repeats an earlier claim if both have the same `selection.Case` and the same test. A claim about a printed
    epsilon also repeats an earlier one whose case differs only in `variant`. A superiority claim with the source `own`
    (our findings) also repeats an earlier one that compares the same measured values. margin: relative difference
    within which the verdict is "level". needed: estimated number of independent units that would decide an undecided
    claim. p: p-value of the test for "holds".
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
    margin: float | None = None
    needed: int | None = None
    p: float | None = None
    shows: str = ""

    @property
    def in_words(self) -> str:
        """The verdict, such as `level within 5 %` or `not decided (needs 40)`.

        In these examples, settings are level if they differ by less than 5 %, and about 40 independent units (functions
        or seeds) would decide the claim.
        """
        if self.verdict == SAME and self.margin is not None:
            return f"level within {100 * self.margin:g} %"
        return f"{self.verdict} (needs {self.needed})" if self.needed else self.verdict


@cache
def all_claims() -> tuple[StatedClaim, ...]:
    """Return the claims of all `FILES`."""
    return tuple(claim for name in FILES for claim in _stated(selection.published_yaml(name), {}, {}))


def _stated(entry: Mapping[str, Any], inherited: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[StatedClaim]:
    """Yield the claims of a YAML entry, for each combination of the values in its key `for`.

    In the texts of the entry, {name} is replaced by a value. The value of `name` in the combination comes first. If
    `for` has no such name, `values` gives the value, which the parent entries chose. The key `only` gives the allowed
    values of some of these names. A combination is skipped if the value of such a name is not allowed. Entries under
    the key `claims` inherit all keys of this entry except those in `LEAF`.
    """
    for chosen in _combinations(entry.get("for", {})):
        known = dict(values) | {name: _filled(value, values) for name, value in chosen.items()}
        if any(known[name] not in (v if isinstance(v, list) else [v]) for name, v in entry.get("only", {}).items()):
            continue
        filled = {key: v if key in LATE else _filled(v, known) for key, v in entry.items() if key not in LEAF}
        keys = dict(inherited) | filled
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
    """Replace each {name} in a text by `values[name]`; a text that is a single {name} becomes the value itself."""
    if isinstance(value, list):
        return [_filled(part, values) for part in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    name = value[1:-1]
    if value == f"{{{name}}}" and name.isidentifier():
        return values.get(name, value)
    return value.format_map(values)


def _claim(keys: Mapping[str, Any], values: Mapping[str, Any]) -> StatedClaim:
    experiment, case = keys["experiment"], selection.Case.named(keys["case"])
    if "T" in keys:
        case = replace(case, T=keys["T"])
    figure = keys.get("figure", f"Fig. {experiment.removeprefix('fig')}")
    id = f"{experiment}.{keys['id']}"
    measure = selection.MEASURES[keys["measure"]]
    shows = keys.get("shows", "")
    if "control" in keys:
        texts = [keys["control"]] if isinstance(keys["control"], str) else keys["control"]
        kinds = keys.get("servers", ["random_server"])
        pairs = [
            (
                selection.SettingFilter.of(text),
                [selection.blind_server(kind, keys.get("options", text)) for kind in kinds],
            )
            for text in texts
        ]
        test: ClaimTest = claim_tests.control(pairs, measure, case.margin)
        who = pairs[0][0].words if len(pairs) == 1 else f"the mean of {len(pairs)} settings"
        words = f"Sharing helps: {who} beats servers that query blindly"
        return StatedClaim(id, experiment, figure, case, words, keys["published"], test, CONTROL, shows)
    test, value = _test(keys, case, measure)
    names = dict(values) | ({"value": value} if value else {})
    words = keys["claim"].format(*(where.words for where in test.settings), **names)
    published = keys["published"].format(**names)
    return StatedClaim(id, experiment, figure, case, words, published, test, keys.get("source", PAPER), shows)


def _test(keys: Mapping[str, Any], case: selection.Case, measure: selection.Measure) -> tuple[ClaimTest, str]:
    """Return the test of a claim, and its published number as a text, which may be empty."""
    (kind,) = TESTS & set(keys)
    of = keys[kind]
    settings = [selection.SettingFilter.of(text) for text in ([of] if isinstance(of, str) else of)]
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
        return make(*settings, keys.get(limit, case.margin), measure), ""
    if kind == "trend":
        return claim_tests.trend(settings, measure, case.margin), ""
    return claim_tests.between(settings[:-1], settings[-1], measure, case.margin), ""


def _points(
    keys: Mapping[str, Any], where: selection.SettingFilter, measure: selection.Measure
) -> tuple[tuple[selection.Measure, PublishedMean], ...]:
    """Return pairs of a measure and its published mean, from the claim's `value` or from `numbers.csv`."""
    if "value" in keys:
        return ((measure, PublishedMean(keys["value"], keys.get("se"), keys["runs"])),)
    known = published_means(keys["case"], keys.get("source", PAPER))
    return tuple((selection.at(t), mean) for t, mean in known[where].items())


@cache
def published_means(case: str, source: str) -> dict[selection.SettingFilter, dict[int, PublishedMean]]:
    """Return the published means of a case from one source, by setting and round.

    case: name of a problem and its size, such as `landmine_platt`. The means are read from `published/numbers.csv`.
    """
    found: dict[selection.SettingFilter, dict[int, PublishedMean]] = {}
    with (selection.PUBLISHED / "numbers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["case"], row["source"]) == (case, source):
                mean = PublishedMean(float(row["value"]), float(row["se"]) if row["se"] else None, int(row["runs"]))
                found.setdefault(selection.SettingFilter.of(row["setting"]), {})[int(row["round"])] = mean
    return found


def published_values(groups: Sequence[SettingRuns]) -> dict[str, dict[float, float]]:
    """Return the paper's values of the metric, by the label of our setting and by round.

    A published setting that matches several of ours is left out.
    """
    found: dict[str, dict[float, float]] = {}
    for name in ("landmine_platt", "grid"):
        case = selection.Case.named(name)
        for where, means in published_means(name, PAPER).items():
            alike = [g for g in groups if g.first in case and where.matches(g.first)]
            if len(alike) == 1:
                found[alike[0].label] = {t: mean.value for t, mean in sorted(means.items())}
    return found


def printed_epsilon(problem: str, keys: Mapping[str, Any], N: int, T: int) -> float | None:
    """Return the paper's epsilon for q and z (moments accountant, delta = N^-1.1); None if none is printed.

    keys: values of `privacy.q` and `privacy.z`.
    """
    ours = (N, T, keys.get("privacy.q"), keys.get("privacy.z"))
    with (selection.PUBLISHED / "privacy_losses.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["experiment"] == problem and tuple(float(row[key]) for key in "NTqz") == ours:
                return float(row["epsilon_moments"])
    return None


def figure_number(experiment: str) -> float:
    """Return the number of the experiment's figure in the paper; infinity without a figure."""
    digits = "".join(itertools.takewhile(str.isdigit, experiment.removeprefix("fig")))
    return int(digits) if digits and experiment.startswith("fig") else math.inf
