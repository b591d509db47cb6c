"""Single rounds of a server under audit, which can be run again with the same random numbers and other messages."""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo.audit.server.target import LONG_NORM, Target, seeded
from dpfbo.federated.mechanism import Messages
from dpfbo.privacy.entropy import Entropy, SeededEntropy
from dpfbo.privacy.ledger import Charge

_MOST_DRAWS = 1000  # most draws of S_t in search of one with a given agent


class RepeatedRounds:
    """Single rounds of one target; equal seeds give equal randomness.

    audited: the given target. target: its `Target.repeatable`, which has Gaussian noise in place of discrete noise.
    thorough: True to let the statistical checks draw many more samples, for up to an hour.
    """

    def __init__(self, target: Target, seed: int = 0, thorough: bool = False) -> None:
        self.audited, self.target, self.seed, self.thorough = target, target.repeatable, seed, thorough
        self._released: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def _charges(self) -> dict[int, Charge]:
        """The charge of each charged round. Every round runs alone, with an empty ledger."""
        ledgers = {t: self.target.run_round(self.entropy(0), t, self.zeros())[1] for t in range(self.target.rounds)}
        return {t: ledger.charges[0] for t, ledger in ledgers.items() if ledger.charges}

    @property
    def charged(self) -> list[int]:
        """All charged rounds of a run."""
        return list(self._charges)

    @cached_property
    def examined(self) -> list[int]:
        """The rounds to check: each of the rounds 0, 1, T // 2 and T - 1 that is charged. T: the number of rounds."""
        T = self.target.rounds
        return [t for t in sorted({0, min(1, T - 1), T // 2, T - 1}) if t in self._charges]

    def charge(self, t: int) -> Charge:
        """Return the charge of round t. Raises ValueError if the round is not charged."""
        if t not in self._charges:
            raise ValueError(f"round {t} is not charged")
        return self._charges[t]

    def claimed_sensitivity(self, t: int) -> float:
        """Return the L2 norm of the largest change that one agent may make to the release of round t.

        The norm is sigma / z, with both values from the round's charge. It is infinite if z is None or 0.
        """
        charge = self.charge(t)
        return charge.sigma / charge.z if charge.z else math.inf

    def entropy(self, seed: int) -> SeededEntropy:
        """Return the source of randomness of a round; equal seeds give equal randomness."""
        return seeded("bench", self.seed, seed)

    def agents_by_weight(self, t: int) -> list[int]:
        """Return the agents by the norm of their weights in round t, largest first."""
        return self.target.weights(t).norm(dim=0).argsort(descending=True, stable=True).tolist()

    def three_agents(self, t: int) -> list[int]:
        """Return the agents with the largest, the median and the smallest weights in round t."""
        ranked = self.agents_by_weight(t)
        return list(dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]]))

    def zeros(self) -> Tensor:
        N, _, M = self.target.shape
        return torch.zeros(N, M, dtype=torch.float64)

    def long_message(self, agent: int) -> Tensor:
        """Return a message whose norm is 1000 times the clip norm, in a random direction that depends on the agent."""
        generator = torch.Generator().manual_seed(agent)
        direction = torch.randn(self.target.shape[2], dtype=torch.float64, generator=generator)
        return LONG_NORM * self.target.message_norm * direction / direction.norm()

    @cached_property
    def crowd(self) -> Tensor:
        """Messages of all agents, N x M, with norms from 0.2 to 3 clip norms."""
        N, _, M = self.target.shape
        draw = torch.randn(N, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        lengths = self.target.message_norm * torch.linspace(0.2, 3.0, N, dtype=torch.float64)[:, None]
        return lengths * draw / draw.norm(dim=1, keepdim=True)

    def release(self, seed: int, t: int, messages: Messages | None) -> Tensor:
        """Return the release of round t, P x M."""
        return released(self.target, self.entropy(seed), t, messages)[0]

    def release_once(self, seed: int, t: int) -> Tensor:
        """Run round t with zero vectors from all agents, and return the release.

        The release is noise alone. It is computed only once for each seed and t.
        """
        if (seed, t) not in self._released:
            self._released[seed, t] = self.release(seed, t, self.zeros())
        return self._released[seed, t]

    def change(self, seed: int, t: int, agent: int, message: object, others: Tensor | None = None) -> Tensor:
        """Return the change of the release, P x M, when the agent sends the message instead of the zero vector.

        others: messages of all agents, N x M, of which the agent's own is ignored; zero vectors if None.
        """
        silent = self.zeros() if others is None else others.clone()
        silent[agent] = 0.0
        sent: list[Any] = list(silent)
        sent[agent] = message
        before = self.release_once(seed, t) if others is None else self.release(seed, t, silent)
        return self.release(seed, t, sent) - before

    def counted(self, seed: int, t: int) -> Tensor:
        """Return N booleans, True for each chosen agent whose message is not lost."""
        N = self.target.shape[0]
        return self.target.mechanism.choose(N, self.entropy(seed), t) & ~self.target.summing.dropout.lost(N, t)

    def seeds_with(self, t: int, agent: int, count: int) -> list[int]:
        """Return at most `count` seeds under which the agent is chosen and its message is not lost."""
        draws = min(_MOST_DRAWS, math.ceil(15 * count / (self.charge(t).q or 1.0)))
        found: list[int] = []
        for seed in range(draws):
            if len(found) < count and self.counted(seed, t)[agent]:
                found.append(seed)
        return found


def released(
    target: Target, entropy: Entropy, t: int, messages: Messages | None, late: Tensor | None = None
) -> tuple[Tensor, float]:
    """Return the release of round t (P x M), and the sigma of its charge in the ledger; NaN without a charge."""
    values, ledger = target.run_round(entropy, t, messages, late)
    if values is None:
        raise ValueError(f"the server under audit broadcasts nothing in round {t}, although its ledger is empty")
    return values, ledger.charges[0].sigma if ledger.charges else math.nan
