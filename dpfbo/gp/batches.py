"""Padding and splitting of batches, so that the result of a row does not depend on the other rows of its batch.

Libraries may round a row differently in a small matrix product, or near the end of a large one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PRODUCTS = 2  # smallest batch of matrix products that is rounded like a larger batch
ROWS = 16  # a single matrix product with a multiple of this many rows rounds each row as a larger product does
_BLOCK = 2**22  # entries of the largest tensor of a block on a CPU
_ACCELERATOR_BLOCK = 2**27  # the same on an accelerator: 1 GB


def filled(n: int, smallest: int = PRODUCTS, device: torch.device | None = None) -> Tensor:
    """Return the indices 0..n-1, repeated in order until there are at least `smallest`; none if n is 0.

    Example:
        >>> filled(2, 5).tolist()
        [0, 1, 0, 1, 0]
    """
    return torch.arange(max(n, smallest) if n else 0, device=device) % max(n, 1)


def whole(n: int, device: torch.device | None = None) -> Tensor:
    """Return the indices `i % n` for i from 0 to m - 1, where m is n rounded up to a multiple of `ROWS`."""
    return filled(n, -(-n // ROWS) * ROWS, device)


def padded(rows: Tensor) -> Tensor:
    """Repeat the rows in order until their number is a multiple of `ROWS`."""
    return rows[whole(len(rows), rows.device)] if len(rows) % ROWS else rows


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Compute `rows @ matrix` so that the rounding of a row does not depend on the number of rows.

    rows: `n x K` or `n x t x K`; matrix: `K x M`.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    return (padded(flat) @ matrix)[: len(flat)].unflatten(0, rows.shape[:-1])


def blocks(n: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the row indices 0..n-1 in blocks whose rows fit into a limited memory.

    If only one index is left for the last block, the block contains this index twice. size: the number of tensor
    entries that each row takes.
    """
    block = _BLOCK if device.type == "cpu" else _ACCELERATOR_BLOCK
    for rows in torch.arange(n, device=device).split(max(PRODUCTS, block // size)):
        yield rows[filled(len(rows), PRODUCTS, device)]


def in_blocks(function: Callable[[Tensor], Tensor], n: int, rows_at_once: int, device: torch.device) -> Tensor:
    """Call `function` for blocks of the row indices 0..n-1, and return the n results.

    A block has `rows_at_once` indices; the last block may have fewer. If a block has only one index, `function` gets
    this index twice, and the second result is dropped.
    """
    blocks_of_rows = torch.arange(n, device=device).split(rows_at_once)
    return torch.cat([function(r[filled(len(r), PRODUCTS, device)])[: len(r)] for r in blocks_of_rows])


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread per tensor operation; more threads would change the rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
