"""The private step of Algorithm 1: sample agents, clip their messages, add them up with weights, and add noise.

A mechanism turns the agents' messages of a round into a release: one vector per region.
`SubsampledGaussian` is private; `WeightedAverage` (FTS, FTS-DE) is not.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.messages import accept, clip, scale_to
from dpfbo.federated.schedule import Constant, Schedule
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian, Noise
from dpfbo.privacy.release import Diagnostics, Release

if TYPE_CHECKING:
    import dp_accounting

_SMALLEST_PROBABILITY = 1e-12  # smallest q: a 53-bit uniform number falls below a smaller q too often
_SMALLEST_MULTIPLIER = 0.01  # smallest z: below it a round costs an epsilon of thousands, which accountants fail on


@dataclass(frozen=True)
class PartialSum:
    """The weighted sum of some sampled agents' messages, P x M, and the numbers of clipped and of rejected messages."""

    total: Tensor
    n_clipped: int
    n_rejected: int


@runtime_checkable
class Contributions(Protocol):
    """The messages of one round, of which the server receives only a `PartialSum`.

    The agents' side clips the messages and adds them up with weights, by the method `add_up`. The server sees the
    weighted sum, P x M, and the numbers of clipped and of rejected messages.
    """

    def add_up(self, mechanism: Mechanism, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        """Return the result of `mechanism.add_up` for the sampled agents. chosen: k ids; weights: P x N."""


Messages = Tensor | Sequence[Tensor | None] | Contributions


class Mechanism(ABC):
    """Turns the messages of a round into one release."""

    @abstractmethod
    def sensitivity(self, weights: Tensor) -> float:
        """Return the L2 sensitivity of the weighted sum, P x M, to one agent's message. weights: P x N."""

    @abstractmethod
    def dp_event(self, weights: Tensor, round: int) -> dp_accounting.DpEvent:
        """Return the `DpEvent` of one round's release. weights: P x N."""

    @abstractmethod
    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        """Choose the agents S_t of a round, and return N booleans."""

    @abstractmethod
    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        """Return the messages (k x M) with bounded norms, and the number of messages whose norms exceeded the bound."""

    @abstractmethod
    def privatised(self, total: Tensor, weights: Tensor, entropy: Entropy, round: int) -> Release:
        """Add noise to the sum, P x M, and return the release."""

    def add_up(
        self, messages: Tensor | Sequence[Tensor | None], rows: Tensor, weights: Tensor, n_features: int
    ) -> PartialSum:
        """Limit the norms of k agents' messages, and compute P weighted sums of these messages.

        rows: k indices into `messages`, one for each agent. weights: P x k.
        """
        received, n_rejected = accept(messages, rows, n_features)
        bounded, n_clipped = self.bounded(received, len(weights))
        return PartialSum(weights @ bounded, n_clipped, n_rejected)

    def release(
        self, messages: Messages, weights: Tensor, n_features: int, entropy: Entropy, round: int,
        lost: Tensor | None = None,
    ) -> tuple[Release, Diagnostics]:  # fmt: skip
        """Run one round: sample agents, bound their messages, add them up, and add noise.

        messages: N x M; or N vectors, None for a lost message; or `Contributions`. lost: N, True for messages that did
        not arrive in time, which count as zero vectors.
        """
        chosen = self.choose(weights.shape[1], entropy, round).nonzero()[:, 0]  # |S_t|
        arrived = chosen if lost is None else chosen[~lost[chosen]]
        if isinstance(messages, Contributions):
            part = messages.add_up(self, arrived, weights, n_features)
        else:
            part = self.add_up(messages, arrived, weights[:, arrived], n_features)
        release = self.privatised(part.total, weights, entropy, round)
        signal, noise = float(part.total.norm()), float((release.values - part.total).norm())
        n_rejected = part.n_rejected + len(chosen) - len(arrived)
        return release, Diagnostics(signal, noise, len(chosen), part.n_clipped, n_rejected)


@dataclass(frozen=True)
class SubsampledGaussian(Mechanism):
    """The subsampled Gaussian mechanism of DP-FTS-DE (Algo. 1 lines 5 to 12), which releases P vectors jointly.

        omega^(i) = (1/q) sum_{n in S_t} phi_n^(i) clip(omega_n, S / sqrt(P)) + N(0, sigma_t^2 I_M),   i = 1..P

    omega_n is the message of agent n, M numbers, and phi_n^(i) the weight of agent n in region i.

    Args:
        sampling_probability: q.
        noise_multiplier: z; 0 adds no noise and has no finite epsilon.
        clip_norm: S; messages are clipped to norm `C = S / sqrt(P)`.
        calibration: `paper` or `tight`, see `sensitivity`.
        sampling: The choice of the agents S_t of a round: `poisson`, each agent independently with probability q; or
            `fixed_size`, a uniform subset of round(q N) agents.
        normalize: True to rescale every message to norm C.
        charge: The multiplier at which a round is charged: `nominal`, z_t; or `effective`, see `charged_multiplier`.
        schedule: A function that returns `z_t / z` for a round t.
        noise: The sampler of the noise, `dpfbo.privacy.Gaussian` or `DiscreteGaussian`.

    Guarantee:
        Neighbouring relation: all messages of one agent, in all rounds, are replaced by zero vectors (zero-out,
        dp-accounting's REPLACE_SPECIAL; N is public). With `fixed_size`, the agent's messages are replaced by any
        messages, not only by zero vectors (replace-one). Event: each round is charged as one sampled Gaussian
        (`dp_event`), because the P vectors are one joint vector. Sensitivity: `sensitivity()` bounds how much one
        agent's message adds to the sum, and sigma is z_t times this bound. Under replace-one, the sum may change by
        twice this bound; the event then has half the multiplier. The sum is divided by q, never by |S_t|. Messages that
        are missing, not finite or of the wrong shape count as zero vectors, and an empty S_t gives a zero sum; noise is
        added in these cases, too.

    Raises:
        SettingError: q is outside [1e-12, 1], z_t is negative or in (0, 0.01), S is not positive, or a name is unknown.

    Example:
        >>> mechanism = SubsampledGaussian(sampling_probability=0.5, noise_multiplier=1.5, clip_norm=2.0)
        >>> weights = torch.full((2, 4), 0.25)  # P x N
        >>> mechanism.sensitivity(weights), mechanism.sigma(weights)
        (1.0, 1.5)
    """

    sampling_probability: float
    noise_multiplier: float
    clip_norm: float
    calibration: str = "paper"
    sampling: str = "poisson"
    normalize: bool = False
    charge: str = "nominal"
    schedule: Schedule = Constant()
    noise: Noise = Gaussian()

    def __post_init__(self) -> None:
        checks.probability("sampling_probability", self.sampling_probability)
        if self.sampling_probability < _SMALLEST_PROBABILITY:
            rule = f"must be at least {_SMALLEST_PROBABILITY}, got {self.sampling_probability!r}"
            raise SettingError("sampling_probability", rule)
        checks.non_negative("noise_multiplier", self.noise_multiplier)
        checks.positive("clip_norm", self.clip_norm)
        checks.one_of("calibration", self.calibration, ("paper", "tight"))
        checks.one_of("sampling", self.sampling, ("poisson", "fixed_size"))
        checks.one_of("charge", self.charge, ("nominal", "effective"))
        checks.one_of("normalize", self.normalize, (True, False))
        self.multiplier(0)

    def multiplier(self, round: int) -> float:
        """Return z_t, the ratio of sigma to the sensitivity in a round.

        Raises ValueError if z is positive and z_t lies outside [0.01, inf).
        """
        z = self.noise_multiplier * self.schedule(round)
        if self.noise_multiplier > 0 and not _SMALLEST_MULTIPLIER <= z < math.inf:
            rule = f"must be 0 or at least {_SMALLEST_MULTIPLIER}, got {z!r} in round {round}"
            raise SettingError("noise_multiplier", rule)
        return z

    def message_norm(self, P: int) -> float:
        """Return the norm `C = S / sqrt(P)` that every message is clipped or scaled to; S is `clip_norm`."""
        return self.clip_norm / math.sqrt(P)

    def sensitivity(self, weights: Tensor) -> float:
        """Return a bound on the L2 sensitivity of the P x M sum; sigma is z_t times this bound. weights: P x N.

        `tight` calibration uses `tight_sensitivity`; `paper` uses `S phi_max / q`, which is up to sqrt(P) times larger.
        S is `clip_norm`, phi_max the largest weight, and q the sampling probability.
        """
        if self.calibration == "tight":
            return self.tight_sensitivity(weights)
        return self.clip_norm * float(weights.abs().max()) / self.sampling_probability

    def tight_sensitivity(self, weights: Tensor) -> float:
        """Return the P x M sum's L2 sensitivity to one agent's message, `C max_n ||phi_n||_2 / q`. weights: P x N.

        C is `message_norm`, phi_n (column n of `weights`) holds the weights of agent n, and q is the sampling
        probability.
        """
        return self.message_norm(len(weights)) * float(weights.norm(dim=0).max()) / self.sampling_probability

    def charged_multiplier(self, weights: Tensor, round: int) -> float:
        """Return the multiplier at which a round is charged.

        `charge="nominal"` gives z_t, and `charge="effective"` gives sigma_t / `tight_sensitivity`. With the paper's
        calibration the effective multiplier is `z_t sqrt(P) phi_max / max_n ||phi_n||`, at most `sqrt(P) z_t`. phi_n
        holds the weights of agent n, and phi_max is the largest weight.
        """
        z = self.multiplier(round)
        if self.charge == "nominal":
            return z
        return z * max(1.0, self.sensitivity(weights) / self.tight_sensitivity(weights))

    def sigma(self, weights: Tensor, round: int = 0) -> float:
        """Return `z_t * sensitivity()`, the standard deviation of a round's noise without the factor `noise.inflation`.

        If z is 0, sigma is 0. If z is positive, raises ValueError for a sigma that is infinite, subnormal or 0, or for
        which the sampler `noise` can draw no noise.
        """
        sigma = self.multiplier(round) * self.sensitivity(weights)
        if self.noise_multiplier > 0 and not sys.float_info.min < sigma < math.inf:
            raise SettingError(
                "clip_norm",
                f"{self.clip_norm!r} with sampling_probability {self.sampling_probability!r} gives noise of standard "
                f"deviation {sigma!r}, which is no ordinary number",
            )
        if sigma > 0:
            self.noise.check(sigma, self.tight_sensitivity(weights))
        return sigma

    def dp_event(self, weights: Tensor, round: int) -> dp_accounting.DpEvent:
        N = weights.shape[1]
        subset = (self._subset_size(N), N) if self.sampling == "fixed_size" else None
        return round_event(self.sampling_probability, self.charged_multiplier(weights, round), subset)

    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        u = entropy.uniform("choice", round, n_agents)
        if self.sampling == "poisson":
            return u < self.sampling_probability
        chosen = torch.zeros(n_agents, dtype=torch.bool, device="cpu")
        chosen[u.argsort()[: self._subset_size(n_agents)]] = True
        return chosen

    def _subset_size(self, n_agents: int) -> int:
        return max(1, math.floor(self.sampling_probability * n_agents + 0.5))

    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        clipped, n_clipped = clip(received, self.message_norm(P))
        return (scale_to(received, self.message_norm(P)) if self.normalize else clipped), n_clipped

    def add_up(
        self, messages: Tensor | Sequence[Tensor | None], rows: Tensor, weights: Tensor, n_features: int
    ) -> PartialSum:
        """Return `(1/q) sum_n phi_n^(i) clip(omega_n, S / sqrt(P))` over the agents n in `rows`, for each region i."""
        return super().add_up(messages, rows, weights / self.sampling_probability, n_features)

    def privatised(self, total: Tensor, weights: Tensor, entropy: Entropy, round: int) -> Release:
        inflation = self.noise.inflation(total.numel(), weights.shape[1])
        sensitivity, sigma = inflation * self.sensitivity(weights), inflation * self.sigma(weights, round)
        if sigma > 0:
            total = self.noise.add(total, sigma, self.tight_sensitivity(weights), entropy, round)
        return Release(total, sigma, sensitivity)


@dataclass(frozen=True)
class WeightedAverage(Mechanism):
    """Adds up all messages without clipping and noise, `omega^(i) = sum_n phi_n^(i) omega_n`; not private.

    Args:
        normalize: True to scale every message to norm 1 first.

    Example:
        >>> messages, weights = torch.eye(2).double(), torch.tensor([[0.5, 0.5]]).double()  # N x M, P x N
        >>> WeightedAverage().add_up(messages, torch.arange(2), weights, n_features=2).total
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    normalize: bool = False

    def sensitivity(self, weights: Tensor) -> float:
        """Return infinity, because the mechanism is not private."""
        return math.inf

    def dp_event(self, weights: Tensor, round: int) -> dp_accounting.DpEvent:
        return round_event(1.0, None)

    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        return torch.ones(n_agents, dtype=torch.bool, device="cpu")

    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        return (scale_to(received, 1.0) if self.normalize else received), 0

    def privatised(self, total: Tensor, weights: Tensor, entropy: Entropy, round: int) -> Release:
        return Release(total, 0.0, self.sensitivity(weights))
