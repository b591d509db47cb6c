"""Claims that something is as good, no worse or not much dearer: a difference inside a stated margin."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from analysis.evidence import verdicts
from analysis.evidence.comparisons import MARGIN, Outcome, no_pairs, with_error
from analysis.evidence.selection import Measure, SettingFilter, Unclear, units_in_words
from analysis.evidence.verdicts import Estimate
from analysis.load import Run


@dataclass(frozen=True)
class Equivalent:
    """Claim: two settings differ by less than a share `margin` of the second's measure."""

    form: ClassVar[str] = MARGIN

    where: SettingFilter
    reference: SettingFilter
    margin: float
    measure: Measure

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"margin must lie in (0, 1), got {self.margin!r}")

    @property
    def words(self) -> str:
        return f"{self.measure.words}; margin ± {100 * self.margin:g} %"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        return _inside(self.where, self.reference, self.measure, (self.margin, -self.margin), runs)


@dataclass(frozen=True)
class NoWorse:
    """Claim: `where` is at most a share `margin` above the reference."""

    form: ClassVar[str] = MARGIN

    where: SettingFilter
    reference: SettingFilter
    margin: float
    measure: Measure

    @property
    def words(self) -> str:
        return f"{self.measure.words}; margin {100 * self.margin:g} %"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        return _inside(self.where, self.reference, self.measure, (self.margin,), runs)


def _inside(
    where: SettingFilter, reference: SettingFilter, measure: Measure, margins: Sequence[float], runs: Sequence[Run]
) -> Outcome:
    """Test that the measure is on the near side of (1 + margin) times the reference's for all margins.

    Prints the plain difference, positive where `where` is lower.
    """
    found = where.among(runs)
    a, b = measure.by_unit(found), measure.by_unit(reference.among(runs))
    d = verdicts.contrast([(-1.0, a), (1.0, b)])
    ends = [verdicts.contrast([(-math.copysign(1, m), a), (math.copysign(1 + m, m), b)]) for m in margins]
    distances = [end for end in ends if end is not None]
    if d is None or not distances:
        return no_pairs()
    nearest = max(distances, key=lambda end: end.p)
    verdict = verdicts.OPEN if d.se == 0 else verdicts.above_all(distances)
    return Outcome(with_error(d), nearest.standard_errors, units_in_words(d.n, found), verdict, nearest.p)


@dataclass(frozen=True)
class CheaperThan:
    """Claim: `where` costs at most `ratio` times the reference; on logarithms, seed by seed."""

    form: ClassVar[str] = MARGIN

    where: SettingFilter
    reference: SettingFilter
    ratio: float
    measure: Measure

    @property
    def words(self) -> str:
        return self.measure.words

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        a, b = (self._logarithms(group) for group in (found, self.reference.among(runs)))
        d = verdicts.contrast([(-1.0, a), (1.0, b)])
        if d is None:
            return no_pairs()
        d = Estimate(d.value + math.log(self.ratio), d.se, d.df, d.n)
        ratio = self.ratio * math.exp(-d.value)
        ours = with_error(Estimate(ratio, None if d.se is None else ratio * d.se, d.df, d.n), "ratios")
        return Outcome(ours, d.standard_errors, units_in_words(d.n, found), verdicts.above_zero(d), d.p)

    def _logarithms(self, runs: Sequence[Run]) -> dict[int, float]:
        costs = self.measure.by_unit(runs)
        if min(costs.values()) <= 0:
            raise Unclear(f"a cost of {min(costs.values()):g}, which has no ratio to others")
        return {unit: math.log(cost) for unit, cost in costs.items()}
