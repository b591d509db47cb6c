"""The same numbers for a row of a batch, whatever else is in the batch.

Matrix products of one row, or of a few, take other code than those of many, and round differently: an agent's queries
would depend on how many agents share its process. Batches that may become small are therefore filled up with rows
that are there already.
"""

import torch
from torch import Tensor

PRODUCTS = 2  # matrices in a batched product, from which on the results stay the same
ROWS = 16  # rows of one large product, likewise


def filled(n: int, smallest: int, device: torch.device | None = None) -> Tensor:
    """Indices 0..n-1, again from 0 until there are `smallest` (none if n is 0)."""
    return torch.arange(max(n, smallest) if n else 0, device=device) % max(n, 1)
