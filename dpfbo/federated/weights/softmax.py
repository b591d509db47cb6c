"""The paper's softmax weighting."""

import math
from dataclasses import dataclass

from torch import Tensor

from dpfbo import checks
from dpfbo.federated.weights import normalised
from dpfbo.federated.weights.decay import Decay


@dataclass(frozen=True)
class Softmax:
    """Weights `phi_n^(i) ∝ exp((a_t - 1) I[n in region i])`, where `a_t - 1` falls from `a` to 0 (paper, App. B).

    This is the paper's softmax with temperature `a / (a_t - 1)`.

    Args:
        decay: The time course of `(a_t - 1) / a`.
        a: The value of `a_t - 1` before the fall.

    Raises:
        SettingError: a is negative.

    Example:
        >>> import torch
        >>> Softmax(Decay(hold=5), a=math.log(3))(round=0, assignment=torch.tensor([0, 1]), P=2)  # P x N
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]], dtype=torch.float64)
    """

    decay: Decay
    a: float = 15.0

    def __post_init__(self) -> None:
        checks.non_negative("a", self.a)

    def level(self, round: int) -> float:
        return self.decay(round)

    def __call__(self, round: int, assignment: Tensor, P: int) -> Tensor:
        return normalised(1.0, math.exp(-self.a * self.decay(round)), assignment, P)
