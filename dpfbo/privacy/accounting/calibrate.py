"""Planning: the noise, sampling probability or number of rounds that meets a target epsilon.

All three searches are dp-accounting's. The accountant's epsilon must not grow with noise, nor fall with sampling or
rounds. The answer is rounded to the private side: `epsilon_of(answer) <= target`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dpfbo import checks

DIGITS = 4  # significant digits of an answer
SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4  # multipliers that the accountants can handle
SMALLEST_PROBABILITY = 1e-6
MOST_ROUNDS = checks.MOST_ROUNDS
_MANY_TARGETS = 100.0  # times the target: the epsilon that stands for any larger one

EpsilonOf = Callable[[float], float]


def noise_multiplier(epsilon_of: EpsilonOf, target: float, least: float = 1.0) -> float:
    """The smallest noise multiplier z, to `DIGITS` digits, whose epsilon is at most the target.

    least: the smallest noise of any round over z; no round gets less than `SMALLEST_NOISE`. Raises ValueError if even
    `LARGEST_NOISE` costs more than the target.
    """
    checks.positive("epsilon", target)
    smallest = _rounded(max(SMALLEST_NOISE, SMALLEST_NOISE / least), up=True)
    good = max(1.0, smallest)
    while (epsilon := epsilon_of(good)) > target:
        if good >= LARGEST_NOISE:
            raise ValueError(f"epsilon {target:g} cannot be met: noise multiplier {good:g} still costs {epsilon:.4g}")
        good = min(2 * good, LARGEST_NOISE)
    bad = max(good / 2, smallest)
    while epsilon_of(bad) <= target:
        if bad == smallest:
            return bad
        good, bad = bad, max(bad / 2, smallest)
    return _solved(epsilon_of, target, bad, good)


def is_noise_multiplier(z: object, epsilon_of: EpsilonOf, target: float, least: float = 1.0) -> bool:
    """True if z is the result of `noise_multiplier`; computes two epsilons only."""
    smallest = _rounded(max(SMALLEST_NOISE, SMALLEST_NOISE / least), up=True)
    if isinstance(z, bool) or not isinstance(z, int | float) or not smallest <= z <= LARGEST_NOISE:
        return False
    if z != _rounded(z, up=True) or epsilon_of(z) > target:
        return False
    below = _next(z, down=True)
    return below < smallest or epsilon_of(below) > target


def sampling_probability(epsilon_of: EpsilonOf, target: float) -> float:
    """The largest sampling probability, to `DIGITS` digits, whose epsilon is at most the target.

    Raises ValueError if even `SMALLEST_PROBABILITY` costs more.
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
    return _solved(epsilon_of, target, bad, good)


def rounds(epsilon_of: Callable[[int], float], target: float, most: int = MOST_ROUNDS) -> int:
    """The largest number of rounds whose epsilon is at most the target.

    Raises ValueError if one round costs more, or if the target pays for more than `most` rounds.
    """
    checks.positive("epsilon", target)
    if (first := epsilon_of(1)) > target:
        raise ValueError(f"epsilon {target:g} does not pay for one round, which costs {first:.4g}")
    good, bad = 1, 2
    while epsilon_of(bad) <= target:
        if bad > most:
            raise ValueError(f"epsilon {target:g} pays for more than {most} rounds")
        good, bad = bad, min(2 * bad, most + 1)
    answer = int(_searched(epsilon_of, target, bad, good, 1.0))
    while answer + 1 < bad and epsilon_of(answer + 1) <= target:
        answer += 1
    return answer


def _solved(epsilon_of: EpsilonOf, target: float, bad: float, good: float) -> float:
    """The last value of `DIGITS` digits on the way from good to bad that meets the target."""
    up = good > bad
    answer = _rounded(_searched(epsilon_of, target, bad, good, 0.5 * 10.0**-DIGITS * min(bad, good)), up)
    while epsilon_of(nearer := _next(answer, down=up)) <= target:
        answer = nearer
    return answer


def _searched(epsilon_of: Callable[[Any], float], target: float, bad: float, good: float, tolerance: float) -> float:
    """A value between good and bad that meets the target, within the tolerance of the last one that does."""
    import dp_accounting  # here: it imports SciPy, and an agent's process needs neither

    low, high = min(bad, good), max(bad, good)
    found = dp_accounting.calibrate_dp_mechanism(
        lambda: _ValueAccountant(epsilon_of, _MANY_TARGETS * target), lambda value: min(max(value, low), high),
        target, 0.0, dp_accounting.ExplicitBracketInterval(low, high), isinstance(good, int), tolerance,
    )  # fmt: skip
    return min(max(found, low), high)


class _ValueAccountant:
    """`epsilon_of` as an accountant for dp-accounting's search; its events are the values themselves.

    most: stands for an infinite epsilon, since the search interpolates.
    """

    def __init__(self, epsilon_of: EpsilonOf, most: float) -> None:
        import dp_accounting

        self.ledger = dp_accounting.NoOpDpEvent()
        self._epsilon_of, self._most = epsilon_of, most

    def compose(self, value: float) -> _ValueAccountant:
        self._value = value
        return self

    def get_epsilon(self, delta: float) -> float:
        return min(self._epsilon_of(self._value), self._most)


def _rounded(value: float, up: bool) -> float:
    """The value with `DIGITS` significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    steps = value / step
    if abs(steps - round(steps)) > 1e-6:
        steps = math.ceil(steps) if up else math.floor(steps)
    return float(f"{round(steps) * step:.{DIGITS}g}")


def _next(value: float, down: bool) -> float:
    """The next number of `DIGITS` digits, below or above."""
    little = 0.1**DIGITS / 2
    return _rounded(value * (1 - little if down else 1 + little), up=not down)
