"""Bayesian optimisation outsourced to another party (Kharkovskii, Dai, Low 2020: PO-GP-UCB).

A *curator* holds the inputs and can measure; a *modeler* knows how to optimise. The curator releases a transformed
table once; the modeler runs GP-UCB on it, sends the index of a candidate, and receives a measurement. They share
nothing else: no memory, no seed.

A transform is one file here, with its YAML in `conf/transform/`. Its private half (`release`, `behind`) sees the rows;
its public half (`candidates`) is post-processing of what was released.
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
    """What a modeler chooses among; all of it is public.

    points: m x r. input_variance: r, of what separates a point from the input that is measured there; None for
    nothing. fresh: whether every measurement of a candidate is of another input near it; else it is the same.
    counts: m, how many inputs there seem to be near each candidate; None if nothing is known of that.
    """

    points: Tensor
    input_variance: Tensor | None = None
    fresh: bool = False
    counts: Tensor | None = None


@dataclass(frozen=True)
class Unreleased:
    """Facts of a release that stay with the curator.

    diagnostics: for the records of a simulation. order: the row behind each released one, where they come in a secret
    order; None for that of the table.
    """

    diagnostics: Diagnostics
    order: Sequence[int] | None = None


class CandidateRows(Protocol):
    """The rows that stand behind the candidates, which only the curator knows."""

    def __len__(self) -> int:
        """How many candidates there are."""

    def rows(self, index: int) -> Tensor:
        """Those that a measurement of one candidate may be of, at least one."""


@dataclass(frozen=True)
class OneRowEach:
    """Candidate i is row order[i]."""

    order: Tensor

    @staticmethod
    def of(values: Tensor, order: Sequence[int] | None, table: Table) -> OneRowEach:
        """order: None for that of the table. Raises ValueError for a release of another table."""
        n = len(table.rows)
        if len(values) != n or (order is not None and len(order) != n):
            raise ValueError(f"the release that was kept has {len(values)} rows, and the table {n}: delete the folder")
        return OneRowEach(torch.arange(n) if order is None else torch.tensor(order, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, index: int) -> Tensor:
        return self.order[index : index + 1]


class Transform(ABC):
    """How a curator makes its rows fit to be seen. All of its settings are public.

    private: whether the release has a guarantee, at privacy.epsilon and privacy.delta. relation: the neighbours that
    it compares; empty without one. random: whether the release draws random numbers.
    """

    private: ClassVar[bool] = False
    relation: ClassVar[str] = ""
    random: ClassVar[bool] = False

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        """What the release costs, for an accountant; None if it tells nothing. Raises ValueError for settings that
        cannot work on such a table."""
        return None

    @abstractmethod
    def scale(self, table: Table) -> float:
        """By what the rows are multiplied, and with them the GP's length-scale."""

    @abstractmethod
    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        """The only release of the rows, whose values go to the modeler as they are, and what stays with the curator."""

    @abstractmethod
    def candidates(self, values: Tensor, public: Public) -> Candidates:
        """What the modeler makes of the released values."""

    def most_candidates(self, public: Public) -> int:
        """How many there are at most."""
        return public.n

    def behind(self, values: Tensor, order: Sequence[int] | None, table: Table) -> CandidateRows:
        """The rows behind the candidates. order: of the release. Raises ValueError for a release of another table."""
        return OneRowEach.of(values, order, table)

    def published_claim(self, public: Public) -> str | None:
        """What was published about this release and is not a guarantee, in words; None if there is nothing to say."""
        return None

    def private_facts(self, table: Table) -> dict[str, Any]:
        """What a simulation records of the release beside it, and only the curator knows."""
        return {}


def scaled_to_norm(rows: Tensor) -> Tensor:
    """Rows with norms of at most 25, the longest of exactly that: published, and a look at private data."""
    return rows * (NORM / float(rows.norm(dim=1).max()))


def centred(rows: Tensor) -> Tensor:
    """Columns with mean zero."""
    return rows - rows.mean(0)


def within(rows: Tensor, public: Public) -> tuple[Tensor, int]:
    """Rows moved into the public box, and how many had to be. The nearest point of a convex set: no two rows get
    farther apart."""
    low, high = (torch.tensor(bound, dtype=rows.dtype) for bound in (public.lower, public.upper))
    moved = rows.clamp(low, high)
    return moved, int((moved != rows).any(1).sum())
