"""Mechanisms with one fault each; all other code is inherited from the real one."""

import math
from dataclasses import dataclass, replace

import torch

from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.messages import accept, clip
from dpfbo.privacy.accounting.events import round_event
from tests.planted.noise import earlier


class NoClipping(SubsampledGaussian):
    def bounded(self, received, P):
        return received, 0


class ClipsByRegion(SubsampledGaussian):
    def bounded(self, received, P):
        return clip(received, self.clip_norm)


class ClipsByEntry(SubsampledGaussian):
    def bounded(self, received, P):
        largest = received.abs().amax(1, keepdim=True)
        return received * (self.message_norm(P) / largest.clamp(min=self.message_norm(P))), 0


class ScalesAfterClipping(SubsampledGaussian):
    def bounded(self, received, P):
        clipped, n_clipped = super().bounded(received, P)
        return 2 * clipped, n_clipped


class CentredBeforeClipping(SubsampledGaussian):
    def bounded(self, received, P):
        return super().bounded(received - received.mean(0) if len(received) else received, P)


class _OfAgents(SubsampledGaussian):
    """Bounds the messages of some agents otherwise."""

    def add_up(self, messages, rows, weights, n_features):
        object.__setattr__(self, "rows", rows)
        return super().add_up(messages, rows, weights, n_features)


class OneAgentUnclipped(_OfAgents):
    def bounded(self, received, P):
        clipped, n_clipped = super().bounded(received, P)
        return torch.where(self.rows[:, None] == 57, received, clipped), n_clipped


class LaterAgentsDoubled(_OfAgents):
    def bounded(self, received, P):
        clipped, n_clipped = super().bounded(received, P)
        return torch.where(self.rows[:, None] >= 100, 2 * clipped, clipped), n_clipped


class AverageWeight(SubsampledGaussian):
    def tight_sensitivity(self, weights):
        return self.clip_norm * float(weights.mean()) / self.sampling_probability


class NoiseOfTheMean(SubsampledGaussian):
    """The noise is divided by N once more, as if `1 / N` were not in the weights already."""

    def sensitivity(self, weights):
        return super().sensitivity(weights) / weights.shape[1]

    def tight_sensitivity(self, weights):
        return super().tight_sensitivity(weights) / weights.shape[1]


class HalfQ(SubsampledGaussian):
    def dp_event(self, weights, round):
        return round_event(self.sampling_probability / 2, self.charged_multiplier(weights, round))


class EffectiveOnTight(SubsampledGaussian):
    def charged_multiplier(self, weights, round):
        paper = self.clip_norm * float(weights.max()) / self.sampling_probability
        return self.multiplier(round) * paper / self.tight_sensitivity(weights)


class ScheduleOnPaper(SubsampledGaussian):
    def sigma(self, weights, round=0):
        return self.noise_multiplier * self.sensitivity(weights)


class TightAsPaperLater(SubsampledGaussian):
    """In round 2 the noise is that of the tight sensitivity, and charged as if it were that of the paper's."""

    def sigma(self, weights, round=0):
        sigma = super().sigma(weights, round)
        return sigma * self.tight_sensitivity(weights) / self.sensitivity(weights) if round == 2 else sigma

    def charged_multiplier(self, weights, round):
        return self.multiplier(round) * self.sensitivity(weights) / self.tight_sensitivity(weights)


class MultiplierOfTheNextRound(SubsampledGaussian):
    """From round 2 on each round is charged at the multiplier of the next."""

    def charged_multiplier(self, weights, round):
        return super().charged_multiplier(weights, round + 1 if round >= 2 else round)


@dataclass(frozen=True)
class ChosenTooOften(SubsampledGaussian):
    """excess: relative, of the probability of every agent."""

    excess: float = 0.0

    def choose(self, n_agents, entropy, round):
        return entropy.uniform("choice", round, n_agents) < self.sampling_probability * (1 + self.excess)


class OneDraw(SubsampledGaussian):
    def choose(self, n_agents, entropy, round):
        return entropy.uniform("choice", round, 1).expand(n_agents) < self.sampling_probability


class SameSubset(SubsampledGaussian):
    def choose(self, n_agents, entropy, round):
        return super().choose(n_agents, entropy, 0)


class ChoiceOfAnEarlierRound(SubsampledGaussian):
    def choose(self, n_agents, entropy, round):
        return super().choose(n_agents, entropy, earlier(round))


class FixedSizeAsPoisson(SubsampledGaussian):
    def choose(self, n_agents, entropy, round):
        fixed = SubsampledGaussian(self.sampling_probability, 1.0, 1.0, sampling="fixed_size")
        return fixed.choose(n_agents, entropy, round)


class _ReplacedSum(SubsampledGaussian):
    """Passes on `replacement` in place of the real sum."""

    def add_up(self, messages, rows, weights, n_features):
        part = super().add_up(messages, rows, weights, n_features)
        return replace(part, total=self.replacement(part.total, messages, rows, weights))


class DividesBySubset(_ReplacedSum):
    def replacement(self, total, messages, rows, weights):
        return total * (self.sampling_probability * len(messages) / max(1, len(rows)))


class NormOfTheSum(_ReplacedSum):
    def replacement(self, total, messages, rows, weights):
        longest = self.tight_sensitivity(weights) if len(rows) else 0.0
        return total * (longest / total.norm().clamp(min=1e-300))


class PassesNaN(_ReplacedSum):
    def replacement(self, total, messages, rows, weights):
        sent = [messages[n] for n in rows.tolist() if isinstance(messages[n], torch.Tensor)]
        broken = any(m.shape == total.shape[1:] and bool(torch.isnan(m).any()) for m in sent)
        return total * math.nan if broken else total


class _ReplacedRelease(SubsampledGaussian):
    """Releases `replacement` in place of the real values. total: the sum without noise."""

    def release(self, messages, weights, n_features, entropy, round, lost=None):
        made, private = super().release(messages, weights, n_features, entropy, round, lost)
        silent = SubsampledGaussian(self.sampling_probability, 0.0, self.clip_norm, self.calibration)
        total = silent.release(messages, weights, n_features, entropy, round, lost)[0].values
        return replace(made, values=self.replacement(made.values, private, total)), private


class BareWhenEmpty(_ReplacedRelease):
    def replacement(self, values, private, total):
        return values if private.n_chosen else total


class UniformWhenEmpty(_ReplacedRelease):
    def replacement(self, values, private, total):
        return values if private.n_chosen else torch.full_like(total, total.numel() ** -0.5)


class BareWhenRejected(_ReplacedRelease):
    def replacement(self, values, private, total):
        return total if private.n_rejected else values


class NoiseByMessages(SubsampledGaussian):
    def release(self, messages, weights, n_features, entropy, round, lost=None):
        received, _ = accept(messages, torch.arange(weights.shape[1]), n_features)
        longest = float(clip(received, self.message_norm(len(weights)))[0].norm(dim=1).max())
        fitted = max(longest * math.sqrt(len(weights)), 1e-6 * self.clip_norm)
        sound = SubsampledGaussian(self.sampling_probability, self.noise_multiplier, fitted, self.calibration)
        return sound.release(messages, weights, n_features, entropy, round, lost)


class LongestChosen(SubsampledGaussian):
    def release(self, messages, weights, n_features, entropy, round, lost=None):
        received, _ = accept(messages, torch.arange(weights.shape[1]), n_features)
        lengths = received.norm(dim=1) * (1 + 1e-3 * entropy.uniform("choice", round, len(received)))
        longest = lengths.argsort(descending=True)[: self._subset_size(len(received))]
        kept = torch.zeros_like(received)
        kept[longest] = received[longest]
        return super().release(kept, weights, n_features, entropy, round, lost)

    def choose(self, n_agents, entropy, round):
        return torch.ones(n_agents, dtype=torch.bool)
