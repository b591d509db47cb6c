"""The calls of the compiled library, whose result for a function or agent does not depend on the rest of the batch.

All raise MemoryError if there is too little memory, and ValueError for an index that is no row of the grid or table.
"""

import ctypes
import math
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
_LEAST_IMPROVEMENT = 1e-10  # below it the table of the function is too coarse
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


class _ImprovementSizes(ctypes.Structure):
    _fields_ = [
        *_longs("n", "t", "G", "L", "V", "R", "kernels", "kept", "coarse", "width", "clusters"),
        ("own", ctypes.c_double),
    ]


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


def grid_improvements(
    plain: Tensor, common: Tensor | None, own: float, noises: Tensor, mean: Tensor, factors: Tensor, prior: Tensor,
    index: Tensor, z: Tensor, kept: int, screening: tuple[Tensor, Tensor] | None, clusters: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The grid row of the largest expected improvement, n, and the probability of models with the mean, n.

    The method is that of `averaged_gp`. plain: L x G x G, the tables of the kernels; common: G x G, of the covariance
    that all share, or None; mean: G; prior: J x R log weights; index: n x t; z: n x t; screening: see `Grid.screening`.
    The row is -1 where the improvement is too small for the table of its function, or a matrix has no factor.
    """
    (n, t), (L, G, _) = index.shape, plain.shape
    if index.min() < 0 or index.max() >= G:
        raise ValueError(f"index must hold rows of the table, 0 to {G - 1}")
    kernels = L if common is None else 2 * L
    coarse, members = screening if screening else (torch.zeros(1, dtype=torch.int32, device="cpu"),) * 2
    J, R = kernels * len(noises), len(factors)
    assert z.shape == (n, t) and prior.shape == (J, R) and len(mean) == G and kept <= J * R
    width = members.shape[1] if screening else 0
    sizes = _ImprovementSizes(
        n, t, G, L, len(noises), R, kernels, kept, len(coarse), width, clusters if screening else 0, own
    )
    found, shared = torch.empty(n, dtype=torch.int64, device="cpu"), z.new_empty(n)
    tables = (plain, plain if common is None else common, noises, mean, factors, prior, index.int(), z)
    numbers = (coarse.int(), members.int(), _improvement_table(), ctypes.c_double(_LEAST_IMPROVEMENT), found, shared)
    call("grid_improvement", f"models of {t} observations", sizes, *tables, *numbers)
    return found, shared


@lru_cache(maxsize=1)
def _improvement_table() -> Tensor:
    """`phi(u) + u Phi(u)` at the points of the table in grid_improvement.c."""
    u = torch.linspace(-8, 8, 4097, dtype=torch.float64, device="cpu")
    return (-0.5 * u * u).exp() / math.sqrt(2 * math.pi) + u * torch.special.ndtr(u)
