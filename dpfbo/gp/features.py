"""Random Fourier features of the squared-exponential kernel, scaled to unit norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp import batches
from dpfbo.space.domain import Domain
from dpfbo.space.mixed import MixedBox

_TAIL = 1e-6  # probability beyond which no quasi-random frequency lies


@dataclass(frozen=True)
class RandomFeatures:
    """A batch of feature maps `phi_j(x) = cos(s_j . x + b_j) / norm`, each `phi(x)` of unit length.

    `phi(x) . phi(x')` approximates the SE kernel `exp(-|x - x'|^2 / (2 l^2))` (Rahimi and Recht 2007; the
    paper's App. B scales every phi(x) to unit norm, which makes `|phi(x) . w| <= |w|`).

    frequencies: `B x M x D`; phases: `B x M`. B = 1 is one map that all agents share. space: the domain whose points
    are embedded first, into D coordinates; None if they are taken as they are.
    """

    frequencies: Tensor
    phases: Tensor
    space: MixedBox | None = None

    def __call__(self, u: Tensor) -> Tensor:
        """Features of unit-cube points, `B x k x D -> B x k x M` (B broadcasts against a shared map)."""
        c = self.angles(u).cos_()  # B x k x M
        return c / c.norm(dim=-1, keepdim=True)

    def angles(self, u: Tensor) -> Tensor:
        """`s_j . x + b_j`, `B x k x D -> B x k x M`."""
        if self.space is not None:
            u = self.space.embed(u)
        if len(self.frequencies) > 1:
            return torch.baddbmm(self.phases[:, None], u, self.frequencies.mT)
        points = u.flatten(0, 1)
        angles = torch.addmm(self.phases, batches.padded(points), self.frequencies[0].T)
        return angles[: len(points)].unflatten(0, u.shape[:2])

    def to(self, where: torch.device | torch.dtype) -> "RandomFeatures":
        """The same maps on another device or in another precision."""
        return RandomFeatures(self.frequencies.to(where), self.phases.to(where), self.space)

    def on(self, domain: Domain) -> "RandomFeatures":
        """The same maps as functions of the domain's unit-cube points, which they embed first where it is mixed."""
        return replace(self, space=domain if isinstance(domain, MixedBox) else None)

    def select(self, rows: Tensor) -> "RandomFeatures":
        """The maps of some elements of the batch; a shared map stays shared."""
        if len(self.frequencies) == 1:
            return self
        return RandomFeatures(self.frequencies.index_select(0, rows), self.phases.index_select(0, rows), self.space)

    @property
    def slopes(self) -> Tensor:
        """The derivatives of the angles with respect to the unit-cube point, `B x M x D`; 0 on discrete axes."""
        return self.frequencies if self.space is None else self.space.pulled_back(self.frequencies)


def block_features(
    n_features: int, dimension: int, lengthscales: Sequence[float], generator: np.random.Generator
) -> RandomFeatures:
    """One shared map with a block of cos, sin pairs for each length-scale; on the CPU.

    `phi(x) . phi(x')` approximates the mean of their SE kernels, and `||phi(x)|| = 1` exactly. The frequencies of a
    block are a Sobol sequence, shifted at random, mapped to the normal law: the error is smaller than that of random
    ones (Yang et al., Quasi-Monte Carlo feature maps, ICML 2014). Raises ValueError if the blocks do not divide M into
    pairs.
    """
    checks.integer("n_features", n_features, minimum=1)
    if n_features % (2 * len(lengthscales)):
        raise SettingError(
            "n_features",
            f"must be a multiple of {2 * len(lengthscales)} for pairs of each length-scale, got {n_features}",
        )
    pairs = n_features // 2 // len(lengthscales)
    s, b = [], torch.zeros(1, pairs, dtype=torch.float64, device="cpu")
    for lengthscale in lengthscales:
        checks.positive("lengthscales", lengthscale)
        sequence = torch.quasirandom.SobolEngine(dimension).draw(pairs, dtype=torch.float64)
        u = (sequence + torch.from_numpy(generator.uniform(size=dimension))) % 1
        s += [torch.special.ndtri(u.clamp(_TAIL, 1 - _TAIL))[None] / lengthscale] * 2
    return RandomFeatures(torch.cat(s, 1), torch.cat([b, b - math.pi / 2] * len(lengthscales), 1))


def shared_features(
    n_features: int, dimension: int, lengthscale: float, generator: np.random.Generator, paired: bool = False
) -> RandomFeatures:
    """The one map that all agents of a run share (paper, Sec. 2): `s ~ N(0, l^-2 I)`, `b ~ U[0, 2 pi]`; on the CPU.

    paired: use `cos(s.x), sin(s.x)` pairs of M/2 frequencies instead of random phases: an approximation of the
    kernel with lower variance.

    Raises ValueError for a size or length-scale that is not positive, or an odd M with `paired`.
    """
    checks.integer("n_features", n_features, minimum=1)
    checks.positive("lengthscale", lengthscale)
    if paired and n_features % 2:
        raise SettingError("n_features", f"must be even for paired features, got {n_features}")
    drawn = n_features // 2 if paired else n_features
    s = torch.from_numpy(generator.standard_normal((1, drawn, dimension))) / lengthscale
    if paired:
        zero = torch.zeros_like(s[..., 0])
        return RandomFeatures(torch.cat([s, s], 1), torch.cat([zero, zero - math.pi / 2], 1))
    return RandomFeatures(s, torch.from_numpy(generator.uniform(0, 2 * math.pi, (1, drawn))))
