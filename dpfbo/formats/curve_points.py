"""Thin out the curve of a long run to at most 501 rounds, and find the epsilon spent before each of these rounds."""

from bisect import bisect_left
from collections.abc import Sequence

MOST_POINTS = 500


def shown_rounds(rounds: int) -> list[int]:
    """Return equally spaced rounds that start at 0, and `rounds` itself; at most `MOST_POINTS` + 1 in all."""
    step = -(-(rounds + 1) // MOST_POINTS)
    return sorted({*range(0, rounds + 1, step), rounds})


def epsilon_before(
    rounds: Sequence[int], sent: Sequence[int], epsilons: Sequence[float | None], first: float | None
) -> list[float | None]:
    """Return, for each of `rounds`, the epsilon that the releases of earlier rounds have spent.

    sent: the rounds of all releases, in order. epsilons: epsilon after each release; None if it is not finite. first:
    epsilon before the first release.
    """
    released = [bisect_left(sent, round) for round in rounds]
    return [epsilons[k - 1] if k else first for k in released]
