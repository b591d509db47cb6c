"""Results of an audit's checks.

A check is a function that returns a sentence on the worst observation, or raises `ClaimBroken` if the claim does not
hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

ERROR = 1e-6  # largest false-alarm probability of a statistical check on a sound server


class ClaimBroken(Exception):
    """An observation contradicts the claim; the message is one sentence."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `words` describes the worst observation."""

    check: str
    holds: bool
    words: str


def checked(name: str, check: Callable[..., str], *given: object) -> CheckResult:
    """Call a check and return its result."""
    try:
        return CheckResult(name, True, check(*given))
    except ClaimBroken as broken:
        return CheckResult(name, False, str(broken))


def require(holds: bool, words: str) -> str:
    """Return the words if the claim holds; raise ClaimBroken with them otherwise."""
    if not holds:
        raise ClaimBroken(words)
    return words


def likely(p: Mapping[str, float], words: str) -> str:
    """Return `words` and the test with the least p-value.

    Raises ClaimBroken if that p-value is NaN or below ERROR / n, where n is the number of tests.

    p: p-values by name of the test. ERROR: the largest false-alarm probability of a check on a sound server.
    """
    worst = min(p, key=lambda test: p[test] if p[test] >= 0 else -1.0)
    said = ", ".join(filter(None, (words, f"{worst}: p = {min(1.0, p[worst]):.2g}")))
    return require(p[worst] >= ERROR / len(p), said)


def two_sided(counts: np.ndarray, trials: int | np.ndarray, q: float | np.ndarray) -> float:
    """Return the smallest two-sided binomial p-value of the counts, times the number of counts (Bonferroni)."""
    tails = np.minimum(binom.cdf(counts, trials, q), binom.sf(counts - 1, trials, q))
    return min(1.0, 2 * float(tails.min()) * len(counts))
