"""A transform with a guarantee: every row gets Gaussian noise, whose variance the modeler knows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import NORM, Candidates, Unreleased, WithNoise, within
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release


@dataclass(frozen=True)
class GaussianNoise(WithNoise):
    """`Z = X + sigma N(0, I)`, its rows in a secret random order, at any eps > 0.

    sigma is that of the analytic Gaussian mechanism (Balle and Wang 2018). The classic
    `sigma = sqrt(2 ln(1.25 / delta)) / eps` is proved for eps <= 1 only, and is larger.

    Args:
        epsilon: Of the release.
        delta: Of the release.
        noise: The sampler of the noise.

    Guarantee:
        (eps, delta) for the release of Z. Relation: tables of n rows, in any order, that differ in one row by a norm of
        at most 1, after the public scaling that takes the farthest corner of the public box to norm 25, the adjacency
        of the paper. Sensitivity 1: rows outside the box are moved to its nearest point, which takes no two rows
        farther apart. The order is random: in a table sorted by a private column each row's place would reveal its
        rank. Nothing here is computed from the data, neither the scale nor a centre. Not covered: measurements, which
        a modeler receives of rows of its choice.

    Raises:
        SettingError: epsilon is not above 0, or delta lies outside (0, 1).
    """

    l2_sensitivity: ClassVar[float] = 1.0  # norm, in units of the scaled rows
    relation: ClassVar[str] = "one row moved by a norm of at most 1 of 25"

    def size(self, public: Public) -> int:
        return public.n * public.dimension

    def scale(self, table: Table) -> float:
        return NORM / table.public.radius

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        inside, n_moved = within(table.rows, table.public)
        order = torch.argsort(entropy.uniform("order", 0, len(inside)))
        release, diagnostics = self.with_noise(inside[order] * self.scale(table), table, n_moved, entropy)
        return release, Unreleased(diagnostics, order.tolist())

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        variance = self.sigma(public) ** 2
        return Candidates(values, torch.full((public.dimension,), variance, dtype=torch.float64, device="cpu"))
