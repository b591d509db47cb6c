"""The rounds of a long run that a curve shows, and the epsilon that was spent before each of them."""

from bisect import bisect_left
from collections.abc import Sequence

MOST_POINTS = 500


def shown_rounds(rounds: int) -> list[int]:
    """Every k-th of the rounds 0..T, and the last, at most `MOST_POINTS` + 1 of them; all of them if T is small."""
    step = -(-(rounds + 1) // MOST_POINTS)
    return sorted({*range(0, rounds + 1, step), rounds})


def epsilon_before(
    rounds: Sequence[int], sent: Sequence[int], epsilons: Sequence[float | None], first: float | None
) -> list[float | None]:
    """Epsilon spent before each of `rounds`: after the last release of an earlier round, `first` if there is none.

    sent: the rounds of all releases, in order. epsilons: after each of them; None if no finite one covers it.
    """
    released = [bisect_left(sent, round) for round in rounds]
    return [epsilons[k - 1] if k else first for k in released]
