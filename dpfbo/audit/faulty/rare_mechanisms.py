"""Mechanisms and noise with one fault each that only one agent, a later round or many draws bring out."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.federated.mechanism import PartialSum, SubsampledGaussian
from dpfbo.privacy.entropy import Entropy, gaussian
from dpfbo.privacy.noise import Gaussian

Sent = Tensor | list[Tensor | None]


def _earlier(round: int) -> int:
    """An odd round from 3 on is taken for the one two before it."""
    return round - 2 if round % 2 and round >= 3 else round


class NoiseOfAnEarlierRound(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return super().add(total, sigma, sensitivity, entropy, _earlier(round))


class ChoiceOfAnEarlierRound(SubsampledGaussian):
    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return super().choose(n_agents, entropy, _earlier(round))


@dataclass(frozen=True)
class ChosenTooOften(SubsampledGaussian):
    """excess: relative, of the probability of every agent."""

    excess: float = 0.0

    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return entropy.uniform("choice", round, n_agents) < self.sampling_probability * (1 + self.excess)


class _OfAgents(SubsampledGaussian, ABC):
    """A mechanism that bounds the messages of some agents otherwise."""

    def add_up(self, messages: Sent, rows: Tensor, weights: Tensor, n_features: int) -> PartialSum:  # type: ignore[override]
        object.__setattr__(self, "rows", rows)
        return super().add_up(messages, rows, weights, n_features)

    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        clipped, n_clipped = super().bounded(received, P)
        rows: Tensor = self.rows  # type: ignore[attr-defined]
        return self.otherwise(received, clipped, rows[:, None]), n_clipped

    @abstractmethod
    def otherwise(self, received: Tensor, clipped: Tensor, agents: Tensor) -> Tensor:
        """The value that takes the place of the real one."""


class OneAgentUnclipped(_OfAgents):
    def otherwise(self, received: Tensor, clipped: Tensor, agents: Tensor) -> Tensor:
        return torch.where(agents == 57, received, clipped)


class LaterAgentsDoubled(_OfAgents):
    def otherwise(self, received: Tensor, clipped: Tensor, agents: Tensor) -> Tensor:
        return torch.where(agents >= 100, 2 * clipped, clipped)


class CentredBeforeClipping(SubsampledGaussian):
    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        return super().bounded(received - received.mean(0) if len(received) else received, P)


class BareFeature(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        values = super().add(total, sigma, sensitivity, entropy, round)
        return torch.cat([values[:, :3], total[:, 3:4], values[:, 4:]], 1)


class TruncatedNoise(Gaussian):
    """Noise beyond four standard deviations is drawn anew: here, taken at half its size."""

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        x = gaussian(entropy, "noise", round, tuple(total.shape))
        return total + sigma * torch.where(x.abs() > 4, x / 2, x)


class SingleNoise(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total + sigma * gaussian(entropy, "noise", round, tuple(total.shape)).float().double()


class SingleUniforms(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        half = math.ceil(total.numel() / 2)
        u = torch.floor(entropy.uniform("noise", round, 2 * half) * 2.0**24) / 2.0**24
        radius, angle = torch.sqrt(-2 * torch.log1p(-u[:half])), 2 * math.pi * u[half:]
        x = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])
        return total + sigma * x[: total.numel()].view(total.shape)


class SignsOfTheFirstRegion(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        noise = super().add(torch.zeros_like(total), sigma, sensitivity, entropy, round)
        noise[1] = noise[0] * noise[1].sign()
        return total + noise


class TightAsPaperLater(SubsampledGaussian):
    """In round 2 the noise is that of the tight sensitivity, and charged as if it were that of the paper's."""

    def sigma(self, weights: Tensor, round: int = 0) -> float:
        sigma = super().sigma(weights, round)
        return sigma * self.tight_sensitivity(weights) / self.sensitivity(weights) if round == 2 else sigma

    def charged_multiplier(self, weights: Tensor, round: int) -> float:
        return self.multiplier(round) * self.sensitivity(weights) / self.tight_sensitivity(weights)


class MultiplierOfTheNextRound(SubsampledGaussian):
    """From round 2 on each round is charged at the multiplier of the next."""

    def charged_multiplier(self, weights: Tensor, round: int) -> float:
        return super().charged_multiplier(weights, round + 1 if round >= 2 else round)
