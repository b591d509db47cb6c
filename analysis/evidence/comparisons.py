"""The kinds of claim, each tested on the runs of one experiment: order, trade-off, no difference, agreement, print."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from analysis.evidence import verdicts
from analysis.evidence.selection import Measure, NotRun, Where, units_in_words
from analysis.evidence.verdicts import Estimate, PublishedMean
from analysis.load import LoadError, Run


@dataclass(frozen=True)
class Outcome:
    """What became of a claim. p: of the test that would make it hold; None where no test of an effect is made."""

    ours: str
    standard_errors: float | None
    units: str
    verdict: str
    p: float | None


class Test(Protocol):
    """A kind of claim. words: how it is measured, ending the sentence of the claim."""

    @property
    def words(self) -> str: ...

    def outcome(self, runs: Sequence[Run]) -> Outcome: ...


@dataclass(frozen=True)
class Contrast:
    """Claim: the sum of weight x measure over the settings is above 0, seed by seed.

    published: the size of the effect, where there is a number; an effect that is not decided but excludes it does not
    hold.
    """

    terms: tuple[tuple[float, Where], ...]
    measure: Measure
    published: PublishedMean | None = None

    @property
    def words(self) -> str:
        return self.measure.words

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = [where.among(runs) for _, where in self.terms]
        values = [self.measure.by_unit(group) for group in found]
        d = verdicts.contrast([(w, v) for (w, _), v in zip(self.terms, values, strict=True)])
        if d is None:
            return Outcome("no seed in common", None, "0 units", verdicts.OPEN, None)
        verdict = verdicts.above_zero(d)
        if verdict == verdicts.OPEN and self.published is not None and verdicts.excluded(d, self.published):
            verdict = verdicts.FAILS
        shared = set.intersection(*(set(v) for v in values))
        means = " / ".join(_number(sum(v[u] for u in shared) / len(shared), d.se) for v in values)
        ours = f"{with_error(d)} ({means})"
        return Outcome(ours, d.standard_errors, units_in_words(d.n, found[0]), verdict, d.p)


def better(good: Where, bad: Where, measure: Measure, published: PublishedMean | None = None) -> Contrast:
    """`good` is below `bad`."""
    return Contrast(((-1.0, good), (1.0, bad)), measure, published)


def trend(best_first: Sequence[Where], measure: Measure) -> Contrast:
    """From step to step it gets worse: the least-squares slope over the ranks."""
    middle = (len(best_first) - 1) / 2
    scale = sum((k - middle) ** 2 for k in range(len(best_first)))
    return Contrast(tuple(((k - middle) / scale, where) for k, where in enumerate(best_first)), measure)


def between(inner: Sequence[Where], outer: Where, measure: Measure) -> Contrast:
    """The mean of the settings in between is below the one at the end."""
    return Contrast((*((-1 / len(inner), where) for where in inner), (1.0, outer)), measure)


def no_worse(where: Where, reference: Where, margin: float, measure: Measure) -> Contrast:
    """At most a share `margin` above the reference."""
    return Contrast(((-1.0, where), (1 + margin, reference)), measure)


@dataclass(frozen=True)
class BetterThanAll:
    """Claim: `good` is below every one of the controls that was run, at least one."""

    good: Where
    controls: tuple[Where, ...]
    measure: Measure

    @property
    def words(self) -> str:
        return self.measure.words

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        good, controls = self.good.among(runs), []
        for where in self.controls:
            try:
                controls.append((where.words, where.among(runs)))
            except NotRun:
                continue
        if not controls:
            raise NotRun(" or ".join(where.words for where in self.controls))
        ours, found = self.measure.by_unit(good), []
        for words, group in controls:
            d = verdicts.contrast([(-1.0, ours), (1.0, self.measure.by_unit(group))])
            if d is None:
                return Outcome(f"no seed in common with {words}", None, "0 units", verdicts.OPEN, None)
            found.append((words, d))
        ds = [d for _, d in found]
        worst = min((d.standard_errors for d in ds if d.standard_errors is not None), default=None)
        text = "; ".join(f"{with_error(d)} ({words})" for words, d in found)
        units = units_in_words(min(d.n for d in ds), good)
        return Outcome(text, worst, units, verdicts.above_all(ds), max(d.p for d in ds))


@dataclass(frozen=True)
class Equivalent:
    """Claim: two settings differ by less than a share `margin` of the second's measure."""

    where: Where
    reference: Where
    margin: float
    measure: Measure

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"margin must lie in (0, 1), got {self.margin!r}")

    @property
    def words(self) -> str:
        return f"{self.measure.words}; margin {100 * self.margin:g} %"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        a, b = self.measure.by_unit(found), self.measure.by_unit(self.reference.among(runs))
        low = verdicts.contrast([(1.0, a), (self.margin - 1, b)])
        high = verdicts.contrast([(-1.0, a), (1 + self.margin, b)])
        d = verdicts.contrast([(-1.0, a), (1.0, b)])
        if low is None or high is None or d is None:
            return Outcome("no seed in common", None, "0 units", verdicts.OPEN, None)
        inside = [e.standard_errors for e in (low, high) if e.standard_errors is not None]
        verdict, p = verdicts.within(low, high), max(low.p, high.p)
        return Outcome(with_error(d), min(inside, default=None), units_in_words(d.n, found), verdict, p)


@dataclass(frozen=True)
class Agreement:
    """Claim: our means are the published numbers, within the errors of both."""

    where: Where
    points: tuple[tuple[Measure, PublishedMean], ...]

    @property
    def words(self) -> str:
        return self.points[0][0].words if len(self.points) == 1 else f"{{metric}} at {len(self.points)} rounds"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        pairs = []
        for measure, published in self.points:
            pairs.append((verdicts.mean_of(list(measure.by_unit(found).values())), published))
        deviations = [verdicts.deviation(*pair)[0] or 0.0 for pair in pairs]
        k = max(range(len(pairs)), key=lambda i: abs(deviations[i]))
        (measure, _), (ours, published) = self.points[k], pairs[k]
        text = f"{with_error(ours)} against {_number(published.value, ours.se)}"
        if len(pairs) > 1:
            text = f"farthest {measure.words.removeprefix('{metric} ')}: {text}"
        far = None if ours.se is None or math.isinf(deviations[k]) else -abs(deviations[k])
        return Outcome(text, far, units_in_words(ours.n, found), verdicts.agrees(pairs), None)


@dataclass(frozen=True)
class Printed:
    """Claim: the moments accountant gives the printed epsilon, to its two decimals. No statistics."""

    where: Where
    epsilon: float

    @property
    def words(self) -> str:
        return "moments accountant, δ = N^-1.1"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        for run in found:
            if not math.isclose(run.summary["delta"], run.summary["n_agents"] ** -1.1, rel_tol=1e-9):
                raise NotRun(f"{self.where.words} at δ = N^-1.1")
        values = {run.summary["epsilon"].get("moments") for run in found}
        if len(values) > 1 or None in values:
            raise LoadError(f"{self.where.words}: runs without one finite moments epsilon for all, got {values}")
        value = values.pop()
        same = abs(value - self.epsilon) <= 0.005 + 1e-9
        return Outcome(f"{value:.2f}", None, "exact", verdicts.HOLDS if same else verdicts.FAILS, None)


@dataclass(frozen=True)
class CheaperThan:
    """Claim: `where` costs at most `ratio` times the reference; on logarithms, seed by seed."""

    where: Where
    reference: Where
    ratio: float
    measure: Measure

    @property
    def words(self) -> str:
        return self.measure.words

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        a, b = (
            {unit: math.log(value) for unit, value in self.measure.by_unit(group).items()}
            for group in (found, self.reference.among(runs))
        )
        d = verdicts.contrast([(-1.0, a), (1.0, b)])
        if d is None:
            return Outcome("no seed in common", None, "0 units", verdicts.OPEN, None)
        d = Estimate(d.value + math.log(self.ratio), d.se, d.df, d.n)
        ratio = self.ratio * math.exp(-d.value)
        ours = with_error(Estimate(ratio, None if d.se is None else ratio * d.se, d.df, d.n))
        return Outcome(ours, d.standard_errors, units_in_words(d.n, found), verdicts.above_zero(d), d.p)


def with_error(estimate: Estimate) -> str:
    """`0.0209 ± 0.0011`, as many digits as the error allows; without an error, three significant ones."""
    if estimate.se is None:
        return f"{estimate.value:.3g}"
    return f"{_number(estimate.value, estimate.se)} ± {_number(estimate.se, estimate.se)}"


def _number(value: float, se: float | None) -> str:
    if not se:
        return f"{value:.3g}"
    return f"{value:.{max(0, 1 - math.floor(math.log10(se)))}f}"
