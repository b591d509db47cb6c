"""A lower bound on epsilon, with confidence, from the scores of two worlds.

A test says "the canary sent its message" where the score lies above a threshold. The threshold is chosen on the first
half of the trials; on the second half, `FPR` and `FNR` get Clopper-Pearson upper bounds that hold together with the
stated confidence. For any scores and any server, every (eps, delta)-private mechanism then has

    1 - delta - FNR <= e^eps FPR    and    1 - delta - FPR <= e^eps FNR          (Kairouz, Oh, Viswanath 2015)

so that `eps >= log((1 - delta - FNR) / FPR)`. Two tests are made: the threshold of one maximises this bound, that of
the other the bound by fit. Their four error rates hold together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from scipy.stats import beta

from dpfbo import checks
from dpfbo.audit.tradeoff import Family, Profile, family_of, promised
from dpfbo.privacy.accounting import Accountant, check_delta

_THRESHOLDS = 200  # thresholds tried
_STEP = 5e-3  # step of log scale in the fit
_FIRST_STRIDE = 64  # steps
_COARSE = 8  # steps, while the test is chosen
FEWEST = 20  # trials in each world


@dataclass(frozen=True)
class Rates:
    """A test and upper bounds of its error rates. fpr: it says "message" where none was sent; fnr: the opposite."""

    threshold: float
    fpr: float
    fnr: float

    def epsilon(self, delta: float) -> float:
        """The least epsilon that allows these error rates at delta, at least 0."""
        return float(_epsilon(np.array(self.fpr), np.array(self.fnr), delta))


@dataclass(frozen=True)
class Claim:
    """The epsilon at delta that an accountant computes from the events in a ledger.

    profile: the (eps, delta) pairs that the same events promise. family: the mechanisms with another amount of noise;
    None where the events have no trade-off curve.
    """

    events: tuple[dp_accounting.DpEvent, ...]
    accountant: Accountant
    delta: float
    epsilon: float
    profile: Profile
    family: Family | None

    @staticmethod
    def of(events: Sequence[dp_accounting.DpEvent], accountant: Accountant, delta: float) -> "Claim":
        """The claim that a ledger makes."""
        check_delta(delta)
        family = family_of(events)
        profile = promised(accountant, events) if family is None else family.profile(1.0)
        return Claim(tuple(events), accountant, delta, accountant.epsilon(events, delta), profile, family)

    @property
    def relation(self) -> str:
        return self.accountant.relation


@dataclass(frozen=True)
class Verdict:
    """The result of the trials for a claim; all numbers hold together with `confidence`.

    tests: one or two tests with their error rates. epsilon: lower bound at the claim's delta, for any mechanism.
    fit_epsilon: lower bound if the mechanism is of the claimed family with another amount of noise (None: no family).
    broken: a promised (eps, delta) that the error rates exclude; None if they exclude none.
    """

    claim: Claim
    confidence: float
    trials: int
    tests: tuple[Rates, ...]
    epsilon: float
    fit_epsilon: float | None
    broken: tuple[float, float] | None

    @property
    def holds(self) -> bool:
        return self.broken is None and self.epsilon <= self.claim.epsilon


def verdict(without: np.ndarray, with_message: np.ndarray, claim: Claim, confidence: float = 0.95) -> Verdict:
    """Judge a claim by the scores of as many independent trials without and with the canary's message.

    Raises ValueError for fewer than 20 trials a world, worlds of different sizes or a confidence outside (0, 1).
    """
    checks.integer("trials in each world", min(len(without), len(with_message)), minimum=FEWEST)
    if len(without) != len(with_message):
        raise ValueError(f"both worlds must have as many trials, got {len(without)} and {len(with_message)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence!r}")
    half, family = len(without) // 2, claim.family
    error = (1 - confidence) / (2 if family is None else 4)  # error probability of each rate
    choose, judge = (without[:half], with_message[:half]), (without[half:], with_message[half:])
    thresholds, fpr, fnr = _rates(*choose, _candidates(*choose), error)
    best = [int(_epsilon(fpr, fnr, claim.delta).argmax())]
    if family is not None:
        best.append(_excluded_up_to(family, fpr, fnr, _COARSE)[1])
    tests = tuple(_judged(judge, float(thresholds[i]), error) for i in best)
    broken = [pair for test in tests if (pair := claim.profile.broken(test.fpr, test.fnr)) is not None]
    return Verdict(
        claim, confidence, len(without), tests, max(test.epsilon(claim.delta) for test in tests),
        None if family is None else fitted_epsilon(family, tests, claim.delta), broken[0] if broken else None,
    )  # fmt: skip


def fitted_epsilon(family: Family, tests: Sequence[Rates], delta: float) -> float:
    """Epsilon of the most private member of a family that the error rates do not exclude.

    A member with trade-off curve f is excluded if `f(fpr) > fnr`, since f falls and the true rates are smaller than
    their bounds. More noise lifts the curve, so that all members above one scale are excluded, and the true mechanism
    has at least the epsilon of that scale. Without subsampling this is `mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)`.
    """
    scale, _ = _excluded_up_to(family, np.array([t.fpr for t in tests]), np.array([t.fnr for t in tests]))
    return 0.0 if scale == math.inf else family.epsilon(scale, delta)


def upper_bound(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Clopper-Pearson upper bound of a probability after `count` hits in `trials`, wrong with probability `error`."""
    count = np.asarray(count)
    return np.where(count < trials, beta.ppf(1 - error, count + 1, np.maximum(trials - count, 1)), 1.0)


def lower_bound(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Clopper-Pearson lower bound of a probability, wrong with probability `error`."""
    return 1 - upper_bound(trials - np.asarray(count), trials, error)


def _candidates(without: np.ndarray, with_message: np.ndarray) -> np.ndarray:
    """Middles between neighbours among all scores, at quantiles and between the halves, and the largest score.

    Worlds that do not overlap are then cut in the middle of the gap, far from the scores of either.
    """
    scores = np.sort(np.concatenate([without, with_message]))
    last = len(scores) - 1
    at = np.append(np.linspace(0, last, _THRESHOLDS).astype(int), last // 2)
    low, high = scores[at], scores[np.minimum(at + 1, last)]
    return np.unique(np.where(np.isfinite(high), low / 2 + high / 2, low))


def _rates(
    without: np.ndarray, with_message: np.ndarray, thresholds: np.ndarray, error: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(thresholds, upper bounds of FPR, upper bounds of FNR)."""
    above = len(without) - np.searchsorted(np.sort(without), thresholds, side="right")
    below = np.searchsorted(np.sort(with_message), thresholds, side="right")
    return thresholds, upper_bound(above, len(without), error), upper_bound(below, len(with_message), error)


def _judged(scores: tuple[np.ndarray, np.ndarray], threshold: float, error: float) -> Rates:
    _, fpr, fnr = _rates(*scores, np.array([threshold]), error)
    return Rates(threshold, float(fpr[0]), float(fnr[0]))


def _epsilon(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    """`log((1 - delta - FNR) / FPR)`, or with the rates exchanged, whichever is larger; at least 0."""
    pairs = ((fpr, fnr), (fnr, fpr))
    with np.errstate(divide="ignore"):
        both = [np.log(np.maximum(1 - delta - b, 0.0)) - np.log(a) for a, b in pairs]
    return np.maximum(np.maximum(*both), 0.0)


def _excluded_up_to(family: Family, fpr: np.ndarray, fnr: np.ndarray, step: int = 1) -> tuple[float, int]:
    """The least scale that the error rates exclude (inf: none), and the index of the test that excludes it.

    Scales are whole powers of `e^_STEP`, so that a family computes each once; the answer is exact to `step` powers.
    """

    def gap(power: int) -> np.ndarray:
        return family.profile(math.exp(power * _STEP)).tradeoff(fpr) - fnr

    least, most = math.ceil(math.log(family.scales[0]) / _STEP), math.floor(math.log(family.scales[1]) / _STEP)
    known = {0: gap(0)}
    up = not (known[0] > 0).any()
    at, stride = 0, _FIRST_STRIDE
    while (up and not (known[at] > 0).any() and at < most) or (not up and (known[at] > 0).any() and at > least):
        at = min(most, at + stride) if up else max(least, at - stride)
        known[at], stride = gap(at), 2 * stride
    excluded = sorted(power for power, gaps in known.items() if (gaps > 0).any())
    if not excluded:
        return math.inf, int(known[at].argmax())
    high = excluded[0]
    low = max((power for power in known if power < high), default=high)  # high: the smallest scale is excluded too
    while high - low > step:
        middle = (low + high) // 2
        known[middle] = gap(middle)
        low, high = (low, middle) if (known[middle] > 0).any() else (middle, high)
    return math.exp(high * _STEP), int(known[high].argmax())
