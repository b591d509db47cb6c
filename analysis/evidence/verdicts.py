"""From estimates and their errors to verdicts: one rule for every claim.

The unit is what is independent: another function, or another seed on the same data (an agent is not one). A claim is a
linear contrast of settings, unit by unit over the units that all have. With `n` units its mean `d` has the standard
error `s / sqrt(n)`, and `t = d / se` is held against Student's t with `n - 1` degrees of freedom, one-sided. Fewer than
`FEWEST` units decide nothing, nor do units that are all equal. The claims about one figure are a family: all their
tests together are wrong anywhere with a chance of at most `LEVEL` (Holm, 1979).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

LEVEL = 0.05  # chance of one wrong verdict or more in a family
POWER = 0.8  # chance of a verdict with as many units as an open claim is said to need
FEWEST = 3  # units that can decide

HOLDS = "holds"
CONTRARY = "contrary"
SAME = "level"  # within a margin
OPEN = "not decided"
NOT_RUN = "not run"
VERDICTS = (HOLDS, CONTRARY, SAME, OPEN, NOT_RUN)

NEAR = 2.0  # standard errors of the difference, within which a published number is reproduced
SHARP = 0.15  # of a published number without an error: the standard error of the difference that can confirm it
ROUNDING = 1e-12  # of the largest number in a sum: differences below it are none


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and degrees of freedom; both None where there is one unit."""

    value: float
    se: float | None
    df: float | None
    n: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or (self.se is not None and not 0 <= self.se < math.inf):
            raise ValueError(f"an estimate must be finite with a finite error of at least 0, got {self}")

    @property
    def standard_errors(self) -> float | None:
        """The ratio value / se; None without an error, or with one of 0."""
        return self.value / self.se if self.se else None

    @property
    def p(self) -> float:
        """The p-value of the one-sided test against "not above 0"; 1 where nothing can be tested."""
        from scipy.special import (
            stdtr,  # here, as below: --help need not wait for SciPy; scipy.stats has the same laws and loads slowly
        )

        if not self.se or self.df is None or self.n < FEWEST:
            return 1.0
        return float(stdtr(self.df, -self.value / self.se))

    def negated(self) -> "Estimate":
        return Estimate(-self.value, self.se, self.df, self.n)

    def units_needed(self, level: float) -> float:
        """With how many units the test against "not above 0" holds with chance `POWER`, if this is the truth."""
        from scipy.special import ndtri

        if not self.se or self.n < FEWEST or self.value <= 0:
            return math.inf
        return self.n * float((ndtri(1 - level) + ndtri(POWER)) * self.se / self.value) ** 2


@dataclass(frozen=True)
class PublishedMean:
    """A number to agree with.

    se: its standard error, over `runs` independent runs; None: not published, taken from our spread. Starts on one
    function are one run where ours are over functions.
    """

    value: float
    se: float | None
    runs: int

    def __post_init__(self) -> None:
        if self.runs < (1 if self.se is None else 2):
            raise ValueError(f"a published mean with an error must be over at least 2 runs, got {self.runs}")


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean over independent units."""
    if not values:
        raise ValueError("a mean must be over at least one unit, got none")
    array, n = np.asarray(values, dtype=float), len(values)
    se = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else None
    if se is not None and se < ROUNDING * float(np.abs(array).max()):
        se = 0.0  # equal but for rounding
    return Estimate(float(array.mean()), se, n - 1 if n > 1 else None, n)


def contrast(weights: Sequence[float], values: Sequence[Mapping[int, float]], constant: float = 0.0) -> Estimate | None:
    """Mean of `sum_k weight_k y_k[unit] + constant` over the units that all have; None if there is no such unit.

    What is left by rounding where sums cancel is 0: a mean, or an error, below `ROUNDING` of the largest summand.
    """
    shared = sorted(set.intersection(*map(set, values)))
    if not shared:
        return None
    summands = np.array([[weight * of[unit] for unit in shared] for weight, of in zip(weights, values, strict=True)])
    d, least = mean_of([sum(column) for column in summands.T]), ROUNDING * float(np.abs(summands).max())
    if d.se is None or d.se < least:
        d = replace(d, value=d.value if abs(d.value) >= least else 0.0, se=None if d.se is None else 0.0)
    return replace(d, value=d.value + constant)


@dataclass(frozen=True)
class Evidence:
    """The tests of a claim, by the verdict that each would give.

    holds: what must all be above 0 for the claim. level: what must all be above 0 where it is level within its margin.
    excluded: the p-value of the test that excludes a published number. otherwise: the verdict if no test decides.
    """

    holds: tuple[Estimate, ...] = ()
    level: tuple[Estimate, ...] = ()
    excluded: float | None = None
    otherwise: str = OPEN

    @property
    def p(self) -> dict[str, float]:
        """The p-value of each verdict: each of several conditions at its own level, or any of them with Bonferroni."""
        found = {}
        if self.holds:
            found[HOLDS] = max(d.p for d in self.holds)
            found[CONTRARY] = min(1.0, len(self.holds) * min(d.negated().p for d in self.holds))
        if self.level:
            found[SAME] = max(d.p for d in self.level)
        if self.excluded is not None:
            found[CONTRARY] = self.excluded
        return found

    def units_needed(self, level: float) -> int | None:
        """With how many units a test at this level decides with chance `POWER`, if the estimates are the truth."""
        wanted = [max(d.units_needed(level) for d in ds) for ds in (self.holds, self.level) if ds]
        wanted += [d.negated().units_needed(level / len(self.holds)) for d in self.holds]
        least = min(wanted, default=math.inf)
        return math.ceil(least) if math.isfinite(least) else None


def family_verdicts(family: Sequence[Evidence]) -> list[tuple[str, int | None]]:
    """The verdict on each claim of a family, and for an open one the number of units that would decide.

    Holm's correction over all tests of the family. A claim has the first verdict of `VERDICTS` whose test stands.
    """
    tests = sorted((p, k, verdict) for k, claim in enumerate(family) for verdict, p in claim.p.items())
    stand = set[tuple[int, str]]()
    for rank, (p, k, verdict) in enumerate(tests):
        if p > LEVEL / (len(tests) - rank):
            break
        stand.add((k, verdict))
    found: list[tuple[str, int | None]] = []
    for k, claim in enumerate(family):
        verdict = next((v for v in VERDICTS if (k, v) in stand), claim.otherwise)
        found.append((verdict, claim.units_needed(LEVEL / len(tests)) if verdict == OPEN and tests else None))
    return found


def deviation(ours: Estimate, published: PublishedMean) -> tuple[float | None, float | None]:
    """(ours - published) in standard errors of the difference, and its degrees of freedom; None without our spread.

    They are the fewer of both, not Welch's: two seeds that happen to agree would else pass for an exact number. A
    published mean without an error is taken to have our spread over its number of runs.
    """
    if not ours.se or ours.df is None:
        return None, None
    df = ours.df if published.se is None else min(ours.df, published.runs - 1)
    return (ours.value - published.value) / _error_of_difference(ours.se, ours.n, published), df


def _error_of_difference(se: float, n: int, published: PublishedMean) -> float:
    """se: of our mean, over n units."""
    return se * math.sqrt(1 + n / published.runs) if published.se is None else math.hypot(se, published.se)


def exclusion(pairs: Sequence[tuple[Estimate, PublishedMean]]) -> float | None:
    """The p-value of the test that a published number is another one: two-sided, the least of all (Bonferroni)."""
    from scipy.special import stdtr

    known = [(z, df) for z, df in (deviation(*pair) for pair in pairs) if z is not None and df is not None]
    return min((1.0, *(2 * len(pairs) * float(stdtr(df, -abs(z))) for z, df in known))) if known else None


def agrees(pairs: Sequence[tuple[Estimate, PublishedMean]]) -> bool:
    """True if the published numbers are reproduced, provided that none is excluded.

    All are within `NEAR` standard errors of the difference and ours are as precise: means over as many units, with
    errors at most twice theirs, or with the error of the difference below `SHARP` of a number without one (a large
    error agrees with anything, and that of a few units may be small by chance).
    """
    return all(_near(*pair) and _as_precise(*pair) for pair in pairs)


def _near(ours: Estimate, published: PublishedMean) -> bool:
    z, _ = deviation(ours, published)
    return z is not None and abs(z) <= NEAR


def _as_precise(ours: Estimate, published: PublishedMean) -> bool:
    if ours.se is None or ours.n < published.runs:
        return False
    if published.se is not None:
        return ours.se <= 2 * published.se
    return _error_of_difference(ours.se, ours.n, published) < SHARP * abs(published.value)
