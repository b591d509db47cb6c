"""Two-world replay: the real server many times with and without one agent's messages, and a score for each run.

World 1: the canary, the agent with the largest weights, sends one message, far longer than the clip norm, in every
round. World 0: it sends the zero vector (relation zero-out), or the opposite message (replace-one). All other agents
send the same in both, and the adversary knows it. The score is the log-likelihood ratio of all releases,

    sum_t log(1 - q + q exp(<r_t - b_t, v_t> / sigma_t^2 - |v_t|^2 / (2 sigma_t^2)))

with v the canary's contribution, b the others' and sigma the noise of each region, all measured beforehand on runs of
their own. A bound from these scores is valid whatever was measured, and whatever the server does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.audit.bounds import Claim
from dpfbo.audit.server.target import Target, charged, seeded
from dpfbo.federated.messages import clip
from dpfbo.privacy.accounting import REPLACE_ONE
from dpfbo.privacy.ledger import Ledger

FAR = 1e3  # lengths of the clip norm
OTHERS = ("zero", "random")
_PILOTS = 64  # runs to measure the canary by, fewer where there are many rounds

OnTrial = Callable[[], None]


@dataclass(frozen=True)
class Canary:
    """Whose messages the worlds differ in, and what is sent. without, with_message: N x M."""

    agent: int
    without: Tensor
    with_message: Tensor
    opposite: bool  # in the world without its message the canary sends the opposite one

    @staticmethod
    def of(target: Target, others: str = "zero", seed: int = 0) -> "Canary":
        """The canary of a target. others: send zero vectors, or one random message each of the clip norm."""
        checks.one_of("others", others, OTHERS)
        N, _, M = target.shape
        power = sum(target.weights(t).square().sum(0) for t in range(target.rounds))  # N
        agent = int(power.argmax())  # type: ignore[union-attr]
        draw = np.random.Generator(np.random.PCG64(seed)).standard_normal((N, M))
        unit = torch.from_numpy(draw / np.linalg.norm(draw, axis=1, keepdims=True))
        without = target.bound * unit if others == "random" else torch.zeros(N, M, dtype=torch.float64)
        with_message = without.clone()
        with_message[agent] = FAR * target.bound * unit[agent]
        opposite = target.accountant.relation == REPLACE_ONE
        without[agent] = -with_message[agent] if opposite else 0.0
        return Canary(agent, without, with_message, opposite)


@dataclass(frozen=True)
class Statistic:
    """The score of a run, from what the adversary measured: for each round `<r, direction> - offset` and its law.

    directions: v over the noise variance of each region, P x M. offsets: `<b, direction>`. halves: |v|^2 over twice the
    variance. q: how often the canary is in S_t.
    """

    directions: tuple[Tensor, ...]
    offsets: np.ndarray
    halves: np.ndarray
    q: float
    opposite: bool

    def project(self, releases: list[Tensor | None]) -> list[float]:
        """One number a round; a round without a broadcast says nothing."""
        pairs = zip(releases, self.directions, strict=True)
        return [0.0 if r is None else float((r * u).sum()) for r, u in pairs]

    def scores(self, projections: np.ndarray) -> np.ndarray:
        """trials x rounds -> trials. A release that is not finite gives the canary away: it scores highest."""
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
    """Scores of the trials without and with the canary's message, and what the ledgers of all of them said.

    varying: the charges were not the same in all of them (they must not depend on data or chance). opposite: the canary
    sends the opposite message where it does not send its own.
    """

    without: np.ndarray
    with_message: np.ndarray
    claim: Claim
    varying: bool
    opposite: bool = False


def measure(target: Target, canary: Canary, label: object) -> Statistic:
    """What the adversary learns from runs with equal randomness that differ in the canary's message alone."""
    bench, T, (_, P, M) = target.repeatable, target.rounds, target.shape
    silent, absent = torch.zeros_like(canary.without), canary.without.clone()
    absent[canary.agent] = 0.0
    pilots = max(16, _PILOTS // T)
    seen, hits, squares = np.zeros(T), np.zeros(T), np.zeros((T, P))
    others, alone = (torch.zeros(T, P, M, dtype=torch.float64) for _ in range(2))
    for pilot in range(pilots):
        runs = [bench.run(seeded(label, "pilot", pilot), m)[0] for m in (silent, absent, canary.with_message)]
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
        v = alone[t] / hits[t] if hits[t] else _claimed(bench, canary, t)
        least = (1e-6 * bench.mechanism.tight_sensitivity(bench.weights(t))) ** 2
        direction = v / torch.from_numpy(np.maximum(squares[t] / seen[t], least))[:, None]
        directions.append(direction)
        offsets[t] = float((others[t] / seen[t] * direction).sum())
        halves[t] = float((v * direction).sum()) / 2
    q = float(hits.sum() / seen.sum()) if hits.any() else bench.mechanism.sampling_probability
    return Statistic(tuple(directions), offsets, halves, q, canary.opposite)


def replay(
    target: Target, canary: Canary, trials: int, seed: int = 0, repetition: int = 0, on_trial: OnTrial = lambda: None
) -> Replay:
    """Run the real server `trials` times in each world, each time with randomness of its own.

    Raises ValueError for fewer than 20 trials, or a server that charges nothing.
    """
    checks.integer("trials", trials, minimum=20)
    statistic = measure(target, canary, f"measure/{seed}/{repetition}")
    projections = np.zeros((2, trials, target.rounds))
    ledgers: dict[tuple[object, ...], Ledger] = {}
    for trial in range(trials):
        with torch.inference_mode():  # a sixth faster
            for world, messages in enumerate((canary.without, canary.with_message)):
                releases, ledger = target.run(target.fresh("trial", seed, repetition, world, trial), messages)
                projections[world, trial] = statistic.project(releases)
                ledgers.setdefault(charged(ledger), ledger)
        on_trial()
    # where the ledgers differ, the one that is kindest to the server
    dearest = max(ledgers.values(), key=lambda ledger: target.accountant.epsilon(ledger.events(), target.delta))
    claim = Claim.of(dearest.events(), target.accountant, target.delta)
    without, with_message = (statistic.scores(p) for p in projections)
    return Replay(without, with_message, claim, len(ledgers) > 1, canary.opposite)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _claimed(target: Target, canary: Canary, t: int) -> Tensor:
    """What the canary adds when it is chosen, by the mechanism's own account: for a q that it never was at."""
    message, _ = clip(canary.with_message[canary.agent : canary.agent + 1], target.bound)
    return target.weights(t)[:, canary.agent, None] * message / target.mechanism.sampling_probability
