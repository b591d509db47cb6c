"""Distributed noise: each of N sites adds a share of the noise to its own message."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.privacy.entropy import Entropy, gaussian
from dpfbo.privacy.noise import discrete_gaussian

BITS = 16  # a message of norm C is rounded to steps of 2^-16 C
_MODULUS_BITS = 32  # sums are integers modulo 2^32
_DEVIATIONS = 9.0  # standard deviations: with probability 1 - 1e-12, none of 4e6 numbers of noise lies beyond
_LEAST_SCALE = 10.0  # least standard deviation of a share, in steps


@dataclass(frozen=True)
class DistributedNoise:
    """Noise shares for a sum over N sites, of which some may drop out and some may collude with the server.

    Site n rounds its message x_n, of norm at most C, to `round(x_n / g)` with steps g = 2^-16 C, and adds a share of
    discrete Gaussian noise N_Z. The sum is taken modulo 2^32:

        Y = sum_n [round(x_n / g) + N_Z(0, s^2)],    s^2 = (sigma / g)^2 / (N - max_dropouts - colluders)

    sigma is the standard deviation that epsilon requires of the noise.

    Args:
        n_sites: N.
        max_dropouts: The number of sites that may drop out of a sum.
        colluders: The number of sites that may show the server all that they know.

    Guarantee:
        At least N - max_dropouts sites take part. The honest ones among them together add noise of variance at least
        sigma^2; the server and the colluders do not know this noise. Rounding moves a message of M numbers by at most
        `g sqrt(M) / 2` and leaves a zero message zero, so the sensitivity is at most `C + g sqrt(M) / 2`. A sum of H
        honest shares is not exactly discrete Gaussian: its probabilities differ from a discrete Gaussian's at most by a
        factor `exp(±M gap)` (Kairouz, Liu and Steinke 2021, Prop. 12), where
        `gap = 10 sum_(0<k<H) exp(-2 pi^2 s^2 k / (k + 1))` is below `10 H exp(-pi^2 s^2)`. `check` refuses noise with
        s < 10, so gap is below 1e-400.

    Raises:
        SettingError: `N <= 2 max_dropouts + colluders`; the secure sum needs more sites.

    Example:
        >>> noise = DistributedNoise(n_sites=25, max_dropouts=2, colluders=3)
        >>> noise.threshold, round(noise.price, 2)
        (15, 1.25)
    """

    n_sites: int
    max_dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        checks.integer("n_sites", self.n_sites, minimum=2)
        checks.integer("max_dropouts", self.max_dropouts, minimum=0)
        checks.integer("colluders", self.colluders, minimum=0)
        if self.n_sites <= 2 * self.max_dropouts + self.colluders:
            rule = f"with colluders={self.colluders} must stay below half of the other sites of {self.n_sites}"
            raise SettingError("max_dropouts", f"{rule}, got {self.max_dropouts}")

    @property
    def survivors(self) -> int:
        """The least number of sites that take part in a sum, N - max_dropouts."""
        return self.n_sites - self.max_dropouts

    @property
    def honest(self) -> int:
        """The least number of honest sites in a sum."""
        return self.survivors - self.colluders

    @property
    def threshold(self) -> int:
        """The number t of sites that must answer to reveal a sum: the least t with `2 t > N + colluders`.

        Any two sets of t sites share an honest site, which refuses to reveal two different sums.
        """
        return (self.n_sites + self.colluders) // 2 + 1

    @property
    def price(self) -> float:
        """The noise variance of a sum without dropouts, divided by a trusted server's noise variance sigma^2."""
        return self.n_sites / self.honest

    def check(self, scale: float) -> None:
        """Raise ValueError if a sum could overflow, or if a share of the noise has a standard deviation below 10 g.

        scale: sigma / g, where g is the step of the rounding. If `scale` is 0, there is no noise, and only the overflow
        is checked.
        """
        most = self.n_sites * 2.0**BITS + _DEVIATIONS * scale * math.sqrt(self.price)
        if most >= 2.0 ** (_MODULUS_BITS - 1):
            raise ValueError(
                f"a sum over {self.n_sites} sites with noise of {scale / 2**BITS:.3g} norms may exceed 32 bits: "
                "use less noise or fewer sites"
            )
        if 0 < scale < _LEAST_SCALE * math.sqrt(self.honest):
            raise ValueError(f"noise of {scale / 2**BITS:.3g} norms is finer than the grid: use more noise")

    def inflation(self, size: int) -> float:
        """Return the factor `1 + 2^-17 sqrt(M)` by which rounding enlarges the sensitivity.

        size: M, the length of a message.
        """
        return 1.0 + 2.0 ** -(BITS + 1) * math.sqrt(size)

    def share(self, site: int, scale: float, size: int, entropy: Entropy, round: int) -> Tensor:
        """Draw a site's share of the noise: M integers of variance `scale^2 / (N - max_dropouts - colluders)`.

        If `entropy` is reproducible, the share is rounded Gaussian noise from the seed; otherwise it is exact discrete
        Gaussian noise from the operating system. scale: sigma / g. size: M.
        """
        own = scale / math.sqrt(self.honest)
        if own == 0:
            return torch.zeros(size, dtype=torch.int64, device="cpu")
        if entropy.reproducible:
            return torch.round(own * gaussian(entropy, f"noise of site {site}", round, (size,))).long()
        with needing("secure", "a secure sum"):
            return torch.tensor(discrete_gaussian([0] * size, own), device="cpu")


def quantised(messages: Tensor, norm: float) -> Tensor:
    """Round messages (.. x M) of L2 norm at most `norm` to integers, in units of 2^-16 norm."""
    return torch.round(messages * (2.0**BITS / norm)).long()


def modular(total: Tensor) -> Tensor:
    """Reduce integers modulo 2^32 to the range from -2^31 to 2^31 - 1."""
    half = 2 ** (_MODULUS_BITS - 1)
    return (total + half) % (2 * half) - half
