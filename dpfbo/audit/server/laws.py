"""The laws of S_t and of the noise, from many draws that the server's own mechanism makes.

A release costs a tenth of a millisecond, a draw of its parts much less. `whole_runs.every_round` checks that the parts
are those of the releases, bit for bit; so these draws stand for releases, and there can be enough of them.
Each check has a false-alarm probability below `_ERROR` on a sound server.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import stats
from scipy.special import ndtr
from torch import Tensor

from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import seeded
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.entropy import Entropy, SystemEntropy

_ERROR = 1e-6  # false-alarm probability of a check
_TESTS = 5  # p-values that a check compares with _ERROR / _TESTS
_EXCESS = {False: 0.02, True: 0.005}  # relative excess of q that is looked for; thorough
_POWER = 0.99  # probability to find it, where the most draws allow that many
_MOST_CHOICES = {False: 3_000, True: 2_000_000}  # draws of S_t; thorough
_MOST_AGENTS = 40_000_000  # agents in all draws of S_t together, which are held in memory
_NUMBERS = {False: 1 << 18, True: 1 << 33}  # numbers of noise; thorough
_EXACT_NUMBERS = 20_000  # of noise that is sampled exactly, at ten microseconds a number
_CHUNK = 1 << 20  # numbers at once
_PAIRS = 256  # agents whose pairs are counted
_BINS = 64  # of equal probability
_FEWEST = 20.0  # expected draws in a bin of |S_t|
_TAILS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)  # standard deviations beyond which numbers are counted
_BITS, _SINGLE = 53, 24  # bits of a double's mantissa, and of a single's
_COARSE = 0.01  # share of numbers that may lie on the coarser grid of single precision


@dataclass(frozen=True)
class _OneStream:
    """Entropy in which every call continues one generator: independent draws, at less cost than a stream of each name.

    reproducible: as of seeded entropy.
    """

    generator: np.random.Generator
    reproducible: bool = field(default=True, init=False)

    def uniform(self, purpose: str, round: int, size: int) -> Tensor:
        return torch.from_numpy(self.generator.random(size))


def _entropy(rounds: RepeatedRounds, label: str) -> Entropy:
    if not rounds.audited.seedable:
        return SystemEntropy()
    return _OneStream(seeded(label, rounds.seed).streams.generator("law"))


def choices_needed(q: float, n_agents: int, thorough: bool = False) -> int:
    """Draws of S_t at which 2 % (0.5 %) more than q is found with probability 0.99, but no more than are allowed."""
    shift = float(stats.norm.isf(_ERROR / _TESTS / 2) + stats.norm.ppf(_POWER)) / _EXCESS[thorough]
    most = min(_MOST_CHOICES[thorough], max(200, _MOST_AGENTS // n_agents))
    return min(most, max(200, math.ceil(shift**2 * (1 - q) / (q * n_agents))))


def excess_found(q: float, n_agents: int, draws: int) -> float:
    """The relative excess of q that this many draws of S_t find with probability 0.99."""
    shift = float(stats.norm.isf(_ERROR / _TESTS / 2) + stats.norm.ppf(_POWER))
    return shift * math.sqrt((1 - q) / (q * n_agents * draws))


def law_of_choice(rounds: RepeatedRounds) -> CheckResult:
    """S_t has the charged law over all rounds: how often each agent is in it, how many are, and which two together."""
    name, target = "law of S_t", rounds.audited
    N, T = target.shape[0], target.rounds
    t = rounds.examined[0]
    q, _, subset = round_parameters(rounds.charge(t).event())
    entropy, draws = _entropy(rounds, "choices"), choices_needed(q, N, rounds.thorough)
    chosen = torch.stack([target.mechanism.choose(N, entropy, k % T) for k in range(draws)]).numpy()
    sizes = chosen.sum(1)
    if subset is not None:
        off = float(np.abs(sizes - subset[0]).max())
        p = {"how many agents are chosen": 0.0 if off else 1.0, **_each_of_subset(chosen, *subset)}
    elif q == 1:
        p = {"how many agents are chosen": float(chosen.all())}
    else:
        p = _poisson(chosen, q, T)
    worst = min(p, key=lambda test: p[test])
    words = (
        f"{draws} draws, agents are chosen in {chosen.mean():.4f} of them, charged q = {q:.4g}; {worst}: "
        f"p = {p[worst]:.2g}"
    )
    if 0 < q < 1:
        words += f"; {excess_found(q, N, draws):.1%} too often would be found with probability {_POWER}"
    return CheckResult(name, bool(p[worst] >= _ERROR / _TESTS), words, p[worst], _ERROR / _TESTS)


def _poisson(chosen: np.ndarray, q: float, T: int) -> dict[str, float]:
    """p-values that agents are in S_t independently with probability q. chosen: draws x N, draw k of round k mod T."""
    draws, N = chosen.shape
    some = chosen[:, : min(N, _PAIRS)].astype(np.float32)
    together = (some.T @ some)[np.triu_indices(some.shape[1], 1)]
    by_round = np.array([chosen[t::T].sum() for t in range(min(T, draws))])
    of_round = np.array([chosen[t::T].size for t in range(min(T, draws))])
    p = {
        "all agents": _two_sided(np.array([chosen.sum()]), chosen.size, q),
        "each agent": _two_sided(chosen.sum(0), draws, q),
        "each round": _two_sided(by_round, of_round, q),
        "how many agents are chosen": _sizes(chosen.sum(1), N, q),
    }
    return p if N == 1 else {**p, "two agents together": _two_sided(together, draws, q * q)}


def _each_of_subset(chosen: np.ndarray, k: int, N: int) -> dict[str, float]:
    draws, q = len(chosen), k / N
    return {} if k == N else {"each agent": _two_sided(chosen.sum(0), draws, q)}


def _two_sided(counts: np.ndarray, trials: int | np.ndarray, q: float) -> float:
    """The smallest two-sided binomial p-value of some counts, times their number."""
    tails = np.minimum(stats.binom.cdf(counts, trials, q), stats.binom.sf(counts - 1, trials, q))
    return min(1.0, 2 * float(tails.min()) * len(counts))


def _sizes(sizes: np.ndarray, N: int, q: float) -> float:
    """p-value of a chi-square test that |S_t| is binomial, in bins that expect at least 20 draws."""
    expected = len(sizes) * stats.binom.pmf(np.arange(N + 1), N, q)
    seen = np.bincount(sizes, minlength=N + 1)
    ends, gathered = [], 0.0
    for size, mass in enumerate(expected):
        gathered += mass
        if gathered >= _FEWEST:
            ends.append(size + 1)
            gathered = 0.0
    if len(ends) < 2:
        return 1.0
    ends[-1] = N + 1  # the rest joins the last bin
    starts = [0, *ends[:-1]]
    e, o = np.add.reduceat(expected, starts), np.add.reduceat(seen, starts)
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1))


def law_of_noise(rounds: RepeatedRounds) -> CheckResult:
    """The noise is Gaussian with the charged deviation: its mean, its squares, 64 bins, its tails and its largest."""
    sigma = rounds.audited_sigma(rounds.examined[0])
    n, total, squares, largest = 0, 0.0, 0.0, 0.0
    bins, beyond = np.zeros(_BINS), np.zeros(len(_TAILS))
    for x in _numbers(rounds, "law"):
        size = np.abs(x)
        n, total, squares = n + len(x), total + float(x.sum()), squares + float(x @ x)
        largest = max(largest, float(np.nan_to_num(size, nan=math.inf).max()))
        bins += np.bincount((np.nan_to_num(ndtr(x)) * _BINS).astype(int).clip(0, _BINS - 1), minlength=_BINS)
        beyond += [np.count_nonzero(size > tail) for tail in _TAILS]
    tails = 2 * stats.norm.sf(_TAILS)
    by_tail = np.minimum(stats.binom.cdf(beyond, n, tails), stats.binom.sf(beyond - 1, n, tails))
    none_larger = n * math.log1p(-2 * stats.norm.sf(largest))  # log P(all are at most as large)
    p = {
        "mean": 2 * float(stats.norm.sf(abs(total) / math.sqrt(n))),
        "squares": 2 * float(min(stats.chi2.cdf(squares, n), stats.chi2.sf(squares, n))),
        "bins": float(stats.chi2.sf(((bins - n / _BINS) ** 2).sum() * _BINS / n, _BINS - 1)),
        "tails": min(1.0, 2 * len(_TAILS) * float(by_tail.min())),
        "the largest": 2 * min(math.exp(none_larger), -math.expm1(none_larger)),
    }
    p = {test: value if value >= 0 else 0.0 for test, value in p.items()}  # NaN
    worst = min(p, key=lambda test: p[test])
    words = (
        f"{n} numbers of noise, {math.sqrt(squares / n):.4f} of the deviation {sigma:.4g}, the largest "
        f"{largest:.2f} of them; {worst}: p = {p[worst]:.2g}"
    )
    return CheckResult("law of noise", bool(p[worst] >= _ERROR / _TESTS), words, p[worst], _ERROR / _TESTS)


def bits(rounds: RepeatedRounds) -> CheckResult:
    """Noise and its uniforms have the bits of double precision: single precision would bare the sum's low bits.

    Noise of single precision, before or after it is multiplied by sigma, lies on that grid; so do uniforms of 24 bits
    that Box and Muller's radius is made of.
    """
    name, target = "bits", rounds.audited
    u = target.summing.entropy.uniform("audit", 0, 1 << 14).numpy()
    words = np.round(u * 2.0**_BITS).astype(np.int64)
    ones = np.array([np.count_nonzero(words >> bit & 1) for bit in range(_BITS)])
    p = _two_sided(ones, len(u), 0.5)
    if p < _ERROR:
        said = f"bit {int(np.abs(ones - len(u) / 2).argmax())} of the uniforms is not even: p = {p:.2g}"
        return CheckResult(name, False, said, p, _ERROR)
    if not target.seedable:
        return CheckResult(name, True, "noise is sampled exactly on a grid", 0.0, _COARSE)
    sigma = rounds.charge(rounds.examined[0]).sigma
    x = next(_numbers(rounds, "bits"))
    shares = {
        "the noise": _on_grid(x * sigma), "the noise over sigma": _on_grid(x), "the uniforms of the noise": _uniforms(x)
    }  # fmt: skip
    worst = max(shares, key=lambda part: shares[part])
    said = f"{shares[worst]:.2%} of {len(x)} numbers of {worst} have no more than {_SINGLE} bits"
    return CheckResult(name, shares[worst] <= _COARSE, said, shares[worst], _COARSE)


def _on_grid(x: np.ndarray) -> float:
    """The share of numbers within a few roundings of one in single precision."""
    with np.errstate(over="ignore"):
        return float(np.mean(np.abs(x - x.astype(np.float32)) <= 4 * np.finfo(float).eps * np.abs(x)))


def _uniforms(x: np.ndarray) -> float:
    """The share of radii, of pairs half the numbers apart, whose uniform is one of 24 bits."""
    half = len(x) // 2
    first = -np.expm1(-(x[:half] ** 2 + x[half : 2 * half] ** 2) / 2) * 2.0**_SINGLE
    return float(np.mean(np.abs(first - np.round(first)) < 1e-5))


def _numbers(rounds: RepeatedRounds, label: str) -> Iterator[np.ndarray]:
    """Noise of the first examined round, over its charged sigma, in chunks."""
    target, t = rounds.audited, rounds.examined[0]
    _, P, M = target.shape
    sigma, sensitivity = rounds.audited_sigma(t), target.mechanism.tight_sensitivity(target.weights(t))
    entropy = _entropy(rounds, label)
    numbers = _NUMBERS[rounds.thorough] if target.seedable else _EXACT_NUMBERS
    rows = min(numbers, _CHUNK) // (P * M) + 1
    for _ in range(math.ceil(numbers / (rows * P * M))):
        zeros = torch.zeros(P, rows * M, dtype=torch.float64)
        yield target.mechanism.noise.add(zeros, sigma, sensitivity, entropy, t).flatten().numpy() / sigma
