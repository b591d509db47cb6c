"""A lower bound on epsilon, with 95 % confidence, from trials without and with the message of one agent.

A test decides that the message was sent if the score of a trial exceeds a threshold. `FPR` and `FNR` are the test's
false-positive and false-negative rates. Every (eps, delta)-private mechanism satisfies, for any score,

    1 - delta - FNR <= e^eps FPR    and    1 - delta - FPR <= e^eps FNR          (Kairouz, Oh, Viswanath 2015)

so that `eps >= log((1 - delta - FNR) / FPR)`. Clopper-Pearson upper bounds replace both rates. Two thresholds are
chosen on the first half of the trials. The first threshold maximises the bound on epsilon. The second threshold
maximises `f(FPR) - FNR`, where `f(FPR)` is the least false-negative rate that the claimed (eps, delta) pairs allow at
`FPR`. The second half of the trials gives the result. The upper bounds of this half hold jointly with 95 % confidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from scipy.stats import beta

from dpfbo import checks
from dpfbo.audit.tradeoff import Profile, promised
from dpfbo.privacy.accounting import Accountant, check_delta

_THRESHOLDS = 200  # candidates for the threshold of a test
FEWEST = 20  # least number of trials in each world
CONFIDENCE = 0.95  # with which all bounds of a verdict hold together


@dataclass(frozen=True)
class Rates:
    """The threshold of a test, and upper bounds on its false-positive and false-negative rates."""

    threshold: float
    fpr: float
    fnr: float


@dataclass(frozen=True)
class Claim:
    """The epsilon at delta that an accountant computes from the events in a ledger.

    profile: the (eps, delta) pairs that these events promise.
    """

    events: tuple[dp_accounting.DpEvent, ...]
    accountant: Accountant
    delta: float
    epsilon: float
    profile: Profile

    @staticmethod
    def of(events: Sequence[dp_accounting.DpEvent], accountant: Accountant, delta: float) -> "Claim":
        """Return the claim that the accountant derives from the events."""
        check_delta(delta)
        return Claim(tuple(events), accountant, delta, accountant.epsilon(events, delta), promised(accountant, events))


@dataclass(frozen=True)
class Verdict:
    """The result of testing a claim by many trials; all bounds hold jointly with 95 % confidence.

    without, with_message: scores of the trials without and with one agent's message. tests: one test, or two with
    different thresholds. epsilon: lower bound at the claim's delta. broken: a promised (eps, delta) that the error
    rates contradict; None if they contradict none.
    """

    claim: Claim
    without: np.ndarray
    with_message: np.ndarray
    tests: tuple[Rates, ...]
    epsilon: float
    broken: tuple[float, float] | None

    @property
    def trials(self) -> int:
        return len(self.without)

    @property
    def holds(self) -> bool:
        return self.broken is None and self.epsilon <= self.claim.epsilon


def verdict(without: np.ndarray, with_message: np.ndarray, claim: Claim) -> Verdict:
    """Judge a claim by two sets of scores: of trials without one agent's message, and of trials with it.

    All trials must be independent. Raises ValueError if the two numbers of trials differ or are below 20.
    """
    checks.integer("trials in each world", min(len(without), len(with_message)), minimum=FEWEST)
    if len(without) != len(with_message):
        raise ValueError(f"both worlds must have equally many trials, got {len(without)} and {len(with_message)}")
    half, error = len(without) // 2, (1 - CONFIDENCE) / 2  # error: chance that any bound of FPR fails; likewise FNR
    choose, judge = (without[:half], with_message[:half]), (without[half:], with_message[half:])
    thresholds = _candidates(*choose)
    fpr, fnr = _rates(*choose, thresholds, error / 2)
    best = {int(_epsilon(fpr, fnr, claim.delta).argmax()), int((claim.profile.tradeoff(fpr) - fnr).argmax())}
    chosen = thresholds[sorted(best)]
    fpr, fnr = _rates(*judge, chosen, error / len(chosen))
    tests = tuple(Rates(*map(float, rates)) for rates in zip(chosen, fpr, fnr, strict=True))
    broken = [pair for test in tests if (pair := claim.profile.broken(test.fpr, test.fnr)) is not None]
    bound = float(_epsilon(fpr, fnr, claim.delta).max())
    return Verdict(claim, without, with_message, tests, bound, broken[0] if broken else None)


def most_shown(claim: Claim, trials: int) -> float:
    """Return the largest lower bound on epsilon that `verdict` can find with this number of trials.

    `verdict` finds this bound only if its test makes no errors. trials: the number of trials without one agent's
    message, equal to the number of trials with the message.
    """
    rate = upper_bound(np.array(0), trials - trials // 2, (1 - CONFIDENCE) / 2)
    return float(_epsilon(rate, rate, claim.delta))


def upper_bound(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Return the Clopper-Pearson upper bound for `count` hits in `trials`; it fails with probability <= `error`."""
    return np.where(count < trials, beta.ppf(1 - error, count + 1, np.maximum(trials - count, 1)), 1.0)


def _candidates(without: np.ndarray, with_message: np.ndarray) -> np.ndarray:
    """Return candidate thresholds: the largest score, and midpoints of neighbouring scores."""
    scores = np.sort(np.concatenate([without, with_message]))
    last = len(scores) - 1
    at = np.append(np.linspace(0, last, _THRESHOLDS).astype(int), last // 2)
    low, high = scores[at], scores[np.minimum(at + 1, last)]
    return np.unique(np.where(np.isfinite(high), low / 2 + high / 2, low))


def _rates(
    without: np.ndarray, with_message: np.ndarray, thresholds: np.ndarray, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return upper bounds on FPR and on FNR at each threshold; a bound is wrong with probability <= `error`."""
    above = len(without) - np.searchsorted(np.sort(without), thresholds, side="right")
    below = np.searchsorted(np.sort(with_message), thresholds, side="right")
    return upper_bound(above, len(without), error), upper_bound(below, len(with_message), error)


def _epsilon(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        both = [np.log(np.maximum(1 - delta - b, 0.0)) - np.log(a) for a, b in ((fpr, fnr), (fnr, fpr))]
    return np.maximum(np.maximum(*both), 0.0)
