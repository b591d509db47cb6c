"""The maximisers of exact posterior draws on a grid, by the compiled library; the method is that of `draws`."""

import ctypes
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfbo.gp.compiled.loading import library
from dpfbo.gp.own_gp import Hyperparameters

_DOUBLES, _FLOATS = 8, 32  # paddings are to multiples of these: a vector, and two


class _GridSizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("n", "t", "G", "F", "width", "Fp")]


def maximizers(
    line: Tensor, basis: Tensor, circle: float, index: Tensor, rest: Tensor, normals: Tensor, hyper: Hyperparameters,
    noise: Tensor,
) -> Tensor:  # fmt: skip
    """The row of each draw's maximiser in the grid, n; -1 where the Gram matrix is not positive definite.

    line: G; basis: G x F, the Fourier basis of a circle; index: n x t, rows of the grid; rest: n x t, outcomes without
    the drawn noise; normals: n x F. A draw is maximised without regard to the others. Raises ValueError if a row is
    none of the grid, MemoryError if there is too little memory.
    """
    compiled = library()
    assert compiled is not None
    (n, t), (G, F) = index.shape, basis.shape
    if index.min() < 0 or index.max() >= G:
        raise ValueError(f"index must hold rows of the grid, 0 to {G - 1}")
    assert rest.shape == (n, t) and normals.shape == (n, F) and len(line) == G
    rows, columns = _padded(basis)
    found = torch.empty(n, dtype=torch.int64)
    numbers = torch.stack([hyper.lengthscale, hyper.variance, noise])
    parts = (line, rows, columns, index.int(), rest, normals, numbers)
    kept = [part.contiguous() for part in parts]
    before, after = ([ctypes.c_void_p(part.data_ptr()) for part in some] for some in (kept, [found]))
    sizes = _GridSizes(n, t, G, F, columns.shape[1], rows.shape[1])
    if compiled.grid_draw(ctypes.byref(sizes), *before, ctypes.c_double(circle), *after):
        raise MemoryError(f"draws from {t} observations on a grid of {G} points")
    return found


@lru_cache(maxsize=32)
def _padded(basis: Tensor) -> tuple[Tensor, Tensor]:
    """The basis with padded rows, and, in single precision, with padded columns."""
    G, F = basis.shape
    columns = pad(basis.mT.float(), (0, -G % _FLOATS))
    return pad(basis, (0, -F % _DOUBLES)).contiguous(), columns.contiguous()
