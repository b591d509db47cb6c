"""The floor of each phase of a federated run: an estimate of the least time of its operations on this machine.

Functions that return `Work` count operations. `RunShape` explains the symbols; n is the number of observations
that an agent has in the round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpfbo.space.domain import SCREENED
from runners.bench.machine import KINDS

Work = np.ndarray  # counts of operations in the order of KINDS
Rates = Mapping[str, float]  # operations per second of each kind

_WORD = 8  # bytes of a number
_REACH = 7.0  # length-scales beyond which the kernel of an exact draw counts as 0 (`dpfbo.gp.draws`)
_EVALUATIONS = 2  # fewest evaluations of a likelihood in a fit: the start, and one step


def work(**counts: float) -> Work:
    return np.array([counts.get(kind, 0.0) for kind in KINDS])


def floor_seconds(work: Work, rates: Rates) -> float:
    """Return the largest of the seconds for arithmetic, for memory traffic and for the disk."""
    spent = {kind: count / rates[kind] for kind, count in zip(KINDS, work, strict=True)}
    return max(spent.pop("bytes"), spent.pop("appends"), sum(spent.values()))


@dataclass(frozen=True)
class RunShape:
    """The sizes of a federated run that determine the lower bounds on the times of its phases.

    N: agents. T: rounds. D: coordinates of a point. M: features of a message. P: regions. q: sampling probability. F:
    features of a draw from an agent's own posterior. G: grid points, 0 in a box. fit_every: observations between two
    fits, None if hyper-parameters are given. kernels: GPs that an agent averages, 0 for Thompson sampling.
    lengthscales: length-scales of a private prior, 0 without one. broadcasts: their number, 0 without a server. own:
    for each round 0..T, the share of agents whose query maximised a draw from their own posterior. server: the share
    that followed the server.
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
        """The size of the records of all rounds in MB."""
        return self.N * (self.n_init + self.T) * _WORD * (2 * self.D + 5) / 1e6


def normals(m: float) -> Work:
    """Count the operations for m normals by Box-Muller."""
    return work(flops=2 * m, cos=m, log=m / 2, uniforms=m)


def features(k: float, M: int, D: int) -> Work:
    """Count the operations for M features at k points of D coordinates."""
    return work(flops=k * M * (2 * D + 3), cos=k * M, bytes=_WORD * k * M)


def nystrom(s: RunShape) -> Work:
    """Count the operations for M Nystroem features of one point."""
    return work(flops=s.M * (3 * s.D + s.lengthscales + s.M), exp=s.M * s.lengthscales, bytes=_WORD * s.M)


def factor(n: float) -> Work:
    """Count the operations of the Cholesky factorisation of an n x n matrix."""
    return work(flops=n**3 / 3)


def matheron(n: int, M: int) -> Work:
    """Count the operations for a posterior draw of M weights, given the features and Cholesky factor of n points."""
    numbers = n * M + n * (n + 1) / 2 + n + M
    return normals(M + n) + work(flops=4 * n * M + 2 * n * n + M + 2 * n, bytes=_WORD * numbers)


def appended(n: int, k: int, M: int, D: int) -> Work:
    """Count the operations for the k newest of n points: their features, Gram matrix rows and Cholesky factor rows."""
    old = n - k
    rows = k * old * old + k * k * old + k**3 / 3
    return features(k, M, D) + work(flops=2 * k * n * M + rows, bytes=_WORD * (old * M + old * (old + 1) / 2 + k * n))


def message(n: int, k: int, s: RunShape, rates: Rates) -> Work:
    """Count the operations for an agent's message after n observations, k of them new.

    In a run without a private prior, there are two ways to compute messages. Either every agent updates its Cholesky
    factor in every round, or only the sampled agents compute the factor, each from all its points. The function returns
    the operations of the cheaper way.
    """
    if s.lengthscales:  # scores of the design, whose features are Nystroem features
        return k * (nystrom(s) + work(flops=2 * s.M)) if k > 1 else work()
    kept = appended(n, k, s.M, s.D) + s.q * matheron(n, s.M)
    anew = features(n, s.M, s.D) + work(flops=n * n * s.M) + factor(n) + matheron(n, s.M)
    return min(kept, s.q * anew, key=lambda one: floor_seconds(one, rates))


def search(s: RunShape, M: int) -> Work:
    """Count the operations of maximising one function of M features in a box."""
    derivatives = M * (6 * s.D + 2 * s.D * s.D + 8)
    screening = work(flops32=s.candidates * M * (2 * s.D + 4), cos32=s.candidates * M)
    climbing = work(flops32=(s.starts + 1) * derivatives, cos32=2 * (s.starts + 1) * M)
    return screening + climbing + work(flops=derivatives, cos=2 * M, uniforms=(s.candidates + s.starts) * s.D)


def harmonics(lengthscale: float) -> int:
    """Return F, the number of basis functions in a posterior draw with the method `exact`."""
    octave = 2.0 ** math.ceil(math.log2(lengthscale))
    return 1 + 2 * math.ceil(_REACH * (1 + _REACH * octave) / (math.pi * octave))


def own_draw(n: int, s: RunShape) -> Work:
    """Count the operations for a query that maximises a draw from the agent's own posterior."""
    if s.method == "exact":
        F = harmonics(s.lengthscale)
        flops = 3 * n * n + 4 * n * F + 5 * F
        return normals(F + n) + work(
            flops=flops, bytes=_WORD * (n * (s.D + 1) + n * (n + 1) / 2), flops32=2 * F * s.G + s.G
        )
    drawn = normals(s.F * s.D) + work(uniforms=s.F, flops=n * (n + 1) * s.F) + features(n, s.F, s.D) + factor(n)
    values = work(flops=s.G * s.F * (2 * s.D + 5), cos=s.G * s.F) if s.G else search(s, s.F)
    return drawn + matheron(n, s.F) + values


def followed(s: RunShape) -> Work:
    """Count one agent's share of the operations that compute a query from the server's broadcast.

    All agents that follow the server in a round share one search. The operations of this search are divided by the
    number N of all agents.
    """
    return work(flops=2 * s.P * s.M * s.G / s.N, bytes=_WORD * s.D) if s.G else search(s, s.M) / s.N


def fit(n: int, s: RunShape) -> Work:
    """Count the operations of a fit, if one is due after n observations."""
    if s.fit_every is None or n % s.fit_every:
        return work()
    return work(flops=1.5 * n * n * s.D + _EVALUATIONS * (3 * n**3 + 8 * n * n), exp=_EVALUATIONS * n * n / 2)


def improvement(n: int, s: RunShape) -> Work:
    """Count the operations to choose one query by expected improvement after n observations.

    An agent averages `s.kernels` GPs, weighted by their likelihoods. The likelihood is counted once for each of these
    GPs. The expected improvement is counted for one GP only.
    """
    points = s.candidates if not s.G else s.G if s.G <= SCREENED else s.G / 8
    return s.kernels * (factor(n) + work(flops=6 * n * n)) + work(flops=points * (n * n + 4 * n + 20))


def server(s: RunShape) -> Work:
    """Count one agent's share (1/N) of the server's operations for one release.

    If the run has a private prior, the operations for this prior are included.
    """
    M, P = s.M, s.P
    total = work(flops=s.q * M * (2 * P + 3), exp=P, uniforms=1, bytes=_WORD * (s.q * M + P)) + normals(P * M) / s.N
    prior = work(flops=(1 + s.lengthscales) * s.n_init * M * M) + s.lengthscales * factor(M) / s.N
    return total + prior if s.lengthscales else total


# Work of one agent in round t >= 1 with n observations
PHASES: dict[str, Callable[[int, int, RunShape], Work]] = {
    "own_draw": lambda t, n, s: work() if s.kernels else s.own[t] * own_draw(n, s),
    "acquisition": lambda t, n, s: improvement(n, s) if s.kernels else (s.server[t] > 0) * followed(s),
    "fit": lambda t, n, s: work() if s.kernels else fit(n, s),
}


def of_run(s: RunShape, rates: Rates) -> dict[str, float]:
    """Return lower bounds (floors) on the time of each phase of a run, in seconds."""
    observed = range(s.n_init, s.n_init + s.T)  # an agent's observations before each query of rounds 1..T
    totals = {
        phase: sum((count(t, n, s) for t, n in enumerate(observed, start=1)), work()) for phase, count in PHASES.items()
    }
    if s.broadcasts:
        first = message(s.n_init, s.n_init, s, rates)
        totals["message"] = sum((message(n + 1, 1, s, rates) for n in observed), first)
        totals["server"] = min(s.broadcasts, s.T) * server(s)
    totals["other"] = work(bytes=1e6 * s.records_mb / s.N)
    return {phase: s.N * floor_seconds(total, rates) for phase, total in totals.items() if total.any()}
