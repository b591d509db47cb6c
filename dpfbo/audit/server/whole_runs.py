"""Whole runs: every round is what its ledger, its weights and its messages say, and no round repeats another.

`every_round` is exact: under equal randomness a release is the documented sum of the chosen agents' messages, plus the
mechanism's noise at the sigma of that round's charge. `streams` compares the noise and S_t of all rounds.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats
from scipy.special import log_ndtr, ndtri
from torch import Tensor

from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM

_ERROR = 1e-6  # false-alarm probability
_ROUNDING = 1e-9  # relative error
_SEEN = {False: 40, True: 400}  # rounds under new randomness in which an agent that was in no S_t may turn up; thorough
_NUMBERS = {False: 300, True: 3000}  # of noise in all runs of one round; thorough
_ROUNDS = {False: 2_000, True: 200_000}  # rounds of all runs together; thorough
_EQUAL = 4 * np.finfo(float).eps  # relative difference of two numbers that count as the same
_MOST_COMPARED = 200_000  # numbers


def every_round(rounds: RepeatedRounds) -> CheckResult:
    """In every round the release is the sum that the chosen agents' messages and the charge give, of every agent."""
    target, name = rounds.target, "every round"
    N, worst, words = target.shape[0], 0.0, ""
    seen = torch.zeros(N, dtype=torch.bool)
    tried = 0
    for seed, t in _rounds(rounds, seen):
        charge = rounds.charge(t)
        phi, entropy = target.weights(t), rounds.entropy(seed)
        tight = target.message_norm * float(phi.norm(dim=0).max()) / charge.q
        claimed = rounds.claimed_sensitivity(t)
        if not tight <= claimed * (1 + _ROUNDING):
            said = f"round {t}: sigma / z is {claimed:.6g} as charged, and one message moves the release by {tight:.6g}"
            return CheckResult(name, False, said, tight, claimed)
        chosen = target.mechanism.choose(N, entropy, t)
        seen |= chosen
        quiet = rounds.release_once(seed, t)
        P, M = quiet.shape
        noise = target.mechanism.noise.add(
            torch.zeros(P, M, dtype=torch.float64), charge.sigma, target.mechanism.tight_sensitivity(phi), entropy, t
        )
        gaps = {"the noise is not that of the charged sigma": float((quiet - noise).abs().max()) / charge.sigma}
        sent = _messages(rounds, t, seed)
        expected = _sum(rounds, phi / charge.q, sent, chosen & ~target.summing.dropout.lost(N, t))
        gap = float((rounds.release(seed, t, sent) - quiet - expected).abs().max())
        gaps["the sum is not that of the chosen agents' clipped messages"] = gap / (tight + charge.sigma)
        tried += 1
        for fault, gap in gaps.items():
            if not gap <= _ROUNDING:  # NaN too
                said = f"round {t}: {fault}: off by {gap:.2g} of sensitivity and sigma"
                return CheckResult(name, False, said, gap if math.isfinite(gap) else math.inf, _ROUNDING)
            worst = max(worst, gap)
    words = (
        f"{tried} rounds, {int(seen.sum())} of {N} agents in S_t: noise, sum and price as charged within {worst:.1g}"
    )
    return CheckResult(name, True, words, worst, _ROUNDING)


def _rounds(rounds: RepeatedRounds, seen: Tensor) -> Iterator[tuple[int, int]]:
    """(seed, round): all charged rounds of a run, then first and last ones until every agent was chosen."""
    charged = list(charged_rounds(rounds))
    for t in charged:
        yield 0, t
    for k in range(_SEEN[rounds.thorough]):
        if bool(seen.all()):
            return
        yield k + 1, charged[-(k % 2)]


def charged_rounds(rounds: RepeatedRounds) -> list[int]:
    """The rounds of a run that are charged: all before its budget is spent."""
    return [t for t in range(rounds.target.rounds) if rounds.is_charged(t)]


def _messages(rounds: RepeatedRounds, t: int, seed: int) -> Tensor:
    """Messages of all agents, N x M: each one far too long along an axis, or of different lengths, by turns."""
    N, _, M = rounds.target.shape
    if (t + seed) % 2:
        return rounds.crowd.messages  # type: ignore[return-value]
    messages = rounds.zeros()
    messages[torch.arange(N), torch.arange(N) % M] = LONG_NORM * rounds.target.message_norm
    return messages


def _sum(rounds: RepeatedRounds, phi: Tensor, sent: Tensor, counted: Tensor) -> Tensor:
    """`sum_n phi_n^(i) clip(omega_n, C)`, or of messages scaled to C, over the agents counted; phi: over q, P x N."""
    C, norms = rounds.target.message_norm, sent.norm(dim=1, keepdim=True)
    factor = C / (norms if rounds.target.mechanism.normalize else norms.clamp(min=C))
    return (phi * counted) @ (sent * factor)


def streams(rounds: RepeatedRounds) -> CheckResult:
    """No noise and no S_t of a run repeats another's: of any two rounds, regions or features, in size or in sign."""
    noise = _noise(rounds)  # R x T x P x M
    p = {
        "noise of two rounds": _correlated(noise.transpose(1, 0, 2, 3)),
        "noise of two regions": _correlated(noise.transpose(2, 0, 1, 3)),
        "noise of two features": _correlated(noise.transpose(3, 0, 1, 2)),
        "numbers of noise that occur twice": _twice(noise),
        "S_t of two rounds": _same_choice(rounds),
    }
    worst = min(p, key=lambda test: p[test])
    words = f"{noise.shape[0]} runs of {noise.shape[1]} rounds; {worst}: p = {min(1.0, p[worst]):.2g}"
    return CheckResult("streams", bool(p[worst] >= _ERROR / len(p)), words, p[worst], _ERROR / len(p))


def _noise(rounds: RepeatedRounds) -> np.ndarray:
    """Standardised noise of whole runs, R x T x P x M: what `every_round` finds in a release of zero vectors."""
    target, charged = rounds.target, charged_rounds(rounds)
    _, P, M = target.shape
    zeros = torch.zeros(P, M, dtype=torch.float64)
    runs = max(1, min(math.ceil(_NUMBERS[rounds.thorough] / (P * M)), _ROUNDS[rounds.thorough] // len(charged)))
    found = np.empty((runs, len(charged), P, M))
    for k, t in enumerate(charged):
        sigma, sensitivity = rounds.charge(t).sigma, target.mechanism.tight_sensitivity(target.weights(t))
        for run in range(runs):
            made = target.mechanism.noise.add(zeros, sigma, sensitivity, rounds.entropy(run), t)
            found[run, k] = made.numpy() / sigma
    return found


def _correlated(groups: np.ndarray) -> float:
    """p-value over all pairs of groups (the first axis) that their numbers, and their sizes, are uncorrelated.

    Sizes become standard normal by their known law, so that Fisher's transform of a correlation holds for both.
    """
    x = groups.reshape(len(groups), -1)
    k, n = x.shape
    if k < 2 or n < 5:
        return 1.0
    worst = 0.0
    with np.errstate(divide="ignore"):
        sizes = -ndtri(np.exp(np.minimum(math.log(2) + log_ndtr(-np.abs(x)), -1e-16)))
    for values in (x, np.nan_to_num(sizes, posinf=8.0, neginf=-8.0)):
        if not (values.std(1) > 0).all():
            return 0.0
        worst = max(worst, float(np.abs(np.corrcoef(values)[np.triu_indices(k, 1)]).max()))
    return float(4 * stats.norm.sf(math.atanh(min(worst, 1 - 1e-15)) * math.sqrt(n - 3))) * k * (k - 1) / 2


def _twice(noise: np.ndarray) -> float:
    """0 if more numbers than chance allows are equal in size to another; with 53 bits none is."""
    some = np.sort(np.abs(noise.reshape(-1)[:_MOST_COMPARED]))
    same = np.count_nonzero(np.diff(some) <= _EQUAL * some[1:])
    return float(stats.poisson.sf(same - 1, 2 * len(some) ** 2 * _EQUAL))


def _same_choice(rounds: RepeatedRounds) -> float:
    """p-value over all pairs of rounds that the agents in both S_t are as many as of independent ones."""
    target, charged = rounds.target, charged_rounds(rounds)
    mechanism, N = target.mechanism, target.shape[0]
    q = rounds.charge(charged[0]).q
    if len(charged) < 2 or q == 1:
        return 1.0
    runs = math.ceil(_wanted(q) / N)
    runs = max(1, min(runs, _ROUNDS[rounds.thorough] // len(charged)))
    chosen = np.empty((len(charged), runs, N), dtype=np.float32)
    for run in range(runs):
        entropy = rounds.entropy(run)
        for k, t in enumerate(charged):
            chosen[k, run] = mechanism.choose(N, entropy, t).numpy()
    flat = chosen.reshape(len(charged), -1)
    both = (flat @ flat.T)[np.triu_indices(len(charged), 1)]
    counts = np.unique(both)
    tails = np.minimum(stats.binom.cdf(counts, runs * N, q * q), stats.binom.sf(counts - 1, runs * N, q * q))
    return 2 * float(tails.min()) * len(both)


def _wanted(q: float) -> float:
    """Agents in all runs together that show a repeated S_t: twelve standard errors, and thirty that are chosen."""
    return max(150 * (1 + q) / (1 - q), 30 / q)
