"""Planning: the noise, sampling probability or number of rounds that meets a target epsilon.

All three searches bisect the numbers of four digits, or the whole numbers. The accountant's epsilon must not grow with
noise, nor fall with sampling or rounds. The answer never costs more: `epsilon_of(answer) <= target`.
"""

from bisect import bisect_left
from collections.abc import Callable

from dpfbo import checks

DIGITS = 4  # significant digits of an answer
SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4  # multipliers that the accountants can handle
SMALLEST_PROBABILITY = 1e-6
MOST_ROUNDS = checks.MOST_ROUNDS
_DECADE = 9 * 10 ** (DIGITS - 1)  # numbers of so many digits from 1 to 10
_SAME = 1e-9  # relative difference that is a rounding error

EpsilonOf = Callable[[float], float]


def noise_multiplier(epsilon_of: EpsilonOf, target: float, least: float = 1.0) -> float:
    """The smallest noise multiplier z, to `DIGITS` digits, whose epsilon is at most the target; ValueError if none is.

    least: the smallest noise of any round over z; no round gets less than `SMALLEST_NOISE`.
    """
    checks.positive("epsilon", target)
    smallest = _smallest(least)
    good = max(1.0, _number(smallest))
    while (epsilon := epsilon_of(good)) > target:
        if good >= LARGEST_NOISE:
            raise ValueError(f"epsilon {target:g} cannot be met: noise multiplier {good:g} still costs {epsilon:.4g}")
        good = min(2 * good, LARGEST_NOISE)
    bad = max(_place(good / 2), smallest)
    while bad > smallest and epsilon_of(_number(bad)) <= target:
        good, bad = _number(bad), max(_place(_number(bad) / 2), smallest)
    places = range(bad, _place(good))
    return _number(bad + bisect_left(places, True, key=lambda place: epsilon_of(_number(place)) <= target))


def is_noise_multiplier(z: object, epsilon_of: EpsilonOf, target: float, least: float = 1.0) -> bool:
    """True if z is the result of `noise_multiplier`; computes two epsilons only."""
    smallest = _smallest(least)
    if isinstance(z, bool) or not isinstance(z, int | float) or not _number(smallest) <= z <= LARGEST_NOISE:
        return False
    place = _place(z)
    if z != _number(place) or epsilon_of(z) > target:
        return False
    return place == smallest or epsilon_of(_number(place - 1)) > target


def sampling_probability(epsilon_of: EpsilonOf, target: float) -> float:
    """The largest sampling probability, to `DIGITS` digits, that costs at most the target; ValueError if none does."""
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
    """The largest number of rounds whose epsilon is at most the target; ValueError if it is 0 or above `most`."""
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
    """The number at a place among all numbers of `DIGITS` digits; 1 is at 0."""
    decade, step = divmod(place, _DECADE)
    return float(f"{_DECADE // 9 + step}e{decade - DIGITS + 1}")


def _place(value: float) -> int:
    """The place of the least number of `DIGITS` digits that is not below the value."""
    digits, decade = f"{value:.{DIGITS - 1}e}".split("e")
    nearest = _DECADE * int(decade) + int(digits.replace(".", "")) - _DECADE // 9
    return nearest + (_number(nearest) < value * (1 - _SAME))


def _smallest(least: float) -> int:
    """The place of the smallest multiplier that gives every round at least `SMALLEST_NOISE`."""
    return _place(max(SMALLEST_NOISE, SMALLEST_NOISE / least))
