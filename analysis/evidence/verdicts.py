"""The rule that turns estimates and their standard errors into verdicts on claims.

If a problem draws its objective function at random, the independent unit is the function; otherwise, it is the seed. An
agent is never a unit. A claim is a linear contrast of settings, computed for each unit that all settings share. The
mean `d` of the contrast over `n` units has the standard error `se = s / sqrt(n)`, where s is the standard deviation.
`d / se` is tested one-sided by Student's t with `n - 1` degrees of freedom. If there are fewer than `FEWEST` units, or
if the contrast has the same value for all units, the p-value is 1. The claims about one figure are a family, whose
family-wise error rate is at most `LEVEL`. A family may be judged `LOOKS` times: first with the planned seeds, then with
added seeds. The families of some experiments may be judged more often, as listed under `looks` in
`published/settings.yaml`. Each time, the family is tested by Holm's procedure (1979) at `LEVEL` divided by the allowed
number of times (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

LEVEL = 0.05  # family-wise error rate: chance of any wrong verdict in a family
LOOKS = 2  # times that a family may be judged: with the seeds it was planned with, and with added ones
MOST_ADDED = 10  # most units of the second look, as a multiple of the planned ones; whoever adds seeds keeps to it
POWER = 0.8  # chance of a verdict with the reported number of needed units
FEWEST = 3  # least number of units that can decide

HOLDS = "holds"
CONTRARY = "contrary"
SAME = "level"  # within a margin
OPEN = "not decided"
NOT_RUN = "not run"
VERDICTS = (HOLDS, CONTRARY, SAME, OPEN, NOT_RUN)

NEAR = 2.0  # largest deviation of a reproduced number, in standard errors of the difference
SHARP = 0.15  # largest standard error of the difference that confirms a number published without error, relative to it
ROUNDING = 1e-12  # relative to the largest summand: smaller differences count as 0


@dataclass(frozen=True)
class Estimate:
    """A mean over n units with its standard error and degrees of freedom, both None for one unit."""

    value: float
    se: float | None
    df: float | None
    n: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or (self.se is not None and not 0 <= self.se < math.inf):
            raise ValueError(f"an estimate must be finite with a finite error of at least 0, got {self}")

    @property
    def standard_errors(self) -> float | None:
        """The ratio value / se; None if the error is missing or 0."""
        return self.value / self.se if self.se else None

    @property
    def p(self) -> float:
        """The p-value of the one-sided test of the null hypothesis "not above 0"; 1 if no test is possible."""
        from scipy.special import (
            stdtr,  # imported here, so that --help does not load SciPy; scipy.stats would load slowly
        )

        if not self.se or self.df is None or self.n < FEWEST:
            return 1.0
        return float(stdtr(self.df, -self.value / self.se))

    def negated(self) -> "Estimate":
        return Estimate(-self.value, self.se, self.df, self.n)

    def units_needed(self, level: float) -> float:
        """Return the number of independent units at which a one-sided test at `level` has about the power `POWER`.

        `value` and `se` are taken to be exact. Returns infinity if no test is possible or `value` is not positive.
        """
        from scipy.special import ndtri

        if not self.se or self.n < FEWEST or self.value <= 0:
            return math.inf
        return self.n * float((ndtri(1 - level) + ndtri(POWER)) * self.se / self.value) ** 2


@dataclass(frozen=True)
class PublishedMean:
    """A published mean, with which our mean is compared.

    se: standard error of the mean; None if not published. runs: the number of independent published runs. If our
    independent units are functions, not seeds, all published runs on the same function count as one run.
    """

    value: float
    se: float | None
    runs: int

    def __post_init__(self) -> None:
        if self.runs < (1 if self.se is None else 2):
            raise ValueError(f"a published mean with an error must be over at least 2 runs, got {self.runs}")


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean over independent units with its standard error."""
    if not values:
        raise ValueError("a mean must be over at least one unit, got none")
    array, n = np.asarray(values, dtype=float), len(values)
    se = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else None
    if se is not None and se < ROUNDING * float(np.abs(array).max()):
        se = 0.0  # equal but for rounding
    return Estimate(float(array.mean()), se, n - 1 if n > 1 else None, n)


def contrast(weights: Sequence[float], values: Sequence[Mapping[int, float]], constant: float = 0.0) -> Estimate | None:
    """Return the mean of `sum_k weight_k y_k[unit] + constant` over the units that all y_k share.

    Returns None if they share no unit. Before `constant` is added, rounding errors are removed. A standard error below
    `ROUNDING` times the largest summand is set to 0. If the standard error is 0 or missing, a mean with an absolute
    value below this limit is also set to 0.
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
    """The tests of a claim, by the verdict that each supports.

    holds: estimates that are all above 0 if the claim is true. level: estimates that are all above 0 if the settings
    differ by less than the margin. excluded: p-value of the test that rejects a published number. otherwise: the
    verdict if no test is significant.
    """

    holds: tuple[Estimate, ...] = ()
    level: tuple[Estimate, ...] = ()
    excluded: float | None = None
    otherwise: str = OPEN

    @property
    def p(self) -> dict[str, float]:
        """The p-value of each verdict that has a test.

        The verdicts "holds" and "level" each require that all estimates in the field of the same name are significantly
        positive, so the largest p-value counts. The verdict "contrary" requires that at least one estimate in the field
        `holds` is significantly negative, so the smallest p-value counts, with Bonferroni's correction. If the field
        `excluded` is not None, the value of `excluded` is the p-value of "contrary" instead.
        """
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
        """Return the smallest sample size (number of independent units) that would probably decide the claim.

        A claim is decided as soon as all tests required for one verdict are significant. At the returned sample size,
        each test for that verdict has about the power `POWER`. The present means and standard deviations are treated as
        exact. Returns None if no finite sample size is large enough. level: significance level for each verdict.
        """
        wanted = [max(d.units_needed(level) for d in ds) for ds in (self.holds, self.level) if ds]
        wanted += [d.negated().units_needed(level / len(self.holds)) for d in self.holds]
        least = min(wanted, default=math.inf)
        return math.ceil(least) if math.isfinite(least) else None


def family_verdicts(family: Sequence[Evidence], looks: int = LOOKS) -> list[tuple[str, int | None]]:
    """Return the verdict on each claim of a family and, for an undecided claim, the sample size needed to decide it.

    The sample size is None for all other claims, and if it is unknown. All tests of the family share Holm's correction.
    If a claim passes the tests of several verdicts, it gets the verdict that comes first in `VERDICTS`. looks: how many
    times the family may be judged in total, past and future. Each time, the family-wise error rate is at most
    `LEVEL / looks`.
    """
    level = LEVEL / looks
    tests = sorted((p, k, verdict) for k, claim in enumerate(family) for verdict, p in claim.p.items())
    stand = set[tuple[int, str]]()
    for rank, (p, k, verdict) in enumerate(tests):
        if p > level / (len(tests) - rank):
            break
        stand.add((k, verdict))
    found: list[tuple[str, int | None]] = []
    for k, claim in enumerate(family):
        verdict = next((v for v in VERDICTS if (k, v) in stand), claim.otherwise)
        found.append((verdict, claim.units_needed(level / len(tests)) if verdict == OPEN and tests else None))
    return found


def deviation(ours: Estimate, published: PublishedMean) -> tuple[float | None, float | None]:
    """Return (ours - published) in standard errors of the difference, and the degrees of freedom.

    Both are None if our mean has fewer than `FEWEST` units, or if its standard error is missing or 0. If a standard
    error was published, the degrees of freedom are the smaller of `ours.df` and `published.runs - 1`. Otherwise, our
    standard deviation divided by `sqrt(published.runs)` stands for the published error, and the degrees of freedom are
    `ours.df`.
    """
    if not ours.se or ours.df is None or ours.n < FEWEST:
        return None, None
    df = ours.df if published.se is None else min(ours.df, published.runs - 1)
    return (ours.value - published.value) / _error_of_difference(ours.se, ours.n, published), df


def _error_of_difference(se: float, n: int, published: PublishedMean) -> float:
    """Return the standard error of (ours - published); `se` is that of our mean over n units."""
    return se * math.sqrt(1 + n / published.runs) if published.se is None else math.hypot(se, published.se)


def exclusion(pairs: Sequence[tuple[Estimate, PublishedMean]]) -> float | None:
    """Return the p-value of the two-sided test that all published numbers equal ours; None if none can be tested.

    Each published number has its own test. The smallest p-value counts, with Bonferroni's correction.
    """
    from scipy.special import stdtr

    known = [(z, df) for z, df in (deviation(*pair) for pair in pairs) if z is not None and df is not None]
    return min((1.0, *(2 * len(pairs) * float(stdtr(df, -abs(z))) for z, df in known))) if known else None


def agrees(pairs: Sequence[tuple[Estimate, PublishedMean]]) -> bool:
    """Return True if our means reproduce all published means.

    Each of our means must differ from the published mean by at most `NEAR` standard errors of the difference. Our mean
    must come from at least as many independent units (seeds, functions or splits) as there are published runs. If a
    standard error was published, ours must be at most twice as large. Otherwise, the standard error of the difference
    must be below `SHARP` times the published mean. A result of False does not mean that any means differ significantly;
    the function `exclusion` tests this.
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
