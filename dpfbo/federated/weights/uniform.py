"""Uniform weights."""

from dataclasses import dataclass

from torch import Tensor

from dpfbo.federated.weights import normalised


@dataclass(frozen=True)
class Uniform:
    """Uniform weights, `phi_n^(i) = 1 / N` in every round ("DE without weights", paper Fig. 5).

    Example:
        >>> import torch
        >>> Uniform()(round=0, assignment=torch.tensor([0, 1]), P=2)  # P x N
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]], dtype=torch.float64)
    """

    def level(self, round: int) -> float:
        return 1.0

    def __call__(self, round: int, assignment: Tensor, P: int) -> Tensor:
        return normalised(1.0, 1.0, assignment, P)
