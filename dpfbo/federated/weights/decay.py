"""The common time course of adaptive weights: hold, decay linearly, end."""

from dataclasses import dataclass

from dpfbo import checks


@dataclass(frozen=True)
class Decay:
    """1 for the first `hold` broadcasts, then `linspace(1, 0, steps)` inclusive, then 0.

    With a = 15, `1 + a * Decay` is the sequence a_t of the paper's App. B: 16 for `hold` broadcasts, then down to 1.
    Element 0 is the first broadcast (round 0). hold = None never decays.
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
