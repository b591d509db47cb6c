"""Claims that a number lies in a band: at least so large, at most so large, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from analysis.evidence import verdicts
from analysis.evidence.comparisons import BAND, Outcome, no_pairs, number, with_error
from analysis.evidence.selection import Measure, SettingFilter, units_in_words
from analysis.evidence.verdicts import Estimate
from analysis.load import Run


@dataclass(frozen=True)
class Band:
    """Claim: the sum of weight x measure over the settings, seed by seed, lies above `low` and below `high`.

    low, high: None where the band is open. of: what the sum is, in words. The mean must be significantly inside each
    end to hold, and significantly outside one not to.

    Raises ValueError for a band without ends, or ends in the wrong order.
    """

    form: ClassVar[str] = BAND

    terms: tuple[tuple[float, SettingFilter], ...]
    measure: Measure
    low: float | None = None
    high: float | None = None
    of: str = ""

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("a band must have an end, got low=None, high=None")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low must lie below high, got low={self.low!r}, high={self.high!r}")

    @property
    def words(self) -> str:
        ends = (("above", self.low), ("below", self.high))
        band = " and ".join(f"{side} {end:g}" for side, end in ends if end is not None)
        return f"{self.of}{self.measure.words} {band}"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = [where.among(runs) for _, where in self.terms]
        values = [self.measure.by_unit(group) for group in found]
        d = verdicts.contrast([(w, v) for (w, _), v in zip(self.terms, values, strict=True)])
        if d is None:
            return no_pairs()
        ours = with_error(d, "values" if len(values) == 1 else "differences")
        if len(values) > 1:
            shared = set.intersection(*(set(v) for v in values))
            ours += f" ({' / '.join(number(sum(v[u] for u in shared) / len(shared), d.se) for v in values)})"
        inside = [] if self.low is None else [Estimate(d.value - self.low, d.se, d.df, d.n)]
        inside += [] if self.high is None else [Estimate(self.high - d.value, d.se, d.df, d.n)]
        nearest = min(inside, key=lambda end: end.value)
        return Outcome(
            ours, nearest.standard_errors, units_in_words(d.n, found[0]), verdicts.above_all(inside), nearest.p
        )


def inside(where: SettingFilter, measure: Measure, low: float | None = None, high: float | None = None) -> Band:
    """One setting's measure lies in the band."""
    return Band(((1.0, where),), measure, low, high)


def worse_by(by: float, worse: SettingFilter, good: SettingFilter, measure: Measure) -> Band:
    """`worse` is above `good` by more than `by`."""
    return Band(((1.0, worse), (-1.0, good)), measure, low=by, of="difference of ")
