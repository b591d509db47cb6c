"""The curator's table: each row has the features of one candidate, and the value of the objective there."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo.outsourced.hyperparameters import Belief


@dataclass(frozen=True)
class Public:
    """The public facts of a table: its number of rows, and the box that rows should lie in."""

    n: int
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @property
    def dimension(self) -> int:
        return len(self.lower)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The lower and the upper corner of the box, d each."""
        low, high = (torch.tensor(bound, dtype=torch.float64, device="cpu") for bound in (self.lower, self.upper))
        return low, high

    @property
    def radius(self) -> float:
        """The norm of the box's farthest corner, which is the largest norm of a row in the box."""
        return float(torch.stack(self.bounds).abs().amax(0).norm())


@dataclass(frozen=True)
class Table:
    """A table of n candidates, each with d features and a value.

    Args:
        rows: n x d, the features minus the centre of the public box, in units of their GP length-scales.
        natural: n x d, the features in the users' units.
        values: n, the objective (larger is better) in units of sigma_y, the prior's standard deviation; noiseless if
            the noiseless values are known.
        names: The d names of the features.
        lower: The d lower bounds of the public box, which does not depend on `rows`; some rows may lie outside.
        upper: The d upper bounds.

    Raises:
        ValueError: There are fewer than two rows, a number is not finite, or a feature is constant.

    Example:
        >>> rows = torch.tensor([[-1.0], [1.0]])
        >>> table = Table(rows, 5 * rows, torch.tensor([0.2, 0.7]), names=("size",), lower=(-2.0,), upper=(2.0,))
        >>> table.public.n, table.public.radius
        (2, 2.0)
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
        for part, numbers in (("features", self.rows), ("values", self.values)):
            if not bool(torch.isfinite(numbers).all()):
                raise ValueError(f"the {part} of a table must be finite numbers, got others in some of its {n} rows")
        for name, column in zip(self.names, self.rows.T, strict=True):
            if bool((column == column[0]).all()):
                raise ValueError(f"feature {name} must not be constant, got {n} equal values")

    @property
    def public(self) -> Public:
        return Public(len(self.rows), self.lower, self.upper)


@dataclass(frozen=True)
class ReleasedTable:
    """The values that a curator's transform released to its modeler."""

    values: Tensor


class CandidateProblem(Protocol):
    """An outsourced problem: the curator's table, and public assumptions about the objective.

    Attributes:
        name: The problem's name in records.
        metric: The name of the reported number.
        lower_is_better: True if smaller values of the metric are better.
    """

    name: str
    metric: str
    lower_is_better: bool

    @property
    def stand_in(self) -> str | None:
        """One sentence on the data that replace the paper's data; None if the data are the paper's own."""

    @property
    def n_agents(self) -> int:
        """The number of agents, which is 1: the curator."""

    @property
    def table(self) -> Table:
        """The curator's table."""

    @property
    def prior(self) -> Belief:
        """The modeler's GP in the units of `Table.rows`; its length-scale is 1."""

    @property
    def noise_variance(self) -> float:
        """The variance of the noise that a measurement adds to `Table.values`; 0 for exact measurements."""
