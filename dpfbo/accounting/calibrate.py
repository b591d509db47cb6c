"""Planning: the noise, sampling probability or number of rounds that meets a target epsilon.

All three search by bisection on what an accountant says, which must not grow with noise, nor fall with sampling or
rounds. The answer is on the private side: `epsilon_of(answer) <= target`.
"""

import math
from collections.abc import Callable

from dpfbo import checks

DIGITS = 4  # significant digits of an answer
SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4  # multipliers that the accountants can handle
SMALLEST_PROBABILITY = 1e-6
MOST_ROUNDS = 100_000

EpsilonOf = Callable[[float], float]


def noise_multiplier(epsilon_of: EpsilonOf, target: float) -> float:
    """The smallest noise multiplier, to `DIGITS` digits, whose epsilon is at most the target.

    Raises ValueError if none between `SMALLEST_NOISE` and `LARGEST_NOISE` is.
    """
    checks.positive("epsilon", target)
    good = 1.0
    while (epsilon := epsilon_of(good)) > target:
        if good == LARGEST_NOISE:
            raise ValueError(f"epsilon {target:g} cannot be met: noise multiplier {good:g} still costs {epsilon:.4g}")
        good = min(2 * good, LARGEST_NOISE)
    bad = good / 2
    while epsilon_of(bad) <= target:
        if bad == SMALLEST_NOISE:
            return bad
        good, bad = bad, max(bad / 2, SMALLEST_NOISE)
    return _bisect(epsilon_of, target, bad, good)


def sampling_probability(epsilon_of: EpsilonOf, target: float) -> float:
    """The largest sampling probability, to `DIGITS` digits, whose epsilon is at most the target; 1 if that is.

    Raises ValueError if not even `SMALLEST_PROBABILITY` is.
    """
    checks.positive("epsilon", target)
    if epsilon_of(1.0) <= target:
        return 1.0
    bad, good = 1.0, 0.1
    while (epsilon := epsilon_of(good)) > target:
        if good == SMALLEST_PROBABILITY:
            raise ValueError(
                f"epsilon {target:g} cannot be met: sampling probability {good:g} still costs {epsilon:.4g}"
            )
        bad, good = good, max(good / 10, SMALLEST_PROBABILITY)
    return _bisect(epsilon_of, target, bad, good)


def rounds(epsilon_of: Callable[[int], float], target: float, most: int = MOST_ROUNDS) -> int:
    """The largest number of rounds whose epsilon is at most the target.

    Raises ValueError if not even one round is, or more than `most` are.
    """
    checks.positive("epsilon", target)
    if (first := epsilon_of(1)) > target:
        raise ValueError(f"epsilon {target:g} does not pay for one round, which costs {first:.4g}")
    good, bad = 1, 2
    while epsilon_of(bad) <= target:
        if bad > most:
            raise ValueError(f"epsilon {target:g} pays for more than {most} rounds")
        good, bad = bad, min(2 * bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if epsilon_of(middle) <= target else (good, middle)
    return good


def _bisect(epsilon_of: EpsilonOf, target: float, bad: float, good: float) -> float:
    """The value next to `bad` that meets the target, with `DIGITS` digits, rounded towards `good`."""
    up = good > bad
    while abs(math.log(good / bad)) > 0.5 * 10.0**-DIGITS:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if epsilon_of(middle) <= target else (good, middle)
    step = 10.0 ** (math.floor(math.log10(good)) - DIGITS + 1)
    rounded = (math.ceil if up else math.floor)(good / step) * step
    return float(f"{rounded:.{DIGITS}g}")
