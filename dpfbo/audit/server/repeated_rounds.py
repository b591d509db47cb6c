"""Single rounds of a target with equal randomness: what the deterministic checks are made of."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo.audit.server.target import Target, seeded
from dpfbo.federated.messages import Messages
from dpfbo.privacy.ledger import Charge

FAR = 1e3  # lengths of the clip norm
_MOST_DRAWS = 1000  # of S_t, to find one with a certain agent


@dataclass(frozen=True)
class CheckResult:
    """What one check says. words: what was seen, with numbers. measured, allowed: the worst of it and its limit."""

    check: str
    holds: bool
    words: str
    measured: float
    allowed: float


class RepeatedRounds:
    """Rounds of one target, each under a numbered seed; equal numbers are equal randomness.

    A target with discrete noise stands here with Gaussian noise of the same size, which can be repeated.
    """

    def __init__(self, target: Target, seed: int = 0) -> None:
        self.audited, self.target, self.seed = target, target.repeatable, seed
        self._charges: dict[int, Charge | None] = {}
        self._released: dict[tuple[int, int, str], Tensor] = {}
        self._members: dict[tuple[int, int, int], Tensor] = {}

    @cached_property
    def rounds(self) -> list[int]:
        """The rounds that are looked at, of those that are charged: the first two, the middle one and the last."""
        T = self.target.rounds
        return [t for t in sorted({0, min(1, T - 1), T // 2, T - 1}) if self._charge(t) is not None]

    def ranked(self, t: int) -> list[int]:
        """The agents, those that count most in a round first."""
        return self.target.weights(t).norm(dim=0).argsort(descending=True, stable=True).tolist()

    def few(self, t: int) -> list[int]:
        """Three of them: the one that counts most, least and in between."""
        ranked = self.ranked(t)
        return list(dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]]))

    @cached_property
    def crowd(self) -> "Context":
        """All others send a message each, of different lengths around the bound."""
        N, _, M = self.target.shape
        draw = torch.randn(N, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        lengths = self.target.bound * torch.linspace(0.2, 3.0, N, dtype=torch.float64)[:, None]
        return Context("all others send", lengths * draw / draw.norm(dim=1, keepdim=True))

    @cached_property
    def loud_crowd(self) -> "Context":
        """All others send the same, far above the bound."""
        return Context("all others send far too much", self.far(0).expand(self.target.shape[0], -1).clone())

    @cached_property
    def absent_crowd(self) -> "Context":
        """Nobody else's message arrives."""
        return Context("all others' messages are missing", [None] * self.target.shape[0])

    def silence(self) -> Tensor:
        N, _, M = self.target.shape
        return torch.zeros(N, M, dtype=torch.float64)

    def noise_of(self, seed: int, t: int, others: "Context | None" = None) -> Tensor:
        """What is released when everybody sends what `others` says; nothing, unless it is given."""
        key = (seed, t, others.name if others else "")
        if key not in self._released:
            self._released[key] = self.release(seed, t, others.messages if others else self.silence())
        return self._released[key]

    def release(self, seed: int, t: int, messages: Messages | None) -> Tensor:
        """The broadcast of one round, P x M. Raises whatever the server raises."""
        values, _ = self.target.one(seeded("bench", self.seed, seed), t, messages)
        if values is None:
            raise ValueError(f"the server under audit broadcasts nothing in round {t}, although nothing is charged yet")
        return values

    def charge(self, t: int) -> Charge:
        """What a round costs by the ledger. Raises ValueError if it is not charged at all."""
        charge = self._charge(t)
        if charge is None:
            raise ValueError(f"round {t} is not charged")
        return charge

    def _charge(self, t: int) -> Charge | None:
        if t not in self._charges:
            _, ledger = self.target.one(seeded("bench", self.seed, 0), t, self.silence())
            self._charges[t] = ledger.charges[0] if ledger.charges else None
        return self._charges[t]

    def claimed_sensitivity(self, t: int) -> float:
        """How far one agent may move a round's release: the charged sigma over the charged multiplier."""
        charge = self.charge(t)
        return charge.sigma / charge.z if charge.z else math.inf

    def moved(self, seed: int, t: int, agent: int, message: object, others: "Context | None" = None) -> Tensor:
        """What the release gains when the agent sends the message rather than the zero vector."""
        base = Context("", self.silence()) if others is None else others
        with_zero = Context(f"{base.name}, agent {agent} silent", base.but(agent, self.silence()[agent]))
        return self.release(seed, t, base.but(agent, message)) - self.noise_of(seed, t, with_zero)

    def far(self, agent: int) -> Tensor:
        """A message of the agent's own direction, far longer than the clip norm."""
        generator = torch.Generator().manual_seed(agent)
        direction = torch.randn(self.target.shape[2], dtype=torch.float64, generator=generator)
        return FAR * self.target.bound * direction / direction.norm()

    def members(self, seed: int, t: int, batch: int = 0) -> Tensor:
        """Which of the M agents from `batch * M` on are in S_t under this seed: booleans, fewer in the last batch.

        Read off a release in which each of them has an axis of its own.
        """
        if (seed, t, batch) not in self._members:
            N, _, M = self.target.shape
            here = torch.arange(batch * M, min(N, (batch + 1) * M))
            messages = self.silence()
            messages[here, here - batch * M] = FAR * self.target.bound
            differs = self.release(seed, t, messages) != self.noise_of(seed, t)  # P x M
            self._members[seed, t, batch] = differs.any(0)[: len(here)]
        return self._members[seed, t, batch]

    def is_member(self, seed: int, t: int, agent: int) -> bool:
        """Whether the agent is in S_t under this seed."""
        batch, axis = divmod(agent, self.target.shape[2])
        return bool(self.members(seed, t, batch)[axis])

    def seeds_with(self, t: int, agent: int, count: int) -> list[int]:
        """Up to `count` seeds that have the agent in S_t; fewer where it is hardly ever chosen, or its message lost."""
        draws = min(_MOST_DRAWS, math.ceil(15 * count / (self.charge(t).q or 1.0)))
        found: list[int] = []
        for seed in range(draws):
            if len(found) == count:
                break
            if self.is_member(seed, t, agent):
                found.append(seed)
        return found


@dataclass(frozen=True)
class Context:
    """What all agents send, under a name."""

    name: str
    messages: Messages

    def but(self, agent: int, message: object) -> Messages:
        """The same with another message of one agent."""
        if isinstance(self.messages, Tensor) and isinstance(message, Tensor) and _fits(message, self.messages):
            changed = self.messages.clone()
            changed[agent] = message
            return changed
        rows: list[Any] = list(self.messages)  # type: ignore[arg-type]
        rows[agent] = message
        return rows


def _fits(message: Tensor, messages: Tensor) -> bool:
    return message.shape == messages.shape[1:] and message.dtype == messages.dtype and message.layout == torch.strided
