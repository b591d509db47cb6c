"""Padding of small batches and splitting of large batches: a row's result must not depend on the rest of its batch.

Libraries compute small matrix products, and the last rows of large ones, by different code, which rounds differently.
An agent's queries would then depend on the other agents of its process. Therefore repeated rows pad such batches.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PRODUCTS = 2  # fewest matrices in a batched product that are rounded like those of a larger one
ROWS = 16  # a single product whose number of rows is a multiple of this rounds them like any larger one
_BLOCK = 2**22  # numbers in the largest tensor of a block on a CPU
_ACCELERATOR_BLOCK = 2**27  # the same on an accelerator: 1 GB


def filled(n: int, smallest: int = PRODUCTS, device: torch.device | None = None) -> Tensor:
    """The indices 0..n-1, repeated from 0 until there are `smallest` of them; none if n is 0.

    Example:
        >>> filled(2, 5).tolist()
        [0, 1, 0, 1, 0]
    """
    return torch.arange(max(n, smallest) if n else 0, device=device) % max(n, 1)


def whole(n: int, device: torch.device | None = None) -> Tensor:
    """The indices 0..n-1, repeated from 0 until their number is a multiple of `ROWS`; none if n is 0."""
    return filled(n, -(-n // ROWS) * ROWS, device)


def padded(rows: Tensor) -> Tensor:
    """The rows, repeated from the first until their number is a multiple of `ROWS`."""
    return rows[whole(len(rows), rows.device)] if len(rows) % ROWS else rows


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """`rows @ matrix`, computed with padded rows. rows: `n x K` or `n x t x K`; matrix: `K x M`."""
    flat = rows.reshape(-1, rows.shape[-1])
    return (padded(flat) @ matrix)[: len(flat)].unflatten(0, rows.shape[:-1])


def blocks(n: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the rows 0..n-1 in blocks of bounded memory, each filled up to `PRODUCTS`; a row takes `size` numbers."""
    block = _BLOCK if device.type == "cpu" else _ACCELERATOR_BLOCK
    for rows in torch.arange(n, device=device).split(max(PRODUCTS, block // size)):
        yield rows[filled(len(rows), PRODUCTS, device)]


def in_blocks(function: Callable[[Tensor], Tensor], n: int, rows_at_once: int, device: torch.device) -> Tensor:
    """Call `function(rows)` for blocks of the rows 0..n-1, each filled up to `PRODUCTS`; returns one result per row."""
    blocks_of_rows = torch.arange(n, device=device).split(rows_at_once)
    return torch.cat([function(r[filled(len(r), PRODUCTS, device)])[: len(r)] for r in blocks_of_rows])


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensor operations compute on one thread each: more would compete with those of blocks, and round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
