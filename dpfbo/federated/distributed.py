"""The mechanism without a trusted server: every site adds a share of the noise, and the server sees only the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.privacy.distributed import BITS, DistributedNoise, modular, quantised
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian
from dpfbo.privacy.release import Release


@dataclass(frozen=True)
class DistributedGaussian(SubsampledGaussian):
    """Sums the messages of all agents, each with its own share of discrete noise (Kairouz, Liu and Steinke 2021).

    The N messages x_n, each of M numbers and of norm at most C, are rounded to steps `g = 2^-16 C`. With the noise
    multiplier z and discrete Gaussian noise N_Z:

        release = (g / N) sum_n (round(x_n / g) + N_Z(0, s^2)),
        s^2 = (z (C + g sqrt(M) / 2) / g)^2 / (N - max_dropouts - colluders)

    A simulation in one process releases the same bits as a secure sum of separate sites (`dpfbo.secure.SecureSite`).

    Args:
        max_dropouts: The number of sites that may drop out.
        colluders: The number of sites that may show the server all that they know.

    Guarantee:
        Relation: the message of one site is replaced by zero (zero-out; N and the participants are public). Event: each
        round is charged as a Gaussian with noise multiplier z. This z is the multiplier against the server and up to
        `colluders` sites together; `multipliers` returns the multipliers against other observers, too. Sensitivity of
        the sum: `C + g sqrt(M) / 2`. `DistributedNoise` bounds the difference between the sum of the shares and one
        discrete Gaussian.

    Raises:
        SettingError: The sampling probability is not 1; or calibration, sampling, charge or noise is not the default.

    Example:
        >>> mechanism = DistributedGaussian(1.0, 2.0, 1.0, max_dropouts=1)
        >>> {view: round(z, 2) for view, z in mechanism.multipliers(5).items()}
        {'server': 2.0, 'site': 1.73, 'outsider': 2.0}
    """

    max_dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = {"sampling_probability": 1.0, "sampling": "poisson", "calibration": "paper", "charge": "nominal"}
        for name, only in plain.items():
            if (value := getattr(self, name)) != only:
                why = "; nobody could keep secret who was sampled" if name == "sampling_probability" else ""
                raise SettingError(
                    name, f"must be {only} where no server is trusted (trust=nobody){why}, got {value!r}"
                )
        if self.noise != Gaussian():
            raise SettingError("noise", f"must be left out where sites add it (trust=nobody), got {self.noise!r}")

    def noise_of(self, n_agents: int) -> DistributedNoise:
        """Return the noise shares for N sites. Raises SettingError for too many dropouts or colluders."""
        return DistributedNoise(n_agents, self.max_dropouts, self.colluders)

    def multipliers(self, n_agents: int, round: int = 0) -> dict[str, float]:
        """Return the noise multiplier against each observer.

        `server`: the server together with up to `colluders` sites. `site`: max(1, `colluders`) sites together, which
        know their own shares of the noise. `outsider`: somebody who sees only the broadcasts.
        """
        noise, z = self.noise_of(n_agents), self.multiplier(round)
        known = {"server": self.colluders, "site": max(1, self.colluders), "outsider": 0}
        return {view: z * math.sqrt((noise.survivors - k) / noise.honest) for view, k in known.items()}

    def scale(self, n_agents: int, M: int, round: int) -> float:
        """Return the standard deviation that the sum's noise needs, in rounding steps g.

        This is the noise multiplier times the sum's sensitivity: `z_t (C + g sqrt(M) / 2) / g`. C: the clip norm. g:
        2^-16 C. M: the message length. Raises ValueError if such noise cannot be drawn.
        """
        noise = self.noise_of(n_agents)
        scale = self.multiplier(round) * noise.inflation(M) * 2.0**BITS
        noise.check(scale)
        return scale

    def sum_sensitivity(self, n_agents: int, M: int) -> float:
        """Return the L2 sensitivity of the sum, `C + g sqrt(M) / 2`. C: the clip norm; g: the rounding step."""
        return self.noise_of(n_agents).inflation(M) * self.message_norm(1)

    def share(self, agent: int, n_agents: int, M: int, entropy: Entropy, round: int) -> Tensor:
        """Draw an agent's share of the noise, M integers."""
        return self.noise_of(n_agents).share(agent, self.scale(n_agents, M, round), M, entropy, round)

    def released(self, steps: Tensor, n_agents: int, taking_part: int, round: int) -> Release:
        """Return the release for a noisy sum, 1 x M integers, to which `taking_part` sites added their shares."""
        sensitivity = self.sum_sensitivity(n_agents, steps.shape[1]) / n_agents
        sigma = self.multiplier(round) * sensitivity * math.sqrt(taking_part / self.noise_of(n_agents).honest)
        values = modular(steps).double() * (2.0**-BITS * self.message_norm(1) / n_agents)
        return Release(values, sigma, sensitivity)

    def sigma(self, weights: Tensor, round: int = 0) -> float:
        n_agents = weights.shape[1]
        if weights.shape[0] != 1 or float(weights.min()) != float(weights.max()):
            raise SettingError("weights", "must be uniform, for a single region, where no server is trusted")
        self.scale(n_agents, 1, round)
        return super().sigma(weights, round)

    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        clipped, n_clipped = super().bounded(received, P)
        return quantised(clipped, self.message_norm(P)).to(clipped), n_clipped  # steps, k x M

    def privatised(self, total: Tensor, weights: Tensor, entropy: Entropy, round: int) -> Release:
        N, M = weights.shape[1], total.shape[1]
        steps = torch.round(total * N).long()  # the weights are 1 / N
        for agent in range(N):
            steps = steps + self.share(agent, N, M, entropy, round)
        return self.released(steps, N, N, round)


def without_trust(mechanism: SubsampledGaussian, max_dropouts: int, colluders: int) -> DistributedGaussian:
    """Return a `DistributedGaussian` with the settings of the mechanism. Raises SettingError as that class does."""
    same = {f.name: getattr(mechanism, f.name) for f in fields(SubsampledGaussian)}
    return DistributedGaussian(**same, max_dropouts=max_dropouts, colluders=colluders)
