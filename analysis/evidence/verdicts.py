"""From an estimate and its error to a verdict: one rule for every claim.

The unit is what is independent: another function, or another seed on the same data (an agent is not one). A claim is a
linear contrast of settings, unit by unit over the units that all have. With `n` units its mean `d` has the standard
error `s / sqrt(n)`, and `t = d / se` is held against Student's t with `n - 1` degrees of freedom, one-sided, at
`LEVEL`. Fewer than `FEWEST` units decide nothing, nor do units that are all equal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr  # the law that scipy.stats, slow to import, would use

LEVEL = 0.01  # of every test, one-sided
FEWEST = 3  # units that can decide

HOLDS = "holds"
FAILS = "does not hold"
OPEN = "not decided"
NOT_RUN = "not run"
VERDICTS = (HOLDS, FAILS, OPEN, NOT_RUN)

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
        if not self.se or self.df is None or self.n < FEWEST:
            return 1.0
        return float(stdtr(self.df, -self.value / self.se))

    def negated(self) -> "Estimate":
        return Estimate(-self.value, self.se, self.df, self.n)


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


def above_all(ds: Sequence[Estimate]) -> str:
    """Verdict that all are above 0: each must pass at `LEVEL`, which needs no correction (intersection-union test).

    That one is below counts at LEVEL / len(ds), so that the chance of a wrong `FAILS` stays LEVEL.
    """
    if all(d.p <= LEVEL for d in ds):
        return HOLDS
    return FAILS if any(d.negated().p <= LEVEL / len(ds) for d in ds) else OPEN


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


def excluded(ours: Estimate, published: PublishedMean, tests: int = 1) -> bool:
    """True where the published number is excluded at `LEVEL`, two-sided, as one of `tests` numbers (Bonferroni)."""
    z, df = deviation(ours, published)
    if z is None or df is None:
        return False
    return bool(2 * stdtr(df, -abs(z)) <= LEVEL / tests)


def agrees(pairs: Sequence[tuple[Estimate, PublishedMean]]) -> str:
    """Verdict that published numbers are reproduced.

    `FAILS` where one is excluded; `HOLDS` where all are within `NEAR` standard errors of the difference and ours are as
    precise: means over as many units, with errors at most twice theirs, or with the error of the difference below
    `SHARP` of a number without one (a large error agrees with anything, and that of a few units may be small by
    chance); else `OPEN`.
    """
    if any(excluded(ours, published, len(pairs)) for ours, published in pairs):
        return FAILS
    return HOLDS if all(_near(*pair) and _as_precise(*pair) for pair in pairs) else OPEN


def _near(ours: Estimate, published: PublishedMean) -> bool:
    z, _ = deviation(ours, published)
    return z is not None and abs(z) <= NEAR


def _as_precise(ours: Estimate, published: PublishedMean) -> bool:
    if ours.se is None or ours.n < published.runs:
        return False
    if published.se is not None:
        return ours.se <= 2 * published.se
    return _error_of_difference(ours.se, ours.n, published) < SHARP * abs(published.value)


def holm(ps: Sequence[float], level: float = 0.05) -> int:
    """The number of tests that stand when the chance of a single wrong one among all is to be `level` (Holm, 1979)."""
    rejected = 0
    for k, p in enumerate(sorted(ps)):
        if p > level / (len(ps) - k):
            break
        rejected += 1
    return rejected
