"""Checks of what a curious server learns.

The server follows the protocol, but keeps every message and may collude with sites.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats

from dpfbo.audit.findings import ERROR, likely, require, two_sided
from dpfbo.audit.secure.sums import SumRun, SumTarget
from dpfbo.privacy.distributed import BITS
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.secure import primitives
from dpfbo.secure.messages import Advert, view
from dpfbo.secure.site import Masks, SumSite

NUMBERS = 10_000  # least masked numbers of all sites in one attempt
_TESTS = 3  # p-values in `noise_shares`
_NEAR = 2**24  # width of the range near zero, which holds one in 256 uniform numbers, and all unmasked ones
_BINS = 64  # bins of equal probability in `_same_law`
_LOUD = 2**BITS  # each number of the canary's loud vector
SEEDS = 1 << 19  # seeds drawn from one site
_RANKED = 512  # seeds whose bits are tested for linear dependence
_FEWEST, _MOST = 20_000, 200_000  # limits of the samples of noise of all sites together
_POWER = 0.99  # probability of detecting shares of variance sigma^2 / N, unless that needs more than _MOST samples


def right_sum(target: SumTarget) -> str:
    """Check that the server learns the right sum, both with no site missing and with `max_dropouts` sites missing."""
    for gone in {0, target.noise.max_dropouts}:
        run = SumRun(target).until("masked").until(None, absent=range(gone))
        total = sum(run.vectors[1, n] for n in run.server.survivors)
        right = np.array_equal(run.server.total.numpy(), total)
        require(right, f"with {gone} sites missing, the sum is not that of the others' vectors")
    return f"the sum of {target.n_sites} and of {target.noise.survivors} sites is right"


def masked_numbers(target: SumTarget) -> str:
    """Check that masked numbers, and their differences between attempts and between sites, are uniform."""
    run = SumRun(target, target.size_for(NUMBERS), attempts=2)
    seen = []
    for attempt in (1, 2):
        if attempt == 2:
            run.server.begin_again()
        run.until("survivors")
        seen.append(np.stack([run.masked(run.answers[attempt, "masked", n]) for n in range(target.n_sites)]))
    first, second = seen
    p = {f"{name} of attempt {k + 1}": value for k in range(2) for name, value in _uniform(seen[k])}
    p["numbers near zero"] = _near(np.concatenate(seen))
    p["the difference of two attempts"] = _near(first - second)
    p |= {f"the difference of two sites, attempt {k + 1}": _near(_differences(seen[k])) for k in range(2)}
    p["the bytes of the difference of two attempts"] = dict(_uniform(first - second))["byte 3"]
    return likely(p, f"{first.size} masked numbers in each of 2 attempts")


def masks(target: SumTarget) -> str:
    """Check that each pair of sites shares a mask, each site has a mask of its own, and no two masks are the same.

    The sum is tried twice, and the masks of both attempts are compared. To find the mask of a pair, the check lets all
    other sites collude.
    """
    size, N = target.size_for(NUMBERS), target.n_sites
    run = SumRun(target, size, attempts=2)
    pairs, own, whole, p = list[np.ndarray](), list[np.ndarray](), dict[int, bool](), dict[str, float]()
    for attempt in (1, 2):
        if attempt == 2:
            run.server.begin_again()
        run.until("survivors")
        found, alone = _left_of_pairs(run)
        both = [(b, a) for a in range(N) for b in range(a)]
        pairs.append(np.stack([found[pair] for pair in both]))
        own.append(alone)
        b, a = both[_nearest(pairs[-1])]
        p[f"the mask of sites {b} and {a}, attempt {attempt}"] = _near(pairs[-1])
        p[f"the masks of single sites, attempt {attempt}"] = _near(alone)
        whole[attempt] = all(np.array_equal(found[b, a], np.uint32(0) - found[a, b]) for b, a in both)
    every = np.concatenate([*pairs, *own])
    p |= {f"{name} of masks of pairs": value for name, value in _uniform(np.concatenate(pairs))}
    words = likely(p, f"{len(every)} masks of pairs, sites and attempts")
    for attempt, cancel in whole.items():
        require(cancel, f"masks of pairs do not cancel in attempt {attempt}")
    different = len(np.unique(np.concatenate([every, np.uint32(0) - every]), axis=0)) == 2 * len(every)
    require(different, f"two of {len(every)} masks of pairs, sites and attempts are the same")
    return words


def _left_of_pairs(run: SumRun) -> tuple[dict[tuple[int, int], np.ndarray], np.ndarray]:
    """Return the masks of pairs of sites, by (n, v), and the masks of single sites, N x M.

    The mask at (n, v) is found by subtracting three things from site n's masked vector: n's plain vector, n's own mask,
    and the masks of n's pairs with all sites except v.
    """
    N, attempt = run.target.n_sites, run.server.attempt
    adverts = {n: Advert.of(run.answers[attempt, "keys", n].payload) for n in range(N)}
    made = Masks(run.terms, attempt, view(adverts), tuple(range(N)))
    secrets = [run.secret(n) for n in range(N)]
    own = np.stack([made.own(n, bytes.fromhex(secrets[n]["self"])) for n in range(N)])
    private = [primitives.agreement_key(bytes.fromhex(secret["mask"])) for secret in secrets]
    of_pair = {(v, n): made.of_pair(v, n, private[v], adverts[n].mask) for v in range(N) for n in range(v)}
    found: dict[tuple[int, int], np.ndarray] = {}
    for n in range(N):
        masked = run.masked(run.answers[attempt, "masked", n])
        vector = (run.vectors[attempt, n] % 2**32).astype(np.uint32)
        # site v adds of_pair(v, n), and site n subtracts it
        known = {v: of_pair[v, n] if v > n else np.uint32(0) - of_pair[n, v] for v in range(N) if v != n}
        left = masked - vector - own[n] + sum(known.values(), np.zeros(len(vector), np.uint32))
        found |= {(n, v): left - known[v] for v in known}
    return found, own


def two_worlds(target: SumTarget) -> str:
    """Check that a server cannot tell whether site 0, the canary, sends zeros or a large vector.

    In both cases, site 1 sends the negative of the canary's vector and all other sites send zeros, so the sum is zero.
    Each answer must have the same length in both cases, and the canary's masked numbers must have the same
    distribution. If the canary's plain vector is subtracted from the canary's masked vector, the result must look
    uniform: about 1 in 256 entries must lie within 2^23 of zero, modulo 2^32.
    """
    worlds, lengths = [], []
    for loud in (0, _LOUD):
        others = {n: np.zeros(NUMBERS, int) for n in range(2, target.n_sites)}
        numbers = {0: np.full(NUMBERS, loud), 1: np.full(NUMBERS, -loud), **others}
        run = SumRun(target, NUMBERS, numbers=numbers).until(None)
        worlds.append(run.masked(run.answers[1, "masked", 0]))
        lengths.append({place: len(str(answer.payload)) for place, answer in run.answers.items()})
    require(lengths[0] == lengths[1], "the lengths of answers tell whether the canary's vector is zero")
    silent, loud_one = worlds
    p = {
        "the canary's masked numbers": _same_law(silent, loud_one),
        "the canary's masked numbers, loud": _near((loud_one - np.uint32(_LOUD))[None]),
        "the canary's masked numbers, silent": _near(silent[None]),
    }
    return likely(p, f"{NUMBERS} masked numbers of the canary in each world")


def seeds(target: SumTarget) -> str:
    """Check that seeds have 128 bits, and that a sum uses each seed once.

    2^19 seeds must all differ. Each bit must be 1 in about half of the seeds, and no bit may be the sum of other bits
    modulo 2. If seeds had only b random bits, all 2^19 would still differ with probability about exp(-2^(37 - b)):
    1e-14 at b = 32.
    """
    source: list[bytes] = []

    def recorded(*given: object) -> SumSite:
        site = target.site(*given)
        made = site.new_seed

        def drawn() -> bytes:
            source.append(made())
            return source[-1]

        site.new_seed = drawn  # type: ignore[method-assign]
        return site

    run = SumRun(SumTarget(target.mechanism, target.n_sites, target.size, recorded, target.terms)).until("shares")
    used = [bytes.fromhex(run.secret(n)[name]) for n in range(target.n_sites) for name in ("cipher", "mask", "self")]
    require(sorted(used) == sorted(source), "the keys of a sum are not made of the seeds that were drawn for them")
    draw = SumRun(target).sites[0].new_seed
    drawn = [draw() for _ in range(SEEDS)]
    require({len(seed) for seed in drawn} == {primitives.SEED_BYTES}, "a seed does not have 128 bits")
    twice = SEEDS - len(set(drawn))
    about = math.log2(SEEDS * SEEDS / 2 / max(1, twice))
    require(twice == 0, f"{twice} of {SEEDS} seeds occur twice: they have about {about:.0f} bits")
    bits = np.unpackbits(np.frombuffer(b"".join(drawn), np.uint8).reshape(SEEDS, -1), axis=1)
    rank = _rank(bits[:_RANKED])
    require(rank == bits.shape[1], f"the bits of seeds depend on each other: {rank} of {bits.shape[1]} are free")
    return likely({"ones of each bit": two_sided(bits.sum(0), SEEDS, 0.5)}, f"{SEEDS} seeds, none twice")


def _rank(bits: np.ndarray) -> int:
    """Return the rank of a matrix of zeros and ones over the field of two elements."""
    rows = [int("".join(map(str, row)), 2) for row in bits]
    rank = 0
    while rows:
        pivot = rows.pop()
        if pivot:
            rank += 1
            low = pivot & -pivot
            rows = [row ^ pivot if row & low else row for row in rows]
    return rank


def noise_shares(target: SumTarget) -> str:
    """Check that noise shares have variance sigma^2 / (N - max_dropouts - colluders) and are uncorrelated.

    sigma is the standard deviation that epsilon requires of the sum's noise; N is the number of sites.
    """
    noise, mechanism, N, M = target.noise, target.mechanism, target.n_sites, target.size
    sigma = mechanism.multiplier(0) * (1.0 + 2.0 ** -(BITS + 1) * math.sqrt(M)) * 2.0**BITS
    wanted = sigma**2 / (N - noise.max_dropouts - noise.colluders)
    errors = float(stats.norm.isf(ERROR / _TESTS / 2) + stats.norm.ppf(_POWER))  # detectable, in standard errors
    margin = (noise.max_dropouts + noise.colluders) / N
    numbers = min(_MOST, max(_FEWEST, 2 * (errors / margin) ** 2 if margin else 0))
    calls = math.ceil(numbers / (N * M))
    drawn = torch.stack([
        torch.stack([mechanism.share(n, N, M, SystemEntropy(), 0) for n in range(N)]) for _ in range(calls)
    ]).double().numpy()  # calls x N x M  # fmt: skip
    p, squares = {}, np.square(drawn / math.sqrt(wanted))
    for name, axes in (("all sites", (0, 1, 2)), ("each site", (0, 2))):
        sums = np.atleast_1d(squares.sum(axes))
        count = squares.size // sums.size
        p[f"{name}: {sums.min() / count:.3f} to {sums.max() / count:.3f} of the variance"] = min(
            1.0, 2 * sums.size * float(np.minimum(stats.chi2.cdf(sums, count), stats.chi2.sf(sums, count)).min())
        )
    rows = drawn.transpose(1, 0, 2).reshape(N, -1)
    correlations = np.abs(np.corrcoef(rows)[np.triu_indices(N, 1)])
    p["two sites"] = 2 * len(correlations) * float(stats.norm.sf(correlations.max() * math.sqrt(rows.shape[1])))
    found = errors * math.sqrt(2 / drawn.size)
    return likely(p, f"{drawn.size} numbers of noise; a variance off by {found:.1%} is found with probability {_POWER}")


def _uniform(numbers: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield the name and the p-value of each of five chi-square tests that 32-bit numbers are uniform.

    Each of the first four tests uses one byte of a number. The last test uses eight bits: the top four bits of each of
    two successive numbers.
    """
    flat = np.ascontiguousarray(numbers).reshape(-1)
    for k in range(4):
        yield f"byte {k}", _chi_square(np.bincount((flat >> np.uint32(8 * k)) & np.uint32(255), minlength=256))
    pairs = flat[: len(flat) // 2 * 2].reshape(-1, 2) >> np.uint32(28)
    yield "neighbours", _chi_square(np.bincount(16 * pairs[:, 0] + pairs[:, 1], minlength=256))


def _chi_square(counts: np.ndarray) -> float:
    return float(stats.chisquare(counts).pvalue)


def _same_law(one: np.ndarray, other: np.ndarray) -> float:
    """Return the p-value of a chi-square test that two samples have the same distribution."""
    bins = [np.bincount(x >> np.uint32(26), minlength=_BINS) for x in (one, other)]
    return float(stats.chi2_contingency(np.stack(bins) + 1e-9).pvalue)


def _share_near(rows: np.ndarray) -> np.ndarray:
    """Count the numbers that are near zero modulo 2^32 in each row of uint32."""
    return np.count_nonzero(rows + np.uint32(_NEAR // 2) < np.uint32(_NEAR), axis=1)


def _near(rows: np.ndarray) -> float:
    """Return the p-value of the null hypothesis that numbers near zero are as frequent as in uniform numbers.

    rows: k x M. Each row has its own test. The smallest p-value counts, with Bonferroni's correction.
    """
    return two_sided(_share_near(rows), rows.shape[1], _NEAR / 2.0**32)


def _nearest(rows: np.ndarray) -> int:
    return int(_share_near(rows).argmax())


def _differences(rows: np.ndarray) -> np.ndarray:
    """Return the differences of all pairs among the first 64 rows."""
    some = rows[:64]
    return np.concatenate([some[k + 1 :] - some[k] for k in range(len(some) - 1)])
