"""The floor of each phase of a federated run: the least time that its arithmetic and its memory traffic take here.

docs/results/speed.md lists what is counted. Symbols: M features of a message, F of an own draw, D axes, n observations
of an agent in the round, G points of a grid (or C candidates and R starts in a box), P regions, q the sampling
probability, N agents, T rounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpfbo.space.domain import SCREENED
from runners.bench.machine import KINDS

Work = np.ndarray  # counts of operations in the order of KINDS
Rates = Mapping[str, float]  # operations of each kind a second

_WORD = 8  # bytes of a number
_REACH = 7.0  # length-scales beyond which the kernel of an exact draw counts as 0 (`dpfbo.gp.draws`)
_EVALUATIONS = 2  # fewest evaluations of a likelihood in a fit: the start, and one step


def work(**counts: float) -> Work:
    return np.array([counts.get(kind, 0.0) for kind in KINDS])


def floor_seconds(work: Work, rates: Rates) -> float:
    """The largest of the seconds for arithmetic, for memory traffic and for the disk."""
    spent = {kind: count / rates[kind] for kind, count in zip(KINDS, work, strict=True)}
    return max(spent.pop("bytes"), spent.pop("appends"), sum(spent.values()))


@dataclass(frozen=True)
class RunShape:
    """The sizes of a federated run that its floors follow from.

    G: 0 in a box. fit_every: observations between two fits, None if hyper-parameters are given. kernels: pairs of a
    kernel and a noise that an agent averages, 0 for Thompson sampling; lengthscales: of a private prior, 0 without one.
    broadcasts: 0 without a server. own, server: the share of the agents whose query was their own or followed the
    server, in rounds 0..T.
    """

    N: int
    T: int
    n_init: int
    D: int
    M: int
    P: int
    q: float
    G: int
    method: str
    F: int
    lengthscale: float
    fit_every: int | None
    candidates: int
    starts: int
    kernels: int
    lengthscales: int
    broadcasts: int
    own: Sequence[float]
    server: Sequence[float]

    @property
    def records_mb(self) -> float:
        """The records of all rounds, in MB: the least memory of a run that keeps them."""
        return self.N * (self.n_init + self.T) * _WORD * (2 * self.D + 5) / 1e6


def normals(m: float) -> Work:
    """Draw m standard normals by Box and Muller: for each pair a logarithm, a root, a cosine and a sine."""
    return work(flops=2 * m, cos=m, log=m / 2, uniforms=m)


def features(k: float, M: int, D: int) -> Work:
    """M features of unit norm at k points: the product of k x D and D x M, cosines, and the norm."""
    return work(flops=k * M * (2 * D + 3), cos=k * M, bytes=_WORD * k * M)


def nystrom(s: RunShape) -> Work:
    """M Nystroem features of one point: distances, kernels, and one triangular solution."""
    return work(flops=s.M * (3 * s.D + s.lengthscales + s.M), exp=s.M * s.lengthscales, bytes=_WORD * s.M)


def factor(n: float) -> Work:
    """The Cholesky factor of an n x n matrix."""
    return work(flops=n**3 / 3)


def matheron(n: int, M: int) -> Work:
    """One posterior draw of M weights, features and factor given: two products, two triangular solutions, normals."""
    numbers = n * M + n * (n + 1) / 2 + n + M
    return normals(M + n) + work(flops=4 * n * M + 2 * n * n + M + 2 * n, bytes=_WORD * numbers)


def appended(n: int, k: int, M: int, D: int) -> Work:
    """Features of k new points, their rows in the Gram matrix of all n, and in its Cholesky factor."""
    old = n - k
    rows = k * old * old + k * k * old + k**3 / 3
    return features(k, M, D) + work(flops=2 * k * n * M + rows, bytes=_WORD * (old * M + old * (old + 1) / 2 + k * n))


def message(n: int, k: int, s: RunShape, rates: Rates) -> Work:
    """The message after k new observations of n: the agents of S_t alone draw one.

    Either every agent appends to its factor in each round, or the chosen ones begin with the points: the cheaper one.
    """
    if s.lengthscales:  # scores of the design, whose features are Nystroem features
        return k * (nystrom(s) + work(flops=2 * s.M)) if k > 1 else work()
    kept = appended(n, k, s.M, s.D) + s.q * matheron(n, s.M)
    anew = features(n, s.M, s.D) + work(flops=n * n * s.M) + factor(n) + matheron(n, s.M)
    return min(kept, s.q * anew, key=lambda one: floor_seconds(one, rates))


def search(s: RunShape, M: int) -> Work:
    """The maximum of one function of M features in a box, in single precision but for the last of Newton's steps."""
    derivatives = M * (6 * s.D + 2 * s.D * s.D + 8)
    screening = work(flops32=s.candidates * M * (2 * s.D + 4), cos32=s.candidates * M)
    climbing = work(flops32=(s.starts + 1) * derivatives, cos32=2 * (s.starts + 1) * M)
    return screening + climbing + work(flops=derivatives, cos=2 * M, uniforms=(s.candidates + s.starts) * s.D)


def harmonics(lengthscale: float) -> int:
    """The number F of basis functions of an exact draw whose length-scale lies in the octave below this power of 2."""
    octave = 2.0 ** math.ceil(math.log2(lengthscale))
    return 1 + 2 * math.ceil(_REACH * (1 + _REACH * octave) / (math.pi * octave))


def own_draw(n: int, s: RunShape) -> Work:
    """The query that maximises a draw from the agent's own posterior."""
    if s.method == "exact":
        F = harmonics(s.lengthscale)
        flops = 3 * n * n + 4 * n * F + 5 * F
        return normals(F + n) + work(
            flops=flops, bytes=_WORD * (n * (s.D + 1) + n * (n + 1) / 2), flops32=2 * F * s.G + s.G
        )
    drawn = normals(s.F * s.D) + work(uniforms=s.F, flops=n * (n + 1) * s.F) + features(n, s.F, s.D) + factor(n)
    values = work(flops=s.G * s.F * (2 * s.D + 5), cos=s.G * s.F) if s.G else search(s, s.F)
    return drawn + matheron(n, s.F) + values


def acquisition(n: int, s: RunShape) -> Work:
    """The query that follows the server: on a grid one search for all agents."""
    return work(flops=2 * s.P * s.M * s.G / s.N, bytes=_WORD * s.D) if s.G else search(s, s.M)


def fit(n: int, s: RunShape) -> Work:
    """Distances, then evaluations of the likelihood with a factor, an inverse and a product each, if a fit is due."""
    if s.fit_every is None or n % s.fit_every:
        return work()
    return work(flops=1.5 * n * n * s.D + _EVALUATIONS * (3 * n**3 + 8 * n * n), exp=_EVALUATIONS * n * n / 2)


def improvement(n: int, s: RunShape) -> Work:
    """The likelihoods of all averaged GPs, and the expected improvement of one at the points that all agents try."""
    points = s.candidates if not s.G else s.G if s.G <= SCREENED else s.G / 8
    return s.kernels * (factor(n) + work(flops=6 * n * n)) + work(flops=points * (n * n + 4 * n + 20))


def server(s: RunShape) -> Work:
    """One agent's share of a release: weights, clipping, weighted sum, noise, and with a prior its posterior."""
    M, P = s.M, s.P
    total = work(flops=s.q * M * (2 * P + 3), exp=P, uniforms=1, bytes=_WORD * (s.q * M + P)) + normals(P * M) / s.N
    prior = work(flops=(1 + s.lengthscales) * s.n_init * M * M) + s.lengthscales * factor(M) / s.N
    return total + prior if s.lengthscales else total


# Work of one agent in round t >= 1 with n observations
PHASES: dict[str, Callable[[int, int, RunShape], Work]] = {
    "own_draw": lambda t, n, s: work() if s.kernels else s.own[t] * own_draw(n, s),
    "acquisition": lambda t, n, s: improvement(n, s) if s.kernels else s.server[t] * acquisition(n, s),
    "fit": lambda t, n, s: work() if s.kernels else fit(n, s),
}


def of_run(s: RunShape, rates: Rates) -> dict[str, float]:
    """The floors of a whole run by phase, in seconds."""
    observed = range(s.n_init, s.n_init + s.T)  # of an agent before its query of rounds 1..T
    totals = {
        phase: sum((count(t, n, s) for t, n in enumerate(observed, start=1)), work()) for phase, count in PHASES.items()
    }
    if s.broadcasts:
        first = message(s.n_init, s.n_init, s, rates)
        totals["message"] = sum((message(n + 1, 1, s, rates) for n in observed), first)
        totals["server"] = min(s.broadcasts, s.T) * server(s)
    totals["other"] = work(bytes=1e6 * s.records_mb / s.N)
    return {phase: s.N * floor_seconds(total, rates) for phase, total in totals.items() if total.any()}
