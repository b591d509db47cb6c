"""Weights of distributed exploration: `phi_n^(i)` is the weight of agent n in region i (paper, Sec. 3.2).

A weighting is called with (round, assignment, P), where assignment holds the region of each of the N agents. It returns
the `P x N` weights; each row sums to 1. A weighting may have a method `level`, which maps a round to a number: two
rounds that are mapped to the same number have the same weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Weighting = Callable[[int, Tensor, int], Tensor]


def level_of(weighting: Weighting, round: int) -> float:
    """Return the level of a round, a number: two rounds of the same level have the same weights.

    If the class that defines `__call__` also defines `level`, the `level` of this class is called. Otherwise, the level
    is the round itself. So neither a subclass that overrides only `__call__` nor one that overrides only `level` mixes
    its own method with the other method of its parent.
    """
    computing = next((kind for kind in type(weighting).__mro__ if "__call__" in vars(kind)), object)
    level = vars(computing).get("level")
    return float(round if level is None else level(weighting, round))


def normalised(inside: float, outside: float, assignment: Tensor, P: int) -> Tensor:
    """Return weights (P x N) proportional to `inside` for the agents of a region and to `outside` for all others."""
    own = assignment == torch.arange(P, device=assignment.device)[:, None]  # P x N
    raw = torch.full(own.shape, outside, dtype=torch.float64, device=own.device).masked_fill_(own, inside)
    return raw / raw.sum(1, keepdim=True)
