"""The law of the noise and of the choice of S_t, from what is released.

Statistical checks; each has a false-alarm probability below `_ERROR` on a sound server (for a fixed seed the answer is
always the same).
"""

import math
from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from dpfbo.audit.bounds import lower_bound
from dpfbo.audit.server.repeated_rounds import FAR, CheckResult, RepeatedRounds
from dpfbo.audit.server.target import Target, seeded
from dpfbo.federated.messages import Messages
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.entropy import SystemEntropy

_ERROR = 1e-6
_SIGMAS = 5.5  # of a normal, two-sided below _ERROR even over ten comparisons
_NUMBERS = 2500  # of noise, for the law
_DRAWS = 150  # of S_t
_EMPTY = 1e-9  # a sampling probability at which S_t is empty


def _quiet(bench: RepeatedRounds) -> dict[int, tuple[Tensor, float]]:
    """By round, releases in which nobody sends (draws x P x M, with the same seeds), and the claimed sigma."""
    if bench.audited.seedable:
        draws = range(_DRAWS)
        return {t: (torch.stack([bench.noise_of(k, t) for k in draws]), bench.charge(t).sigma) for t in bench.rounds}
    return {t: _noise(bench.audited, t, bench.silence(), f"{bench.seed}/quiet") for t in bench.rounds}


def _noise(
    target: Target, t: int, messages: Messages | None, label: str, late: Tensor | None = None
) -> tuple[Tensor, float]:
    """(K x P x M releases, the standard deviation that is claimed of them), each with randomness of its own."""
    _, P, M = target.shape
    released, sigma = [], 0.0
    for k in range(min(_DRAWS, max(60, math.ceil(_NUMBERS / (P * M))))):
        entropy = seeded("noise", label, t, k) if target.seedable else SystemEntropy()
        values, ledger = target.one(entropy, t, messages, late)
        if values is None:
            raise ValueError(f"the server under audit broadcasts nothing in round {t}, although nothing is charged yet")
        sigma = ledger.charges[0].sigma if ledger.charges else sigma
        released.append(values)
    return torch.stack(released), sigma


def noise(bench: RepeatedRounds) -> CheckResult:
    """In every round and region the release has noise of the claimed standard deviation, whatever was sent.

    Chi-square test of the sum of squares: silent agents; all far above the bound along one axis (the other axes have
    noise alone); unusable messages; late ones; and nobody in S_t.
    """
    samples = [(f"round {t}, nobody sends", *sample) for t, sample in _quiet(bench).items()]
    target, t = bench.audited, bench.rounds[0]
    N, _, M = target.shape
    if M > 1:
        loud, sigma = _noise(target, t, _along_one_axis(bench), f"{bench.seed}/loud")
        samples.append((f"round {t}, all send far too much", loud[:, :, 1:], sigma))
    nan = torch.full((N, M), math.nan, dtype=torch.float64)
    samples.append((f"round {t}, all send NaN", *_noise(target, t, nan, f"{bench.seed}/nan")))
    late = torch.ones(N, dtype=torch.bool)
    samples.append((f"round {t}, all are late", *_noise(target, t, _along_one_axis(bench), f"{bench.seed}/late", late)))
    if target.mechanism.sampling == "poisson":
        empty = target.with_mechanism(replace(target.mechanism, sampling_probability=_EMPTY))
        samples.append(
            (f"round {t}, nobody is in S_t", *_noise(empty, t, _along_one_axis(bench), f"{bench.seed}/empty"))
        )
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
    return CheckResult("noise", bool(holds), words, measured, allowed)


def shape(bench: RepeatedRounds) -> CheckResult:
    """The noise is Gaussian (Kolmogorov-Smirnov test): the accountants know no other."""
    worst, words = 1.0, ""
    for t, (values, sigma) in _quiet(bench).items():
        p = float(stats.kstest(values.flatten().numpy() / sigma, "norm").pvalue) if sigma > 0 else 0.0
        if not p > worst:  # NaN too
            worst, words = (
                p if p >= 0 else 0.0,
                f"round {t}: p = {p:.2g} that {values.numel()} numbers of noise are standard normal",
            )
    return CheckResult("shape", bool(worst >= _ERROR), words, float(worst), _ERROR)


def fresh(bench: RepeatedRounds) -> CheckResult:
    """Noise is drawn anew: uncorrelated between rounds, regions and runs."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    quiet, (first, *others) = _quiet(bench), bench.rounds
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


def chosen(bench: RepeatedRounds) -> CheckResult:
    """No agent is in S_t more often than charged."""
    t = bench.rounds[0]
    q, _, _ = round_parameters(bench.charge(t).event())
    members = _membership(bench, t)  # draws x n
    draws, n = members.shape
    single = float(lower_bound(members.sum(0), draws, _ERROR / n).max())
    joint = members.mean() - _SIGMAS * members.mean(1).std(ddof=1) / math.sqrt(draws)
    least = max(single, joint)
    words = (
        f"round {t}: agents are in S_t in {members.mean():.3f} of {draws} draws, surely above {least:.3f}; "
        f"charged q = {q:.3g}"
    )
    return CheckResult("chosen", bool(least <= q), words, float(least), q)


def independent(bench: RepeatedRounds) -> CheckResult:
    """S_t is drawn as charged: each agent on its own, anew in every round, apart from the noise; or as many."""
    t, later = bench.rounds[0], bench.rounds[-1]
    q, _, subset = round_parameters(bench.charge(t).event())
    members = _membership(bench, t)
    if subset is not None:
        largest = float(members.sum(1).max())
        words = f"round {t}: up to {largest:.0f} agents in S_t, charged as {subset[0]} of {subset[1]}"
        return CheckResult("independent", largest <= subset[0], words, largest, float(subset[0]))
    if q == 1:
        return CheckResult("independent", True, "charged as all agents in every S_t: nothing to find out", 1.0, _ERROR)
    p = _independence(members, q, torch.stack([bench.noise_of(seed, t) for seed in range(_DRAWS)]).flatten(1).numpy())
    if later != t:
        both = int((members * _membership(bench, later)).sum())
        p[f"rounds {t} and {later}"] = float(stats.binomtest(both, members.size, q * q).pvalue)
    worst = min(p, key=lambda name: p[name])
    words = f"{worst}: p = {min(1.0, p[worst]):.2g} that they are independent"
    return CheckResult("independent", bool(p[worst] >= _ERROR), words, p[worst], _ERROR)


def _independence(members: np.ndarray, q: float, noises: np.ndarray) -> dict[str, float]:
    """p-values, for all comparisons of a kind together, that every agent is chosen on its own, apart from the noise."""
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


def _membership(bench: RepeatedRounds, t: int) -> np.ndarray:
    """Who is in S_t under each seed, draws x n; of the first M agents, who can be told apart in one release."""
    return torch.stack([bench.members(seed, t) for seed in range(_DRAWS)]).double().numpy()


def _standard(columns: np.ndarray) -> np.ndarray:
    centred = columns - columns.mean(0)
    deviation = centred.std(0)
    return centred / np.where(deviation > 0, deviation, np.inf)


def _along_one_axis(bench: RepeatedRounds) -> Tensor:
    """All agents send the same axis, far above the bound."""
    messages = bench.silence()
    messages[:, 0] = FAR * bench.target.bound
    return messages
