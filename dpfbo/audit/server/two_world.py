"""Two-world replay: the real server runs many times with and without one agent's messages, and each run gets a score.

World 1: the canary, the agent with the largest weights, sends one message, far longer than the clip norm, in every
round. World 0: it sends the zero vector (relation zero-out), or the opposite message (replace-one). All other agents
send the same in both, and the adversary knows it. The score is the log-likelihood ratio of all releases,

    sum_t log(1 - q + q exp(<r_t - b_t, v_t> / sigma_t^2 - |v_t|^2 / (2 sigma_t^2)))

with v the canary's contribution, b that of all others and sigma the noise of each region, all measured beforehand on
other runs. A bound from these scores is valid for any server and any measured values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.audit.bounds import Claim
from dpfbo.audit.server.target import LONG_NORM, Target, charged, seeded
from dpfbo.federated.messages import clip
from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.ledger import Ledger

OTHERS = ("zero", "random")
_PILOTS = 64  # runs of one round that measure the canary; fewer runs of more rounds

OnTrial = Callable[[], None]


@dataclass(frozen=True)
class Canary:
    """The agent whose messages differ between the worlds. without, with_message: all messages of each world, N x M."""

    agent: int
    without: Tensor
    with_message: Tensor
    opposite: bool  # without its message the canary sends the opposite one, not the zero vector

    @staticmethod
    def of(target: Target, others: str = "zero", seed: int = 0) -> "Canary":
        """The canary of a target. others: all other agents send zeros, or a random message each of the clip norm."""
        checks.one_of("others", others, OTHERS)
        N, _, M = target.shape
        power = sum(target.weights(t).square().sum(0) for t in range(target.rounds))  # N
        agent = int(power.argmax())  # type: ignore[union-attr]
        draw = np.random.Generator(np.random.PCG64(seed)).standard_normal((N, M))
        unit = torch.from_numpy(draw / np.linalg.norm(draw, axis=1, keepdims=True))
        without = target.message_norm * unit if others == "random" else torch.zeros(N, M, dtype=torch.float64)
        with_message = without.clone()
        with_message[agent] = LONG_NORM * target.message_norm * unit[agent]
        opposite = target.accountant.relation == REPLACE_ONE
        without[agent] = -with_message[agent] if opposite else 0.0
        return Canary(agent, without, with_message, opposite)


@dataclass(frozen=True)
class Statistic:
    """The score of a run, a function of `<r, direction> - offset` in each round, with values that were measured.

    directions: v over the noise variance of each region, P x M. offsets: `<b, direction>`. halves: |v|^2 over twice the
    variance. q: the frequency of the canary in S_t.
    """

    directions: tuple[Tensor, ...]
    offsets: np.ndarray
    halves: np.ndarray
    q: float
    opposite: bool

    def project(self, releases: list[Tensor | None]) -> list[float]:
        """`<r, direction>` of each round; 0 for a round without a broadcast."""
        pairs = zip(releases, self.directions, strict=True)
        return [0.0 if r is None else float((r * u).sum()) for r, u in pairs]

    def scores(self, projections: np.ndarray) -> np.ndarray:
        """Score releases, trials x rounds -> trials. One that is not finite reveals the canary and scores inf."""
        s = np.where(np.isfinite(projections), projections - self.offsets, 0.0)
        ratio = self._log_mixture(s - self.halves)
        if self.opposite:
            ratio = ratio - self._log_mixture(-s - self.halves)
        return np.where(np.isfinite(projections).all(1), ratio.sum(1), np.inf)

    def _log_mixture(self, exponent: np.ndarray) -> np.ndarray:
        """`log(1 - q + q e^exponent)`."""
        return exponent if self.q >= 1 else np.logaddexp(np.log1p(-self.q), np.log(self.q) + exponent)


@dataclass(frozen=True)
class Replay:
    """Scores of the trials without and with the canary's message, and the claim of their ledgers.

    varying: the charges differ between trials (they must not depend on data or chance). opposite: as of the `Canary`.
    """

    without: np.ndarray
    with_message: np.ndarray
    claim: Claim
    varying: bool
    opposite: bool = False


def measure(target: Target, canary: Canary, label: object) -> Statistic:
    """The score's values, measured on runs with equal randomness that differ in the canary's message alone."""
    target, T, (_, P, M) = target.repeatable, target.rounds, target.shape
    silent, absent = torch.zeros_like(canary.without), canary.without.clone()
    absent[canary.agent] = 0.0
    pilots = max(16, _PILOTS // T)
    seen, hits, squares = np.zeros(T), np.zeros(T), np.zeros((T, P))
    others, alone = (torch.zeros(T, P, M, dtype=torch.float64) for _ in range(2))
    for pilot in range(pilots):
        runs = [target.run(seeded(label, "pilot", pilot), m)[0] for m in (silent, absent, canary.with_message)]
        for t, (quiet, base, full) in enumerate(zip(*runs, strict=True)):
            if quiet is None or base is None or full is None:
                continue
            moved = _finite(full - base)
            hit = bool((moved != 0).any())
            seen[t] += 1
            hits[t] += hit
            squares[t] += _finite(quiet).square().mean(1).numpy()
            others[t] += _finite(base - quiet)
            alone[t] += moved if hit else 0.0
    directions, offsets, halves = [], np.zeros(T), np.zeros(T)
    for t in range(T):
        if not seen[t]:  # nothing is broadcast in this round
            directions.append(others[t])
            continue
        v = alone[t] / hits[t] if hits[t] else _claimed(target, canary, t)
        least = (1e-6 * target.mechanism.tight_sensitivity(target.weights(t))) ** 2
        direction = v / torch.from_numpy(np.maximum(squares[t] / seen[t], least))[:, None]
        directions.append(direction)
        offsets[t] = float((others[t] / seen[t] * direction).sum())
        halves[t] = float((v * direction).sum()) / 2
    q = float(hits.sum() / seen.sum()) if hits.any() else target.mechanism.sampling_probability
    return Statistic(tuple(directions), offsets, halves, q, canary.opposite)


def replay(
    target: Target, canary: Canary, trials: int, seed: int = 0, repetition: int = 0, on_trial: OnTrial = lambda: None
) -> Replay:
    """Run the real server `trials` times in each world, each time with new randomness.

    Raises ValueError for fewer than 20 trials, or a server that charges nothing.
    """
    checks.integer("trials", trials, minimum=20)
    statistic = measure(target, canary, f"measure/{seed}/{repetition}")
    projections = np.zeros((2, trials, target.rounds))
    ledgers: dict[tuple[object, ...], Ledger] = {}
    for trial in range(trials):
        with torch.inference_mode():  # saves a sixth of the time
            for world, messages in enumerate((canary.without, canary.with_message)):
                releases, ledger = target.run(target.trial_entropy("trial", seed, repetition, world, trial), messages)
                projections[world, trial] = statistic.project(releases)
                ledgers.setdefault(charged(ledger), ledger)
        on_trial()
    # where ledgers differ, the largest epsilon favours the server
    dearest = max(ledgers.values(), key=lambda ledger: target.accountant.epsilon(ledger.events(), target.delta))
    claim = Claim.of(dearest.events(), target.accountant, target.delta)
    without, with_message = (statistic.scores(p) for p in projections)
    return Replay(without, with_message, claim, len(ledgers) > 1, canary.opposite)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _claimed(target: Target, canary: Canary, t: int) -> Tensor:
    """The canary's contribution by the mechanism's own formula, for a q so small that the runs never chose it."""
    message, _ = clip(canary.with_message[canary.agent : canary.agent + 1], target.message_norm)
    return target.weights(t)[:, canary.agent, None] * message / target.mechanism.sampling_probability
