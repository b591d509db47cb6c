"""Mechanisms and noise with one fault each; all other code is inherited from the real ones."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import dp_accounting
import torch
from torch import Tensor

from dpfbo.federated.mechanism import Messages, PartialSum, SubsampledGaussian
from dpfbo.federated.messages import accept, clip
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.entropy import Entropy, gaussian
from dpfbo.privacy.noise import Gaussian
from dpfbo.privacy.release import Diagnostics, Release

Sent = Tensor | Sequence[Tensor | None]


class HalfNoise(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return super().add(total, sigma / 2, sensitivity, entropy, round)


class FirstRegionNoise(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return torch.cat([super().add(total, sigma, sensitivity, entropy, round)[:1], total[1:]])


class SharedNoise(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total + sigma * gaussian(entropy, "noise", round, (1, total.shape[1]))


class SameNoise(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return super().add(total, sigma, sensitivity, entropy, 0)


class UniformNoise(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        u = entropy.uniform("noise", round, total.numel()).view(total.shape)
        return total + sigma * math.sqrt(12) * (u - 0.5)


class NoiseOfTheChoice(Gaussian):
    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total + sigma * gaussian(entropy, "choice", round, tuple(total.shape))


class NoClipping(SubsampledGaussian):
    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        return received, 0


class ClipsByRegion(SubsampledGaussian):
    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        return clip(received, self.clip_norm)


class ClipsByEntry(SubsampledGaussian):
    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        largest = received.abs().amax(1, keepdim=True)
        return received * (self.message_norm(P) / largest.clamp(min=self.message_norm(P))), 0


class ScalesAfterClipping(SubsampledGaussian):
    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        clipped, n_clipped = super().bounded(received, P)
        return 2 * clipped, n_clipped


class AverageWeight(SubsampledGaussian):
    def tight_sensitivity(self, weights: Tensor) -> float:
        return self.clip_norm * float(weights.mean()) / self.sampling_probability


class HalfQ(SubsampledGaussian):
    def dp_event(self, weights: Tensor, round: int) -> dp_accounting.DpEvent:
        return round_event(self.sampling_probability / 2, self.charged_multiplier(weights, round))


class EffectiveOnTight(SubsampledGaussian):
    def charged_multiplier(self, weights: Tensor, round: int) -> float:
        paper = self.clip_norm * float(weights.max()) / self.sampling_probability
        return self.multiplier(round) * paper / self.tight_sensitivity(weights)


class ScheduleOnPaper(SubsampledGaussian):
    def sigma(self, weights: Tensor, round: int = 0) -> float:
        return self.noise_multiplier * self.sensitivity(weights)


class OneDraw(SubsampledGaussian):
    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return entropy.uniform("choice", round, 1).expand(n_agents) < self.sampling_probability


class SameSubset(SubsampledGaussian):
    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return super().choose(n_agents, entropy, 0)


class FixedSizeAsPoisson(SubsampledGaussian):
    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return replace(SubsampledGaussian(self.sampling_probability, 1.0, 1.0), sampling="fixed_size").choose(
            n_agents, entropy, round
        )


class _ReplacedSum(SubsampledGaussian, ABC):
    """A mechanism that passes on `replacement` in place of the real sum."""

    def add_up(self, messages: Sent, rows: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        part = super().add_up(messages, rows, weights, n_features)
        return replace(part, total=self.replacement(part.total, messages, rows, weights))

    @abstractmethod
    def replacement(self, total: Tensor, messages: Sent, rows: Tensor, weights: Tensor) -> Tensor:
        """The value that takes the place of the real one."""


class DividesBySubset(_ReplacedSum):
    def replacement(self, total: Tensor, messages: Sent, rows: Tensor, weights: Tensor) -> Tensor:
        return total * (self.sampling_probability * len(messages) / max(1, len(rows)))


class NormOfTheSum(_ReplacedSum):
    def replacement(self, total: Tensor, messages: Sent, rows: Tensor, weights: Tensor) -> Tensor:
        longest = self.tight_sensitivity(weights) if len(rows) else 0.0
        return total * (longest / total.norm().clamp(min=1e-300))


class PassesNaN(_ReplacedSum):
    def replacement(self, total: Tensor, messages: Sent, rows: Tensor, weights: Tensor) -> Tensor:
        sent = [m for n in rows.tolist() if isinstance(m := messages[n], Tensor) and m.shape == total.shape[1:]]
        broken = any(bool(torch.isnan(m).any()) for m in sent)
        return total * math.nan if broken else total


class _ReplacedRelease(SubsampledGaussian, ABC):
    """A mechanism that releases `replacement` in place of the real values. total: the sum without noise."""

    def release(
        self,
        messages: Messages,
        weights: Tensor,
        n_features: int,
        entropy: Entropy,
        round: int,
        lost: Tensor | None = None,
    ) -> tuple[Release, Diagnostics]:
        made, private = super().release(messages, weights, n_features, entropy, round, lost)
        silent = SubsampledGaussian(self.sampling_probability, 0.0, self.clip_norm, self.calibration)
        total = silent.release(messages, weights, n_features, entropy, round, lost)[0].values
        return replace(made, values=self.replacement(made.values, private, total)), private

    @abstractmethod
    def replacement(self, values: Tensor, private: Diagnostics, total: Tensor) -> Tensor:
        """The value that takes the place of the real one."""


class BareWhenEmpty(_ReplacedRelease):
    def replacement(self, values: Tensor, private: Diagnostics, total: Tensor) -> Tensor:
        return values if private.n_chosen else total


class UniformWhenEmpty(_ReplacedRelease):
    def replacement(self, values: Tensor, private: Diagnostics, total: Tensor) -> Tensor:
        return values if private.n_chosen else torch.full_like(total, total.numel() ** -0.5)


class BareWhenRejected(_ReplacedRelease):
    def replacement(self, values: Tensor, private: Diagnostics, total: Tensor) -> Tensor:
        return total if private.n_rejected else values


class NoiseByMessages(SubsampledGaussian):
    def release(
        self,
        messages: Messages,
        weights: Tensor,
        n_features: int,
        entropy: Entropy,
        round: int,
        lost: Tensor | None = None,
    ) -> tuple[Release, Diagnostics]:
        received, _ = accept(messages, torch.arange(weights.shape[1]), n_features)  # type: ignore[arg-type]
        longest = float(clip(received, self.message_norm(len(weights)))[0].norm(dim=1).max())
        fitted = max(longest * math.sqrt(len(weights)), 1e-6 * self.clip_norm)
        sound = SubsampledGaussian(self.sampling_probability, self.noise_multiplier, fitted, self.calibration)
        return sound.release(messages, weights, n_features, entropy, round, lost)


class LongestChosen(SubsampledGaussian):
    def release(
        self,
        messages: Messages,
        weights: Tensor,
        n_features: int,
        entropy: Entropy,
        round: int,
        lost: Tensor | None = None,
    ) -> tuple[Release, Diagnostics]:
        received, _ = accept(messages, torch.arange(weights.shape[1]), n_features)  # type: ignore[arg-type]
        lengths = received.norm(dim=1) * (1 + 1e-3 * entropy.uniform("choice", round, len(received)))
        longest = lengths.argsort(descending=True)[: self._subset_size(len(received))]
        kept = torch.zeros_like(received)
        kept[longest] = received[longest]
        return super().release(kept, weights, n_features, entropy, round, lost)

    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return torch.ones(n_agents, dtype=torch.bool)
