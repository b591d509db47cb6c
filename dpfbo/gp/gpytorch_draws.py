"""Draws from the posteriors of the agents' GPs with any kernel of GPyTorch, and their maximisers.

On a grid: a draw of all its values at once, `mean + R z` with `R R^T` the posterior covariance that GPyTorch computes.
In a box, for a stationary kernel whose spectral density is known (SE, Matern): a function, by Matheron's rule

    f(u) = f0(u) + k(u, X) v,    v = (K + noise I)^-1 (y - f0(X) - e),    e ~ N(0, noise I)

with f0 from random features (Wilson et al. 2020), whose first two moments are those of the posterior. In a box, for
any other kernel, or with discrete axes: a draw at random candidates, as on a grid.

A draw on G points costs G^3 operations and some 5 G^2 numbers an agent.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import gpytorch
import torch
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from dpfbo.gp import batches, gpytorch_model, optimize
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.features import RandomFeatures
from dpfbo.gp.gpytorch_kernels import degrees_of_freedom
from dpfbo.gp.gpytorch_model import AgentsModel, Models
from dpfbo.gp.own_gp import AnyHyperparameters, KernelParameters
from dpfbo.gp.posterior import FactorisationError, cholesky
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid, embedded
from dpfbo.space.mixed import MixedBox

_JITTER = 1e-9  # added to a posterior covariance, relative to the mean prior variance
_LONGEST_STEP = 0.3  # length of the first step of a search, at most


@dataclass(frozen=True)
class Draw:
    """One draw for each of n agents in one round.

    agents: n ids; x: n x t x D unit-cube points, embedded; y: n x t; hyper: of n agents; noise: n, the variance of the
    observation noise in the draw.
    """

    agents: Tensor
    x: Tensor
    y: Tensor
    hyper: AnyHyperparameters
    noise: Tensor
    streams: Streams
    round: int

    @cached_property
    def posterior(self) -> "Posterior":
        hyper = gpytorch_model.kernel_parameters(self.hyper)
        raw = torch.cat([self.noise.log()[:, None], hyper.raw[:, 1:]], 1)
        return Posterior(KernelParameters(hyper.own, raw), self.x, self.y)

    def maximizers(self, domain: Domain, acquisition: Acquisition, n_features: int) -> Tensor:
        """The argmax of each draw, n x D unit-cube points."""
        n, D = len(self.agents), domain.dimension
        if isinstance(domain, Grid):
            values = self._joint(domain.unit_points[None])
            return domain.unit_points[values.argmax(1)]
        if self.posterior.freedom is None or isinstance(domain, MixedBox):
            size = acquisition.n_candidates * D
            candidates = self.streams.uniform("own_draw/starts", self.agents, self.round, size).view(n, -1, D)
            if isinstance(domain, MixedBox):
                candidates = domain.snap(candidates)
            return _best(candidates, self._joint(embedded(domain, candidates)))
        size = (acquisition.n_candidates + acquisition.n_starts) * D
        u = self.streams.uniform("own_draw/starts", self.agents, self.round, size)
        return maximizers_in_box(self.function(n_features), acquisition, u.view(n, -1, D))

    def _joint(self, points: Tensor) -> Tensor:
        """Values of the draws at points, n x G or 1 x G for points that all agents share."""
        z = self.streams.normal("own_draw/weights", self.agents, self.round, points.shape[1])
        return self.posterior.joint_draw(points, z)

    def function(self, n_features: int) -> "PathwiseDraw":
        """The draws as functions."""
        (n, t, D), F, freedom = self.x.shape, n_features, self.posterior.freedom
        s = self._normal("frequencies", F * D).view(n, F, D)
        if freedom:  # Student's t: a normal vector over the root of an independent mean square
            s = s / self._normal("scales", F * freedom).view(n, F, freedom).square().mean(2, keepdim=True).sqrt()
        b = 2 * math.pi * self.streams.uniform("own_draw/phases", self.agents, self.round, F)
        e = self.noise.sqrt()[:, None] * self._normal("noise", t)
        return self.posterior.pathwise_draw(s, b, self._normal("weights", F), e)

    def _normal(self, purpose: str, size: int) -> Tensor:
        return self.streams.normal(f"own_draw/{purpose}", self.agents, self.round, size)


@dataclass(frozen=True)
class Posterior:
    """The posteriors of n agents. hyper: n, with the noise of the draws; x: n x t x D unit-cube points; y: n x t."""

    hyper: KernelParameters
    x: Tensor
    y: Tensor
    models: Models = field(default_factory=Models)

    @cached_property
    def freedom(self) -> int | None:
        """Degrees of freedom of the kernel's spectral density, a Student t; 0 for a normal one, None if not known."""
        one = self.select(torch.arange(1, device=self.x.device))
        return degrees_of_freedom(one.model().covar_module.base_kernel)

    def select(self, rows: Tensor) -> "Posterior":
        return Posterior(self.hyper.select(rows), self.x[rows], self.y[rows], self.models)

    def model(self) -> AgentsModel:
        return self.models.of(self.hyper, self.x, self.y).requires_grad_(False).eval()

    def joint_draw(self, points: Tensor, z: Tensor) -> Tensor:
        """`mean + R z` at points, n x G x D or 1 x G x D that all agents share; z: n x G standard normals."""
        values = torch.empty_like(z)
        for rows in batches.blocks(len(z), z.shape[1] ** 2, z.device):
            at = points if len(points) == 1 else points[rows]
            mean, covariance, variance = self.select(rows).moments(at.expand(len(rows), -1, -1))
            R = _root(covariance, variance)
            values[rows] = mean + (R @ z[rows][..., None])[..., 0]
        return values

    def moments(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means (n x k), covariances (n x k x k) and mean prior variances (n) at points, n x k x D.

        Raises FactorisationError if the observations' covariances have no Cholesky factors.
        """
        model = self.model()
        with points.device, torch.no_grad(), gpytorch_model.exact_algebra(), gpytorch.settings.debug(False):
            try:
                posterior = model(points)
                mean, covariance = posterior.mean, posterior.covariance_matrix
            except NotPSDError as error:
                raise FactorisationError(f"the agents' Gram matrices are not positive definite: {error}") from error
            return mean, covariance, model.covar_module(model.inputs(points), diag=True).mean(1)

    def pathwise_draw(self, s: Tensor, b: Tensor, w: Tensor, e: Tensor) -> "PathwiseDraw":
        """Draws as functions.

        s: n x F x D frequencies for length-scale 1; b: n x F phases; w: n x F standard normals; e: n x t noise.
        """
        model, t = self.model(), self.x.shape[1]
        features = RandomFeatures(s / gpytorch_model.lengthscales(model), b)
        w = w * (2 * model.covar_module.outputscale[:, None] / s.shape[1]).sqrt()
        K = model.covariance(self.x, self.x) + torch.diag_embed(self.hyper.noise[:, None].expand(-1, t))
        prior = PathwiseDraw(self.hyper, self.x, features, w, torch.zeros_like(self.y), self.models)
        residual = self.y - prior.prior_values(self.x) - e
        v = torch.cholesky_solve(residual[..., None], cholesky(K))[..., 0]
        return PathwiseDraw(self.hyper, self.x, features, w, v, self.models)


@dataclass(frozen=True)
class PathwiseDraw:
    """n functions `f(u) = sum_j w_j cos(s_j . u + b_j) + k(u, X) v`. w: n x F; v: n x t."""

    hyper: KernelParameters
    x: Tensor
    features: RandomFeatures
    w: Tensor
    v: Tensor
    models: Models

    def select(self, rows: Tensor) -> "PathwiseDraw":
        features = RandomFeatures(self.features.frequencies[rows], self.features.phases[rows])
        return PathwiseDraw(self.hyper.select(rows), self.x[rows], features, self.w[rows], self.v[rows], self.models)

    @property
    def shortest_lengthscale(self) -> Tensor:
        """The length-scale of each agent's most changeable axis, n."""
        return gpytorch_model.lengthscales(self._model()).amin((1, 2))

    def __call__(self, u: Tensor) -> Tensor:
        """Values at unit-cube points, `n x k x D -> n x k`."""
        model = self._model()
        update = model.covariance(u, self.x) @ self.v[..., None]  # n x k x 1
        return self._prior_values(model.inputs(u)) + update[..., 0]

    def prior_values(self, u: Tensor) -> Tensor:
        """Values of the prior draws `f0` alone."""
        return self._prior_values(self._model().inputs(u))

    def blockwise(self, u: Tensor) -> Tensor:
        """The same values, one block of agents after the other."""
        width = self.w.shape[1] + self.v.shape[1]
        values = torch.empty_like(u[..., 0])
        for rows in batches.blocks(len(u), u.shape[1] * width, u.device):
            values[rows] = self.select(rows)(u[rows])
        return values

    def slopes(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients at one point an agent, `n x D -> n, n x D`."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            value = self(u[:, None])[:, 0]
            (gradient,) = torch.autograd.grad(value.sum(), u)
        return value.detach(), gradient

    def _prior_values(self, warped: Tensor) -> Tensor:
        return (torch.cos(self.features.angles(warped)) @ self.w[..., None])[..., 0]

    def _model(self) -> AgentsModel:
        return self.models.of(self.hyper, self.x, self.v).requires_grad_(False).eval()


def maximizers_in_box(draw: PathwiseDraw, acquisition: Acquisition, points: Tensor) -> Tensor:
    """The best of the candidates, and of the ends of BFGS ascents from it and from the starts, n x D.

    points: n x (n_candidates + n_starts) x D uniform points of the unit cube.
    """
    candidates, starts = points[:, : acquisition.n_candidates], points[:, acquisition.n_candidates :]
    starts = torch.cat([_best(candidates, draw.blockwise(candidates))[:, None], starts], 1)  # n x k x D
    if acquisition.max_iterations == 0:
        return _best(starts, draw.blockwise(starts))
    n, k, D = starts.shape
    owner = torch.arange(n, device=points.device).repeat_interleave(k)

    def negative(u: Tensor, problems: Tensor) -> tuple[Tensor, Tensor, None]:
        value, gradient = draw.select(owner[problems]).slopes(u)
        return -value, -gradient, None

    x0 = starts.reshape(n * k, D)
    step = torch.full_like(x0[:, 0], _LONGEST_STEP).minimum(draw.shortest_lengthscale[owner])
    stopping = optimize.Stopping(1e-6, 1e-8, acquisition.max_iterations)
    x, value = optimize.minimize(negative, x0, torch.zeros_like(x0), torch.ones_like(x0), step, stopping, owner)
    return _best(x.view(n, k, D), -value.view(n, k))


def _best(points: Tensor, values: Tensor) -> Tensor:
    """The points with the largest values, `n x k x D, n x k -> n x D`."""
    return points[torch.arange(len(points), device=points.device), values.argmax(1)]


def _root(covariance: Tensor, variance: Tensor) -> Tensor:
    """R with `R R^T` the covariance, n x G x G, plus `_JITTER` of the prior variance (n).

    Cholesky factors; where rounding leaves a matrix without one, the root of its positive eigenvalues.
    """
    diagonal = (_JITTER * variance)[:, None].expand(-1, covariance.shape[1])
    C = covariance + torch.diag_embed(diagonal)
    R, info = torch.linalg.cholesky_ex(C)
    failed = info.nonzero()[:, 0]
    if len(failed):
        eigenvalues, vectors = torch.linalg.eigh(C[failed[batches.filled(len(failed), batches.PRODUCTS, C.device)]])
        R[failed] = (vectors * eigenvalues.clamp(min=0).sqrt()[:, None, :])[: len(failed)]
    return R
