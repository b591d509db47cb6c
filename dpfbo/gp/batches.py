"""Padding of small batches, so that a row's numbers do not depend on the other rows of its batch.

Products of one matrix, or of a few rows, run other code than larger ones and round differently. An agent's queries
would then depend on how many agents share its process. Small batches are therefore padded with repeated rows.
"""

import torch
from torch import Tensor

PRODUCTS = 2  # fewest matrices in a batched product that are rounded like those of a larger one
ROWS = 16  # fewest rows in a single product that are rounded like those of a larger one


def filled(n: int, smallest: int, device: torch.device | None = None) -> Tensor:
    """Indices 0..n-1, repeated from 0 until there are `smallest` of them; none if n is 0."""
    return torch.arange(max(n, smallest) if n else 0, device=device) % max(n, 1)
