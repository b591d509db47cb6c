"""The transforms of a table into a release: one file each, with its YAML in `conf/transform/`.

The private half of a transform (`release`, `candidate_rows`) sees the rows; its public half (`candidates`) only
post-processes the release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from dpfbo.outsourced.table import Public, Table
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Diagnostics, Release

if TYPE_CHECKING:
    import dp_accounting

NORM = 25.0  # the largest norm of a scaled row, in which neighbours are at most 1 apart (paper, Sec. 4)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a modeler, all public.

    points: m x r. input_variance: r, the variance of the difference between a point and the input that is measured
    for it; None for no difference. fresh: every measurement of a candidate takes another input near it, else the same
    one. counts: m, the estimated number of inputs near each candidate; None if unknown.
    """

    points: Tensor
    input_variance: Tensor | None = None
    fresh: bool = False
    counts: Tensor | None = None


@dataclass(frozen=True)
class Unreleased:
    """The facts of a release that stay with the curator.

    diagnostics: for the records of a simulation. order: the row number in the table of each released row, which is
    secret; None where the release keeps the table's order.
    """

    diagnostics: Diagnostics
    order: Sequence[int] | None = None


class CandidateRows(Protocol):
    """The rows of each candidate, which only the curator knows."""

    def __len__(self) -> int:
        """The number of candidates."""

    def rows(self, index: int) -> Tensor:
        """The numbers of the rows, at least one, that a measurement of this candidate may take."""


@dataclass(frozen=True)
class OneRowEach:
    """Candidate i is row order[i]."""

    order: Tensor

    @staticmethod
    def of(values: Tensor, order: Sequence[int] | None, table: Table) -> OneRowEach:
        """The rows in this order (None: that of the table). Raises ValueError for a release of another table."""
        n = len(table.rows)
        if len(values) != n or (order is not None and len(order) != n):
            raise ValueError(f"the release that was kept has {len(values)} rows, and the table {n}: delete the folder")
        return OneRowEach(
            torch.arange(n, device="cpu") if order is None else torch.tensor(order, dtype=torch.long, device="cpu")
        )

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, index: int) -> Tensor:
        return self.order[index : index + 1]


class Transform(ABC):
    """A map from a curator's table to its release. All settings are public.

    private: the release has a guarantee, at its epsilon and delta. relation: the neighbours that the guarantee
    compares; empty without one. random: the release draws random numbers.
    """

    private: ClassVar[bool] = False
    relation: ClassVar[str] = ""
    random: ClassVar[bool] = False

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        """The event of the release, for an accountant; None if the release tells nothing.

        Raises ValueError for settings that cannot work on such a table.
        """
        return None

    @abstractmethod
    def scale(self, table: Table) -> float:
        """The factor of the rows, and so of the GP's length-scale."""

    @abstractmethod
    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        """The only release of the rows, which the modeler receives, and the facts that stay with the curator."""

    @abstractmethod
    def candidates(self, values: Tensor, public: Public) -> Candidates:
        """The modeler's candidates, from the released values."""

    def most_candidates(self, public: Public) -> int:
        """The largest number of candidates."""
        return public.n

    def candidate_rows(self, values: Tensor, order: Sequence[int] | None, table: Table) -> CandidateRows:
        """The rows of each candidate. order: that of the release. Raises ValueError for a release of another table."""
        return OneRowEach.of(values, order, table)

    def published_claim(self, public: Public) -> str | None:
        """A published claim that is not a guarantee, in words; None if there is none."""
        return None

    def private_facts(self, table: Table) -> dict[str, Any]:
        """Private facts of the release, for the records of a simulation."""
        return {}


def scaled_to_norm(rows: Tensor) -> Tensor:
    """Rows scaled to a largest norm of 25, as published; the factor depends on private data."""
    return rows * (NORM / float(rows.norm(dim=1).max()))


def centred(rows: Tensor) -> Tensor:
    """Rows minus their mean."""
    return rows - rows.mean(0)


def within(rows: Tensor, public: Public) -> tuple[Tensor, int]:
    """Rows moved to the nearest point of the public box, and the number of rows that moved.

    The box is convex, so that no two rows get farther apart.
    """
    low, high = (torch.tensor(bound, dtype=rows.dtype, device="cpu") for bound in (public.lower, public.upper))
    moved = rows.clamp(low, high)
    return moved, int((moved != rows).any(1).sum())
