"""The time course of adaptive weights: constant, then a linear fall to uniform weights."""

from dataclasses import dataclass

from dpfbo import checks


@dataclass(frozen=True)
class Decay:
    """The time course of a weighting's parameter: 1 for the first `hold` broadcasts, then a linear fall to 0.

    With a = 15, `1 + a * Decay` is the sequence a_t of the paper's App. B, which falls from 16 to 1.

    Args:
        hold: The number of broadcasts before the fall; None for no fall.
        steps: The number of values in the fall from 1 to 0, both included; if steps is 1, the only value is 0.

    Raises:
        SettingError: hold is negative, or steps is below 1.

    Example:
        >>> [Decay(hold=2, steps=3)(round) for round in range(6)]
        [1.0, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    hold: int | None
    steps: int = 1

    def __post_init__(self) -> None:
        if self.hold is not None:
            checks.integer("hold", self.hold, minimum=0)
        checks.integer("steps", self.steps, minimum=1)

    def __call__(self, round: int) -> float:
        if self.hold is None or round < self.hold:
            return 1.0
        step = round - self.hold
        return 1.0 - step / (self.steps - 1) if step < self.steps - 1 else 0.0
