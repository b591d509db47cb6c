"""What a curator holds: a table of candidates, one row each, and what measuring a row would give."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo import checks

_LEAST_NOISE = 1e-12  # of a prior, in variances: with less, posteriors of repeated measurements lose their digits


@dataclass(frozen=True)
class Public:
    """What everybody may know of a table: how many rows it has, and the box that they are supposed to lie in."""

    n: int
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @property
    def dimension(self) -> int:
        return len(self.lower)

    @property
    def radius(self) -> float:
        """Norm of the farthest corner of the box: every row inside it is at most this long."""
        corner = torch.tensor([self.lower, self.upper], dtype=torch.float64).abs().amax(0)
        return float(corner.norm())


@dataclass(frozen=True)
class Table:
    """n candidates with d features.

    rows: n x d, the features in units of their GP length-scales, from the centre of the public box; natural: n x d,
    the same as users know them; values: n, the objective (larger is better) in units of sigma_y, the prior's standard
    deviation, noiseless where that is known; names: of the features; lower, upper: the public box of `rows`, known
    without looking at them (a row may lie outside).

    Raises ValueError, one sentence, for fewer than two rows, numbers that are not finite, or a constant feature.
    """

    rows: Tensor
    natural: Tensor
    values: Tensor
    names: tuple[str, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        n, d = self.rows.shape
        if n < 2:
            raise ValueError(f"a table of candidates must have at least 2 rows, got {n}")
        if not all(len(part) == d for part in (self.names, self.lower, self.upper)):
            raise ValueError(f"a table needs a name and bounds for each of its {d} features, got {self.names}")
        for name, low, high in zip(self.names, self.lower, self.upper, strict=True):
            if not -torch.inf < low < high < torch.inf:
                raise ValueError(f"the public bounds of {name} must be finite with lower < upper, got {low}, {high}")
        for what, numbers in (("features", self.rows), ("values", self.values)):
            if not bool(torch.isfinite(numbers).all()):
                raise ValueError(f"the {what} of a table must be finite numbers, got others in some of its {n} rows")
        for name, column in zip(self.names, self.rows.T, strict=True):
            if bool((column == column[0]).all()):
                raise ValueError(f"feature {name} must not be constant, got {n} equal values")

    @property
    def public(self) -> Public:
        return Public(len(self.rows), self.lower, self.upper)


@dataclass(frozen=True)
class ReleasedTable:
    """What a curator released of its table, for its modeler. values: as of its transform."""

    values: Tensor


@dataclass(frozen=True)
class Prior:
    """The GP that the modeler believes in: SE kernel with length-scale 1 in the units of `Table.rows`.

    variance: of the objective in units of sigma_y^2 (1 where sigma_y is the prior's); noise: variance of a
    measurement; mean: of the objective.
    """

    variance: float = 1.0
    noise: float = 1e-5
    mean: float = 0.0

    def __post_init__(self) -> None:
        checks.positive("the prior's variance", self.variance)
        checks.real("the prior's mean", self.mean)
        least = _LEAST_NOISE * self.variance
        if not least <= self.noise < float("inf"):
            raise ValueError(f"the prior's noise must be a finite number of at least {least:.3g}, got {self.noise!r}")


class CandidateProblem(Protocol):
    """An outsourced problem: its curator's table, and what is publicly assumed about it."""

    name: str
    metric: str
    lower_is_better: bool

    @property
    def stand_in(self) -> str | None:
        """What data stand in for the paper's, in one sentence; None if they do not."""

    @property
    def n_agents(self) -> int:
        """1, the curator."""

    @property
    def table(self) -> Table: ...

    @property
    def prior(self) -> Prior: ...

    @property
    def noise_variance(self) -> float:
        """Of what a measurement adds to `Table.values`; 0 where those are measurements themselves."""
