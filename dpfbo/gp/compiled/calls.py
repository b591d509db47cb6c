"""Calls of the compiled library; each call maximises a batch of functions.

The result for one function does not depend on the other functions of the batch. The calls raise MemoryError if memory
is short, and ValueError for an index outside the grid or table.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfbo.gp.compiled.loading import call, computes
from dpfbo.gp.features import FeatureFunction
from dpfbo.gp.own_gp import Hyperparameters
from dpfbo.space.domain import Grid

MOST_AXES = 16
_NUMBERS = ("armijo", "hope", "near", "shorter", "flattest", "tiny", "promise", "apart", "gain", "border", "edge")
_LEAST_IMPROVEMENT = 1e-50  # smaller expected improvements lie beyond the table of `phi(u) + u Phi(u)`
_DOUBLES, _FLOATS = 8, 32  # arrays are padded to multiples of these: one vector of doubles, two vectors of floats


def _longs(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_long) for name in names]


class Rules(ctypes.Structure):
    """The constants of the search in a box.

    All but `edge` are named as in `newton` and `acquisition`. edge: on each axis, the gap between the upper bound of a
    region and the lower bound of the next region (see `Regions.bounds`).
    """

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
        *_longs("n", "t", "G", "L", "V", "R", "kernels", "kept", "coarse", "width", "clusters", "W"),
        ("own", ctypes.c_double),
        ("least_weight", ctypes.c_double),
    ]


def can_search(function: FeatureFunction, D: int) -> bool:
    """Return whether `box_maximizers` can maximise this batch of functions.

    The compiled library takes float64 tensors of matching sizes on a CPU, and at most 16 axes, none of which is
    discrete.
    """
    features, B = function.features, len(function)
    (maps, M, axes), (weighted, *shape) = features.frequencies.shape, function.weights.shape
    rows = maps in (1, B) and weighted in (1, B) and len(function.length) >= B > 0
    sizes = axes == function.regions.dimension == D <= MOST_AXES and features.phases.shape == (maps, M) and M > 0
    fit = features.space is None and rows and sizes and shape == [function.regions.P, M]
    return fit and computes(features.frequencies, features.phases, function.weights, function.length)


def box_maximizers(function: FeatureFunction, left: Tensor, right: Tensor, rules: Rules) -> Tensor:
    """Return the maximisers of B functions in a box, as unit-cube points B x D.

    The search is described at `Acquisition`. Its candidates are all pairs `(left_i, right_j)`, as in `BoxCandidates`.
    left: a x D1; right: b x D2; a and b are powers of two.
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
    """Return the grid row at which each of n draws is largest; the draws are those of `draws.exact_draw_on_grid`.

    A row is -1 if the draw's Gram matrix has no Cholesky factor or the draw's values overflow.

    line: G, the grid; basis: G x F, a Fourier basis on a circle of length `circle`; index: n x t, rows of the
    observations; rest: n x t, observations minus drawn noise; normals: n x F.
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
    G, F = basis.shape
    columns = pad(basis.mT.float(), (0, -G % _FLOATS))
    return pad(basis, (0, -F % _DOUBLES)).contiguous(), columns.contiguous()


@dataclass(frozen=True)
class GridColumns:
    """The columns of a grid's kernel tables; each column stands for one grid point.

    With `Grid.screening`, the cluster centres come first, then the points of each cluster; otherwise the columns are
    all points of the grid. Some points are repeated as padding.

    rows: for each of the W columns, the index of its grid point. columns: for each of the G grid points, the index of
    one of its columns. coarse: the number of columns before the first cluster. width: the number of columns of each
    cluster, 0 without screening.
    """

    rows: Tensor
    columns: Tensor
    coarse: int
    width: int

    @staticmethod
    def of(grid: Grid) -> "GridColumns":
        if grid.screening is None:
            coarse, members = torch.arange(len(grid.points), device="cpu"), torch.zeros(0, 0, dtype=torch.long)
        else:
            coarse, members = grid.screening
        first = pad(coarse[None], (0, -len(coarse) % _DOUBLES), mode="replicate")[0]
        last = pad(members[None], (0, -members.shape[1] % _DOUBLES), mode="replicate")[0] if len(members) else members
        rows = torch.cat([first, last.flatten()])
        columns = torch.zeros(len(grid.points), dtype=torch.int32, device="cpu")
        columns[rows.flip(0)] = torch.arange(len(rows), dtype=torch.int32, device="cpu").flip(0)
        return GridColumns(rows, columns, len(first), last.shape[1])


def grid_improvements(
    order: GridColumns, plain: Tensor, common: tuple[Tensor, Tensor] | None, own: float, noises: Tensor, mean: Tensor,
    factors: Tensor, prior: Tensor, index: Tensor, z: Tensor, improvement: Tensor, kept: int,
    least_weight: float, clusters: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Find the grid row at which each agent's expected improvement is largest.

    A model consists of a kernel, a noise variance and the factor by which the known mean is multiplied. Improvements
    are averaged over the `kept` most probable models; a model is left out if its probability is below `least_weight`
    times the largest. Observed rows are excluded. If the grid is divided into clusters, the search covers only the
    cluster centres and the points of the best `clusters` clusters.

    Returns two tensors of n entries. The first contains each agent's row. A row is -1 if no expected improvement
    reaches 1e-50, or if a covariance matrix is not positive definite. The second contains, for each agent, the total
    posterior probability of all models whose factor is positive.

    order: the grid points to which the W columns of `plain` and `common` belong; plain: L x G x W, SE kernels of L
    length-scales; common: None, or a pair of tensors with the shared function's covariances (G x W) and variances (W);
    mean: W, the known mean; prior: J x R, log prior weights, for J pairs (kernel, noise variance) and the R entries of
    `factors`; index: n x t, grid rows of the observations; z: n x t, observations after `AveragedGP.transformed`;
    improvement: 8193 values of `phi(u) + u Phi(u)`, u in [-16, 16].
    """
    (n, t), (L, G, W) = index.shape, plain.shape
    if index.min() < 0 or index.max() >= G:
        raise ValueError(f"index must hold rows of the table, 0 to {G - 1}")
    kernels = L if common is None else 2 * L
    J, R = kernels * len(noises), len(factors)
    assert z.shape == (n, t) and prior.shape == (J, R) and len(mean) == len(order.rows) == W and kept <= J * R
    sizes = _ImprovementSizes(
        n, t, G, L, len(noises), R, kernels, kept, order.coarse, order.width, clusters if order.width else 0, W, own,
        least_weight,
    )  # fmt: skip
    found, shared = torch.empty(n, dtype=torch.int64, device="cpu"), z.new_empty(n)
    tables = (plain, *(common or (plain, plain)), noises, mean, factors, prior, order.rows.int(), order.columns)
    numbers = (improvement, index.int(), z, ctypes.c_double(_LEAST_IMPROVEMENT), found, shared)
    call("grid_improvement", f"models of {t} observations", sizes, *tables, *numbers)
    return found, shared
