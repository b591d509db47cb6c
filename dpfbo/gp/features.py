"""Random Fourier features of the squared-exponential kernel, scaled to unit norm, and functions linear in them."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp import batches
from dpfbo.space.domain import Domain
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions

_BLOCK = 400_000  # features evaluated at once on a CPU if every row has its own map: they fit in the cache
_ACCELERATOR_BLOCK = 100_000_000  # features evaluated at once on an accelerator: within 2 GB


@dataclass(frozen=True)
class RandomFeatures:
    """A batch of B feature maps, each with M features `phi_j(x) = cos(s_j . x + b_j) / norm`.

    `phi(x) . phi(x')` approximates the SE kernel `exp(-|x - x'|^2 / (2 l^2))` (Rahimi and Recht 2007). norm is the
    length of the vector of the M cosines, so that `|phi(x)| = 1` and `|phi(x) . w| <= |w|` (paper, App. B).

    Args:
        frequencies: `s_j`, `B x M x D`; with B = 1 all agents share one map.
        phases: `b_j` in radians, `B x M`.
        space: A mixed box, whose points are first embedded into D coordinates; None for other domains.

    Example:
        >>> features = shared_features(100, dimension=2, lengthscale=0.2, generator=np.random.default_rng(0))
        >>> phi = features(torch.tensor([[[0.1, 0.2], [0.1, 0.2]]], dtype=torch.float64))
        >>> phi.shape, round(float(phi[0, 0] @ phi[0, 1]), 12)
        (torch.Size([1, 2, 100]), 1.0)
    """

    frequencies: Tensor
    phases: Tensor
    space: MixedBox | None = None

    @property
    def size(self) -> int:
        """M, the number of features."""
        return self.frequencies.shape[1]

    def __call__(self, u: Tensor) -> Tensor:
        """Compute the features at unit-cube points, `B x k x D -> B x k x M`.

        If all agents share one map, the points may have any batch size B.
        """
        c = self.angles(u).cos_()  # B x k x M
        return c.div_(c.norm(dim=-1, keepdim=True))

    def angles(self, u: Tensor) -> Tensor:
        """Compute the angles `s_j . x + b_j` at unit-cube points, `B x k x D -> B x k x M`."""
        if self.space is not None:
            u = self.space.embed(u)
        if len(self.frequencies) > 1:
            return torch.baddbmm(self.phases[:, None], u, self.frequencies.mT)
        points = u.flatten(0, 1)
        angles = torch.addmm(self.phases, batches.padded(points), self.frequencies[0].T)
        return angles[: len(points)].unflatten(0, u.shape[:2])

    def to(self, where: torch.device | torch.dtype) -> "RandomFeatures":
        """Copy the maps to another device or precision."""
        return RandomFeatures(self.frequencies.to(where), self.phases.to(where), self.space)

    def on(self, domain: Domain) -> "RandomFeatures":
        """Return the maps for points of the domain; the points of a mixed box are embedded first."""
        return replace(self, space=domain if isinstance(domain, MixedBox) else None)

    def select(self, rows: Tensor) -> "RandomFeatures":
        """Select the maps of some rows of the batch; a shared map stays shared."""
        if len(self.frequencies) == 1:
            return self
        return replace(self, frequencies=_rows(self.frequencies, rows), phases=_rows(self.phases, rows))

    @property
    def slopes(self) -> Tensor:
        """The derivatives of the angles with respect to unit-cube coordinates, `B x M x D`; 0 on discrete axes."""
        return self.frequencies if self.space is None else self.space.pulled_back(self.frequencies)


@dataclass(frozen=True)
class FeatureFunction:
    """A batch of B functions `g(x) = phi(x) . w^(i[x])`, where i[x] is the region that holds x.

    features: one map or B maps; weights: B x P x M, or 1 x P x M if all share them; length: the B length-scales.
    """

    features: RandomFeatures
    weights: Tensor
    regions: Regions
    length: Tensor

    def __len__(self) -> int:
        return max(len(self.features.frequencies), len(self.weights))

    def __call__(self, u: Tensor) -> Tensor:
        """Evaluate at unit-cube points, `B x k x D -> B x k`; points of shape `1 x k x D` serve all functions."""
        if len(u) == len(self.features.frequencies) == 1:
            return self._values(u, self.features, self.weights)
        numbers = u.shape[1] * self.features.frequencies.shape[1]

        def values(rows: Tensor) -> Tensor:
            return self._values(_rows(u, rows), self.features.select(rows), _rows(self.weights, rows))

        n = max(len(u), len(self.features.frequencies))
        return batches.in_blocks(values, n, max(1, _block(u.device) // numbers), u.device)

    def _values(self, u: Tensor, features: RandomFeatures, w: Tensor) -> Tensor:
        c = features.angles(u.expand(max(len(u), len(features.frequencies)), -1, -1)).cos_()  # b x k x M
        values = (c[0] @ w.mT if len(c) == 1 else c @ w.mT) / torch.linalg.vector_norm(c, dim=-1, keepdim=True)
        if self.regions.P == 1:
            return values[..., 0]
        return values.gather(-1, self.regions.region_of(u)[..., None].expand(len(values), -1, 1))[..., 0]

    def to(self, dtype: torch.dtype) -> "FeatureFunction":
        """Copy the functions to another precision."""
        return replace(self, features=self.features.to(dtype), weights=self.weights.to(dtype))

    def select(self, rows: Tensor) -> "FeatureFunction":
        """Select some rows of the batch; tensors that all rows share stay shared."""
        length = self.length[:1] if len(self) == 1 else self.length.index_select(0, rows)
        return FeatureFunction(self.features.select(rows), _rows(self.weights, rows), self.regions, length)

    def normalised(self) -> "FeatureFunction":
        """Scale the weights to norm 1, which keeps the maximisers and brings all values into [-1, 1]."""
        norm = self.weights.flatten(1).norm(dim=1).clamp(min=torch.finfo(self.weights.dtype).tiny)
        return replace(self, weights=self.weights / norm[:, None, None])

    def around(self, u: Tensor, region: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments `angles` (b x M), `negated` (b x D x M) and `w` (b x M) of `derivatives`.

        Each feature is the cosine of an angle, divided by a norm. The angle at a point x is a constant, in `angles`,
        minus `x . negated`. `negated` contains the negative derivatives of the angle. They are set to 0 on discrete
        axes and on axes that are inactive at u (b x D); x must equal u on these axes. `w` contains the weights of each
        point's function in the point's region.

        region: the indices of the b points' regions; rows: the indices of the b points' functions.
        """
        features = self.features.select(rows)
        shared = len(features.frequencies) == 1
        angles = features.angles(u[None])[0] if shared else features.angles(u[:, None])[:, 0]
        negated = -features.slopes.mT.expand(len(u), -1, -1).contiguous()
        if features.space is not None and features.space.conditions:
            negated.masked_fill_(~features.space.active(u)[:, :, None], 0.0)
        per_region = self.weights.flatten(0, 1)  # function 0 in regions 0..P-1, then function 1, ..
        w = per_region.index_select(0, region + (rows * self.regions.P if len(self.weights) > 1 else 0))
        return (u[:, :, None] * negated).sum(1).add_(angles), negated, w

    def on_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Evaluate at all points `(left_i, right_j)`, `B x ab`, where j varies fastest. left: a x D1; right: b x D2."""
        (n, M, _), space = self.features.frequencies.shape, self.features.space
        related = space is not None and space.conditions  # then left and right cannot be embedded one without the other
        if n < len(self.weights) or related:  # one map: its cosines at all points are needed only once
            return self(product(left, right)[None])
        rows_at_once = max(batches.PRODUCTS, _block(left.device) // (8 * M * max(len(left), len(right))))
        return batches.in_blocks(lambda rows: self._values_on_product(left, right, rows), n, rows_at_once, left.device)

    def _values_on_product(self, left: Tensor, right: Tensor, rows: Tensor) -> Tensor:
        """Return the values of the r functions in `rows` at the `a * b` points of `on_product`, `r x ab`.

        The angles at `(left_i, right_j)` are p + q, where p depends only on left_i and q only on right_j. The value is
        `A / sqrt(N)`, with sums over the M features:

            A = sum (w cos p) cos q - (w sin p) sin q
            N = M - sum cos^2 p - sum cos^2 q + 2 sum cos^2 p cos^2 q - 2 sum (cos p sin p) (cos q sin q)
        """
        S, phases = (v.index_select(0, rows) for v in (self.features.frequencies, self.features.phases))
        w, first, others, space = _rows(self.weights, rows), left, right, self.features.space
        if space is not None:
            first = MixedBox(space.axes[: left.shape[1]]).embed(left)
            others = MixedBox(space.axes[left.shape[1] :]).embed(right) if right.shape[1] else right
        k, M, r = first.shape[1], S.shape[1], len(rows)
        p = _cos_and_sin(torch.baddbmm(phases[:, None], first.expand(r, -1, -1), S[..., :k].mT))  # r x a x 2 x M
        q = _cos_and_sin(others.expand(r, -1, -1) @ S[..., k:].mT)  # r x b x 2 x M
        p2, q2 = p * p[:, :, :1], q * q[:, :, :1]
        N = M - p2[:, :, 0].sum(2)[:, :, None] - q2[:, :, 0].sum(2)[:, None]  # r x a x b
        N.baddbmm_(p2[:, :, 0], q2[:, :, 0].mT, alpha=2).baddbmm_(p2[:, :, 1], q2[:, :, 1].mT, alpha=-2)
        scale = N.clamp_(min=torch.finfo(N.dtype).eps).rsqrt_()
        to, signed = q.flatten(2).mT, torch.stack([w, -w], 2)  # signed: r x P x 2 x M
        values = [((p * signed[:, None, i]).flatten(2) @ to).mul_(scale) for i in range(w.shape[1])]
        if len(values) == 1:
            return values[0].flatten(1)
        region = self.regions.region_of(product(left, right))  # ab
        return torch.stack(values, 1).flatten(2).gather(1, region.expand(r, 1, -1))[:, 0]


def derivatives(x: Tensor, angles: Tensor, negated: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute values (b), gradients (b x D) and Hessians (b x D x D) of b functions, each at one point, x: b x D.

    The value is `A N^-1/2`, where `A = sum_j w_j cos a_j` and `N = sum_j cos^2 a_j`. The angles at x are
    `a = angles - x . negated`. angles, negated, w: as returned by `FeatureFunction.around`.
    """
    a = angles - (x[:, :, None] * negated).sum(1)  # b x M
    c = torch.cos(a)
    N = torch.linalg.vecdot(c, c)[:, None]  # b x 1
    n = N.sqrt()
    g = torch.linalg.vecdot(w, c)[:, None] / n
    slopes = (torch.stack([w, c], 1) * torch.sin(a)[:, None]) @ negated.mT  # b x 2 x D
    dA, r = slopes[:, 0] / n, slopes[:, 1] / N  # A' / n and N' / (2 N), each b x D
    k = g / N
    curvature = torch.addcmul(-k, c, torch.addcdiv(2 * k * c, w, n, value=-1))  # g cos(2 a_j) / N - w_j cos(a_j) / n
    cross = torch.addcmul(dA, g, r, value=-1.5)[:, :, None] * r[:, None, :]
    hessian = torch.baddbmm(cross + cross.mT, negated * curvature[:, None], negated.mT, beta=-1)
    return g[:, 0], torch.addcmul(dA, g, r, value=-1), hessian


def _cos_and_sin(angles: Tensor) -> Tensor:
    both = angles.new_empty(*angles.shape[:-1], 2, angles.shape[-1])
    torch.cos(angles, out=both[..., 0, :])
    torch.sin(angles, out=both[..., 1, :])
    return both


def _block(device: torch.device) -> int:
    return _BLOCK if device.type == "cpu" else _ACCELERATOR_BLOCK


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return all points `(left_i, right_j)`, `ab x D`, where j varies fastest. left: `a x D1`; right: `b x D2`."""
    a, b = len(left), len(right)
    return torch.cat([left[:, None].expand(-1, b, -1), right.expand(a, -1, -1)], 2).flatten(0, 1)


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor if len(tensor) == 1 else tensor.index_select(0, rows)


def shared_features(
    n_features: int, dimension: int, lengthscale: float, generator: np.random.Generator, paired: bool = False
) -> RandomFeatures:
    """Draw the feature map that all agents of a run share, with frequencies `s ~ N(0, l^-2 I)` (paper, Sec. 2).

    Args:
        n_features: M.
        dimension: The number of coordinates of a point, D.
        lengthscale: l, in unit-cube coordinates.
        generator: The source of the frequencies and phases.
        paired: True for cosine and sine pairs of M/2 frequencies (M must be even), which approximate the kernel with
            lower variance; False for M frequencies with random phases `b ~ U[0, 2 pi]`.

    Returns:
        The map, in float64 on the CPU, with frequencies 1 x M x D.

    Raises:
        SettingError: A size or the length-scale is not positive, or M is odd with `paired`.

    Example:
        >>> shared_features(100, 2, 0.2, np.random.default_rng(0), paired=True).frequencies.shape
        torch.Size([1, 100, 2])
    """
    checks.integer("n_features", n_features, minimum=1, maximum=checks.MOST_FEATURES)
    checks.positive("lengthscale", lengthscale)
    if paired and n_features % 2:
        raise SettingError("n_features", f"must be even for paired features, got {n_features}")
    drawn = n_features // 2 if paired else n_features
    s = torch.from_numpy(generator.standard_normal((1, drawn, dimension))) / lengthscale
    if paired:
        zero = torch.zeros_like(s[..., 0])
        return RandomFeatures(torch.cat([s, s], 1), torch.cat([zero, zero - math.pi / 2], 1))
    return RandomFeatures(s, torch.from_numpy(generator.uniform(0, 2 * math.pi, (1, drawn))))
