"""Maximise feature functions: exactly on a grid; on a box by random candidates and batched refinement.

On a box with discrete axes the refinement moves the others, and then tries other values of each discrete axis.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.gp import batches, optimize
from dpfbo.gp.features import RandomFeatures
from dpfbo.space.domain import Domain, Grid
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions

_BLOCK = 400_000  # features evaluated at once on a CPU where every row has its own map: they fit in the cache
_ACCELERATOR_BLOCK = 100_000_000  # features evaluated at once on an accelerator: within 2 GB
_SWEEPS = 2  # searches along every discrete axis, each with an ascent along the others
_ROUGH_STEPS = 8  # Newton steps of every start in single precision, before the best ones continue in double


@dataclass(frozen=True)
class FeatureFunction:
    """A batch of functions `g(x) = phi(x) . w^(i[x])` with `i[x]` the region that holds x.

    features: one shared map or one a row; weights: `B x P x M`, or `1 x P x M` for one function that all rows share;
    length: B, the length-scale of each function, a typical distance between neighbouring optima.
    """

    features: RandomFeatures
    weights: Tensor
    regions: Regions
    length: Tensor

    def __call__(self, u: Tensor) -> Tensor:
        """Values at unit-cube points, `B x k x D -> B x k`; `1 x k x D` are points that all rows share."""
        if len(u) == len(self.features.frequencies) == 1:
            return self._values(u, self.features, self.weights)
        size = max(len(u), len(self.features.frequencies))
        block = _BLOCK if u.device.type == "cpu" else _ACCELERATOR_BLOCK
        rows_at_once = max(1, block // (u.shape[1] * self.features.frequencies.shape[1]))
        blocks = torch.arange(size, device=u.device).split(rows_at_once)
        return torch.cat([self._block_values(u, r) for r in blocks])

    def _block_values(self, u: Tensor, rows: Tensor) -> Tensor:
        r = rows[batches.filled(len(rows), batches.PRODUCTS, rows.device)]
        return self._values(_rows(u, r), self.features.select(r), _rows(self.weights, r))[: len(rows)]

    def to(self, dtype: torch.dtype) -> "FeatureFunction":
        """The same functions in another precision."""
        return FeatureFunction(self.features.to(dtype), self.weights.to(dtype), self.regions, self.length)

    def _values(self, u: Tensor, features: RandomFeatures, w: Tensor) -> Tensor:
        """Values of functions whose features, points and weights (b x P x M, or 1 x P x M) fit in the cache."""
        c = features.angles(u.expand(max(len(u), len(features.frequencies)), -1, -1)).cos_()  # b x k x M
        values = (c[0] @ w.mT if len(c) == 1 else c @ w.mT) / torch.linalg.vector_norm(c, dim=-1, keepdim=True)
        if self.regions.P == 1:
            return values[..., 0]
        return values.gather(-1, self.regions.region_of(u)[..., None].expand(len(values), -1, 1))[..., 0]

    def derivatives(self, u: Tensor, region: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, gradients and Hessians at one point a problem.

        u: b x D; region: b, the region whose weights apply; rows: b, the functions. Returns b, b x D and b x D x D.
        With angles a_j, `A = sum_j w_j cos a_j` and `N = sum_j cos^2 a_j`: `g = A N^-1/2`, differentiated twice.
        """
        features = self.features.select(rows)
        shared = len(features.frequencies) == 1
        angles = features.angles(u[None])[0] if shared else features.angles(u[:, None])[:, 0]  # b x M
        per_region = self.weights.flatten(0, 1)  # function 0 in regions 0..P-1, then function 1, ..
        w = per_region.index_select(0, region + (rows * self.regions.P if len(self.weights) > 1 else 0))  # b x M
        S = features.slopes  # b x M x D, or 1 x M x D
        c = torch.cos(angles)
        n = torch.linalg.vector_norm(c, dim=1, keepdim=True)  # b x 1, N^1/2
        g = torch.linalg.vecdot(w, c)[:, None] / n
        slopes = torch.sin(angles)[:, None] * torch.stack([w, c], 1)  # b x 2 x M
        dA, r = ((slopes @ S) / torch.stack([-n, -n * n], 1)).unbind(1)  # A' / n and N' / (2 N), each b x D
        k = g / (n * n)
        curvature = (c * (2 * k * c - w / n) - k)[:, None]  # g cos(2 a_j) / N - w_j cos(a_j) / n
        cross = dA[:, :, None] * r[:, None, :]
        hessian = (S.mT * curvature) @ S - cross - cross.mT + 3 * g[..., None] * r[:, :, None] * r[:, None, :]
        return g[:, 0], dA - g * r, hessian


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of a batch; a batch of one is shared by all rows."""
    return tensor if len(tensor) == 1 else tensor.index_select(0, rows)


@dataclass(frozen=True)
class Acquisition:
    """Maximisation of an agent's function over the domain.

    Grid: exact. Box: `n_candidates` uniform points, then bounded Newton ascent with analytic derivatives from
    `n_starts` uniform starts and from the best candidate; a start stays in its region; the best point wins. On
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

    def uniforms_needed(self, domain: Domain) -> int:
        """The number of uniforms that `maximize` takes for each agent."""
        return (self.n_candidates + self.n_starts) * domain.dimension if not isinstance(domain, Grid) else 0

    def maximize(self, function: FeatureFunction, domain: Domain, uniforms: Tensor) -> Tensor:
        """The maximiser of each function of the batch, `B x D` unit-cube points.

        uniforms: B x uniforms_needed(domain), U[0, 1), on the device of a grid.
        """
        if isinstance(domain, Grid):
            best = function(domain.unit_points[None]).argmax(1)  # B, or 1 for a function that all rows share
            return domain.unit_points[best].expand(len(uniforms), -1)
        mixed = domain if isinstance(domain, MixedBox) else None
        points = uniforms.view(len(uniforms), -1, domain.dimension)
        points = points if mixed is None else mixed.snap(points)
        candidates, starts = points[:, : self.n_candidates], points[:, self.n_candidates :]
        best = function.to(torch.float32)(candidates.float()).argmax(1)  # B; single precision is enough here
        best_candidate = candidates[torch.arange(len(best), device=best.device), best]
        return self._refine(function, torch.cat([best_candidate[:, None], starts], 1), mixed)

    def maximize_shared(
        self, features: RandomFeatures, weights: Tensor, regions: Regions, domain: Domain, uniforms: Tensor
    ) -> Tensor:
        """The same for functions in one map of features, with weights B x P x M, or 1 x P x M for all rows."""
        # only the argmax matters: a common scale keeps the refinement's tolerances meaningful
        scale = weights.flatten(1).norm(dim=1).clamp(min=torch.finfo(weights.dtype).tiny)
        length = features.frequencies.pow(2).mean().rsqrt().expand(len(uniforms))
        function = FeatureFunction(features, weights / scale[:, None, None], regions, length)
        return self.maximize(function, domain, uniforms)

    def _refine(self, function: FeatureFunction, starts: Tensor, mixed: MixedBox | None) -> Tensor:
        """The best local maximum from `B x k x D` starts: all starts in single precision, then the best in double."""
        B, k, D = starts.shape
        each = torch.arange(B, device=starts.device)
        if self.max_iterations == 0:
            best_points = starts[each, function(starts).argmax(1)]
            return best_points if mixed is None else _other_values(function, best_points[:, None], mixed)[:, 0]
        if mixed is not None:
            starts = _other_values(function, starts, mixed)
        owner = each.repeat_interleave(k)
        stopping = optimize.Stopping(1e-3, 1e-4, min(_ROUGH_STEPS, self.max_iterations))
        x, value = _ascend(function.to(torch.float32), starts.reshape(B * k, D).float(), owner, stopping, mixed)
        best = value.view(B, k).argmax(1)
        best_points = x.view(B, k, D)[each, best].double()
        polish = optimize.Stopping(1e-8, 1e-10, self.max_iterations)
        if mixed is None:
            return _ascend(function, best_points, each, polish)[0]
        for _ in range(_SWEEPS):
            best_points = _other_values(function, mixed.snap(best_points)[:, None], mixed)[:, 0]
            best_points = _ascend(function, best_points, each, polish, mixed)[0]
        return best_points


def _other_values(function: FeatureFunction, points: Tensor, mixed: MixedBox) -> Tensor:
    """The points (B x k x D) after a search along one discrete axis after the other."""
    B, k, D = points.shape
    for axis in mixed.discrete:
        neighbours = mixed.neighbours(points.reshape(B * k, D), axis)  # Bk x m x D
        best = function(neighbours.reshape(B, -1, D)).view(B * k, -1).argmax(1)
        points = neighbours[torch.arange(B * k, device=points.device), best].view(B, k, D)
    return points


def _ascend(
    function: FeatureFunction, x0: Tensor, owner: Tensor, stopping: optimize.Stopping, mixed: MixedBox | None = None
) -> tuple[Tensor, Tensor]:
    """Climb from each of the points (b x D) on its owner's function, within the point's region and discrete values."""
    region = function.regions.region_of(x0)
    lower, upper = function.regions.bounds(region, x0.dtype)
    if mixed is not None:
        lower, upper = mixed.fixed(x0, lower, upper)

    def negative(x: Tensor, problems: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, hessian = function.derivatives(
            x, region.index_select(0, problems), owner.index_select(0, problems)
        )
        return -value, -gradient, -hessian

    longest = function.length[owner].to(x0.dtype)
    x, negative_value = optimize.minimize(negative, x0, lower, upper, longest, stopping, owner)
    return x, -negative_value
