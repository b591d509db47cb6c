"""A transform with a guarantee: every row gets Gaussian noise, whose variance the modeler knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import NORM, Candidates, Transform, Unreleased, within
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian, Noise
from dpfbo.privacy.release import Diagnostics, Release

if TYPE_CHECKING:
    import dp_accounting

SENSITIVITY = 1.0  # norm, in units of the scaled rows


@dataclass(frozen=True)
class GaussianNoise(Transform):
    """`Z = X + sigma N(0, I)`, its rows in a secret random order, at any eps > 0.

    sigma is that of the analytic Gaussian mechanism (Balle and Wang 2018).

    Guarantee: (eps, delta) for the release of Z. Relation: tables of n rows, in any order, that differ in one row by a
    norm of at most 1, after the public scaling that takes the farthest corner of the public box to norm 25, the
    adjacency of the paper. Sensitivity 1: rows outside the box are moved to its nearest point, which takes no two rows
    farther apart. The order is random: in a table sorted by a private column each row's place would reveal its rank.
    Nothing here is computed from the data, neither the scale nor a centre. Not covered: measurements, which a modeler
    receives of rows of its choice.

    The classic sigma = sqrt(2 ln(1.25 / delta)) / eps is proved for eps <= 1 only, and is larger. noise: its sampler.

    Raises ValueError for eps <= 0 or delta outside (0, 1).
    """

    epsilon: float
    delta: float
    noise: Noise = Gaussian()
    private: ClassVar[bool] = True
    relation: ClassVar[str] = "one row moved by a norm of at most 1 of 25"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        check_delta(self.delta)

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        self.noise.check(self.sigma(public), SENSITIVITY)
        return round_event(1.0, noise_multiplier(self.epsilon, self.delta))

    def sigma(self, public: Public) -> float:
        """The standard deviation of the noise in every coordinate."""
        size = public.n * public.dimension
        return noise_multiplier(self.epsilon, self.delta) * SENSITIVITY * self.noise.inflation(size)

    def scale(self, table: Table) -> float:
        return NORM / table.public.radius

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        inside, n_moved = within(table.rows, table.public)
        order = torch.argsort(entropy.uniform("order", 0, len(inside)))
        scaled, sigma = inside[order] * self.scale(table), self.sigma(table.public)
        Z = self.noise.add(scaled, sigma, SENSITIVITY, entropy, 0)
        signal, noise = float(torch.linalg.norm(scaled)), float(torch.linalg.norm(Z - scaled))
        diagnostics = Diagnostics(signal, noise, n_chosen=len(Z), n_clipped=n_moved, n_rejected=0)
        release = Release(Z, sigma, SENSITIVITY * self.noise.inflation(Z.numel()))
        return release, Unreleased(diagnostics, order.tolist())

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        return Candidates(
            values, torch.full((public.dimension,), self.sigma(public) ** 2, dtype=torch.float64, device="cpu")
        )
