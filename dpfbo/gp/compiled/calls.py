"""The calls of the compiled library, whose result for a function or agent does not depend on the rest of the batch.

All raise MemoryError if there is too little memory, and ValueError for an index that is no row of the grid or table.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfbo.gp.compiled.loading import call, computes
from dpfbo.gp.features import FeatureFunction
from dpfbo.gp.own_gp import Hyperparameters

MOST_AXES = 16
_NUMBERS = ("armijo", "hope", "near", "shorter", "flattest", "tiny", "promise", "apart", "gain", "border", "edge")
_DOUBLES, _FLOATS = 8, 32  # paddings are to multiples of these: a vector, and two


def _longs(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_long) for name in names]


class Rules(ctypes.Structure):
    """The constants of the search in a box, named as in `newton` and `acquisition`; edge: see `Regions.bounds`."""

    _fields_ = [*((name, ctypes.c_double) for name in _NUMBERS), *_longs("evaluations", "n_starts", "cells")]


class _Sizes(ctypes.Structure):
    _fields_ = [
        *_longs("D", "M", "P", "functions", "maps", "weighted", "a", "b"),
        ("parts", ctypes.c_long * MOST_AXES),
    ]


class _GridSizes(ctypes.Structure):
    _fields_ = _longs("n", "t", "G", "F", "width", "Fp")


class _ModelSizes(ctypes.Structure):
    _fields_ = _longs("n", "t", "G")


class _Wanted(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("residual", "rest", "c", "likelihood", "solved")]


def can_search(function: FeatureFunction, D: int) -> bool:
    """Tell whether the library can search these functions: float64 on a CPU, D axes, none of them discrete.

    The sizes of all tensors must be consistent, because the library trusts them.
    """
    features, B = function.features, len(function)
    (maps, M, axes), (weighted, *shape) = features.frequencies.shape, function.weights.shape
    rows = maps in (1, B) and weighted in (1, B) and len(function.length) >= B > 0
    sizes = axes == function.regions.dimension == D <= MOST_AXES and features.phases.shape == (maps, M) and M > 0
    fit = features.space is None and rows and sizes and shape == [function.regions.P, M]
    return fit and computes(features.frequencies, features.phases, function.weights, function.length)


def box_maximizers(function: FeatureFunction, left: Tensor, right: Tensor, rules: Rules) -> Tensor:
    """The maximiser of each function, B x D, by the method of `Acquisition`; 1 x D if all rows share one function.

    left: a x D1, right: b x D2, the candidates `(left_i, right_j)`; a and b are powers of two.
    """
    features, B, D = function.features, len(function), function.regions.dimension
    maps, M, _ = features.frequencies.shape
    weighted, P, _ = function.weights.shape
    sizes = _Sizes(D, M, P, B, maps, weighted, len(left), len(right), function.regions.parts)
    found = torch.empty(B, D, dtype=torch.float64, device="cpu")
    arrays = (features.frequencies, features.phases, function.weights, function.length, left, right, found)
    call("box_search", f"a search among {len(left) * len(right)} candidates", sizes, rules, *arrays)
    return found


def grid_maximizers(
    line: Tensor, basis: Tensor, circle: float, index: Tensor, rest: Tensor, normals: Tensor, hyper: Hyperparameters,
    noise: Tensor,
) -> Tensor:  # fmt: skip
    """The grid row of the maximiser of each exact draw, n; -1 where the Gram matrix is not positive definite.

    line: G; basis: G x F, the Fourier basis of a circle; index: n x t, rows of the grid; rest: n x t, outcomes without
    the drawn noise; normals: n x F. The method is that of `draws.exact_draw_on_grid`.
    """
    (n, t), (G, F) = index.shape, basis.shape
    if index.min() < 0 or index.max() >= G:
        raise ValueError(f"index must hold rows of the grid, 0 to {G - 1}")
    assert rest.shape == (n, t) and normals.shape == (n, F) and len(line) == G
    rows, columns = _padded(basis)
    found = torch.empty(n, dtype=torch.int64)
    numbers = torch.stack([hyper.lengthscale, hyper.variance, noise])
    sizes = _GridSizes(n, t, G, F, columns.shape[1], rows.shape[1])
    arrays = (line, rows, columns, index.int(), rest, normals, numbers)
    task = f"draws from {t} observations on a grid of {G} points"
    call("grid_draw", task, sizes, *arrays, ctypes.c_double(circle), found)
    return found


@lru_cache(maxsize=32)
def _padded(basis: Tensor) -> tuple[Tensor, Tensor]:
    """The basis with padded rows, and, in single precision, with padded columns."""
    G, F = basis.shape
    columns = pad(basis.mT.float(), (0, -G % _FLOATS))
    return pad(basis, (0, -F % _DOUBLES)).contiguous(), columns.contiguous()


def likelihoods_on_table(table: Tensor, index: Tensor, noise: float, residual: Tensor) -> Tensor:
    """Log likelihoods, n, of observations with an unknown constant, where K has entries of a table, G x G.

    With K the covariance of an agent's observations, noise included, and 1 the vector of ones, they are

        -(1/2) [r' P r + log|K| + log(1' K^-1 1)],    P = K^-1 - K^-1 1 1' K^-1 / (1' K^-1 1)

    index: n x t rows of the table; residual: r, n x t. A result is NaN where K is not positive definite.
    """
    found = residual.new_empty(len(residual))
    _of_table(table, index, noise, residual=residual, likelihood=found)
    return found


def solutions_on_table(
    table: Tensor, index: Tensor, noise: float, residual: Tensor, rest: Tensor, c: Tensor
) -> Tensor:  # fmt: skip
    """`K^-1 (rest - m 1)`, n x t, K of `likelihoods_on_table`, m = `1' K^-1 r / (1' K^-1 1) + c / sqrt(1' K^-1 1)`."""
    solved = torch.empty_like(residual, memory_format=torch.contiguous_format)
    _of_table(table, index, noise, residual=residual, rest=rest, c=c, solved=solved)
    return solved


def likelihoods_on_line(points: Tensor, hyper: Hyperparameters, residual: Tensor) -> Tensor:
    """The log likelihoods of `likelihoods_on_table` under SE kernels with noise; points, residual: n x t."""
    n, t = points.shape
    numbers = torch.stack([hyper.lengthscale, hyper.variance, hyper.noise])
    assert residual.shape == (n, t) and numbers.shape == (3, n)
    found = residual.new_empty(n)
    _call("line_models", _ModelSizes(n, t, 0), [points, numbers], residual=residual, likelihood=found)
    return found


def _of_table(table: Tensor, index: Tensor, noise: float, **wanted: Tensor) -> None:
    (n, t), G = index.shape, len(table)
    if index.min() < 0 or index.max() >= G:
        raise ValueError(f"index must hold rows of the table, 0 to {G - 1}")
    assert table.shape == (G, G) and all(len(part) == n for part in wanted.values())
    _call("table_models", _ModelSizes(n, t, G), [table, index.int(), ctypes.c_double(noise)], **wanted)


def _call(name: str, sizes: _ModelSizes, arguments: list[Any], **wanted: Tensor) -> None:
    kept = {key: part.contiguous() for key, part in wanted.items()}  # until the call returns
    structure = _Wanted(**{key: part.data_ptr() for key, part in kept.items()})
    call(name, f"models of {sizes.t} observations", sizes, *arguments, structure)
