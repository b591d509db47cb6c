"""Statistical checks of the noise and of S_t (the agents chosen in round t), on many draws of the mechanism."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats
from scipy.special import ndtr
from torch import Tensor

from dpfbo.audit.findings import ERROR, likely, require, two_sided
from dpfbo.audit.server.rounds import RepeatedRounds, released
from dpfbo.audit.server.target import LONG_NORM, Target, seeded
from dpfbo.audit.server.whole_runs import standard_noise
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.entropy import Entropy, SystemEntropy

# dictionaries are keyed by `RepeatedRounds.thorough`
_TESTS = 5  # most p-values in `law_of_choice`
_EXCESS = {False: 0.02, True: 0.005}  # relative excess of q to detect
_POWER = 0.99  # probability of detecting it, unless that needs too many draws
_MOST_CHOICES = {False: 3_000, True: 2_000_000}  # most draws of S_t
_MOST_AGENTS = 40_000_000  # largest product of draws of S_t and agents; all are held in memory
_NUMBERS = {False: 1 << 18, True: 1 << 33}  # samples of noise
_OF_SHARES = {False: 1 << 16, True: 1 << 21}  # samples of noise that is a sum of sites' shares
_EXACT_NUMBERS = 20_000  # samples of noise from an exact sampler, which takes ten microseconds for each
_CHUNK = 1 << 20  # samples at once
_PAIRS = 256  # agents whose pairs are counted
_BINS = 64  # bins of equal probability
_FEWEST = 20.0  # least expected count in a bin of |S_t|
_TAILS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)  # standard deviations beyond which samples are counted
_BITS, _SINGLE = 53, 24  # bits of the mantissa in double and in single precision
_COARSE = 0.01  # largest share of samples on the coarser grid of single precision
_DRAWS, _EXACT_DRAWS = 150, 8  # rounds in each statistical test of deviations; rounds in each exact comparison
_ROUNDING = 1e-9  # tolerated difference, in sigma
_EMPTY = 1e-9  # sampling probability at which S_t is empty


@dataclass(frozen=True)
class _OneStream:
    """An `Entropy` that ignores purpose and round: each call returns the next numbers of one generator."""

    generator: np.random.Generator
    reproducible: bool = True

    def uniform(self, purpose: str, round: int, size: int) -> Tensor:
        return torch.from_numpy(self.generator.random(size))


def _entropy(rounds: RepeatedRounds, label: str) -> Entropy:
    """Return an entropy source for many draws.

    It is seeded if the audited noise can be repeated from a seed. If not, it is the operating system's source.
    """
    generator = seeded(label, rounds.seed).streams.generator("law")
    return _OneStream(generator) if rounds.audited.seedable else SystemEntropy()


def choices_needed(q: float, n_agents: int, thorough: bool = False) -> int:
    """Return the number of draws of S_t, at least 200, that a test of q needs.

    S_t is the set of agents chosen in a round; q is the claimed probability of each agent. If the actual probability
    is 1.02 q (thorough: 1.005 q), the test detects the excess with probability 0.99. The number is capped for speed and
    memory; if the cap lowers the number, the probability of detection is below 0.99.
    """
    most = min(_MOST_CHOICES[thorough], max(200, _MOST_AGENTS // n_agents))
    return min(most, max(200, math.ceil((excess_found(q, n_agents, 1) / _EXCESS[thorough]) ** 2)))


def excess_found(q: float, n_agents: int, draws: int) -> float:
    """Return the least relative error of q that a test on `draws` samples of S_t detects with probability 0.99."""
    shift = float(stats.norm.isf(ERROR / _TESTS / 2) + stats.norm.ppf(_POWER))
    return shift * math.sqrt((1 - q) / (q * n_agents * draws))


def law_of_choice(rounds: RepeatedRounds) -> str:
    """Check that agents are chosen as a round's charge in the ledger states.

    The charge states q, the probability that an agent is chosen. If the number of chosen agents is fixed, the charge
    also states this number. Check the number of chosen agents, and the frequency of each agent. Under Poisson sampling
    with q < 1, also check the frequency of each pair among the first 256 agents.
    """
    target = rounds.audited
    N, T = target.shape[0], target.rounds
    q, _, subset = round_parameters(rounds.charge(rounds.examined[0]).event())
    entropy, draws = _entropy(rounds, "choices"), choices_needed(q, N, rounds.thorough)
    chosen = torch.stack([target.mechanism.choose(N, entropy, k % T) for k in range(draws)]).numpy()
    words = f"{draws} draws of S_t: agents are chosen with frequency {chosen.mean():.4f}, charged q = {q:.4g}"
    if subset is not None:
        p = {"how many agents are chosen": float((chosen.sum(1) == subset[0]).all())}
        if q < 1:
            p["each agent"] = two_sided(chosen.sum(0), draws, q)
    elif q == 1:
        p = {"how many agents are chosen": float(chosen.all())}
    else:
        p = _poisson(chosen, q, T)
    if 0 < q < 1:
        words += f"; an excess of {excess_found(q, N, draws):.1%} would be found with probability {_POWER}"
    return likely(p, words)


def _poisson(chosen: np.ndarray, q: float, T: int) -> dict[str, float]:
    """Test in several ways whether each agent is chosen independently with probability q; return the tests' p-values.

    chosen: booleans, one row for each draw and one column for each agent. Row k is drawn for round k mod T.
    """
    draws, N = chosen.shape
    some = chosen[:, : min(N, _PAIRS)].astype(np.float32)
    together = (some.T @ some)[np.triu_indices(some.shape[1], 1)]
    by_round = [chosen[t::T] for t in range(min(T, draws))]
    p = {
        "all agents": two_sided(np.array([chosen.sum()]), chosen.size, q),
        "each agent": two_sided(chosen.sum(0), draws, q),
        "each round": two_sided(np.array([x.sum() for x in by_round]), np.array([x.size for x in by_round]), q),
        "how many agents are chosen": _sizes(chosen.sum(1), N, q),
    }
    return p if N == 1 else {**p, "two agents together": two_sided(together, draws, q * q)}


def _sizes(sizes: np.ndarray, N: int, q: float) -> float:
    """Return the p-value of a chi-square test that |S_t| is binomial."""
    expected = len(sizes) * stats.binom.pmf(np.arange(N + 1), N, q)
    seen = np.bincount(sizes, minlength=N + 1)
    starts, gathered = [0], 0.0
    for size, mass in enumerate(expected):
        gathered += mass
        if gathered >= _FEWEST:
            starts.append(size + 1)
            gathered = 0.0
    starts.pop()  # the rest joins the last bin
    if len(starts) < 2:
        return 1.0
    e, o = np.add.reduceat(expected, starts), np.add.reduceat(seen, starts)
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1))


def noise(rounds: RepeatedRounds) -> str:
    """Check that, whatever agents send, the noise of each region and feature has the sigma charged in the ledger.

    Each release, divided by its sigma, is compared with a second release, which has the same randomness but zero
    vectors as messages. The two releases must be equal if all messages are NaN or late, or if no agent is chosen. If
    all messages are far above the clip norm in the first feature and 0 elsewhere, the two releases must be equal in all
    other features. Noise that cannot be repeated from a seed gets statistical tests instead.
    """
    p, t = dict[str, float](), rounds.examined[0]
    for name, target, messages, late, first in _sent(rounds.audited):
        if first == target.shape[2]:
            continue
        if not rounds.audited.seedable:
            p |= _deviation(f"round {t}, {name}", _released(target, t, messages, late)[:, :, first:])
            continue
        for seed in range(_EXACT_DRAWS):
            values, sigma = released(target, rounds.entropy(seed), t, messages, late)
            gap = values / sigma - rounds.release_once(seed, t) / rounds.charge(t).sigma
            worst = float(gap[:, first:].abs().nan_to_num(nan=math.inf).max())
            words = f"round {t}, {name}: the noise is not that of zero vectors, off by {worst:.2g} sigma"
            require(worst <= _ROUNDING, words)
    for t in rounds.examined:
        if rounds.audited.seedable:
            drawn = torch.stack([standard_noise(rounds, seed, t) for seed in range(_DRAWS)])
        else:
            drawn = _released(rounds.audited, t, rounds.zeros())
        p |= _deviation(f"round {t}", drawn)
    return likely(p, "")


def _released(target: Target, t: int, messages: Tensor, late: Tensor | None = None) -> Tensor:
    """Return independent releases of round t, `_DRAWS` x P x M, each divided by the sigma charged in the ledger."""
    drawn = (released(target, SystemEntropy(), t, messages, late) for _ in range(_DRAWS))
    return torch.stack([values / sigma for values, sigma in drawn])


def _sent(target: Target) -> Iterator[tuple[str, Target, Tensor, Tensor | None, int]]:
    """Yield (name, target, messages, late, first) for each round to test.

    late: N booleans, True for each late message; None if no message is late. first: from this feature index on, the
    messages contribute nothing, and the release contains only noise. This noise, divided by sigma, must have the same
    distribution in all these rounds.
    """
    N, _, M = target.shape
    loud = torch.zeros(N, M, dtype=torch.float64)
    loud[:, 0] = LONG_NORM * target.message_norm
    yield "all send far too much", target, loud, None, 1
    yield "all send NaN", target, torch.full_like(loud, math.nan), None, 0
    yield "all are late", target, loud, torch.ones(N, dtype=torch.bool), 0
    if target.mechanism.sampling == "poisson" and not isinstance(target.mechanism, DistributedGaussian):
        empty = target.with_mechanism(replace(target.mechanism, sampling_probability=_EMPTY))
        yield "nobody is in S_t", empty, loud, None, 0


def _deviation(name: str, values: Tensor) -> dict[str, float]:
    """Test that noise (draws x P x M) has standard deviation 1 in each region and for each feature; return p-values."""
    squares, p = values.square().numpy(), dict[str, float]()
    for axes, place in (((0, 2), "region {}"), ((0,), "region {}, feature {}")):
        sums = squares.sum(axes)
        n = squares.size // sums.size
        tails = np.minimum(stats.chi2.cdf(sums, n), stats.chi2.sf(sums, n))
        worst = np.unravel_index(tails.argmin(), tails.shape)
        ratio = math.sqrt(sums[worst] / n)
        p[f"{name}, {place.format(*worst)}: {ratio:.3f} of the charged deviation"] = 2 * tails[worst] * tails.size
    return p


def law_of_noise(rounds: RepeatedRounds) -> str:
    """Check that the noise is Gaussian with the sigma charged in the ledger.

    Test the mean, the sum of squares, the counts in bins and in tails, and the largest sample.
    """
    n, total, squares, largest = 0, 0.0, 0.0, 0.0
    bins, beyond = np.zeros(_BINS), np.zeros(len(_TAILS))
    for x in _numbers(rounds, "law"):
        size = np.abs(x)
        n, total, squares = n + len(x), total + float(x.sum()), squares + float(x @ x)
        largest = max(largest, float(np.nan_to_num(size, nan=math.inf).max()))
        bins += np.bincount((np.nan_to_num(ndtr(x)) * _BINS).astype(int).clip(0, _BINS - 1), minlength=_BINS)
        beyond += [np.count_nonzero(size > tail) for tail in _TAILS]
    none_larger = n * math.log1p(-2 * stats.norm.sf(largest))  # log P(no sample of n is larger)
    p = {
        "mean": 2 * float(stats.norm.sf(abs(total) / math.sqrt(n))),
        "squares": 2 * float(min(stats.chi2.cdf(squares, n), stats.chi2.sf(squares, n))),
        "bins": float(stats.chi2.sf(((bins - n / _BINS) ** 2).sum() * _BINS / n, _BINS - 1)),
        "tails": two_sided(beyond, n, 2 * stats.norm.sf(_TAILS)),
        "the largest": 2 * min(math.exp(none_larger), -math.expm1(none_larger)),
    }
    words = f"{n} samples of noise: {math.sqrt(squares / n):.4f} of the charged deviation, the largest {largest:.2f}"
    return likely(p, words)


def bits(rounds: RepeatedRounds) -> str:
    """Check that noise has double precision: single precision would reveal the low bits of the sum."""
    target = rounds.audited
    u = target.summing.entropy.uniform("audit", 0, 1 << 14).numpy()
    whole = np.round(u * 2.0**_BITS).astype(np.int64)
    ones = np.array([np.count_nonzero(whole >> bit & 1) for bit in range(_BITS)])
    worst_bit = int(np.abs(ones - len(u) / 2).argmax())
    words = likely({f"bit {worst_bit} of the uniforms": two_sided(ones, len(u), 0.5)}, "")
    if target.step:
        return "noise and sum lie on one grid"
    if not target.seedable:
        return "noise is sampled exactly on a grid"
    x = next(_numbers(rounds, "bits"))
    shares = {
        "the noise": _on_grid(x * rounds.charge(rounds.examined[0]).sigma), "the noise over sigma": _on_grid(x),
        "the uniforms of the noise": _uniforms(x),
    }  # fmt: skip
    worst = max(shares, key=lambda part: shares[part])
    said = f"{shares[worst]:.2%} of {len(x)} numbers in {worst} have at most {_SINGLE} bits; {words}"
    return require(shares[worst] <= _COARSE, said)


def _on_grid(x: np.ndarray) -> float:
    """Return the share of numbers that rounding to single precision does not change.

    A relative change of at most 4 double-precision epsilons counts as no change.
    """
    with np.errstate(over="ignore"):
        return float(np.mean(np.abs(x - x.astype(np.float32)) <= 4 * np.finfo(float).eps * np.abs(x)))


def _uniforms(x: np.ndarray) -> float:
    """Return the share of Box-Muller pairs whose radius r comes from a uniform number of at most 24 bits.

    `x[k]` and `x[k + n/2]` are a pair, with n the length of x. The pair's uniform number is 1 - exp(-r^2 / 2).
    """
    half = len(x) // 2
    first = -np.expm1(-(x[:half] ** 2 + x[half : 2 * half] ** 2) / 2) * 2.0**_SINGLE
    return float(np.mean(np.abs(first - np.round(first)) < 1e-5))


def _numbers(rounds: RepeatedRounds, label: str) -> Iterator[np.ndarray]:
    """Yield 1-D arrays of noise samples from the rounds in `rounds.examined`.

    All samples of an array are from the same round, and are divided by the sigma charged in the ledger for this round.
    """
    target, entropy = rounds.audited, _entropy(rounds, label)
    _, P, M = target.shape
    numbers = _NUMBERS[rounds.thorough] if target.seedable else _EXACT_NUMBERS
    if target.step:
        numbers = min(numbers, _OF_SHARES[rounds.thorough])
    rows = min(numbers // len(rounds.examined), _CHUNK) // (P * M) + 1
    sigmas = {t: released(target, SystemEntropy(), t, rounds.zeros())[1] for t in rounds.examined}
    for k in range(math.ceil(numbers / (rows * P * M))):
        t, sigma = list(sigmas.items())[k % len(sigmas)]
        yield target.noise_alone(entropy, t, sigma, rows).flatten().numpy() / sigma
