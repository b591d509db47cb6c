"""Single rounds of a target, repeated with equal randomness for the checks."""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo.audit.server.target import LONG_NORM, Target, seeded
from dpfbo.federated.mechanism import Messages
from dpfbo.privacy.entropy import Entropy, SeededEntropy
from dpfbo.privacy.ledger import Charge

_MOST_DRAWS = 1000  # draws of S_t in search of one with a certain agent


class RepeatedRounds:
    """Rounds of one target, each under a numbered seed; equal numbers give equal randomness.

    audited: the target itself. target: the same, with Gaussian in place of discrete noise, which cannot be repeated.
    thorough: the statistical checks draw as much as an hour allows.
    """

    def __init__(self, target: Target, seed: int = 0, thorough: bool = False) -> None:
        self.audited, self.target, self.seed, self.thorough = target, target.repeatable, seed, thorough
        self._released: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def _charges(self) -> dict[int, Charge]:
        """The charges of all rounds that are charged, each as if it were the first of its run."""
        ledgers = {t: self.target.run_round(self.entropy(0), t, self.zeros())[1] for t in range(self.target.rounds)}
        return {t: ledger.charges[0] for t, ledger in ledgers.items() if ledger.charges}

    @property
    def charged(self) -> list[int]:
        """The rounds of a run that are charged."""
        return list(self._charges)

    @cached_property
    def examined(self) -> list[int]:
        """The rounds to check: the first two, the middle one and the last, without those that are not charged."""
        T = self.target.rounds
        return [t for t in sorted({0, min(1, T - 1), T // 2, T - 1}) if t in self._charges]

    def charge(self, t: int) -> Charge:
        """The charge of a round. Raises ValueError if there is none."""
        if t not in self._charges:
            raise ValueError(f"round {t} is not charged")
        return self._charges[t]

    def claimed_sensitivity(self, t: int) -> float:
        """The norm by which one agent may change a round's release: the charged sigma over the charged z."""
        charge = self.charge(t)
        return charge.sigma / charge.z if charge.z else math.inf

    def entropy(self, seed: int) -> SeededEntropy:
        """The randomness of all rounds under this seed."""
        return seeded("bench", self.seed, seed)

    def agents_by_weight(self, t: int) -> list[int]:
        """The agents by the norm of their weights in round t, largest first."""
        return self.target.weights(t).norm(dim=0).argsort(descending=True, stable=True).tolist()

    def three_agents(self, t: int) -> list[int]:
        """The agents with the largest, the median and the smallest weights in round t."""
        ranked = self.agents_by_weight(t)
        return list(dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]]))

    def zeros(self) -> Tensor:
        N, _, M = self.target.shape
        return torch.zeros(N, M, dtype=torch.float64)

    def long_message(self, agent: int) -> Tensor:
        """A message of 1000 clip norms in a direction of the agent's own."""
        generator = torch.Generator().manual_seed(agent)
        direction = torch.randn(self.target.shape[2], dtype=torch.float64, generator=generator)
        return LONG_NORM * self.target.message_norm * direction / direction.norm()

    @cached_property
    def crowd(self) -> Tensor:
        """Messages of all agents, N x M, of different norms around the clip norm."""
        N, _, M = self.target.shape
        draw = torch.randn(N, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        lengths = self.target.message_norm * torch.linspace(0.2, 3.0, N, dtype=torch.float64)[:, None]
        return lengths * draw / draw.norm(dim=1, keepdim=True)

    def release(self, seed: int, t: int, messages: Messages | None) -> Tensor:
        """The broadcast of one round, P x M. Raises the server's errors."""
        return released(self.target, self.entropy(seed), t, messages)[0]

    def release_once(self, seed: int, t: int) -> Tensor:
        """The release for zero vectors, so that it is noise; made once."""
        if (seed, t) not in self._released:
            self._released[seed, t] = self.release(seed, t, self.zeros())
        return self._released[seed, t]

    def change(self, seed: int, t: int, agent: int, message: object, others: Tensor | None = None) -> Tensor:
        """The change of the release, P x M, if the agent sends the message in place of the zero vector.

        others: the messages of all others, N x M; zero vectors if None.
        """
        silent = self.zeros() if others is None else others.clone()
        silent[agent] = 0.0
        sent: list[Any] = list(silent)
        sent[agent] = message
        before = self.release_once(seed, t) if others is None else self.release(seed, t, silent)
        return self.release(seed, t, sent) - before

    def counted(self, seed: int, t: int) -> Tensor:
        """N booleans: the agents in S_t under this seed whose messages are not lost."""
        N = self.target.shape[0]
        return self.target.mechanism.choose(N, self.entropy(seed), t) & ~self.target.summing.dropout.lost(N, t)

    def seeds_with(self, t: int, agent: int, count: int) -> list[int]:
        """Up to `count` seeds with the agent in S_t; fewer where it is rarely chosen or its message is lost."""
        draws = min(_MOST_DRAWS, math.ceil(15 * count / (self.charge(t).q or 1.0)))
        found: list[int] = []
        for seed in range(draws):
            if len(found) < count and self.counted(seed, t)[agent]:
                found.append(seed)
        return found


def released(
    target: Target, entropy: Entropy, t: int, messages: Messages | None, late: Tensor | None = None
) -> tuple[Tensor, float]:
    """The broadcast of one round (P x M) and its charged sigma, NaN if it is not charged."""
    values, ledger = target.run_round(entropy, t, messages, late)
    if values is None:
        raise ValueError(f"the server under audit broadcasts nothing in round {t}, although nothing is charged yet")
    return values, ledger.charges[0].sigma if ledger.charges else math.nan
