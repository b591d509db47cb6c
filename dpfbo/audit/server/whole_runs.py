"""Checks of the releases and the randomness of whole runs.

`every_round` recomputes each release as the weighted sum of messages, plus noise with the sigma charged in the ledger.
`streams` checks that no randomness is repeated.

Some checks take a shortcut: they choose agents and draw noise without running a round. `every_round` checks that, under
the same seed, the shortcut chooses the same agents and draws the same noise as a whole round.
"""

import math

import numpy as np
import torch
from scipy import stats
from scipy.special import log_ndtr, ndtri
from torch import Tensor

from dpfbo.audit.findings import likely, require, two_sided
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.privacy.distributed import BITS, quantised

# dictionaries are keyed by `RepeatedRounds.thorough`
_ROUNDING = 1e-9  # tolerated relative error
_MORE = {False: 100, True: 400}  # further rounds with new seeds, for agents that are rarely chosen
_NUMBERS = {False: 300, True: 3000}  # least samples of one round's noise, over all runs
_ROUNDS = {False: 2_000, True: 200_000}  # most rounds of all runs together
_DRAWS = 150  # joint draws of S_t and the noise
_AGENTS = 256  # most agents whose choice is compared with the noise
_EQUAL = 4 * np.finfo(float).eps  # largest relative difference of two equal numbers
_MOST_COMPARED = 200_000  # most samples of noise that are searched for equal ones


def every_round(rounds: RepeatedRounds) -> str:
    """Check that each release is `sum_n phi_n clip(omega_n, C) / q` over n in S_t, plus noise of deviation sigma.

    S_t is the set of chosen agents. phi_n are the weights of agent n, omega_n is its message, and C the norm to which
    messages are clipped. sigma (the noise's standard deviation) and q (the sampling probability) are those of the
    round's charge in the ledger.
    """
    target, worst = rounds.target, 0.0
    N, C = target.shape[0], target.message_norm
    seen = torch.zeros(N, dtype=torch.bool)
    more = [(k + 1, rounds.examined[k % len(rounds.examined)]) for k in range(_MORE[rounds.thorough])]
    tried = [*((0, t) for t in rounds.charged), *more]
    for seed, t in tried:
        charge, phi = rounds.charge(t), target.weights(t)
        tight, claimed = C * float(phi.norm(dim=0).max()) / charge.q, rounds.claimed_sensitivity(t)
        words = f"round {t}: sigma / z is {claimed:.6g} as charged, and one message moves the release by {tight:.6g}"
        require(tight <= claimed * (1 + _ROUNDING), words)
        quiet, counted = rounds.release_once(seed, t), rounds.counted(seed, t)
        seen |= counted
        noise = charge.sigma * standard_noise(rounds, seed, t)
        sent, missing = _messages(rounds, seed + t)
        norms = sent.norm(dim=1, keepdim=True)
        clipped = sent * C / (norms if target.mechanism.normalize else norms.clamp(min=C))
        if isinstance(target.mechanism, DistributedGaussian):
            clipped = quantised(clipped, C).to(clipped) * (C / 2.0**BITS)
        total = (phi / charge.q * (counted & ~missing)) @ clipped
        given = [None if gone else message for message, gone in zip(sent, missing.tolist(), strict=True)]
        gap = float((rounds.release(seed, t, given if missing.any() else sent) - quiet - total).abs().max())
        gaps = {
            "the noise is not that of the charged sigma": float((quiet - noise).abs().max()) / charge.sigma,
            "the sum is not that of the chosen agents' clipped messages": gap / (tight + charge.sigma),
        }
        for fault, gap in gaps.items():
            require(gap <= _ROUNDING, f"round {t}: {fault}: the relative difference is {gap:.2g}")
            worst = max(worst, gap)
    words = f"{int(seen.sum())} of {N} agents in S_t: noise, sum and sensitivity as charged within {worst:.1g}"
    return f"{len(tried)} rounds, {words}"


def standard_noise(rounds: RepeatedRounds, seed: int, t: int) -> Tensor:
    """Return the P x M noise values of round t under a seed, divided by the sigma charged in the ledger."""
    sigma = rounds.charge(t).sigma
    return rounds.target.noise_alone(rounds.entropy(seed), t, sigma) / sigma


def _messages(rounds: RepeatedRounds, turn: int) -> tuple[Tensor, Tensor]:
    """Return the messages of all agents, N x M, and N booleans, True for each missing message.

    `turn` modulo 3 selects one of three variants.
    """
    N, _, M = rounds.target.shape
    every = torch.arange(N)
    if turn % 3:
        return rounds.crowd, every % 2 < turn % 3 - 1
    messages = rounds.zeros()
    messages[every, every % M] = LONG_NORM * rounds.target.message_norm
    return messages, every < 0


def streams(rounds: RepeatedRounds) -> str:
    """Check that noise is independent across runs, rounds, regions and features.

    Also check that the choice of agents is independent across rounds, and that it is independent of the noise.
    """
    target, (_, P, M) = rounds.target, rounds.target.shape
    most = _ROUNDS[rounds.thorough] // len(rounds.charged)
    runs = max(2, min(math.ceil(_NUMBERS[rounds.thorough] / (P * M)), most))
    drawn = [[standard_noise(rounds, run, t).numpy() for t in rounds.charged] for run in range(runs)]
    noise = np.array(drawn)  # runs x T x P x M
    with np.errstate(divide="ignore"):  # absolute values, transformed to standard normals
        sizes = -ndtri(np.exp(np.minimum(math.log(2) + log_ndtr(-np.abs(noise)), -1e-16)))
    both = (noise, np.nan_to_num(sizes, posinf=8.0, neginf=-8.0))
    names = ("noise of two runs", "noise of two rounds", "noise of two regions", "noise of two features")
    p = {name: _correlated(both, axis) for axis, name in enumerate(names)}
    p["numbers of noise that occur twice"] = _twice(noise, target.step / rounds.charge(rounds.charged[0]).sigma)
    q = rounds.charge(rounds.charged[0]).q
    if q < 1:
        p |= {"S_t of two rounds": _same_choice(rounds, q), "S_t and the noise": _choice_and_noise(rounds)}
    return likely(p, f"{runs} runs of {len(rounds.charged)} rounds")


def _correlated(values: tuple[np.ndarray, np.ndarray], axis: int) -> float:
    """Test whether the slices at different indices of an axis are correlated; return one p-value.

    All pairs of slices of the same array are compared. The p-value is that of the largest correlation in both arrays.
    """
    worst = 0.0
    for part in values:
        x = np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1)
        k, n = x.shape
        if k < 2 or n < 5:
            return 1.0
        if not (x.std(1) > 0).all():
            return 0.0
        worst = max(worst, float(np.abs(np.corrcoef(x)[np.triu_indices(k, 1)]).max()))
    return float(4 * stats.norm.sf(math.atanh(min(worst, 1 - 1e-15)) * math.sqrt(n - 3))) * k * (k - 1) / 2  # Fisher z


def _twice(noise: np.ndarray, step: float) -> float:
    """Count the samples whose absolute value occurs more than once; return the p-value of this number.

    step: the distance of neighbouring values of discrete noise, in standard deviations; 0 for continuous noise.
    """
    some = np.sort(np.abs(noise.reshape(-1)[:_MOST_COMPARED]))
    same = np.count_nonzero(np.diff(some) <= _EQUAL * some[1:] + step / 2)
    by_chance = 2 * _EQUAL + step / (2 * math.sqrt(math.pi))
    return float(stats.poisson.sf(same - 1, len(some) ** 2 * by_chance))


def _same_choice(rounds: RepeatedRounds, q: float) -> float:
    """Test, for all pairs of rounds, the number of agents chosen in both; return one p-value."""
    charged, N = rounds.charged, rounds.target.shape[0]
    if len(charged) < 2:
        return 1.0
    wanted = max(150 * (1 + q) / (1 - q), 30 / q)  # equal S_t are off by twelve standard errors; 30 agents are chosen
    runs = max(1, min(math.ceil(wanted / N), _ROUNDS[rounds.thorough] // len(charged)))
    drawn = [[_chosen(rounds, run, t) for run in range(runs)] for t in charged]
    flat = np.array(drawn, dtype=np.float32).reshape(len(charged), -1)
    both = (flat @ flat.T)[np.triu_indices(len(charged), 1)]
    return two_sided(both, runs * N, q * q)


def _choice_and_noise(rounds: RepeatedRounds) -> float:
    """Test whether the noise correlates with which agents are chosen; return the largest correlation's p-value."""
    t = rounds.charged[0]
    members = np.array([_chosen(rounds, run, t)[:_AGENTS] for run in range(_DRAWS)], dtype=float)
    noises = np.array([standard_noise(rounds, run, t).flatten().numpy() for run in range(_DRAWS)])
    ranks = np.concatenate([stats.rankdata(noises, axis=0), stats.rankdata(np.abs(noises), axis=0)], 1)
    errors = _standard(members).T @ _standard(ranks) / math.sqrt(_DRAWS)
    return 2 * float(stats.norm.sf(np.abs(errors).max())) * errors.size


def _chosen(rounds: RepeatedRounds, run: int, t: int) -> np.ndarray:
    return rounds.target.mechanism.choose(rounds.target.shape[0], rounds.entropy(run), t).numpy()


def _standard(columns: np.ndarray) -> np.ndarray:
    centred, deviation = columns - columns.mean(0), columns.std(0)
    return centred / np.where(deviation > 0, deviation, np.inf)
