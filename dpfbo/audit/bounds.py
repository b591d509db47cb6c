"""From the scores of two worlds to a lower bound on epsilon, with confidence.

A test says "the canary sent its message" where the score lies above a threshold. The threshold is chosen on the first
half of the trials; on the second half, `FPR` and `FNR` get Clopper-Pearson upper bounds that hold together with the
stated confidence. Whatever the scores are and whatever the server does, every (eps, delta)-private mechanism then has

    1 - delta - FNR <= e^eps FPR    and    1 - delta - FPR <= e^eps FNR          (Kairouz, Oh, Viswanath 2015)

so that `eps >= log((1 - delta - FNR) / FPR)`. Two tests are made and all four error rates hold together: one whose
threshold serves this bound, and one that serves the fit.
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

_THRESHOLDS = 200  # that are tried
_STEP = 5e-3  # of log scale in the fit
_FIRST_STRIDE = 64  # such steps
_COARSE = 8  # such steps, where only the test is chosen
FEWEST = 20  # trials in each world


@dataclass(frozen=True)
class Rates:
    """A test and upper bounds of its error rates: fpr of "there was a message" without one, fnr of the opposite."""

    threshold: float
    fpr: float
    fnr: float

    def epsilon(self, delta: float) -> float:
        """The least epsilon that allows such error rates at delta; 0 if any does."""
        return float(_epsilon(np.array(self.fpr), np.array(self.fnr), delta))


@dataclass(frozen=True)
class Claim:
    """What is claimed of a server: epsilon at delta by an accountant, of the events in its ledger.

    relation: what epsilon compares. profile: all that the same events promise, at other deltas too. family: mechanisms
    with another amount of noise; None where there is none to compare with.
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
    """What the trials say of a claim; all of it holds together with `confidence`.

    tests: one or two, and their error rates. epsilon: lower bound at the claim's delta, of whatever the code does.
    fit_epsilon: lower bound if the mechanism is of the claimed family with another amount of noise (None: no family).
    broken: a promised (eps, delta) that cannot be true; None if every one can.
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
    error = (1 - confidence) / (2 if family is None else 4)  # of each rate
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

    A member with trade-off curve f is excluded if `f(fpr) > fnr`, since f falls and the true rates are smaller still.
    More noise lifts the curve, so that all members above one scale are excluded, and the true one lies below it:
    it has at least the epsilon of that scale. Without subsampling this is `mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)`.
    """
    scale, _ = _excluded_up_to(family, np.array([t.fpr for t in tests]), np.array([t.fnr for t in tests]))
    return 0.0 if scale == math.inf else family.epsilon(scale, delta)


def upper_bound(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Clopper-Pearson: the probability is at most this, except with probability `error`, if `count` of `trials` hit."""
    count = np.asarray(count)
    return np.where(count < trials, beta.ppf(1 - error, count + 1, np.maximum(trials - count, 1)), 1.0)


def lower_bound(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Clopper-Pearson: the probability is at least this, except with probability `error`."""
    return 1 - upper_bound(trials - np.asarray(count), trials, error)


def _candidates(without: np.ndarray, with_message: np.ndarray) -> np.ndarray:
    """Thresholds between scores, down to one that nothing lies above."""
    scores = np.sort(np.concatenate([without, with_message]))
    return np.unique(scores[np.linspace(0, len(scores) - 1, _THRESHOLDS).astype(int)])


def _rates(
    without: np.ndarray, with_message: np.ndarray, thresholds: np.ndarray, error: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(thresholds, FPR, FNR), the upper bounds of each."""
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
    """The least scale that some of the error rates exclude (inf: they exclude none), and which of them does.

    Scales are whole powers of `e^_STEP`, so that a family computes each once; the answer is good to `step` of them.
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
    low = max((power for power in known if power < high), default=high)  # high: even the least of the family
    while high - low > step:
        middle = (low + high) // 2
        known[middle] = gap(middle)
        low, high = (low, middle) if (known[middle] > 0).any() else (middle, high)
    return math.exp(high * _STEP), int(known[high].argmax())
