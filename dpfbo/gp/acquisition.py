"""Maximise feature functions: exactly on a grid; on a box by candidates and batched ascents from the best of them.

On a box with discrete axes the ascents move the others, and then other values of each discrete axis are tried.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.gp import newton
from dpfbo.gp.feature_function import FeatureFunction, derivatives, product
from dpfbo.gp.features import RandomFeatures
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Domain, Grid
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions

_AGENTS = 256  # agents that are searched at once on a CPU
_ACCELERATOR_AGENTS = 2**16
_APART = 0.5  # length-scales: a start this close to a better one would climb to the same maximum
_SWEEPS = 2  # searches along every discrete axis, each with an ascent along the others
_ROUGH = newton.Limits(1e-6, 8)  # of every start, in single precision
_POLISH = 1e-10  # decrease at which the best start has converged, in double precision


@dataclass(frozen=True)
class Acquisition:
    """Maximisation of an agent's function over the domain.

    Grid: exact. Box: at least `n_candidates` points, two low-discrepancy sets in half of the axes each and multiplied,
    shifted at random; then bounded Newton ascents with analytic derivatives from the best candidate and from the
    `n_starts` next ones, less those too close to a better one; a start stays in its region; the best point wins. On
    discrete axes every start first tries other values, axis after axis, and keeps the best while it climbs; the best
    point does so twice more.
    Raises ValueError for sizes below 1 (candidates) or 0 (starts).
    """

    n_candidates: int = 1000
    n_starts: int = 20
    max_iterations: int = 30

    def __post_init__(self) -> None:
        checks.integer("n_candidates", self.n_candidates, minimum=1)
        checks.integer("n_starts", self.n_starts, minimum=0)
        checks.integer("max_iterations", self.max_iterations, minimum=0)

    def shift(self, domain: Domain, streams: Streams, purpose: str, round: int, device: torch.device) -> Tensor:
        """The random shift of the candidates, D numbers that all agents share in a round; public as the seed is."""
        agent = torch.zeros(1, dtype=torch.long, device=device)
        return streams.uniform(purpose, agent, round, 0 if isinstance(domain, Grid) else domain.dimension)[0]

    def maximize(self, function: FeatureFunction, domain: Domain, shift: Tensor) -> Tensor:
        """The maximiser of each function of the batch, `B x D` unit-cube points; 1 x D if all rows share one function.

        shift: see `shift`; unused on a grid.
        """
        if isinstance(domain, Grid):
            return domain.unit_points[function(domain.unit_points[None]).argmax(1)]
        mixed = domain if isinstance(domain, MixedBox) else None
        function = function.normalised()
        left, right = self._candidates(domain, shift)
        block = _AGENTS if shift.device.type == "cpu" else _ACCELERATOR_AGENTS
        rows = torch.arange(len(function), device=shift.device).split(block)
        return torch.cat([self._search(function.select(r), mixed, left, right) for r in rows])

    def maximize_shared(
        self, features: RandomFeatures, weights: Tensor, regions: Regions, domain: Domain, shift: Tensor
    ) -> Tensor:
        """The same for functions in one map of features, with weights B x P x M, or 1 x P x M for all rows."""
        length = features.frequencies.pow(2).mean().rsqrt().expand(len(weights))
        return self.maximize(FeatureFunction(features, weights, regions, length), domain, shift)

    def _candidates(self, domain: Box | MixedBox, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates `(left_i, right_j)`: a x D1 coordinates of the first axes, b x D2 of the others."""
        D, size = domain.dimension, self.n_candidates
        a = size if D == 1 else math.ceil(math.sqrt(size))
        b = -(-size // a)
        k = -(-D // 2)
        halves = [_sobol(n, d).to(shift.device) for n, d in ((a, k), (b, D - k))]
        left, right = ((points + move) % 1 for points, move in zip(halves, (shift[:k], shift[k:]), strict=True))
        if isinstance(domain, MixedBox):
            snapped = [MixedBox(axes).snap(p) if axes else p for axes, p in ((domain.axes[:k], left), (domain.axes[k:], right))]
            left, right = snapped
        return left, right

    def _search(self, function: FeatureFunction, mixed: MixedBox | None, left: Tensor, right: Tensor) -> Tensor:
        rough, points = function.to(torch.float32), product(left, right)  # K x D
        if len(function.features.frequencies) == 1:
            values = rough(points[None].float())
        else:
            values = rough.on_product(left.float(), right.float())  # B x K; single precision is enough here
        if self.max_iterations == 0 or self.n_starts == 0:
            best = points[values.argmax(1)]
            if mixed is not None:
                best = _other_values(function, best[:, None], mixed)[:, 0]
            return best if self.max_iterations == 0 else self._polished(function, best, mixed)
        starts = points[values.topk(min(1 + self.n_starts, values.shape[1]), 1).indices]  # B x k x D, best first
        if mixed is not None:
            starts = _other_values(function, starts, mixed)
        owner, which = _distinct(starts, function).nonzero(as_tuple=True)
        x, value = _ascend(rough, starts[owner, which].float(), owner, _ROUGH, mixed)
        reached = torch.full(starts.shape[:2], -torch.inf, device=value.device)
        reached[owner, which] = value
        ends = torch.zeros(starts.shape, dtype=torch.float32, device=value.device)
        ends[owner, which] = x
        best = ends[torch.arange(len(ends), device=ends.device), reached.argmax(1)].double()
        return self._polished(function, best, mixed)

    def _polished(self, function: FeatureFunction, points: Tensor, mixed: MixedBox | None) -> Tensor:
        each, limits = torch.arange(len(points), device=points.device), newton.Limits(_POLISH, self.max_iterations)
        if mixed is None:
            return _ascend(function, points, each, limits)[0]
        for _ in range(_SWEEPS):
            points = _other_values(function, mixed.snap(points)[:, None], mixed)[:, 0]
            points = _ascend(function, points, each, limits, mixed)[0]
        return points


@lru_cache(maxsize=16)
def _sobol(n: int, dimension: int) -> Tensor:
    """The first n points of a Sobol sequence, n x dimension, on the CPU."""
    if dimension == 0:
        return torch.zeros(n, 0, dtype=torch.float64, device="cpu")
    return torch.quasirandom.SobolEngine(dimension).draw(n, dtype=torch.float64)


def _distinct(starts: Tensor, function: FeatureFunction) -> Tensor:
    """A mask, B x k, without the starts that lie within `_APART` length-scales of a better one in their region.

    starts: B x k x D, best first.
    """
    reach = (_APART * function.length)[:, None, None].square()
    near = (starts[:, :, None] - starts[:, None]).square_().sum(3) < reach  # B x k x k
    if function.regions.P > 1:
        region = function.regions.region_of(starts)
        near &= region[:, :, None] == region[:, None]
    return ~near.tril(-1).any(2)


def _other_values(function: FeatureFunction, points: Tensor, mixed: MixedBox) -> Tensor:
    """The points (B x k x D) after a search along one discrete axis after the other."""
    B, k, D = points.shape
    for axis in mixed.discrete:
        neighbours = mixed.neighbours(points.reshape(B * k, D), axis)  # Bk x m x D
        best = function(neighbours.reshape(B, -1, D)).view(B * k, -1).argmax(1)
        points = neighbours[torch.arange(B * k, device=points.device), best].view(B, k, D)
    return points


def _ascend(
    function: FeatureFunction, x0: Tensor, owner: Tensor, limits: newton.Limits, mixed: MixedBox | None = None
) -> tuple[Tensor, Tensor]:
    """Climb from each of the points (b x D) on its owner's function, within the point's region and discrete values."""
    region = function.regions.region_of(x0)
    lower, upper = function.regions.bounds(region, x0.dtype)
    if mixed is not None:
        lower, upper = mixed.fixed(x0, lower, upper)
    *geometry, w = function.around(x0, region, owner)
    longest = function.length[owner].to(x0.dtype)
    x, value = newton.minimize(derivatives, x0, lower, upper, longest, limits, (*geometry, -w), owner)
    return x, -value
