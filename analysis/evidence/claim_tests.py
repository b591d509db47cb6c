"""Tests of claims, which return an estimate and the evidence for a verdict.

Every test has three attributes: `settings`, the settings that it needs; `form`, the form of the test, such as
"superiority"; and `words`, a text that says how the claim is measured. The method `outcome` raises NotRun if a setting
has no run, and Unclear if the runs cannot decide the claim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from analysis.evidence import verdicts
from analysis.evidence.selection import Measure, NotRun, SettingFilter, Unclear, units_in_words
from analysis.evidence.verdicts import CONTRARY, HOLDS, OPEN, Estimate, Evidence, PublishedMean
from analysis.load import Run

_TINY = 1e-6  # errors below are printed with an exponent

# forms of a test
SUPERIORITY, CONTROL, MARGIN, BAND = "superiority", "control", "margin", "band"
AGREEMENT, EPSILON = "agreement", "epsilon"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test.

    ours: the estimate in words. standard_errors: how far the tested estimate is above 0, in units of its standard
    error. If a claim has several tests, this is the test with the largest p-value. If the claim has a margin, the
    tested estimate includes the margin; `ours` does not. In a test of agreement with published means, standard_errors
    is minus the largest of the ratios |our mean - published mean| / (standard error of the difference).
    """

    ours: str
    standard_errors: float | None
    units: str
    evidence: Evidence


@dataclass(frozen=True)
class End:
    """A linear condition on the settings' measures y_k: sum_k weight_k y_k + constant > 0."""

    weights: tuple[float, ...]
    constant: float = 0.0
    words: str = ""


@dataclass(frozen=True)
class Comparison:
    """A test of linear inequalities in the settings' measures.

    The claim holds if all inequalities in `ends` hold. The difference of the two sides of an inequality is computed for
    each independent unit (a function or a seed), and averaged over the units. weights: coefficient of
    each setting's measure in the printed estimate. level: inequalities for the verdict "level"; if all of them hold,
    the settings differ by less than `margin`. before, after: texts to put before and after `measure.words`.
    """

    form: str
    settings: tuple[SettingFilter, ...]
    weights: tuple[float, ...]
    measure: Measure
    ends: tuple[End, ...]
    before: str = ""
    after: str = ""
    level: tuple[End, ...] = ()
    margin: float | None = None

    @property
    def words(self) -> str:
        return f"{self.before}{self.measure.words}{self.after}"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = [where.among(runs) for where in self.settings]
        values = [self.measure.by_unit(group) for group in found]
        d = verdicts.contrast(self.weights, values)
        if d is None:
            return Outcome("no seed in common", None, "0 units", Evidence())
        holds, level = (
            tuple(_known(verdicts.contrast(end.weights, values, end.constant)) for end in ends)
            for ends in (self.ends, self.level)
        )
        if self.measure.ratio:
            ratio = math.exp(d.value)
            ours = with_error(Estimate(ratio, None if d.se is None else ratio * d.se, d.df, d.n), "ratios")
        elif self.form == CONTROL:
            ours = "; ".join(f"{with_error(e)} ({end.words})" for e, end in zip(holds, self.ends, strict=True))
        else:
            ours = with_error(d, "differences" if len(values) > 1 else "values")
            if len(values) > 1 and self.form != MARGIN:
                shared = set.intersection(*(set(v) for v in values))
                ours += f" ({' / '.join(number(sum(v[u] for u in shared) / len(shared), d.se) for v in values)})"
        decides = max(holds, key=lambda e: (e.p, -e.value))
        # Equal values prove nothing, as both settings may be one by mistake, except that there is no harm.
        of_harm = self.form == MARGIN and len(self.ends) == 1
        evidence = Evidence(holds, level) if d.se != 0 or of_harm else Evidence(otherwise=OPEN)
        return Outcome(ours, decides.standard_errors, units_in_words(decides.n, found[0]), evidence)


def _known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None  # the printed estimate has the same units, and exists
    return estimate


def between(
    inner: Sequence[SettingFilter], outer: SettingFilter, measure: Measure, margin: float | None = None
) -> Comparison:
    """Test that the measure, averaged over the settings `inner`, is below the measure of the setting `outer`.

    The two are level if they differ by less than `margin` times the measure of `outer`.
    """
    weights = (*(-1 / len(inner) for _ in inner), 1.0)
    scale = (*(0.0 for _ in inner), 1.0)
    level = _within(margin, weights, scale)
    return Comparison(SUPERIORITY, (*inner, outer), weights, measure, (End(weights),), level=level, margin=margin)


def _within(margin: float | None, weights: Sequence[float], scale: Sequence[float]) -> tuple[End, ...]:
    """Return the conditions for |sum_k weights_k y_k| < margin * sum_k scale_k y_k; none if `margin` is None.

    y_k is the measure of setting k.
    """
    if margin is None:
        return ()
    return tuple(End(tuple(sign * w + margin * s for w, s in zip(weights, scale, strict=True))) for sign in (1, -1))


def trend(best_first: Sequence[SettingFilter], measure: Measure, margin: float | None = None) -> Comparison:
    """Test that the measure rises along `best_first`: its least-squares slope over the ranks is above 0.

    margin: if given, the verdict "level" is tested as well. The settings are level if the absolute fitted change from
    the first to the last setting is less than `margin` times the mean of the measure.
    """
    n = len(best_first)
    middle = (n - 1) / 2
    scale = sum((k - middle) ** 2 for k in range(n))
    weights = tuple((k - middle) / scale for k in range(n))
    level = _within(margin, weights, (1 / (n * (n - 1)),) * n)
    settings = tuple(best_first)
    return Comparison(SUPERIORITY, settings, weights, measure, (End(weights),), "slope per step of ", "", level, margin)


def control(
    pairs: Sequence[tuple[SettingFilter, Sequence[SettingFilter]]], measure: Measure, margin: float | None = None
) -> Comparison:
    """Test that the mean measure over settings is lower than the mean over their controls with blind servers.

    A blind server sends random or Sobol points. There is one comparison for each kind: the mean over all settings must
    be lower than the mean over the controls of this kind. pairs: each setting, and its controls, one for each kind. The
    order of the kinds is the same in all pairs.
    """
    settings = tuple(dict.fromkeys(where for good, servers in pairs for where in (good, *servers)))
    ends, level = [], list[End]()
    for kind in range(len(pairs[0][1])):
        weights, scale = dict.fromkeys(settings, 0.0), dict.fromkeys(settings, 0.0)
        for good, servers in pairs:
            weights[good] -= 1 / len(pairs)
            weights[servers[kind]] += 1 / len(pairs)
            scale[servers[kind]] += 1 / len(pairs)
        words = pairs[0][1][kind].words.partition(",")[0]
        ends.append(End(tuple(weights.values()), words=words))
        level += _within(margin, tuple(weights.values()), tuple(scale.values()))
    return Comparison(CONTROL, settings, ends[0].weights, measure, tuple(ends), level=tuple(level), margin=margin)


def level(
    where: SettingFilter, reference: SettingFilter, margin: float, measure: Measure, both: bool = True
) -> Comparison:
    """Test that the measure of `where` is at most (1 + `margin`) times the measure of `reference`.

    both: True to test also that the measure is at least (1 - `margin`) times that of `reference`.
    """
    ends = (End((-1.0, 1 + margin)), End((1.0, margin - 1)))[: 1 + both]
    after = f"; margin {'± ' * both}{100 * margin:g} %"
    return Comparison(MARGIN, (where, reference), (-1.0, 1.0), measure, ends, after=after)


def cheaper(where: SettingFilter, reference: SettingFilter, ratio: float, measure: Measure) -> Comparison:
    """Test that `where` costs at most `ratio` times the reference.

    Logarithms of the costs are compared within each independent unit (a function or a seed).
    """
    ends = (End((-1.0, 1.0), math.log(ratio)),)
    return Comparison(MARGIN, (where, reference), (1.0, -1.0), measure, ends)


def band(
    settings: Sequence[SettingFilter], measure: Measure, above: float | None = None, below: float | None = None
) -> Comparison:
    """Test that the measure of a setting, or the difference of two settings, lies between `above` and `below`.

    The difference is the first measure minus the second. `above` or `below` may be None. Raises ValueError if both are
    None, or if `above` is not less than `below`.
    """
    if above is None and below is None:
        raise ValueError("a band must have an end, got above=None, below=None")
    if above is not None and below is not None and above >= below:
        raise ValueError(f"above must be less than below, got above={above!r}, below={below!r}")
    weights = (1.0, -1.0)[: len(settings)]
    ends = [End(weights, -above)] if above is not None else []
    ends += [End(tuple(-weight for weight in weights), below)] if below is not None else []
    sides = (("above", above), ("below", below))
    after = " " + " and ".join(f"{side} {end:g}" for side, end in sides if end is not None)
    before = "difference of " * (len(settings) > 1)
    return Comparison(BAND, tuple(settings), weights, measure, tuple(ends), before, after)


@dataclass(frozen=True)
class Agreement:
    """A test that our means agree with the published numbers, within the errors of both."""

    form: ClassVar[str] = AGREEMENT

    settings: tuple[SettingFilter]
    points: tuple[tuple[Measure, PublishedMean], ...]

    @property
    def words(self) -> str:
        return self.points[0][0].words if len(self.points) == 1 else f"{{metric}} at {len(self.points)} rounds"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.settings[0].among(runs)
        pairs = [(verdicts.mean_of([*measure.by_unit(found).values()]), known) for measure, known in self.points]
        deviations = [verdicts.deviation(*pair)[0] for pair in pairs]
        k = max(range(len(pairs)), key=lambda i: abs(deviations[i] or 0.0))
        (measure, _), (ours, published), distance = self.points[k], pairs[k], deviations[k]
        text = f"{with_error(ours, 'values')} against {number(published.value, ours.se)}"
        if len(pairs) > 1:
            text = f"farthest {measure.words.removeprefix('{metric} ')}: {text}"
        far = None if distance is None else -abs(distance)
        evidence = Evidence(excluded=verdicts.exclusion(pairs), otherwise=HOLDS if verdicts.agrees(pairs) else OPEN)
        return Outcome(text, far, units_in_words(ours.n, found), evidence)


@dataclass(frozen=True)
class PrintedEpsilon:
    """A check, without statistics, that the moments accountant gives the paper's printed epsilon to two decimals."""

    form: ClassVar[str] = EPSILON
    words: ClassVar[str] = "moments accountant, δ = N^−1.1"

    settings: tuple[SettingFilter]
    epsilon: float

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.settings[0].among(runs)
        for run in found:
            delta = run.summary.get("delta")
            if delta is None or not math.isclose(delta, run.summary["n_agents"] ** -1.1, rel_tol=1e-9):
                raise NotRun(f"{self.settings[0].words} at δ = N^−1.1")
        values: set[float | None] = {(run.summary.get("epsilon") or {}).get("moments") for run in found}
        if None in values:
            raise Unclear("a run without a finite ε of the moments accountant")
        known = sorted(value for value in values if value is not None)
        if len(known) > 1:
            raise Unclear(f"runs with different ε: {', '.join(f'{value:.4g}' for value in known)}")
        same = abs(known[0] - self.epsilon) <= 0.005 + 1e-9
        return Outcome(f"{known[0]:.2f}", None, "exact", Evidence(otherwise=HOLDS if same else CONTRARY))


ClaimTest = Comparison | Agreement | PrintedEpsilon


def with_error(estimate: Estimate, what: str = "differences") -> str:
    """Format an estimate as `0.0209 ± 0.0011`, with two digits of the error.

    If the error is 0, the text is `0.0209, all differences equal`. what: the plural noun in this text.
    """
    if estimate.se is None:
        return number(estimate.value, None)
    if estimate.se == 0:
        return f"{number(estimate.value, None)}, all {what if estimate.value else 'values'} equal"
    return f"{number(estimate.value, estimate.se)} ± {number(estimate.se, estimate.se)}"


def number(value: float, se: float | None) -> str:
    """Format `value` with as many decimals as its error `se` has when rounded to two significant digits.

    If the error is tiny or missing, `value` has three significant digits.
    """
    digits = f"{value:.{max(0, 1 - math.floor(math.log10(se)))}f}" if se and se >= _TINY else f"{value:.3g}"
    return digits.replace("-", "−")
