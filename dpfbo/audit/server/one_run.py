"""Auditing with one run (Steinke, Nasr, Jagielski 2023): a fair coin for each of many canaries.

m agents each send their message or nothing (replace-one: the opposite), on axes of their own. After one run of the real
server the adversary guesses some of the coins from the releases and abstains from the rest. For an
(eps, delta)-private mechanism, with W ~ Binomial(guesses, 1 / (1 + e^-eps)), their Theorem 5.2 bounds

    P[at least v correct guesses] <= P[W >= v] + 2 m delta max_{1 <= i <= v} P[v > W >= v - i] / i

The relation is zero-out agent by agent: one coin decides on one agent's messages of all rounds. k correct guesses show
no more than about log(k / 3), so a strong bound needs many agents.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom

from dpfbo import checks
from dpfbo.audit.server.target import LONG_NORM, Target
from dpfbo.federated.messages import clip
from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.accounting import check_delta


@dataclass(frozen=True)
class OneRun:
    """The numbers of canaries, guesses and correct guesses of one run, and the lower bound on epsilon at delta.

    claimed: epsilon at the same delta, by the accountant, of the run's ledger.
    """

    canaries: int
    guesses: int
    correct: int
    epsilon: float
    claimed: float
    delta: float
    confidence: float

    @property
    def holds(self) -> bool:
        return self.epsilon <= self.claimed


def one_run(
    target: Target, delta: float = 1e-5, seed: int = 0, confidence: float = 0.95, share: float = 1 / 3
) -> OneRun:
    """Run a target once with as many canaries as it has agents and axes, and guess `share` of their coins.

    delta: counts 2 m times, and should be smaller than elsewhere. Raises ValueError for a delta, confidence or share
    outside (0, 1), or fewer than 2 canaries.
    """
    check_delta(delta, "delta of one run")
    for name, value in (("confidence", confidence), ("share", share)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value!r}")
    N, _, M = target.shape
    m = min(N, M)
    checks.integer("canaries (agents with an axis of their own)", m, minimum=2)
    coins = np.random.Generator(np.random.PCG64(seed)).random(m) < 0.5
    messages = torch.zeros(N, M, dtype=torch.float64)
    length = LONG_NORM * target.message_norm
    opposite = -length if target.accountant.relation == REPLACE_ONE else 0.0
    messages[range(m), range(m)] = torch.where(torch.from_numpy(coins), length, opposite).double()
    with torch.inference_mode():
        releases, ledger = target.run(target.trial_entropy("one run", seed), messages)
    scores = sum((_scores(target, t, r, m) for t, r in enumerate(releases) if r is not None), np.zeros(m))
    guesses = max(2, 2 * round(m * share / 2))
    order = np.argsort(np.where(np.isnan(scores), np.inf, scores))
    correct = int((~coins[order[: guesses // 2]]).sum() + coins[order[-(guesses // 2) :]].sum())
    claimed = target.accountant.epsilon(ledger.events(), delta)
    return OneRun(
        m, guesses, correct, epsilon_of_guesses(m, guesses, correct, delta, confidence), claimed, delta, confidence
    )


def _scores(target: Target, t: int, release: torch.Tensor, m: int) -> np.ndarray:
    """The score `<r, v> - |v|^2 / 2` of each canary (m), v its contribution to the release r when it is chosen."""
    phi, M = target.weights(t)[:, :m], target.shape[2]  # P x m
    sent, _ = clip(LONG_NORM * target.message_norm * torch.eye(m, M, dtype=torch.float64), target.message_norm)
    v = phi * sent.diagonal() / target.mechanism.sampling_probability  # P x m: along the canary's own axis
    return ((release[:, :m] * v).sum(0) - v.square().sum(0) / 2).numpy()


def p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound of P[at least `correct` correct guesses] for an (epsilon, delta)-private mechanism."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, accuracy))
    i = np.arange(1, correct + 1)
    just_below = binom.cdf(correct - 1, guesses, accuracy) - binom.cdf(correct - 1 - i, guesses, accuracy)
    alpha = float((just_below / i).max()) if correct else 0.0
    return min(1.0, tail + 2 * m * delta * alpha)


def epsilon_of_guesses(m: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that the guesses exclude at this confidence; 0 if they exclude none."""
    low, high = 0.0, 30.0
    if p_value(m, guesses, correct, low, delta) > 1 - confidence:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(m, guesses, correct, middle, delta) <= 1 - confidence else (low, middle)
    return low
