"""Planning: the noise, sampling probability or number of rounds that meets a target epsilon.

The accountant's epsilon must be monotone in all three. Every answer meets the target: `epsilon_of(answer) <= target`.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from dpfbo import checks

DIGITS = 4  # significant digits of an answer
SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4  # multipliers that the accountants can handle
SMALLEST_PROBABILITY = 1e-6
MOST_ROUNDS = checks.MOST_ROUNDS
_DECADE = 9 * 10 ** (DIGITS - 1)  # how many numbers of DIGITS digits lie in [1, 10)
_MOST_SECANTS = 12  # steps of the secant method, after which a search bisects; most searches take 4 to 9
_USUAL_SLOPE, _FLATTEST = -1.25, 0.1  # slope of log epsilon over log z: at the first step; flattest that is used
_SAME = 1e-9  # smaller relative differences count as rounding errors

EpsilonOf = Callable[[float], float]


def noise_multiplier(epsilon_of: EpsilonOf, target: float, least: float = 1.0) -> float:
    """Return the smallest noise multiplier z, to `DIGITS` digits, whose epsilon is at most the target.

    Each round uses z times a factor. least: the smallest of these factors; 1 if every round uses z itself. Both z and
    `least * z` are at least `SMALLEST_NOISE`. Raises ValueError if no multiplier meets the target.
    """
    checks.positive("epsilon", target)
    smallest = _smallest(least)
    largest = max(_place(LARGEST_NOISE), smallest)
    bad, good = smallest - 1, largest + 1  # places of too little noise and of enough noise
    place, seen = max(_place(1.0), smallest), list[tuple[float, float]]()
    while good - bad > 1:
        seen.append((_number(place), epsilon := epsilon_of(_number(place))))
        if epsilon <= target:
            good = place
        elif place == largest:
            z = _number(place)
            raise ValueError(f"epsilon {target:g} cannot be met: noise multiplier {z:g} still costs {epsilon:.4g}")
        else:
            bad = place
        place = _place(_likely(seen[-2:], target)) if len(seen) < _MOST_SECANTS else (bad + good) // 2
        place = min(max(place, bad + 1), good - 1)
    return _number(good)


def _likely(seen: Sequence[tuple[float, float]], target: float) -> float:
    """Return the next multiplier to try, 1/2 to 4 times the last one, by the secant method in log epsilon and log z."""
    z, epsilon = seen[-1]
    if not 0 < epsilon < math.inf:
        return 2 * z if epsilon > target else z / 2
    slope, (other, before) = _USUAL_SLOPE, seen[0]
    if other != z and 0 < before < math.inf:
        slope = min(math.log(epsilon / before) / math.log(z / other), -_FLATTEST)
    step = math.log(target / epsilon) / slope
    return z * math.exp(min(max(step, -math.log(2)), math.log(4)))


def is_noise_multiplier(z: object, epsilon_of: EpsilonOf, target: float, least: float = 1.0) -> bool:
    """Return True if `noise_multiplier` would return z; this takes at most two calls of `epsilon_of`."""
    smallest = _smallest(least)
    if isinstance(z, bool) or not isinstance(z, int | float) or not _number(smallest) <= z <= LARGEST_NOISE:
        return False
    place = _place(z)
    if z != _number(place) or epsilon_of(z) > target:
        return False
    return place == smallest or epsilon_of(_number(place - 1)) > target


def sampling_probability(epsilon_of: EpsilonOf, target: float) -> float:
    """Return the largest sampling probability, to `DIGITS` digits, whose epsilon is at most the target.

    Raises ValueError if no probability meets the target.
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
    first = _place(good) + 1
    places = range(first, _place(bad))
    return _number(first - 1 + bisect_left(places, True, key=lambda place: epsilon_of(_number(place)) > target))


def rounds(epsilon_of: Callable[[int], float], target: float, most: int = MOST_ROUNDS) -> int:
    """Return the largest number of rounds whose epsilon is at most the target.

    Raises ValueError if this number is 0 or above `most`.
    """
    checks.positive("epsilon", target)
    if (first := epsilon_of(1)) > target:
        raise ValueError(f"epsilon {target:g} does not pay for one round, which costs {first:.4g}")
    good, bad = 1, 2
    while epsilon_of(bad) <= target:
        if bad > most:
            raise ValueError(f"epsilon {target:g} pays for more than {most} rounds")
        good, bad = bad, min(2 * bad, most + 1)
    return good + bisect_left(range(good + 1, bad), True, key=lambda T: epsilon_of(T) > target)


def _number(place: int) -> float:
    """Return the number at index `place` in the ascending list of positive numbers with `DIGITS` significant digits.

    The number 1 has index 0; smaller numbers have negative indices.
    """
    decade, step = divmod(place, _DECADE)
    return float(f"{_DECADE // 9 + step}e{decade - DIGITS + 1}")


def _place(value: float) -> int:
    """Return the least index n for which `_number(n)`, a number of `DIGITS` significant digits, is at least the value.

    A number that is smaller than the value only by a rounding error counts as equal.
    """
    digits, decade = f"{value:.{DIGITS - 1}e}".split("e")
    nearest = _DECADE * int(decade) + int(digits.replace(".", "")) - _DECADE // 9
    return nearest + (_number(nearest) < value * (1 - _SAME))


def _smallest(least: float) -> int:
    return _place(max(SMALLEST_NOISE, SMALLEST_NOISE / least))
