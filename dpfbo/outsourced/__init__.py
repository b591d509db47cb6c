"""Bayesian optimisation outsourced to another party (Kharkovskii, Dai, Low 2020: PO-GP-UCB).

A *curator* holds the inputs and can measure; a *modeler* knows how to optimise. The curator releases a transformed
table once; the modeler runs GP-UCB on it, sends the index of a candidate, and receives a measurement. They share
nothing else: no memory, no seed.

A transform is one file here, with its YAML in `conf/transform/`. Its private half (`release`) sees the rows; its public
half (`candidates`) is post-processing of what was released, and both parties compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dpfbo.entropy import Entropy
from dpfbo.mechanism import Release
from dpfbo.outsourced.table import Public, Table

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


class Transform(Protocol):
    """How a curator makes its rows fit to be seen. All attributes are public settings.

    private: whether the release has a guarantee, at privacy.epsilon and privacy.delta. relation: the neighbours that
    it compares; empty without one.
    """

    @property
    def private(self) -> bool: ...

    @property
    def relation(self) -> str: ...

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        """What the release costs, for an accountant; None if it tells nothing. Raises ValueError for settings that
        cannot work on such a table."""

    def scale(self, table: Table) -> float:
        """By what the rows are multiplied, and with them the GP's length-scale."""

    def release(self, table: Table, entropy: Entropy) -> Release:
        """The only thing that is ever released of the rows; its values go to the modeler as they are."""

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        """What the modeler makes of the released values."""

    def rows(self, values: Tensor, table: Table) -> list[Tensor] | None:
        """The rows that stand behind each candidate, on the curator's side; None: candidate i is row i."""

    def published_claim(self, public: Public) -> str | None:
        """What was published about this release and is not a guarantee, in words; None if there is nothing to say."""


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
