"""Schedules of the noise multiplier, `z_t = z * schedule(t)`, public and fixed before the run.

Each round is charged at its own z_t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpfbo import checks
from dpfbo.checks import SettingError

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """Keeps the noise multiplier constant, `z_t = z`, as in the paper."""

    def __call__(self, round: int) -> float:
        return 1.0


@dataclass(frozen=True)
class PowerSchedule:
    """Sets the noise multiplier of round t = 0, 1, .. to `z_t = z (t + 1)^exponent`."""

    exponent: float = 0.5

    def __post_init__(self) -> None:
        checks.real("exponent", self.exponent)

    def __call__(self, round: int) -> float:
        return float((round + 1) ** self.exponent)


@dataclass(frozen=True)
class Steps:
    """Sets the noise multiplier of round t to `z_t = z * factors[t]`; rounds beyond the list use its last factor."""

    factors: Sequence[float]

    def __post_init__(self) -> None:
        if isinstance(self.factors, str) or not isinstance(self.factors, Sequence) or not self.factors:
            raise SettingError("factors", f"must be a list of numbers, got {self.factors!r}")
        for factor in self.factors:
            checks.positive("factors", factor)
        object.__setattr__(self, "factors", tuple(self.factors))

    def __call__(self, round: int) -> float:
        return float(self.factors[min(round, len(self.factors) - 1)])
