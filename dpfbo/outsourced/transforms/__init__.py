"""Transforms of a curator's table into a release.

The curator calls `release` and `candidate_rows`, which see the rows. The modeler calls `candidates`, which sees only
the release.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian, Noise
from dpfbo.privacy.release import Diagnostics, Release

if TYPE_CHECKING:
    import dp_accounting

NORM = 25.0  # the largest norm of a scaled row; neighbours are at most 1 apart at this scale (paper, Sec. 4)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a modeler, all public.

    To measure a candidate, the curator measures a row of its table, which may differ from the candidate's point.

    Attributes:
        points: m x r, the points of the candidates.
        input_variance: For each of the r columns, the variance of the difference between a candidate's point and the
            measured row, in the units of the points; None to assume no difference.
        fresh: True if the curator may take another row each time it measures the same candidate; False if it takes the
            same row every time.
        counts: For each of the m candidates, the estimated number of rows near its point; None if unknown.
    """

    points: Tensor
    input_variance: Tensor | None = None
    fresh: bool = False
    counts: Tensor | None = None


@dataclass(frozen=True)
class Unreleased:
    """The secret facts of a release, which stay with the curator.

    order: for each released row, its row number in the table; None if the release keeps the table's order.
    """

    diagnostics: Diagnostics
    order: Sequence[int] | None = None


class CandidateRows(Protocol):
    """The curator's secret map from each candidate to the rows of the table at which the candidate may be measured."""

    def __len__(self) -> int: ...

    def rows(self, index: int) -> Tensor:
        """Return the indices of the table's rows, at least one, at which this candidate may be measured."""


@dataclass(frozen=True)
class OneRowEach:
    """Maps each candidate to one row of the table: candidate i to row `order[i]`."""

    order: Tensor

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, index: int) -> Tensor:
        return self.order[index : index + 1]


class Transform(ABC):
    """A map from a curator's table to its release. All settings are public.

    Attributes:
        private: True if the release is (epsilon, delta)-private.
        relation: The neighbouring relation; empty without a guarantee.
        random: True if the release draws random numbers.
    """

    private: ClassVar[bool] = False
    relation: ClassVar[str] = ""
    random: ClassVar[bool] = False

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        """Return the release's event for an accountant; None if the release depends on no data.

        Raises ValueError if the settings cannot work on a table with these public facts.
        """
        return None

    @abstractmethod
    def scale(self, table: Table) -> float:
        """Return the factor by which the rows are scaled before the release.

        The length-scale of the modeler's GP is scaled by the same factor.
        """

    @abstractmethod
    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        """Return the release for the modeler, and the secret facts that stay with the curator."""

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        """Return the modeler's candidates, computed from the released values."""
        return Candidates(values)

    def most_candidates(self, public: Public) -> int:
        return public.n

    def candidate_rows(self, values: Tensor, order: Sequence[int] | None, table: Table) -> CandidateRows:
        """Return, for each candidate, the rows of the table that may be measured if the modeler chooses this candidate.

        values: the released values. order: for each released row, its row number in the table; None if the release
        keeps the table's order. Raises ValueError if the size of the release does not fit the table.
        """
        n = len(table.rows)
        if len(values) != n or (order is not None and len(order) != n):
            raise ValueError(f"the release that was kept has {len(values)} rows, and the table {n}: delete the folder")
        return OneRowEach(torch.tensor(range(n) if order is None else order, dtype=torch.long, device="cpu"))

    def published_claim(self, public: Public) -> str | None:
        """Return a sentence on a published privacy claim and on why it is no guarantee; None without such a claim."""
        return None

    def private_facts(self, table: Table) -> dict[str, Any]:
        """Return facts about the release that must stay secret; only a simulation records them."""
        return {}


class AsRows(Transform):
    """A transform without a guarantee, which releases the scaled, centred rows or a function of them.

    All rows are multiplied by one factor, so that the largest norm of a row is 25. Then they are centred.
    """

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        return round_event(1.0, None)

    def scale(self, table: Table) -> float:
        return NORM / float(table.rows.norm(dim=1).max())

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        Z = self.made_of(centred(scaled_to_norm(table.rows)), entropy)
        return Release(Z, sigma=0.0, sensitivity=math.inf), Unreleased(numbers_of(len(Z), Z))

    @abstractmethod
    def made_of(self, rows: Tensor, entropy: Entropy) -> Tensor:
        """Compute the released values from the scaled, centred rows, n x d."""


@dataclass(frozen=True)
class WithNoise(Transform):
    """A transform that adds noise of public variance by the analytic Gaussian mechanism (Balle and Wang 2018).

    l2_sensitivity: the L2 sensitivity of the values before noise. noise: the sampler of the noise.
    """

    epsilon: float
    delta: float
    noise: Noise = Gaussian()
    l2_sensitivity: ClassVar[float]
    private: ClassVar[bool] = True
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        check_delta(self.delta)

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        self.noise.check(self.sigma(public), self.l2_sensitivity)
        return round_event(1.0, noise_multiplier(self.epsilon, self.delta))

    @abstractmethod
    def size(self, public: Public) -> int:
        """Return the number of values to which noise is added."""

    def sigma(self, public: Public) -> float:
        """Return the standard deviation of the noise in every value."""
        inflation = self.noise.inflation(self.size(public))
        return noise_multiplier(self.epsilon, self.delta) * self.l2_sensitivity * inflation

    def with_noise(self, values: Tensor, table: Table, n_moved: int, entropy: Entropy) -> tuple[Release, Diagnostics]:
        """Return values plus noise as a release. n_moved: the number of rows that were moved into the public box."""
        sigma = self.sigma(table.public)
        Z = self.noise.add(values, sigma, self.l2_sensitivity, entropy, 0)
        sensitivity = self.l2_sensitivity * self.noise.inflation(self.size(table.public))
        return Release(Z, sigma, sensitivity), numbers_of(len(table.rows), values, Z - values, n_moved)


def numbers_of(n: int, signal: Tensor | None = None, noise: Tensor | None = None, n_moved: int = 0) -> Diagnostics:
    """Return the secret diagnostics of a release of n rows, with the norms of signal and noise.

    signal: the values before noise. n_moved: the number of rows moved into the public box.
    """
    first, second = (0.0 if values is None else float(torch.linalg.norm(values)) for values in (signal, noise))
    return Diagnostics(first, second, n_chosen=n, n_clipped=n_moved, n_rejected=0)


def nothing(n_candidates: int, table: Table) -> tuple[Release, Unreleased]:
    """Return a release that depends on no data: a zero for each candidate."""
    zeros = torch.zeros(n_candidates, 1, dtype=torch.float64, device="cpu")
    return Release(zeros, sigma=0.0, sensitivity=0.0), Unreleased(numbers_of(len(table.rows)))


def scaled_to_norm(rows: Tensor) -> Tensor:
    """Multiply all rows by one factor, so that the largest norm is 25; the factor depends on secret data."""
    return rows * (NORM / float(rows.norm(dim=1).max()))


def centred(rows: Tensor) -> Tensor:
    """Subtract the mean of the rows; this mean depends on secret data."""
    return rows - rows.mean(0)


def within(rows: Tensor, public: Public) -> tuple[Tensor, int]:
    """Move rows to the nearest point of the public box; return them, and the number of rows that moved.

    The box is convex, so the distance between two rows never increases.
    """
    moved = rows.clamp(*public.bounds)
    return moved, int((moved != rows).any(1).sum())
