"""Planning: the noise, sampling probability or number of rounds that meets a target epsilon.

All three are searched by bisection on what an accountant says; the answer is always on the private side of the target.
"""

import math
from collections.abc import Callable

DIGITS = 4  # significant digits of an answer
SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4  # multipliers that the accountants can handle
SMALLEST_PROBABILITY = 1e-6
MOST_ROUNDS = 10_000_000

EpsilonOf = Callable[[float], float]


def noise_multiplier(epsilon_of: EpsilonOf, target: float) -> float:
    """The smallest noise multiplier, to `DIGITS` digits, whose epsilon is at most the target.

    Raises ValueError if none between `SMALLEST_NOISE` and `LARGEST_NOISE` is.
    """
    if epsilon_of(LARGEST_NOISE) > target:
        raise ValueError(
            f"epsilon {target:g} cannot be met: noise multiplier {LARGEST_NOISE:g} still costs "
            f"{epsilon_of(LARGEST_NOISE):.4g} by this accountant"
        )
    good, bad = 1.0, 1.0
    while epsilon_of(good) > target:
        bad, good = good, min(2 * good, LARGEST_NOISE)
    if bad == good:
        while bad > SMALLEST_NOISE and epsilon_of(bad) <= target:
            good, bad = bad, max(bad / 2, SMALLEST_NOISE)
        if epsilon_of(bad) <= target:
            return bad
    return _bisect(epsilon_of, target, bad, good, up=True)


def sampling_probability(epsilon_of: EpsilonOf, target: float) -> float:
    """The largest sampling probability, to `DIGITS` digits, whose epsilon is at most the target; 1 if that is.

    Raises ValueError if not even `SMALLEST_PROBABILITY` is.
    """
    if epsilon_of(1.0) <= target:
        return 1.0
    if epsilon_of(SMALLEST_PROBABILITY) > target:
        raise ValueError(
            f"epsilon {target:g} cannot be met: sampling probability {SMALLEST_PROBABILITY:g} still costs "
            f"{epsilon_of(SMALLEST_PROBABILITY):.4g} by this accountant"
        )
    return _bisect(epsilon_of, target, 1.0, SMALLEST_PROBABILITY, up=False)


def rounds(epsilon_of: Callable[[int], float], target: float) -> int:
    """The largest number of rounds whose epsilon is at most the target (0 if one round costs more).

    Raises ValueError if that is more than `MOST_ROUNDS`.
    """
    if epsilon_of(1) > target:
        return 0
    good, bad = 1, 2
    while epsilon_of(bad) <= target:
        if bad > MOST_ROUNDS:
            raise ValueError(f"epsilon {target:g} pays for more than {MOST_ROUNDS} rounds")
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if epsilon_of(middle) <= target else (good, middle)
    return good


def _bisect(epsilon_of: EpsilonOf, target: float, bad: float, good: float, up: bool) -> float:
    """The value next to `bad` that meets the target, with `DIGITS` digits, rounded towards `good`."""
    while abs(math.log(good / bad)) > 0.5 * 10.0**-DIGITS:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if epsilon_of(middle) <= target else (good, middle)
    step = 10.0 ** (math.floor(math.log10(good)) - DIGITS + 1)
    rounded = (math.ceil if up else math.floor)(good / step) * step
    return float(f"{rounded:.{DIGITS}g}")
