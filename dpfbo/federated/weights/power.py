"""Polynomially decaying weights (weightings 2 and 3 of the paper's Fig. 9)."""

from dataclasses import dataclass

from torch import Tensor

from dpfbo import checks
from dpfbo.federated.weights import normalised
from dpfbo.federated.weights.decay import Decay


@dataclass(frozen=True)
class Power:
    """Weights `phi_n^(i) ∝ c_t^exponent` for the agents of region i and 1 for others; c_t falls linearly from `c` to 1.

    Args:
        decay: The time course of `(c_t - 1) / (c - 1)`.
        c: The value of c_t before the fall.
        exponent: The power to which c_t is raised.

    Raises:
        SettingError: c or exponent is not positive.

    Example:
        >>> import torch
        >>> Power(Decay(hold=5), c=3.0)(round=0, assignment=torch.tensor([0, 1]), P=2)  # P x N
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]], dtype=torch.float64)
    """

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
