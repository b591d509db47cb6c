"""The noise of private releases: Gaussian in floating point, or discrete Gaussian, sampled exactly by OpenDP."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.privacy.entropy import Entropy, gaussian

_MOST_STEPS = 2.0**56  # largest sum and largest sigma, in grid steps: far below the largest 64-bit integer


class Noise(Protocol):
    """Noise with the same standard deviation in every released number."""

    def check(self, sigma: float, sensitivity: float) -> None:
        """Raise ValueError if noise of this standard deviation cannot be drawn; arguments as in `add`."""

    def inflation(self, size: int, terms: int = 1) -> float:
        """Return the factor by which rounding enlarges the sensitivity of `size` sums, each of `terms` numbers."""

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        """Return the sum `total` plus noise of standard deviation sigma.

        sensitivity: the L2 sensitivity of the sum before rounding. sigma: already enlarged by the factor `inflation`.
        """


@dataclass(frozen=True)
class Gaussian:
    """Adds Gaussian noise in floating point, drawn from the run's entropy.

    Guarantee:
        `sigma N(0, I)` is added to the sum, with the sigma that was charged. Rounding of floating-point numbers is not
        covered.

    Example:
        >>> from dpfbo.privacy import SystemEntropy
        >>> Gaussian().add(torch.zeros(2, 3), sigma=1.5, sensitivity=1.0, entropy=SystemEntropy(), round=0).shape
        torch.Size([2, 3])
    """

    def check(self, sigma: float, sensitivity: float) -> None:
        pass

    def inflation(self, size: int, terms: int = 1) -> float:
        return 1.0

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total + sigma * gaussian(entropy, "noise", round, tuple(total.shape))


@dataclass(frozen=True)
class DiscreteGaussian:
    """Adds discrete Gaussian noise (Canonne, Kamath and Steinke 2020) on a grid, sampled exactly by OpenDP.

        release = g N_Z(round(total / g), (sigma / g)^2),    g = 2^-bits x sensitivity, rounded down to a power of two

    N_Z is the discrete Gaussian on the integers. OpenDP draws it with the operating system's entropy, so the server
    must use `SystemEntropy`.

    Args:
        bits: The fineness of the grid: the step g is at most 2^-bits times the sensitivity.

    Guarantee:
        The noise is added to a vector of `size` numbers, each a sum over n messages. Rounding moves each number by at
        most g/2. Floating-point summation moves each number by at most `n^2 2^-53` times the sensitivity. The exact
        sums of neighbouring inputs differ by at most the sensitivity. The computed, rounded sums differ by at most
        `inflation` times the sensitivity, with `inflation = 1 + (2^-bits + n^2 2^-52) sqrt(size)`. So sigma is
        multiplied by `inflation`. Everything after the exact draw is post-processing. Accountants analyse a continuous
        Gaussian. Their epsilon also holds if the continuous Gaussian is rounded to the grid. As long as every number of
        the noise is within k standard deviations, the probabilities of the discrete Gaussian and of the rounded
        continuous one agree up to a factor `exp(±size (k^2 + 1) g^2 / (24 sigma^2))`. No accountant includes this
        factor in its epsilon. For 30 bits, the factor differs from 1 by less than 1e-9 if
        `size (k^2 + 1) < 2e10 (sigma / sensitivity)^2`.

    Raises:
        SettingError: bits lies outside 20..32.
        MissingPackage: OpenDP is not installed.

    Example:
        >>> from dpfbo.privacy import SystemEntropy
        >>> noise = DiscreteGaussian(bits=20)  # the grid's step is 2^-20
        >>> released = noise.add(torch.zeros(2, 3), sigma=1.5, sensitivity=1.0, entropy=SystemEntropy(), round=0)
        >>> bool((released * 2**20 == (released * 2**20).round()).all())
        True
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

    def inflation(self, size: int, terms: int = 1) -> float:
        return 1.0 + (2.0**-self.bits + terms**2 * 2.0**-52) * math.sqrt(size)

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        if entropy.reproducible:
            raise ValueError("discrete noise has no seed: it needs entropy from the operating system (rng=os)")
        self.check(sigma, sensitivity)
        g = self._grid(sensitivity)
        steps = torch.round(total / g).clamp(-_MOST_STEPS, _MOST_STEPS).long()
        drawn = discrete_gaussian(steps.flatten().tolist(), sigma / g)
        return torch.tensor(drawn, dtype=torch.float64, device="cpu").view(total.shape) * g

    def _grid(self, sensitivity: float) -> float:
        return 2.0 ** (math.floor(math.log2(sensitivity)) - self.bits)


def discrete_gaussian(centres: list[int], scale: float) -> list[int]:
    """Draw from the discrete Gaussian with parameter `scale` around each of the integers `centres`."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=scale)(centres)
