"""The most that sharing could give on a problem: how much the agents' objectives have in common, at common points.

Let `f_n(x_k)` be the objective of agent n (larger is better) at K common points.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.space.domain import Grid

BLOCK = 16  # points evaluated at once: an agent's models for all of them may not fit into memory


@dataclass(frozen=True)
class Headroom:
    """Numbers of one problem from common points; the first four in units of its metric, means over the agents.

    best: each agent's own best of the points. shared: the point that is best on average for all *other* agents, at
    this agent. few: expected best of n_init random points. random: mean over the points. share: of the variance of the
    objectives over the points that all agents share.
    """

    best: float
    shared: float
    few: float
    random: float
    share: float


def common_points(problem: Problem, most: int) -> Tensor:
    """At most `most` points of the domain in its own units, K x D: evenly spaced ones of a grid, else a Sobol set."""
    domain = problem.domain
    if isinstance(domain, Grid):
        return domain.points[:: math.ceil(len(domain.points) / most)]
    sobol = torch.quasirandom.SobolEngine(domain.dimension, scramble=True, seed=0)
    return domain.to_natural(sobol.draw(most, dtype=torch.float64))


def values_at(problem: Problem, x: Tensor, seed: int) -> Tensor:
    """`f_n(x_k)`, N x K: noiseless where the problem knows it, else one observation each. x: K x D."""
    agents, streams = torch.arange(problem.n_agents), Streams(seed)
    found = []
    for number, block in enumerate(x.split(BLOCK)):
        points = block.expand(len(agents), *block.shape)
        y = problem.evaluate(agents, points, streams, number)
        found.append(problem.true_value(agents, points, y))
    return torch.cat(found, 1)


def headroom(values: Tensor, reference: Tensor | None, n_init: int) -> Headroom:
    """`Headroom` of values, N x K. reference: N values from which a value is subtracted for the metric, or None.

    Raises ValueError for fewer than 2 agents or points, or fewer than n_init points.
    """
    N, K = values.shape
    if N < 2 or max(2, n_init) > K:
        raise ValueError(f"headroom needs at least 2 agents and {max(2, n_init)} points, got {N} and {K}")
    others = values.sum(0) - values  # N x K
    at_shared = values.gather(1, others.argmax(1, keepdim=True))[:, 0]

    def metric(of_agents: Tensor) -> float:
        return float((of_agents if reference is None else reference - of_agents).mean())

    return Headroom(
        best=metric(values.amax(1)),
        shared=metric(at_shared),
        few=metric(expected_best(values, n_init)),
        random=metric(values.mean(1)),
        share=shared_share(values),
    )


def expected_best(values: Tensor, n: int) -> Tensor:
    """The expected largest of n of the K values, drawn without replacement; N x K -> N.

    The k-th smallest is the largest drawn with probability `C(k - 1, n - 1) / C(K, n)`.
    """
    K = values.shape[1]
    p = [math.comb(k, n - 1) / math.comb(K, n) for k in range(K)]
    return values.sort(1).values @ torch.tensor(p, dtype=values.dtype)


def shared_share(values: Tensor) -> float:
    """The share `v_g / (v_g + v_h)` of `f_n(x) = c_n + g(x) + h_n(x)`, by analysis of variance; N x K values.

    `v_h` is the mean square of the residuals of agent and point means, `v_g` that of the point means less `v_h / N`,
    which N agents that share nothing would have too. Offsets c_n do not count, noise counts as the agents' own, and an
    estimate may be a little below 0 where nothing is shared. 0 where the objectives are constant.
    """
    N, K = values.shape
    centred = values - values.mean(1, keepdim=True)
    mean = centred.mean(0)
    own = float((centred - mean).square().sum() / ((N - 1) * (K - 1)))
    shared = float(mean.square().sum() / (K - 1)) - own / N
    return shared / (shared + own) if shared + own > 0 else 0.0
