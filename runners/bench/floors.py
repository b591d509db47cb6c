"""The floor of each phase: the least time that its arithmetic and its memory traffic take on a machine.

The work of a phase is counted for one agent and round, from the formulas of `dpfbo.gp` and `dpfbo.federated`. With the
machine's rates of this run (`OperationRates`)

    floor = max(flops / product rate + values of cos, exp, log and uniforms / their rates,  bytes / copy rate)

Symbols: M features of a message, F of an own draw, D axes, n observations of an agent in the round, G points of a
grid (or C candidates and R starts in a box), P regions, q the sampling probability, N agents, T rounds. A number has
8 bytes.
Counts are of what the algorithm needs, so a phase may have a ratio of 1 only if nothing is computed twice:

message     the agents of S_t alone draw one. Either every agent appends features, a row of the Gram matrix and one of
            its Cholesky factor each round, or the chosen ones compute theirs from the points; the cheaper one counts
own draw    exact: one row of the factor, Matheron's rule in F harmonics, a product F x G in single precision. rff: F
            fresh features at n points, their Gram matrix and factor, Matheron's rule, the search
search      in a box: F features at C points in single precision, one gradient and Hessian at each of R + 1 starts in
            single precision and one more in double
acquisition the search of the broadcast; on a grid once for all agents
fit         two evaluations of likelihood, gradient and Hessian (3 n^3) in each round in which fits are due
gate        dp_prior: the new point in the prior's coordinates, its row in two Gram matrices, and the factors and
            solutions of K models
server      one uniform and P weights an agent; clipping and the weighted sum of the chosen messages; noise
other       the records: region, source, best, regret, y, and the point in two units, written once
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from runners.bench.machine import OperationRates
from runners.bench.measurement import FloorTime

_WORD = 8  # bytes of a number
_REACH = 7.0  # length-scales beyond which the kernel of an exact draw counts as 0 (`dpfbo.gp.draws`)
_EVALUATIONS = 2  # fewest evaluations of a likelihood in a fit: the start, and one step


@dataclass(frozen=True)
class Work:
    """Counts of operations; the fields are those of `OperationRates`.

    flops, flops32: additions and multiplications. cos: values of cos or sin. log: of log. uniforms: random numbers.
    """

    flops: float = 0.0
    flops32: float = 0.0
    bytes: float = 0.0
    cos: float = 0.0
    cos32: float = 0.0
    exp: float = 0.0
    log: float = 0.0
    uniforms: float = 0.0
    appends: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    def __mul__(self, factor: float) -> "Work":
        return Work(*(factor * getattr(self, f.name) for f in fields(Work)))

    __rmul__ = __mul__

    def seconds(self, rates: OperationRates) -> tuple[float, str]:
        """The floor in seconds, and what takes it: arithmetic, memory or disk."""
        spent = {f.name: getattr(self, f.name) / getattr(rates, f.name) for f in fields(Work)}
        disk, memory = spent.pop("appends"), spent.pop("bytes")
        kinds = {"arithmetic": sum(spent.values()), "memory": memory, "disk": disk}
        bound = max(kinds, key=lambda kind: kinds[kind])
        return kinds[bound], bound

    def time(self, rates: OperationRates, formula: str, scale: float = 1.0) -> FloorTime:
        """The floor times `scale`, with its formula."""
        seconds, bound = self.seconds(rates)
        return FloorTime(scale * seconds, formula, bound, {k: v for k, v in asdict(self).items() if v})


@dataclass(frozen=True)
class RunShape:
    """The sizes of a federated run that its floors follow from.

    G: points of a grid, 0 in a box; fit: True if hyper-parameters are fitted, every `every` observations. models: those
    of a private prior's gate, 0 without one; blocks: its length-scales. aggregates: True with a server. own, server:
    the share of the agents whose query was their own or followed the server, in rounds 0..T.
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
    fit: bool
    every: int
    candidates: int
    starts: int
    models: int
    blocks: int
    aggregates: bool
    broadcasts: int
    own: Sequence[float]
    server: Sequence[float]

    def observations(self, t: int) -> int:
        """The number of an agent's observations before its query of round t (after it in round 0)."""
        return self.n_init + max(t - 1, 0)


def normals(m: float) -> Work:
    """Draw m standard normals by Box and Muller: for each pair a logarithm, a root, a cosine and a sine."""
    return Work(flops=2 * m, cos=m, log=m / 2, uniforms=m)


def features(k: float, M: int, D: int) -> Work:
    """M features of unit norm at k points: the product of k x D and D x M, cosines, and the norm."""
    return Work(flops=k * M * (2 * D + 3), cos=k * M, bytes=_WORD * k * M)


def factor(n: float) -> Work:
    """The Cholesky factor of an n x n matrix."""
    return Work(flops=n**3 / 3)


def matheron(n: int, M: int) -> Work:
    """One posterior draw of M weights from n observations, features and factor given.

    It takes two products with the n x M features, two triangular solutions, and M + n normals.
    """
    read = _WORD * (n * M + n * (n + 1) / 2 + n)
    return normals(M + n) + Work(flops=4 * n * M + 2 * n * n + M + 2 * n, bytes=read + _WORD * M)


def appended(n: int, k: int, M: int, D: int) -> Work:
    """Features of k new points, their rows in the Gram matrix of all n, and in its Cholesky factor."""
    old = n - k
    rows = k * old * old + k * k * old + k**3 / 3
    return features(k, M, D) + Work(flops=2 * k * n * M + rows, bytes=_WORD * (old * M + old * (old + 1) / 2 + k * n))


def message(n: int, k: int, shape: RunShape, rates: OperationRates) -> Work:
    """The message of round t after k new observations of n, for one of N agents."""
    q, M, D = shape.q, shape.M, shape.D
    if shape.models:  # statistics of the design, later the features of each new point
        return features(k, M, D) + (Work(flops=2 * k * M + 4 * k) if k > 1 else Work())
    kept = appended(n, k, M, D) + q * matheron(n, M)
    anew = features(n, M, D) + Work(flops=n * n * M) + factor(n) + matheron(n, M)
    return min(kept, q * anew, key=lambda work: work.seconds(rates)[0])


def search(shape: RunShape, M: int) -> Work:
    """The maximum of one function of M features in a box."""
    C, R, D = shape.candidates, shape.starts, shape.D
    derivatives = M * (6 * D + 2 * D * D + 8)
    screening = Work(flops32=C * M * (2 * D + 4), cos32=C * M, uniforms=(C + R) * D)
    climbing = Work(flops32=(R + 1) * derivatives, cos32=2 * (R + 1) * M)
    return screening + climbing + Work(flops=derivatives, cos=2 * M)


def harmonics(lengthscale: float) -> int:
    """The number F of basis functions of an exact draw whose length-scale lies in the octave below this power of 2."""
    octave = 2.0 ** math.ceil(math.log2(lengthscale))
    return 1 + 2 * math.ceil(_REACH * (1 + _REACH * octave) / (math.pi * octave))


def own_draw(n: int, shape: RunShape) -> Work:
    """The query of one agent that maximises a draw from its own posterior after n observations."""
    D = shape.D
    if shape.method == "exact":
        F, G = harmonics(shape.lengthscale), shape.G
        rule = Work(flops=n * n + 4 * n * F + 2 * n * n + 3 * F, bytes=_WORD * (n * (D + 1) + n * (n + 1) / 2))
        return rule + normals(F + n) + Work(flops32=2 * F * G + G, flops=2 * F)
    F = shape.F
    drawn = normals(F * D) + Work(uniforms=F) + features(n, F, D) + Work(flops=n * (n + 1) * F) + factor(n)
    values = Work(flops=shape.G * F * (2 * D + 5), cos=shape.G * F) if shape.G else search(shape, F)
    return drawn + matheron(n, F) + values


def acquisition(n: int, shape: RunShape) -> Work:
    """The query of one agent that follows the server."""
    M, D = shape.M, shape.D
    if shape.models:  # a draw under the shared prior, in its coordinates and back
        draw = normals(M + n + 1) + Work(flops=4 * M * M + 4 * n * M + 4 * n * n, bytes=_WORD * (2 * n * M + n * n))
        return draw + (Work(flops=2 * M * shape.G + shape.G) if shape.G else search(shape, M))
    if shape.G:
        return Work(flops=2 * shape.P * M * shape.G / shape.N, bytes=_WORD * D)
    return search(shape, M)


def fit(n: int, shape: RunShape) -> Work:
    """One fit by Newton steps: distances, then evaluations with a factor, an inverse and a product each."""
    each = Work(flops=3 * n**3 + 8 * n * n, exp=n * n / 2)
    return Work(flops=1.5 * n * n * shape.D) + _EVALUATIONS * each


def gate(n: int, shape: RunShape) -> Work:
    """The models' likelihoods for one agent with n observations."""
    M, K = shape.M, shape.models
    row = Work(flops=2 * M * M + 4 * n * M, bytes=_WORD * (n * M + n * n))
    return row + Work(flops=2 * n * M) + K * (factor(n) + Work(flops=2 * n * n))


def server(shape: RunShape) -> Work:
    """One agent's share of a release."""
    M, P, q = shape.M + bool(shape.models), shape.P, shape.q
    total = Work(flops=q * M * (2 * P + 3), exp=P, uniforms=1, bytes=_WORD * (q * M + P))
    total += (1 / shape.N) * normals(P * M)
    if shape.models:  # the public sums over all designs, and the posterior of what is shared
        total += Work(flops=(1 + shape.blocks) * shape.n_init * M * M + (factor(M).flops / shape.N))
    return total


def records(k: int, D: int) -> Work:
    """The records of k queries of one agent."""
    return Work(bytes=k * _WORD * (2 * D + 5))


def memory_mb(shape: RunShape) -> float:
    """The least memory of a run whose records are kept: those of all rounds, in MB."""
    return shape.N * (records(shape.n_init, shape.D).bytes + shape.T * records(1, shape.D).bytes) / 1e6


FORMULAS = {
    "message": "min(append features, Gram row, factor row each round + q x draw; q x all of them from the points)",
    "own_draw": "exact: 2 F G flops32, 4 n F + 3 n^2, F + n normals. rff: n F features, n^2 F + n^3/3, draw, search",
    "acquisition": "grid: 2 P M G / N flops; box: C M cos32, (R + 1) M derivatives; prior: 4 M^2 + 4 n M + 2 M G flops",
    "fit": "2 x (3 n^3 flops + n^2 / 2 exp) when a fit is due",
    "gate": "2 M^2 + 6 n M + K (n^3 / 3 + 2 n^2) flops",
    "server": "q M (2 P + 3) flops, P exp, 1 uniform; q M + P numbers read; prior: + (1 + blocks) n_init M^2 flops",
    "other": "records: 2 D + 5 numbers written a query",
}  # by phase


def of_run(shape: RunShape, rates: OperationRates, unit: float) -> dict[str, FloorTime]:
    """The floors of a run by phase, for each agent and round. unit: units of time in a second."""
    parts: dict[str, list[Work]] = {}

    def add(phase: str, work: Work) -> None:
        parts.setdefault(phase, []).append(work)

    for t in range(shape.T + 1):
        n, k = shape.observations(t), shape.n_init if t == 0 else 1
        after = n if t == 0 else n + 1
        if shape.aggregates:
            add("message", message(after, k, shape, rates))
        if shape.aggregates and t < min(shape.broadcasts, shape.T):
            add("server", server(shape))
        add("other", records(k, shape.D))
        if t == 0:
            continue
        if not shape.models:  # with a prior the records do not tell the agents' own draws from draws without transfer
            add("own_draw", shape.own[t] * own_draw(n, shape))
        add("acquisition", shape.server[t] * acquisition(n, shape))
        if shape.models:
            add("gate", gate(n, shape))
        if shape.fit and n % shape.every == 0:
            add("fit", fit(n, shape))
    totals = {phase: sum(works, Work()) * (1 / shape.T) for phase, works in parts.items()}
    known = {phase: work for phase, work in totals.items() if work != Work()}
    return {phase: work.time(rates, FORMULAS[phase], unit) for phase, work in known.items()}
