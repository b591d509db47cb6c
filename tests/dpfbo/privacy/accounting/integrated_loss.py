"""A reference: the privacy loss of sampled Gaussians, integrated on a grid and composed by FFT.

It shares no code with `dpfbo` or dp-accounting. The canary's outcome in one round is `N(0, z^2)` without its message
and `(1 - q) N(0, z^2) + q N(1, z^2)` with it; under replace-one, where it sends the opposite, without it the same about
-1. The loss `L(x) = log(P'(x) / Q'(x))` grows with x, so that its law has the mass `F(x_(j+1)) - F(x_j)` between
`j h` and `(j + 1) h`, with `L(x_j) = j h`. All losses rounded down give a lower bound of delta at every epsilon, all
rounded up an upper bound; each for both orders of the two outcomes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
from scipy.special import ndtr

Kind = tuple[float, float]  # q and z of a round
_SHARE = 0.006  # of epsilon, the width of the losses of all rounds together
_WIDEST = 1e-3  # largest step of the grid
_DEVIATIONS = 10.0  # at which a round's loss, and that of all rounds, is cut
_SPENT = 1e-13  # delta, for the rounding errors and the wrapped tails of the FFT
_HALVINGS = 48
_MOST_POINTS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """Bounds of the exact epsilon."""

    lower: float
    upper: float


def epsilon_interval(rounds: Sequence[tuple[Kind, int]], delta: float, guess: float, opposite: bool) -> Interval:
    """Bounds of epsilon at delta after `count` rounds of each kind; no bound from above under replace-one.

    guess: about epsilon, for the grid. opposite: relation replace-one; the bound holds for the pair of messages above.
    """
    T = sum(count for _, count in rounds)
    h = min(_WIDEST, _SHARE * max(guess, 1e-2) / T)
    found = []
    for up in (False, True):
        both = []
        for swapped in (False, True):
            losses = [(_one_round(q, z, h, up, swapped, opposite), count) for (q, z), count in rounds]
            both.append(_epsilon(losses, h, delta, up))
        found.append(max(both))
    return Interval(found[0], math.inf if opposite else found[1])


def _loss(x: np.ndarray, q: float, z: float, opposite: bool) -> np.ndarray:
    """`log(P'(x) / Q'(x))`."""
    with np.errstate(divide="ignore"):
        log_q, log_rest = math.log(q), np.log1p(-q)
    ratio = np.logaddexp(log_rest, log_q + (x - 0.5) / z**2)
    return ratio - np.logaddexp(log_rest, log_q + (-x - 0.5) / z**2) if opposite else ratio


def _one_round(q: float, z: float, h: float, up: bool, swapped: bool, opposite: bool) -> tuple[int, np.ndarray, float]:
    """(first index, masses, mass at infinity) of one round's loss on multiples of h; swapped: `-L` under Q."""
    first, x = _edges(q, z, h, opposite)
    last = first + len(x) - 1
    shift = 1.0 if not swapped else -1.0 if opposite else 0.0  # of the canary's message in this outcome
    F = (1 - q) * ndtr(x / z) + q * ndtr((x - shift) / z)
    masses, beyond, before = np.diff(F), float(1 - F[-1]), float(F[0])
    if swapped:
        first, masses, beyond, before = -last, masses[::-1], before, beyond
    masses = masses.copy()
    if up:  # losses in (j h, (j + 1) h] become (j + 1) h, the lowest the first of them
        masses[0] += before
        return first + 1, masses, beyond
    masses[-1] += beyond  # the largest losses become the last; the lowest are left out
    return first, masses, 0.0


@lru_cache(maxsize=256)
def _edges(q: float, z: float, h: float, opposite: bool) -> tuple[int, np.ndarray]:
    """(i, the x_j of j = i, i + 1, ..), where the loss is `j h`, within ten deviations; the outermost ones beyond."""
    ends = np.array([-1.0 * opposite, 1.0]) + _DEVIATIONS * z * np.array([-1.0, 1.0])
    low, high = _loss(ends, q, z, opposite) / h
    steps = np.arange(math.floor(low), math.ceil(high) + 1)
    a, b = np.full(len(steps), ends[0]), np.full(len(steps), ends[1])
    for _ in range(_HALVINGS):
        x = (a + b) / 2
        below = _loss(x, q, z, opposite) < steps * h
        a, b = np.where(below, x, a), np.where(below, b, x)
    return int(steps[0]), b


def _epsilon(losses: Sequence[tuple[tuple[int, np.ndarray, float], int]], h: float, delta: float, up: bool) -> float:
    """The least epsilon at which the composed losses allow delta."""
    mean, variance, widest, infinite = 0.0, 0.0, 0.0, 0.0
    for (first, masses, beyond), count in losses:
        index = first + np.arange(len(masses))
        centre = float(masses @ index)
        mean, variance = mean + count * centre, variance + count * float(masses @ (index - centre) ** 2)
        widest = max(widest, float(np.abs(index - centre).max()))
        infinite += count * beyond
    half = int(_DEVIATIONS * math.sqrt(variance) + widest) + 2
    n = min(_MOST_POINTS, scipy.fft.next_fast_len(2 * half, real=True))
    total = np.ones(n // 2 + 1, dtype=complex)
    for (first, masses, _), count in losses:
        circle = np.bincount((first + np.arange(len(masses))) % n, masses, minlength=n)
        total *= scipy.fft.rfft(circle) ** count
    start = math.floor(mean) - n // 2
    index = start + np.arange(n)
    p = np.maximum(scipy.fft.irfft(total, n)[index % n], 0.0)
    spent = delta - (infinite + _SPENT if up else -_SPENT)
    if spent <= 0:
        return math.inf
    # delta(eps) = sum over l > eps of (1 - e^(eps - l)) p_l
    loss = index * h
    loss, p = loss[loss > 0], p[loss > 0]
    A, B = np.cumsum(p[::-1])[::-1], np.cumsum((p * np.exp(-loss))[::-1])[::-1]
    k = int(np.searchsorted(np.exp(loss) * B - A, -spent))  # the first loss at which no more than `spent` is left
    if k == len(loss) or A[k] <= spent:
        return float(loss[k - 1]) if k else 0.0
    return max(0.0, math.log((A[k] - spent) / B[k]))
