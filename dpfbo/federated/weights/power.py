"""Polynomially decaying weights (weightings 2 and 3 of the paper's Fig. 9)."""

from dataclasses import dataclass

from torch import Tensor

from dpfbo import checks
from dpfbo.federated.weights import normalised
from dpfbo.federated.weights.decay import Decay


@dataclass(frozen=True)
class Power:
    """`phi_n^(i) ∝ c_t^exponent` for the region's own agents, 1 for the others, c_t falling linearly from `c` to 1."""

    decay: Decay
    c: float = 1000.0
    exponent: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("c", self.c)
        checks.positive("exponent", self.exponent)

    def level(self, round: int) -> float:
        return self.decay(round)

    def __call__(self, round: int, assignment: Tensor, P: int) -> Tensor:
        c_t = 1 + (self.c - 1) * self.decay(round)
        return normalised(c_t**self.exponent, 1.0, assignment, P)
