"""The maximisers of feature functions in a box, by the compiled library; the method is that of `Acquisition`."""

import ctypes
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from dpfbo.gp.compiled.loading import computes, library
from dpfbo.gp.features import FeatureFunction

MOST_AXES = 16


@dataclass(frozen=True)
class Rules:
    """The constants of the search, under the names that they have in `newton` and `acquisition`; see there.

    edge: what `Regions.bounds` leaves between a corner and a face that regions share.
    """

    armijo: float
    hope: float
    near: float
    shorter: float
    flattest: float
    tiny: float
    promise: float
    apart: float
    gain: float
    border: float
    edge: float
    evaluations: int
    n_starts: int
    cells: int


class _Rules(ctypes.Structure):
    _fields_ = [(f.name, ctypes.c_long if f.type is int else ctypes.c_double) for f in fields(Rules)]


class _Sizes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_long) for name in ("D", "M", "P", "functions", "maps", "weighted", "a", "b")),
        ("parts", ctypes.c_long * MOST_AXES),
    ]


def can(function: FeatureFunction, D: int) -> bool:
    """Tell if there is a library, and the functions are such: float64 on a CPU, D axes, none of them discrete."""
    features = function.features
    numbers = (features.frequencies, features.phases, function.weights, function.length)
    return features.space is None and D <= MOST_AXES and _fit(function, D) and computes(*numbers)


def _fit(function: FeatureFunction, D: int) -> bool:
    """Tell if the sizes of all tensors belong together: the library reads as far as they say."""
    features, B = function.features, len(function)
    (maps, M, axes), (weighted, *shape) = features.frequencies.shape, function.weights.shape
    rows = maps in (1, B) and weighted in (1, B) and len(function.length) >= B > 0
    sizes = axes == function.regions.dimension == D and features.phases.shape == (maps, M) and M > 0
    return rows and sizes and shape == [function.regions.P, M]


def maximizers(function: FeatureFunction, left: Tensor, right: Tensor, rules: Rules) -> Tensor:
    """The maximiser of each function, B x D; 1 x D if all rows share one function.

    left: a x D1, right: b x D2, the candidates `(left_i, right_j)`; a and b are powers of two. A function is searched
    without regard to the others. Raises MemoryError if there is too little memory.
    """
    compiled = library()
    assert compiled is not None
    features, B, D = function.features, len(function), function.regions.dimension
    maps, M, _ = features.frequencies.shape
    weighted, P, _ = function.weights.shape
    sizes = _Sizes(D, M, P, B, maps, weighted, len(left), len(right), function.regions.parts)
    found = torch.empty(B, D, dtype=torch.float64, device="cpu")
    parts = (features.frequencies, features.phases, function.weights, function.length, left, right)
    numbers = [part.contiguous() for part in parts]
    pointers = [ctypes.c_void_p(part.data_ptr()) for part in (*numbers, found)]
    if compiled.box_search(ctypes.byref(sizes), ctypes.byref(_Rules(*astuple(rules))), *pointers):
        raise MemoryError(f"a search among {len(left) * len(right)} candidates")
    return found
