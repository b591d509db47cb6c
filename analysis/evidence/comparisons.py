"""Claims that something is better: an order, a trend, a trade-off, or better than every control."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from analysis.evidence import verdicts
from analysis.evidence.selection import Measure, NotRun, SettingFilter, units_in_words
from analysis.evidence.verdicts import Estimate
from analysis.load import Run

# forms of a test
SUPERIORITY, MARGIN, BAND, AGREEMENT, EPSILON = "superiority", "margin", "band", "agreement", "epsilon"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test. p: of the test that would make it hold; None where no test of an effect is made."""

    ours: str
    standard_errors: float | None
    units: str
    verdict: str
    p: float | None


class ClaimTest(Protocol):
    """A kind of claim. words: how it is measured, ending the sentence of the claim. Tests of one thing are equal.

    outcome raises NotRun where a setting has no run, Unclear where runs do not say.
    """

    form: ClassVar[str]

    @property
    def words(self) -> str: ...

    def outcome(self, runs: Sequence[Run]) -> Outcome: ...


@dataclass(frozen=True)
class Contrast:
    """Claim: the sum of weight x measure over the settings is above 0, seed by seed. of: what the sum is, in words."""

    form: ClassVar[str] = SUPERIORITY

    terms: tuple[tuple[float, SettingFilter], ...]
    measure: Measure
    of: str = ""

    @property
    def words(self) -> str:
        return f"{self.of}{self.measure.words}"

    def reversed(self) -> "Contrast":
        """The claim of the contrary; a difference has its terms in the order of the claim, lower one first."""
        return Contrast(tuple((-weight, where) for weight, where in self.terms[::-1]), self.measure, self.of)

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = [where.among(runs) for _, where in self.terms]
        values = [self.measure.by_unit(group) for group in found]
        d = verdicts.contrast([(w, v) for (w, _), v in zip(self.terms, values, strict=True)])
        if d is None:
            return no_pairs()
        shared = set.intersection(*(set(v) for v in values))
        means = " / ".join(number(sum(v[u] for u in shared) / len(shared), d.se) for v in values)
        ours = f"{with_error(d)} ({means})"
        return Outcome(ours, d.standard_errors, units_in_words(d.n, found[0]), verdicts.above_zero(d), d.p)


def better(good: SettingFilter, bad: SettingFilter, measure: Measure) -> Contrast:
    """`good` is below `bad`."""
    return Contrast(((-1.0, good), (1.0, bad)), measure)


def trend(best_first: Sequence[SettingFilter], measure: Measure) -> Contrast:
    """From step to step it gets worse: the least-squares slope over the ranks."""
    middle = (len(best_first) - 1) / 2
    scale = sum((k - middle) ** 2 for k in range(len(best_first)))
    terms = tuple(((k - middle) / scale, where) for k, where in enumerate(best_first))
    return Contrast(terms, measure, "slope per step of ")


def between(inner: Sequence[SettingFilter], outer: SettingFilter, measure: Measure) -> Contrast:
    """The mean of the settings in between is below the one at the end."""
    return Contrast((*((-1 / len(inner), where) for where in inner), (1.0, outer)), measure)


@dataclass(frozen=True)
class BetterThanAll:
    """Claim: `good` is below the control, and below each of the others that was run on enough of its units.

    others: controls that only some experiments have; one counts from `ENOUGH` of the units of `good` on, at least 2,
    and is named as left out below.
    """

    form: ClassVar[str] = SUPERIORITY
    ENOUGH: ClassVar[float] = 0.5

    good: SettingFilter
    control: SettingFilter
    others: tuple[SettingFilter, ...]
    measure: Measure

    @property
    def words(self) -> str:
        return self.measure.words

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        good, control = self.good.among(runs), self.control.among(runs)
        ours = self.measure.by_unit(good)
        first = verdicts.contrast([(-1.0, ours), (1.0, self.measure.by_unit(control))])
        if first is None:
            return no_pairs(f" with {self.control.words}")
        ds, text = [first], [f"{with_error(first)} ({self.control.words})"]
        for where in self.others:
            try:
                d = verdicts.contrast([(-1.0, ours), (1.0, self.measure.by_unit(where.among(runs)))])
            except NotRun:
                continue
            n = 0 if d is None else d.n
            if d is None or n < max(2, self.ENOUGH * len(ours)):
                text.append(f"{where.words} left out, run on {n} of {units_in_words(len(ours), good)}")
                continue
            ds.append(d)
            text.append(f"{with_error(d)} ({where.words})")
        verdict = verdicts.above_all(ds)
        decides = min(ds, key=lambda d: d.negated().p) if verdict == verdicts.FAILS else max(ds, key=lambda d: d.p)
        units = units_in_words(decides.n, good)
        return Outcome("; ".join(text), decides.standard_errors, units, verdict, max(d.p for d in ds))


def no_pairs(words: str = "") -> Outcome:
    """Nothing to compare seed by seed."""
    return Outcome(f"no seed in common{words}", None, "0 units", verdicts.OPEN, None)


def with_error(estimate: Estimate, what: str = "differences") -> str:
    """`0.0209 ± 0.0011`, as many digits as the error allows; without an error, three significant ones."""
    if estimate.se is None:
        return number(estimate.value, None)
    if estimate.se == 0:
        return f"{number(estimate.value, None)}, all {what if estimate.value else 'values'} equal"
    return f"{number(estimate.value, estimate.se)} ± {number(estimate.se, estimate.se)}"


def number(value: float, se: float | None) -> str:
    """With the digits that the error allows, and a true minus sign."""
    digits = f"{value:.{max(0, 1 - math.floor(math.log10(se)))}f}" if se else f"{value:.3g}"
    return digits.replace("-", "−")
