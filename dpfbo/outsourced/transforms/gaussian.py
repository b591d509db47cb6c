"""A private transform, which adds Gaussian noise of public variance to every row."""

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
    """Releases `Z = X + sigma N(0, I)`, n x d, with the rows in a secret random order.

    X are the scaled rows. sigma follows from the analytic Gaussian mechanism (Balle and Wang 2018).

    Args:
        epsilon: The epsilon of the release.
        delta: The delta of the release.
        noise: The sampler of the noise.

    Guarantee:
        Neighbouring relation: two tables of n rows differ in one row, by a norm of at most 1; the order of rows does
        not matter. The norm is taken after a public scaling, under which the farthest corner of the public box has norm
        25 (the adjacency of the paper). Event: the release of Z is (eps, delta)-private. Sensitivity: it is 1, because
        rows outside the box are moved to the nearest point of the box, which never increases the distance of two rows.
        The random order hides each row's place in the table. Rows are scaled and centred by the public box, not by the
        data. Measurements are not covered.

    Raises:
        SettingError: epsilon is not positive, or delta lies outside (0, 1).

    Example:
        >>> import dpfbo
        >>> public = dpfbo.problems.GridGP(side_points=5).table.public
        >>> transform = GaussianNoise(epsilon=1.0, delta=1e-3)
        >>> transform.size(public), round(transform.sigma(public), 2)  # n d numbers, each with noise sigma
        (50, 2.57)
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
