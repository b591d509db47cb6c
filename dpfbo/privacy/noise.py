"""The noise of private releases: in floating point, or on a grid, sampled exactly by OpenDP."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.privacy.entropy import Entropy, gaussian

_MOST_STEPS = 2.0**56  # grid steps of a sum, and of its noise: far from the ends of 64-bit integers


class Noise(Protocol):
    """Noise with the same standard deviation in every released number."""

    def check(self, sigma: float, sensitivity: float) -> None:
        """Raise ValueError for a standard deviation that cannot be drawn; arguments as in `add`."""

    def inflation(self, size: int) -> float:
        """The factor by which the sensitivity of `size` numbers grows before noise is added."""

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        """The release: the exact sum `total`, whose L2 sensitivity is `sensitivity`, with noise.

        sigma: the standard deviation, `inflation` included.
        """


@dataclass(frozen=True)
class Gaussian:
    """Floating-point Gaussian noise, from the run's entropy."""

    def check(self, sigma: float, sensitivity: float) -> None:
        pass

    def inflation(self, size: int) -> float:
        return 1.0

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total + sigma * gaussian(entropy, "noise", round, tuple(total.shape))


@dataclass(frozen=True)
class DiscreteGaussian:
    """The discrete Gaussian of Canonne, Kamath and Steinke (2020), sampled exactly by OpenDP, on a grid.

        release = g N_Z(round(total / g), (sigma / g)^2),    g = 2^-bits x sensitivity, down to a power of two

    Guarantee. Rounding moves each of the `size` numbers by at most g/2, floating-point summation by less (of up to
    10^6 messages): two sums at distance Delta end up at most `Delta + 2 g sqrt(size)` apart, `inflation` times their
    sensitivity, and sigma grows with it. Everything after the exact draw, saturation at the ends of 64-bit integers
    included, is post-processing. On a grid this fine the law is that of a rounded continuous Gaussian (a
    post-processing) up to a factor `exp(±size (k^2 + 1) g^2 / (24 sigma^2))` at k standard deviations: below 1e-9
    for bits >= 20, which is the difference between this and the Gaussian that the accountants analyse.

    OpenDP draws the noise from the operating system, so the server's entropy must be `SystemEntropy`.

    Raises SettingError for bits outside 20..32, MissingPackage if OpenDP is not installed.
    """

    bits: int = 30

    def __post_init__(self) -> None:
        checks.integer("bits", self.bits, minimum=20)
        if self.bits > 32:
            raise SettingError("bits", f"must be at most 32, got {self.bits!r}")
        with needing("opendp", "discrete noise"):
            import opendp  # noqa: F401

    def check(self, sigma: float, sensitivity: float) -> None:
        if sigma / self._grid(sensitivity) > _MOST_STEPS:
            raise ValueError(
                f"discrete noise with bits={self.bits} cannot draw noise of "
                f"{sigma / sensitivity:.3g} sensitivities: its integers would overflow; use less noise or fewer bits"
            )

    def inflation(self, size: int) -> float:
        return 1.0 + 2.0 * 2.0**-self.bits * math.sqrt(size)

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        if entropy.reproducible:
            raise ValueError("discrete noise has no seed: it needs entropy from the operating system (rng=os)")
        self.check(sigma, sensitivity)
        g = self._grid(sensitivity)
        steps = torch.round(total / g).clamp(-_MOST_STEPS, _MOST_STEPS).long()
        drawn = _discrete_gaussian(steps.flatten().tolist(), sigma / g)
        return torch.tensor(drawn, dtype=torch.float64, device="cpu").view(total.shape) * g

    def _grid(self, sensitivity: float) -> float:
        return 2.0 ** (math.floor(math.log2(sensitivity)) - self.bits)


def _discrete_gaussian(centres: list[int], scale: float) -> list[int]:
    """Draws of the discrete Gaussian with parameter `scale` around integers."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=scale)(centres)
