"""Statistical checks of the noise and of the choice of S_t, from releases.

Each has a false-alarm probability below `_ERROR` on a sound server; for a fixed seed the answer is always the same.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from dpfbo.audit.bounds import lower_bound
from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM, Target, seeded
from dpfbo.federated.mechanism import Messages
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.entropy import SystemEntropy

_ERROR = 1e-6  # false-alarm probability
_SIGMAS = 5.5  # standard errors: ten two-sided comparisons together stay below _ERROR
_NUMBERS = 2500  # noise values in a sample
_DRAWS = 150  # draws of S_t
_EXACT_DRAWS = 8  # of S_t, each with messages of every kind
_ROUNDING = 1e-9  # of sigma
_EMPTY = 1e-9  # sampling probability at which S_t is empty


def _quiet(rounds: RepeatedRounds) -> dict[int, tuple[Tensor, float]]:
    """Releases of zero vectors (draws x P x M, the same seeds in all rounds) and the claimed sigma, by round."""
    if rounds.audited.seedable:
        return {t: (_at_equal_seeds(rounds, t), rounds.charge(t).sigma) for t in rounds.examined}
    return {t: _noise(rounds.audited, t, rounds.zeros(), f"{rounds.seed}/quiet") for t in rounds.examined}


def _at_equal_seeds(rounds: RepeatedRounds, t: int) -> Tensor:
    """Releases of zero vectors under the first seeds, draws x P x M."""
    return torch.stack([rounds.release_once(seed, t) for seed in range(_DRAWS)])


def _noise(
    target: Target, t: int, messages: Messages | None, label: str, late: Tensor | None = None
) -> tuple[Tensor, float]:
    """(K x P x M releases, each with new randomness; their claimed standard deviation)."""
    _, P, M = target.shape
    released, sigma = [], 0.0
    for k in range(min(_DRAWS, max(60, math.ceil(_NUMBERS / (P * M))))):
        entropy = seeded("noise", label, t, k) if target.seedable else SystemEntropy()
        values, ledger = target.run_round(entropy, t, messages, late)
        if values is None:
            raise ValueError(f"the server under audit broadcasts nothing in round {t}, although nothing is charged yet")
        sigma = ledger.charges[0].sigma if ledger.charges else sigma
        released.append(values)
    return torch.stack(released), sigma


def noise(rounds: RepeatedRounds) -> CheckResult:
    """In every round, region and feature the release has noise of the claimed deviation, whatever was sent.

    The chi-square test of the sum of squares runs on zero messages. Under equal randomness, long messages along one
    axis (the other axes hold noise alone), NaN messages, late messages and an empty S_t leave the noise as it is;
    with noise that no seed repeats, the chi-square test runs on these too.
    """
    samples = [(f"round {t}, nobody sends", *sample) for t, sample in _quiet(rounds).items()]
    if rounds.audited.seedable:
        found = _whatever_was_sent(rounds)
        if found is not None:
            return found
    else:
        samples += _sent(rounds)
    worst, words, holds, measured, allowed = -1.0, "", True, 1.0, 1.0
    for name, values, sigma in samples:
        squares = values.square().sum((0, 2)) / sigma**2 if sigma > 0 else torch.full((values.shape[1],), math.nan)
        n = values.shape[0] * values.shape[2]
        low, high = (math.sqrt(stats.chi2.ppf(p, n) / n) for p in (_ERROR / 2, 1 - _ERROR / 2))
        for region, square in enumerate(squares.tolist()):
            ratio = math.sqrt(square / n)
            off = abs(math.log(max(ratio, 1e-12))) if math.isfinite(ratio) else math.inf
            if off > worst:
                worst, measured, allowed = off, ratio, low if ratio < 1 else high
                words = (
                    f"{name}, region {region}: {ratio:.3f} of the claimed deviation, allowed {low:.3f} to {high:.3f}"
                )
            holds &= low <= ratio <= high
    for name, values, sigma in samples if holds else ():
        found = _of_features(name, values, sigma)
        if found is not None:
            return found
    return CheckResult("noise", bool(holds), words, measured, allowed)


def _sent(rounds: RepeatedRounds) -> list[tuple[str, Tensor, float]]:
    """(name, releases, sigma) of messages that are long, NaN or late, and of an empty S_t, each with new randomness."""
    target, t, samples = rounds.audited, rounds.examined[0], list[tuple[str, Tensor, float]]()
    N, _, M = target.shape
    loud_messages = _along_one_axis(rounds)
    if M > 1:
        loud, sigma = _noise(target, t, loud_messages, f"{rounds.seed}/loud")
        samples.append((f"round {t}, all send far too much", loud[:, :, 1:], sigma))
    nan = torch.full((N, M), math.nan, dtype=torch.float64)
    samples.append((f"round {t}, all send NaN", *_noise(target, t, nan, f"{rounds.seed}/nan")))
    late = torch.ones(N, dtype=torch.bool)
    samples.append((f"round {t}, all are late", *_noise(target, t, loud_messages, f"{rounds.seed}/late", late)))
    if target.mechanism.sampling == "poisson":
        empty = target.with_mechanism(replace(target.mechanism, sampling_probability=_EMPTY))
        samples.append((f"round {t}, nobody is in S_t", *_noise(empty, t, loud_messages, f"{rounds.seed}/empty")))
    return samples


def _whatever_was_sent(rounds: RepeatedRounds) -> CheckResult | None:
    """The first of the same samples whose noise is not, bit for bit, that of zero vectors under the same seeds."""
    target, t = rounds.target, rounds.examined[0]
    N, _, M = target.shape
    loud, late = _along_one_axis(rounds), torch.ones(N, dtype=torch.bool)
    empty = target.with_mechanism(replace(target.mechanism, sampling_probability=_EMPTY))
    nan = torch.full((N, M), math.nan, dtype=torch.float64)
    sent: dict[str, tuple[Target, Tensor, Tensor | None, int]] = {
        "all send far too much": (target, loud, None, 1), "all send NaN": (target, nan, None, 0),
        "all are late": (target, loud, late, 0),
    }  # fmt: skip
    if target.mechanism.sampling == "poisson":
        sent["nobody is in S_t"] = (empty, loud, None, 0)
    for name, (server, messages, are_late, first) in sent.items():
        for seed in range(_EXACT_DRAWS):
            values, ledger = server.run_round(rounds.entropy(seed), t, messages, are_late)
            if values is None or not ledger.charges:
                return CheckResult("noise", False, f"round {t}, {name}: no charged broadcast", math.inf, _ROUNDING)
            gap = values / ledger.charges[0].sigma - rounds.release_once(seed, t) / rounds.charge(t).sigma
            worst = float(gap[:, first:].abs().nan_to_num(nan=math.inf).max()) if first < M else 0.0
            if worst > _ROUNDING:
                words = f"round {t}, {name}: the noise is not that of zero vectors, off by {worst:.2g} sigma"
                return CheckResult("noise", False, words, worst, _ROUNDING)
    return None


def _of_features(name: str, values: Tensor, sigma: float) -> CheckResult | None:
    """The number of the release, of all regions and features, whose deviation is not the claimed one; None if none."""
    draws, _, M = values.shape
    ratios = (values.square().mean(0) / sigma**2).sqrt().flatten()  # P * M
    error = _ERROR / 2 / len(ratios)
    low, high = (math.sqrt(chi2 / draws) for chi2 in (stats.chi2.ppf(error, draws), stats.chi2.isf(error, draws)))
    for worst, limit in ((int(ratios.argmin()), low), (int(ratios.argmax()), high)):
        ratio = float(ratios[worst])
        if not low <= ratio <= high:
            region, feature = divmod(worst, M)
            words = (
                f"{name}, region {region}, feature {feature}: {ratio:.3f} of the claimed deviation, limit {limit:.3f}"
            )
            return CheckResult("noise", False, words, ratio, limit)
    return None


def shape(rounds: RepeatedRounds) -> CheckResult:
    """The noise is Gaussian (Kolmogorov-Smirnov test): the accountants know no other."""
    worst, words = 1.0, ""
    for t, (values, sigma) in _quiet(rounds).items():
        p = float(stats.kstest(values.flatten().numpy() / sigma, "norm").pvalue) if sigma > 0 else 0.0
        if not p > worst:  # NaN too
            worst, words = (
                p if p >= 0 else 0.0,
                f"round {t}: p = {p:.2g} that {values.numel()} numbers of noise are standard normal",
            )
    return CheckResult("shape", bool(worst >= _ERROR), words, float(worst), _ERROR)


def fresh(rounds: RepeatedRounds) -> CheckResult:
    """Noise is drawn anew: uncorrelated between rounds, regions and runs."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    quiet, (first, *others) = _quiet(rounds), rounds.examined
    values = quiet[first][0]  # the same seeds in every round
    for t in others:
        pairs[f"rounds {first} and {t} of a run"] = (values, quiet[t][0])
    for region in range(1, values.shape[1]):
        pairs[f"regions 0 and {region}"] = (values[:, 0], values[:, region])
    pairs["one run and the next"] = (values[:-1], values[1:])
    worst, allowed, words = -1.0, 1.0, ""
    for name, (a, b) in pairs.items():
        x, y = a.flatten().numpy(), b.flatten().numpy()
        limit = min(1.0, _SIGMAS / math.sqrt(len(x)))
        found = abs(float(np.corrcoef(x, y)[0, 1])) if x.std() > 0 and y.std() > 0 else 1.0
        if found / limit > worst / allowed:
            worst, allowed = found, limit
            words = f"{name}: correlation {found:.2g} of their noise, at most {limit:.2g} by chance"
    return CheckResult("fresh", worst <= allowed, words, worst, allowed)


def chosen(rounds: RepeatedRounds) -> CheckResult:
    """No agent is in S_t more often than charged."""
    t = rounds.examined[0]
    q, _, _ = round_parameters(rounds.charge(t).event())
    members = _membership(rounds, t)  # draws x n
    draws, n = members.shape
    single = float(lower_bound(members.sum(0), draws, _ERROR / n).max())
    joint = members.mean() - _SIGMAS * members.mean(1).std(ddof=1) / math.sqrt(draws)
    least = max(single, joint)
    words = (
        f"round {t}: agents are in S_t in {members.mean():.3f} of {draws} draws, surely above {least:.3f}; "
        f"charged q = {q:.3g}"
    )
    return CheckResult("chosen", bool(least <= q), words, float(least), q)


def independent(rounds: RepeatedRounds) -> CheckResult:
    """S_t is drawn as charged: each agent on its own, anew in every round, apart from the noise; or as many."""
    t, later = rounds.examined[0], rounds.examined[-1]
    q, _, subset = round_parameters(rounds.charge(t).event())
    members = _membership(rounds, t)
    if subset is not None:
        largest = float(members.sum(1).max())
        words = f"round {t}: up to {largest:.0f} agents in S_t, charged as {subset[0]} of {subset[1]}"
        return CheckResult("independent", largest <= subset[0], words, largest, float(subset[0]))
    if q == 1:
        return CheckResult("independent", True, "charged as all agents in every S_t: nothing to find out", 1.0, _ERROR)
    p = _independence(members, q, _at_equal_seeds(rounds, t).flatten(1).numpy())
    if later != t:
        both = int((members * _membership(rounds, later)).sum())
        p[f"rounds {t} and {later}"] = float(stats.binomtest(both, members.size, q * q).pvalue)
    worst = min(p, key=lambda name: p[name])
    words = f"{worst}: p = {min(1.0, p[worst]):.2g} that they are independent"
    return CheckResult("independent", bool(p[worst] >= _ERROR), words, p[worst], _ERROR)


def _independence(members: np.ndarray, q: float, noises: np.ndarray) -> dict[str, float]:
    """p-values that agents are chosen independently of each other and of the noise, each over all its comparisons."""
    draws, n = members.shape
    p = {}
    if n > 1:
        together = (members.T @ members)[np.triu_indices(n, 1)]
        tails = np.minimum(stats.binom.cdf(together, draws, q * q), stats.binom.sf(together - 1, draws, q * q))
        p["two agents in one round"] = 2 * float(tails.min()) * len(together)
    if n * q * (1 - q) >= 3:  # else the approximation is poor
        dispersion = (draws - 1) * members.sum(1).var(ddof=1) / (n * q * (1 - q))
        p["how many agents are chosen"] = 2 * float(
            min(stats.chi2.cdf(dispersion, draws - 1), stats.chi2.sf(dispersion, draws - 1))
        )
    ranks = np.concatenate([stats.rankdata(noises, axis=0), stats.rankdata(np.abs(noises), axis=0)], 1)
    errors = _standard(members).T @ _standard(ranks) / math.sqrt(draws)
    p["S_t and the noise"] = 2 * float(stats.norm.sf(np.abs(errors).max())) * errors.size
    return p


def _membership(rounds: RepeatedRounds, t: int) -> np.ndarray:
    """Membership in S_t under each seed, draws x n, of the first M agents, which one release shows apart."""
    return torch.stack([rounds.members(seed, t) for seed in range(_DRAWS)]).double().numpy()


def _standard(columns: np.ndarray) -> np.ndarray:
    centred = columns - columns.mean(0)
    deviation = centred.std(0)
    return centred / np.where(deviation > 0, deviation, np.inf)


def _along_one_axis(rounds: RepeatedRounds) -> Tensor:
    """Messages of all agents along the first axis, far longer than the clip norm."""
    messages = rounds.zeros()
    messages[:, 0] = LONG_NORM * rounds.target.message_norm
    return messages
