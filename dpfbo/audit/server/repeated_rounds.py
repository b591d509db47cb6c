"""Single rounds of a target, repeated with equal randomness for the deterministic checks."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo.audit.server.target import LONG_NORM, Target, seeded
from dpfbo.federated.mechanism import Messages
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Charge

_MOST_DRAWS = 1000  # draws of S_t in search of one with a certain agent


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. words: the observation, in a sentence. measured, allowed: the worst value, its limit."""

    check: str
    holds: bool
    words: str
    measured: float
    allowed: float


class RepeatedRounds:
    """Rounds of one target, each under a numbered seed; equal numbers give equal randomness.

    audited: the target itself. target: the same, with Gaussian in place of discrete noise, which cannot be repeated.
    thorough: the statistical checks of whole runs and laws draw as much as an hour allows.
    """

    def __init__(self, target: Target, seed: int = 0, thorough: bool = False) -> None:
        self.audited, self.target, self.seed, self.thorough = target, target.repeatable, seed, thorough
        self._charges: dict[int, Charge | None] = {}
        self._released: dict[tuple[int, int, str], Tensor] = {}
        self._members: dict[tuple[int, int, int], Tensor] = {}

    @cached_property
    def examined(self) -> list[int]:
        """The rounds to check: the first two, the middle one and the last, without those that are not charged."""
        T = self.target.rounds
        return [t for t in sorted({0, min(1, T - 1), T // 2, T - 1}) if self._charge(t) is not None]

    def agents_by_weight(self, t: int) -> list[int]:
        """The agents by the norm of their weights in round t, largest first."""
        return self.target.weights(t).norm(dim=0).argsort(descending=True, stable=True).tolist()

    def three_agents(self, t: int) -> list[int]:
        """The agents with the largest, the median and the smallest weights in round t."""
        ranked = self.agents_by_weight(t)
        return list(dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]]))

    @cached_property
    def crowd(self) -> "Context":
        """All others send messages of different norms around the clip norm."""
        N, _, M = self.target.shape
        draw = torch.randn(N, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        lengths = self.target.message_norm * torch.linspace(0.2, 3.0, N, dtype=torch.float64)[:, None]
        return Context("all others send", lengths * draw / draw.norm(dim=1, keepdim=True))

    @cached_property
    def loud_crowd(self) -> "Context":
        """All others send the same message, far longer than the clip norm."""
        return Context("all others send far too much", self.long_message(0).expand(self.target.shape[0], -1).clone())

    @cached_property
    def absent_crowd(self) -> "Context":
        """The messages of all others are missing."""
        return Context("all others' messages are missing", [None] * self.target.shape[0])

    def zeros(self) -> Tensor:
        N, _, M = self.target.shape
        return torch.zeros(N, M, dtype=torch.float64)

    def release_once(self, seed: int, t: int, others: "Context | None" = None) -> Tensor:
        """The release for the messages of `others`, made once; without it for zero vectors, so that it is noise."""
        key = (seed, t, others.name if others else "")
        if key not in self._released:
            self._released[key] = self.release(seed, t, others.messages if others else self.zeros())
        return self._released[key]

    def release(self, seed: int, t: int, messages: Messages | None) -> Tensor:
        """The broadcast of one round, P x M. Raises the server's errors."""
        values, _ = self.target.run_round(self.entropy(seed), t, messages)
        if values is None:
            raise ValueError(f"the server under audit broadcasts nothing in round {t}, although nothing is charged yet")
        return values

    def charge(self, t: int) -> Charge:
        """The charge of a round in the ledger. Raises ValueError if there is none."""
        charge = self._charge(t)
        if charge is None:
            raise ValueError(f"round {t} is not charged")
        return charge

    def is_charged(self, t: int) -> bool:
        """True if a round is charged, as if it were the first of its run."""
        return self._charge(t) is not None

    def _charge(self, t: int) -> Charge | None:
        if t not in self._charges:
            values, ledger = self.target.run_round(self.entropy(0), t, self.zeros())
            if values is not None:
                self._released[0, t, ""] = values
            self._charges[t] = ledger.charges[0] if ledger.charges else None
        return self._charges[t]

    def audited_sigma(self, t: int) -> float:
        """The charged sigma of a round of the target itself."""
        if self.audited.seedable:
            return self.charge(t).sigma
        return self.audited.run_round(SystemEntropy(), t, self.zeros())[1].charges[0].sigma

    def entropy(self, seed: int) -> SeededEntropy:
        """The randomness of all rounds under this seed."""
        return seeded("bench", self.seed, seed)

    def claimed_sensitivity(self, t: int) -> float:
        """The norm by which one agent may change a round's release: the charged sigma over the charged z."""
        charge = self.charge(t)
        return charge.sigma / charge.z if charge.z else math.inf

    def change(self, seed: int, t: int, agent: int, message: object, others: "Context | None" = None) -> Tensor:
        """The change of the release, P x M, if the agent sends the message in place of the zero vector."""
        base = Context("", self.zeros()) if others is None else others
        with_zero = Context(f"{base.name}, agent {agent} silent", base.with_message(agent, self.zeros()[agent]))
        return self.release(seed, t, base.with_message(agent, message)) - self.release_once(seed, t, with_zero)

    def long_message(self, agent: int) -> Tensor:
        """A message of 1000 clip norms in a direction of the agent's own."""
        generator = torch.Generator().manual_seed(agent)
        direction = torch.randn(self.target.shape[2], dtype=torch.float64, generator=generator)
        return LONG_NORM * self.target.message_norm * direction / direction.norm()

    def members(self, seed: int, t: int, batch: int = 0) -> Tensor:
        """Membership in S_t under this seed of the M agents from `batch * M` on (fewer in the last batch): booleans.

        It is read off a release in which each agent sends along an axis of its own.
        """
        if (seed, t, batch) not in self._members:
            N, _, M = self.target.shape
            here = torch.arange(batch * M, min(N, (batch + 1) * M))
            messages = self.zeros()
            messages[here, here - batch * M] = LONG_NORM * self.target.message_norm
            differs = self.release(seed, t, messages) != self.release_once(seed, t)  # P x M
            self._members[seed, t, batch] = differs.any(0)[: len(here)]
        return self._members[seed, t, batch]

    def is_member(self, seed: int, t: int, agent: int) -> bool:
        """True if the agent is in S_t under this seed."""
        batch, axis = divmod(agent, self.target.shape[2])
        return bool(self.members(seed, t, batch)[axis])

    def seeds_with(self, t: int, agent: int, count: int) -> list[int]:
        """Up to `count` seeds with the agent in S_t; fewer where it is rarely chosen or its message is lost."""
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
    """The messages of all agents, with a name."""

    name: str
    messages: Messages

    def with_message(self, agent: int, message: object) -> Messages:
        """The messages with that of one agent replaced."""
        if isinstance(self.messages, Tensor) and isinstance(message, Tensor) and _fits(message, self.messages):
            changed = self.messages.clone()
            changed[agent] = message
            return changed
        rows: list[Any] = list(self.messages)  # type: ignore[arg-type]
        rows[agent] = message
        return rows


def _fits(message: Tensor, messages: Tensor) -> bool:
    return message.shape == messages.shape[1:] and message.dtype == messages.dtype and message.layout == torch.strided
