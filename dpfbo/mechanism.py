"""The private step of Algorithm 1: choose, clip, weigh and sum, add noise.

`SubsampledGaussian` is the private mechanism; `WeightedAverage` is the same step without privacy (FTS, FTS-DE).
Both take all the messages of a round and give one vector a region; neither knows where the messages come from.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import dp_accounting
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.entropy import Entropy, gaussian

_SMALLEST_MULTIPLIER = 0.01  # below it a round costs thousands of epsilon, beyond the accountants


@dataclass(frozen=True)
class PartialSum:
    """What some of the chosen agents add to the joint vector.

    total: P x M. n_clipped, n_rejected: counts among them, as in `Release`.
    """

    total: Tensor
    n_clipped: int
    n_rejected: int


@runtime_checkable
class Contributions(Protocol):
    """Messages that stay where they are: their holders clip and add them up, the server gets P x M numbers."""

    def add_up(self, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        """The mechanism's `add_up` of the chosen agents (k ids; weights: P x N)."""


Messages = Tensor | Sequence[Tensor | None] | Contributions


@dataclass(frozen=True)
class Release:
    """One released joint vector and what the server alone knows of how it came about.

    values: P x M, the only part that is broadcast. sigma, sensitivity: public. signal, noise: L2 norms of the
    sum and of the noise. n_chosen: |S_t|. n_clipped: chosen messages longer than the clip norm. n_rejected:
    chosen messages that were missing, of a wrong shape, or not finite, and counted as zero. All but `values`,
    sigma and sensitivity are private.
    """

    values: Tensor
    sigma: float
    sensitivity: float
    signal: float
    noise: float
    n_chosen: int
    n_clipped: int
    n_rejected: int


class Mechanism(Protocol):
    """Turns the messages of a round into one release."""

    def sensitivity(self, weights: Tensor) -> float: ...

    def dp_event(self, n_agents: int) -> dp_accounting.DpEvent: ...

    def add_up(
        self, messages: Tensor | Sequence[Tensor | None], rows: Tensor, weights: Tensor, n_features: int
    ) -> PartialSum:
        """The part of the joint vector that messages[rows] make. weights: P x k, of these rows."""

    def release(
        self,
        messages: Messages,
        weights: Tensor,
        n_features: int,
        entropy: Entropy,
        round: int,
        lost: Tensor | None = None,
    ) -> Release:
        """One round. lost: N, True for messages that did not arrive: they count as zero vectors."""


@dataclass(frozen=True)
class SubsampledGaussian:
    """The subsampled Gaussian mechanism of DP-FTS-DE (Algo. 1 lines 5 to 12), on the joint vector of all regions.

        omega^(i) = (1/q) sum_{n in S_t} phi_n^(i) clip(omega_n, S / sqrt(P)) + N(0, sigma^2 I_M),   i = 1..P

    sampling_probability: q. noise_multiplier: z; 0 adds no noise and has no finite epsilon. clip_norm: S, for
    the joint vector; each message is clipped to `C = S / sqrt(P)`. calibration: `paper` or `tight`, see
    `sensitivity`. sampling: `poisson` (each agent independently with probability q), or `fixed_size` (a uniform
    subset of round(q N) agents).

    Guarantee. Relation: zero-out, one agent's messages of all rounds replaced by zero vectors (dp-accounting's
    REPLACE_SPECIAL; the weights depend on N, so N is public). Event: one Gaussian of multiplier z a round on
    the Poisson-sampled agents, `dp_event`; the P blocks are one joint vector and one event. Sensitivity:
    `sensitivity()`, of the sum over the chosen agents, from which alone sigma is derived. Division is by q,
    never by |S_t|; an empty S_t, and messages that are missing, not finite or of the wrong shape, take the same
    path as zero vectors.

    The accountants here analyse `poisson` sampling only: a run with `fixed_size` is refused.

    Raises ValueError for q outside (0, 1], z < 0, S <= 0 or an unknown name.
    """

    sampling_probability: float
    noise_multiplier: float
    clip_norm: float
    calibration: str = "paper"
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        checks.probability("privacy.q (sampling probability)", self.sampling_probability)
        checks.non_negative("privacy.z (noise multiplier)", self.noise_multiplier)
        if 0 < self.noise_multiplier < _SMALLEST_MULTIPLIER:
            raise ValueError(
                f"privacy.z (noise multiplier) must be 0 or at least {_SMALLEST_MULTIPLIER}, "
                f"got {self.noise_multiplier!r}"
            )
        checks.positive("privacy.S (clip norm)", self.clip_norm)
        checks.one_of("privacy.sensitivity", self.calibration, ("paper", "tight"))
        checks.one_of("privacy.sampling", self.sampling, ("poisson", "fixed_size"))

    def message_norm(self, P: int) -> float:
        """The norm `C = S / sqrt(P)` that every message is clipped to."""
        return self.clip_norm / math.sqrt(P)

    def sensitivity(self, weights: Tensor) -> float:
        """L2 sensitivity of the joint sum to one agent's message (weights: P x N).

        Agent n adds `(phi_n^(1) c, .., phi_n^(P) c) / q` with `||c|| <= C`. `tight`: `C max_n ||phi_n||_2 / q`.
        `paper`: its upper bound `S phi_max / q`, at most sqrt(P) larger.
        """
        q = self.sampling_probability
        if self.calibration == "tight":
            return self.message_norm(len(weights)) * float(weights.norm(dim=0).max()) / q
        return self.clip_norm * float(weights.max()) / q

    def sigma(self, weights: Tensor) -> float:
        """Standard deviation of the noise: `z * sensitivity()`.

        Raises ValueError where it is no ordinary number although there should be noise.
        """
        sigma = self.noise_multiplier * self.sensitivity(weights)
        if self.noise_multiplier > 0 and not sys.float_info.min < sigma < math.inf:
            raise ValueError(
                f"privacy.S (clip norm) {self.clip_norm!r} and privacy.q (sampling probability) "
                f"{self.sampling_probability!r} give noise of standard deviation {sigma!r}, which is no ordinary number"
            )
        return sigma

    def dp_event(self, n_agents: int) -> dp_accounting.DpEvent:
        """What one round costs, for an accountant."""
        if self.noise_multiplier == 0:
            return dp_accounting.NonPrivateDpEvent()
        event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling == "fixed_size":
            return dp_accounting.SampledWithoutReplacementDpEvent(n_agents, self._subset_size(n_agents), event)
        return dp_accounting.PoissonSampledDpEvent(self.sampling_probability, event)

    def choose(self, n_agents: int, entropy: Entropy, round: int) -> Tensor:
        """Which agents are in S_t: a boolean for each of the N agents."""
        u = entropy.uniform("choice", round, n_agents)
        if self.sampling == "poisson":
            return u < self.sampling_probability
        chosen = torch.zeros(n_agents, dtype=torch.bool)
        chosen[u.argsort()[: self._subset_size(n_agents)]] = True
        return chosen

    def _subset_size(self, n_agents: int) -> int:
        return max(1, math.floor(self.sampling_probability * n_agents + 0.5))

    def add_up(
        self, messages: Tensor | Sequence[Tensor | None], rows: Tensor, weights: Tensor, n_features: int
    ) -> PartialSum:
        """Clip and sum: `(1/q) sum_n phi_n^(i) clip(omega_n, S / sqrt(P))` over n in `rows`, all regions."""
        received, n_rejected = accept(messages, rows, n_features)
        clipped, n_clipped = clip(received, self.message_norm(len(weights)))
        return PartialSum((weights / self.sampling_probability) @ clipped, n_clipped, n_rejected)

    def release(
        self,
        messages: Messages,
        weights: Tensor,
        n_features: int,
        entropy: Entropy,
        round: int,
        lost: Tensor | None = None,
    ) -> Release:
        """One round: choose, clip, sum, add noise. messages: N x M, or N vectors (None for a lost one), or their
        holders; lost: N, True for messages that did not arrive in time.
        """
        P, N = weights.shape
        chosen = self.choose(N, entropy, round).nonzero()[:, 0]  # |S_t|
        part, n_lost = _sum(self, messages, chosen, weights, n_features, lost)
        sensitivity, sigma = self.sensitivity(weights), self.sigma(weights)
        noise = sigma * gaussian(entropy, "noise", round, (P, n_features))
        return Release(
            part.total + noise, sigma, sensitivity, float(part.total.norm()), float(noise.norm()), len(chosen),
            part.n_clipped, part.n_rejected + n_lost,
        )  # fmt: skip


@dataclass(frozen=True)
class WeightedAverage:
    """The step without privacy: `omega^(i) = sum_n phi_n^(i) omega_n` over all agents, nothing clipped, no noise."""

    def sensitivity(self, weights: Tensor) -> float:
        """Infinite: the messages are not bounded."""
        return math.inf

    def dp_event(self, n_agents: int) -> dp_accounting.DpEvent:
        return dp_accounting.NonPrivateDpEvent()

    def add_up(
        self, messages: Tensor | Sequence[Tensor | None], rows: Tensor, weights: Tensor, n_features: int
    ) -> PartialSum:
        """`sum_n phi_n^(i) omega_n` over n in `rows`, all regions."""
        received, n_rejected = accept(messages, rows, n_features)
        return PartialSum(weights @ received, 0, n_rejected)

    def release(
        self,
        messages: Messages,
        weights: Tensor,
        n_features: int,
        entropy: Entropy,
        round: int,
        lost: Tensor | None = None,
    ) -> Release:
        """One round; messages that are missing, not finite or of the wrong shape count as zero."""
        N = weights.shape[1]
        part, n_lost = _sum(self, messages, torch.arange(N), weights, n_features, lost)
        signal = float(part.total.norm())
        return Release(
            part.total, 0.0, self.sensitivity(weights), signal, 0.0, N, 0, part.n_rejected + n_lost
        )  # fmt: skip


def _sum(
    mechanism: Mechanism, messages: Messages, chosen: Tensor, weights: Tensor, n_features: int, lost: Tensor | None
) -> tuple[PartialSum, int]:
    """The chosen agents' part of the joint vector, and how many of their messages were lost (zero vectors)."""
    arrived = chosen if lost is None else chosen[~lost[chosen]]
    if isinstance(messages, Contributions):
        part = messages.add_up(arrived, weights, n_features)
    else:
        part = mechanism.add_up(messages, arrived, weights[:, arrived], n_features)
    return part, len(chosen) - len(arrived)


def accept(messages: Tensor | Sequence[Tensor | None], chosen: Tensor, n_features: int) -> tuple[Tensor, int]:
    """The chosen messages as `k x M` float64, and how many of them were unusable and became zero vectors.

    Unusable: missing (None), not a plain vector of M real numbers, or with an entry that is not finite.
    """
    complete = len(chosen) == 0 or int(chosen.max()) < len(messages)
    if _plain(messages) and messages.ndim == 2 and messages.shape[1] == n_features and complete:
        received = messages.detach()[chosen].double()
    else:
        rows = messages.unbind(0) if _plain(messages) and messages.ndim > 0 else messages
        received = torch.full((len(chosen), n_features), math.nan, dtype=torch.float64)
        for row, n in enumerate(chosen.tolist()):
            message = rows[n] if not isinstance(rows, Tensor) and n < len(rows) else None
            if _plain(message) and message.shape == (n_features,):
                received[row] = message.detach().double()
    finite = torch.isfinite(received).all(1)
    return torch.where(finite[:, None], received, 0.0), int((~finite).sum())


def _plain(message: object) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of real numbers with storage: nothing else can raise, or hide a part, later on."""
    if not isinstance(message, Tensor) or message.layout != torch.strided or message.device.type == "meta":
        return False
    return not (message.is_complex() or message.is_quantized)


def clip(messages: Tensor, norm: float) -> tuple[Tensor, int]:
    """Scale every message (k x M) down to L2 norm at most `norm`; also returns how many were longer.

    Safe for entries whose square overflows: the length is taken after division by the largest entry.
    """
    largest = messages.abs().amax(1, keepdim=True).clamp(min=torch.finfo(messages.dtype).tiny)  # k x 1
    unit = messages / largest
    length = unit.norm(dim=1, keepdim=True)  # in units of `largest`, between 1 and sqrt(M)
    longer = length > norm / largest
    return torch.where(longer, unit * (norm / length), messages), int(longer.sum())
