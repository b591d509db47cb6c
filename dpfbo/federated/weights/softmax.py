"""The paper's softmax weighting."""

import math
from dataclasses import dataclass

from torch import Tensor

from dpfbo import checks
from dpfbo.federated.weights import normalised
from dpfbo.federated.weights.decay import Decay


@dataclass(frozen=True)
class Softmax:
    """`phi_n^(i) ∝ exp((a_t - 1) I[n in region i])` with `a_t - 1` falling from `a` to 0 (paper, App. B).

    This is the paper's softmax with temperature `a / (a_t - 1)`. Uniform once a_t = 1, and always when P = 1.
    """

    decay: Decay
    a: float = 15.0

    def __post_init__(self) -> None:
        checks.non_negative("a", self.a)

    def level(self, round: int) -> float:
        return self.decay(round)

    def __call__(self, round: int, assignment: Tensor, P: int) -> Tensor:
        return normalised(1.0, math.exp(-self.a * self.decay(round)), assignment, P)
