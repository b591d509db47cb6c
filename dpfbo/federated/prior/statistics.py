"""The message of an agent to the server of the private prior, and what of it is public.

With `Phi_n` (n_init x M) the features of the agent's public design, `H = I - 11'/n_init`, and y in units of `scale`:

    s_n = (Phi_n' H y_n,  kappa y_n' H y_n),    A_n = Phi_n' H Phi_n

`E[s_n] = (A_n (g + h_n), ..)`: a sum of messages is a sum of evidence, which a posterior draw or mean is not. `A_n` is
public. H removes the agent's own constant c_n.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks


@dataclass(frozen=True)
class Statistics:
    """The sufficient statistics of an agent's public design.

    scale: the assumed standard deviation of an objective, a public constant. It decides how much is clipped, not what
    is inferred. scalar_weight: `kappa sqrt(n_init - 1)`, the share of the message's norm that the scalar takes.
    """

    scale: float = 1.0
    scalar_weight: float = 0.25

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        checks.positive("scalar_weight", self.scalar_weight)

    def kappa(self, n_init: int) -> float:
        """The factor of the scalar `y' H y`. Raises SettingError for a design of one point, which has no contrast."""
        checks.integer("n_init", n_init, minimum=2, maximum=checks.MOST_INITIAL)
        return self.scalar_weight / (n_init - 1) ** 0.5

    def usual_norm(self, n_init: int) -> float:
        """A clip norm that few messages exceed: 1.5 times the norm for observations whose deviation is the scale."""
        return round(1.5 * math.sqrt(max(n_init - 1, 1) * (1 + self.scalar_weight**2)), 3)

    def messages(self, Phi: Tensor, y: Tensor) -> Tensor:
        """`s_n`, `n x (M + 1)`. Phi: n x n_init x M; y: n x n_init."""
        z = centred(y) / self.scale
        linear = (Phi.mT @ z.unsqueeze(-1)).squeeze(-1)
        return torch.cat([linear, self.kappa(y.shape[1]) * (z * z).sum(1, keepdim=True)], 1)


@dataclass(frozen=True)
class DesignSums:
    """Public sums over all agents.

    A: `sum A_n`, M x M. squares: `sum A_n E_j A_n` for each block j of features, with E_j the identity on the block and
    0 elsewhere, J x M x M. contrasts: N (n_init - 1).
    """

    A: Tensor
    squares: Tensor
    contrasts: int


def centred(values: Tensor) -> Tensor:
    """`H` times values, `n x k -> n x k` or `n x k x M -> n x k x M`."""
    return values - values.mean(1, keepdim=True)


def design_sums(features: Iterable[Tensor], blocks: int) -> DesignSums:
    """The sums over designs that come in parts. features: parts n x n_init x M; blocks: J, of M / J features each."""
    A, squares, contrasts = None, None, 0
    for Phi in features:
        Z = centred(Phi)  # n x k x M; A_n = Z' Z
        flat = Z.flatten(0, 1)
        a = flat.T @ flat
        parts = Z.unflatten(2, (blocks, -1))  # n x k x J x m
        grams = torch.einsum("nkjm,nljm->njkl", parts, parts)  # Z E_j Z'
        s = torch.stack([flat.T @ (gram @ Z).flatten(0, 1) for gram in grams.unbind(1)])
        A, squares = (a, s) if A is None or squares is None else (A + a, squares + s)
        contrasts += Phi.shape[0] * (Phi.shape[1] - 1)
    if A is None or squares is None:
        raise ValueError("the sums need at least one agent")
    return DesignSums(A, squares, contrasts)
