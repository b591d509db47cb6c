"""The noise that a private release gets, and what sampling it on a computer costs.

`Gaussian` is floating point: right in law, with known weaknesses in its lowest bits (Mironov 2012). `DiscreteGaussian`
rounds the sum to a grid and adds OpenDP's exactly sampled discrete Gaussian.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.entropy import Entropy, gaussian


class Noise(Protocol):
    """Noise of one standard deviation in every released number."""

    def inflation(self, size: int) -> float:
        """By which factor the sensitivity of `size` numbers grows before they get their noise."""

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        """The release: the exact sum `total`, whose L2 sensitivity is `sensitivity`, with noise.

        sigma: the standard deviation, `inflation` included.
        """


@dataclass(frozen=True)
class Gaussian:
    """Floating-point Gaussian noise, from the run's entropy."""

    def inflation(self, size: int) -> float:
        return 1.0

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total + sigma * gaussian(entropy, "noise", round, tuple(total.shape))


@dataclass(frozen=True)
class DiscreteGaussian:
    """The discrete Gaussian of Canonne, Kamath and Steinke (2020), sampled exactly by OpenDP, on a grid.

        release = g (round(total / g) + N_Z(0, (sigma / g)^2)),    g = 2^-bits x sensitivity, down to a power of two

    Guarantee. Rounding moves each of the `size` numbers by at most g/2, floating-point summation by less: two sums at
    distance Delta end up at most `Delta + 2 g sqrt(size)` apart, `inflation` times their sensitivity, and sigma
    grows with it. On a grid this fine the law is that of a rounded continuous Gaussian (a post-processing)
    up to a factor `exp(±size (k^2 + 1) g^2 / (24 sigma^2))` at k standard deviations: below 1e-9 for bits >= 20, which
    is the difference between this and the Gaussian that the accountants analyse.

    The noise comes from OpenDP's own source of operating-system entropy, so privacy.rng must be `os`.

    Raises ValueError for bits outside 20..40, or if OpenDP is not installed.
    """

    bits: int = 30

    def __post_init__(self) -> None:
        checks.integer("privacy.noise.bits", self.bits, minimum=20)
        if self.bits > 40:
            raise ValueError(f"privacy.noise.bits must be at most 40, got {self.bits!r}")
        try:
            import opendp  # noqa: F401
        except ModuleNotFoundError as error:
            raise ValueError(f"privacy/noise=discrete needs OpenDP ({error}): pip install 'dpfbo[opendp]'") from error

    def inflation(self, size: int) -> float:
        return 1.0 + 2.0 * 2.0**-self.bits * math.sqrt(size)

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        if entropy.reproducible:
            raise ValueError("privacy/noise=discrete needs privacy.rng=os: its noise has no seed")
        g = 2.0 ** (math.floor(math.log2(sensitivity)) - self.bits)
        steps = torch.round(total / g)
        noise = torch.tensor(_discrete_gaussian(sigma / g, total.numel()), dtype=torch.float64)
        return (steps + noise.view(total.shape)) * g


def _discrete_gaussian(scale: float, size: int) -> list[int]:
    """`size` draws of the discrete Gaussian with parameter `scale`."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=scale)([0] * size)
