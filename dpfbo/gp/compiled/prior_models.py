"""Observations under Gaussian models with an unknown constant, by the compiled library: likelihoods and solutions.

With K a model's covariance of an agent's observations, noise included, and 1 the vector of ones:

    log likelihood = -(1/2) [r' P r + log|K| + log(1' K^-1 1)],    P = K^-1 - K^-1 1 1' K^-1 / (1' K^-1 1)
    solution = K^-1 (rest - m 1),    m = 1' K^-1 r / (1' K^-1 1) + c / sqrt(1' K^-1 1)

Every agent is computed without regard to the others. Rows are NaN where K is not positive definite. All functions raise
ValueError for a row that is none of the table, MemoryError if there is too little memory.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpfbo.gp.compiled.loading import library
from dpfbo.gp.own_gp import Hyperparameters


class _ModelSizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("n", "t", "G")]


class _Wanted(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("residual", "rest", "c", "likelihood", "solved")]


def likelihoods_on_table(table: Tensor, index: Tensor, noise: float, residual: Tensor) -> Tensor:
    """Log likelihoods, n, where K has the entries of a table of G x G. index: its rows, n x t; residual: n x t."""
    found = residual.new_empty(len(residual))
    _of_table(table, index, noise, residual=residual, likelihood=found)
    return found


def solutions_on_table(
    table: Tensor, index: Tensor, noise: float, residual: Tensor, rest: Tensor, c: Tensor
) -> Tensor:  # fmt: skip
    """Solutions, n x t, where K has the entries of a table of G x G. index: its rows, n x t; rest: n x t; c: n."""
    solved = torch.empty_like(residual, memory_format=torch.contiguous_format)
    _of_table(table, index, noise, residual=residual, rest=rest, c=c, solved=solved)
    return solved


def likelihoods_on_line(points: Tensor, hyper: Hyperparameters, residual: Tensor) -> Tensor:
    """Log likelihoods, n, under SE kernels with noise. points, residual: n x t."""
    n, t = points.shape
    numbers = torch.stack([hyper.lengthscale, hyper.variance, hyper.noise])
    assert residual.shape == (n, t) and numbers.shape == (3, n)
    found = residual.new_empty(n)
    _call(library().line_models, _ModelSizes(n, t, 0), [points, numbers], [], residual=residual, likelihood=found)  # type: ignore[union-attr]
    return found


def _of_table(table: Tensor, index: Tensor, noise: float, **wanted: Tensor) -> None:
    (n, t), G = index.shape, len(table)
    if index.min() < 0 or index.max() >= G:
        raise ValueError(f"index must hold rows of the table, 0 to {G - 1}")
    assert table.shape == (G, G) and all(len(part) == n for part in wanted.values())
    compiled = library().table_models  # type: ignore[union-attr]
    _call(compiled, _ModelSizes(n, t, G), [table, index.int()], [ctypes.c_double(noise)], **wanted)


def _call(
    compiled: Callable[..., int], sizes: _ModelSizes, arrays: list[Tensor], numbers: list[Any], **wanted: Tensor
) -> None:  # fmt: skip
    arrays = [part.contiguous() for part in arrays]
    wanted = {name: part.contiguous() for name, part in wanted.items()}
    structure = _Wanted(**{name: part.data_ptr() for name, part in wanted.items()})
    pointers = [ctypes.c_void_p(part.data_ptr()) for part in arrays]
    if compiled(ctypes.byref(sizes), *pointers, *numbers, ctypes.byref(structure)):
        raise MemoryError(f"models of {sizes.t} observations")
