"""Draws from the posteriors of the agents' GPs by GPyTorch, and their maximisers.

On a grid, a draw is `mean + R z` with standard normals z and the posterior covariance `R R^T`. In a box with discrete
axes, such a draw gives the values at randomly chosen candidates. In a box without discrete axes, Matheron's rule
computes a draw f from a prior draw f0 and the observations y at the points X (Wilson et al. 2020):

    f(u) = f0(u) + k(u, X) v,    v = (K + noise I)^-1 (y - f0(X) - e),    e ~ N(0, noise I)
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
from dpfbo.gp.gpytorch_model import AgentsModel, Models
from dpfbo.gp.own_gp import KERNELS, AnyHyperparameters, KernelParameters
from dpfbo.gp.posterior import FactorisationError, cholesky
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid, embedded
from dpfbo.space.mixed import MixedBox

_JITTER = 1e-9  # added to a posterior covariance, relative to the mean prior variance
_LONGEST_STEP = 0.3  # largest length of the first step of an ascent


@dataclass(frozen=True)
class Draw:
    """One posterior draw per agent in a round.

    agents: n ids; x: n x t x D, observed unit-cube points, embedded by `MixedBox.embed` if the domain is a `MixedBox`;
    y: n x t, the observations; noise: n variances.
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
        """Return the maximiser of each draw, n x D unit-cube points."""
        n, D = len(self.agents), domain.dimension
        if isinstance(domain, Grid):
            return domain.unit_points[self._joint(domain.unit_points[None]).argmax(1)]
        if isinstance(domain, MixedBox):
            size = acquisition.n_candidates * D
            u = self.streams.uniform("own_draw/starts", self.agents, self.round, size)
            candidates = domain.snap(u.view(n, -1, D))
            return _best(candidates, self._joint(embedded(domain, candidates)))
        size = (acquisition.n_candidates + acquisition.n_starts) * D
        u = self.streams.uniform("own_draw/starts", self.agents, self.round, size)
        return maximizers_in_box(self.function(n_features), acquisition, u.view(n, -1, D))

    def _joint(self, points: Tensor) -> Tensor:
        return self.posterior.joint_draw(points, self._normal("weights", points.shape[1]))

    def function(self, n_features: int) -> "PathwiseDraw":
        """Return the draws as functions, each with n_features random features."""
        (n, t, D), F, freedom = self.x.shape, n_features, KERNELS[self.posterior.hyper.own.kernel]
        s = self._normal("frequencies", F * D).view(n, F, D)
        if freedom:  # Matern: t-distributed frequencies, normal vectors divided by the root of a mean square
            s = s / self._normal("scales", F * freedom).view(n, F, freedom).square().mean(2, keepdim=True).sqrt()
        b = 2 * math.pi * self.streams.uniform("own_draw/phases", self.agents, self.round, F)
        e = self.noise.sqrt()[:, None] * self._normal("noise", t)
        return self.posterior.pathwise_draw(s, b, self._normal("weights", F), e)

    def _normal(self, purpose: str, size: int) -> Tensor:
        return self.streams.normal(f"own_draw/{purpose}", self.agents, self.round, size)


@dataclass(frozen=True)
class Posterior:
    """The GP posteriors of n agents.

    hyper: the agents' hyper-parameters; x: n x t x D, observed points, embedded if the domain is a `MixedBox`; y:
    n x t, the observations.
    """

    hyper: KernelParameters
    x: Tensor
    y: Tensor
    models: Models = field(default_factory=Models)

    def select(self, rows: Tensor) -> "Posterior":
        return Posterior(self.hyper.select(rows), self.x[rows], self.y[rows], self.models)

    def model(self) -> AgentsModel:
        """Return the agents' GPyTorch model in evaluation mode, without gradients of its parameters."""
        return self.models.of(self.hyper, self.x, self.y).requires_grad_(False).eval()

    def joint_draw(self, points: Tensor, z: Tensor) -> Tensor:
        """Return posterior draws `mean + R z`, n x G, where `R R^T` is the posterior covariance.

        points: n x G x D, or 1 x G x D if all agents have the same points; z: n x G standard normals.
        """
        values = torch.empty_like(z)
        for rows in batches.blocks(len(z), z.shape[1] ** 2, z.device):
            at = points if len(points) == 1 else points[rows]
            mean, covariance, variance = self.select(rows).moments(at.expand(len(rows), -1, -1))
            R = _root(covariance, variance)
            values[rows] = mean + (R @ z[rows][..., None])[..., 0]
        return values

    def moments(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each agent's posterior means and covariances at its k points, and its average prior variance there.

        Their shapes are n x k, n x k x k and n.

        Raises FactorisationError if a Gram matrix is not positive definite.
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
        """Return draws as functions.

        s: frequencies for length-scale 1, n x F x D; b: phases, n x F; w: standard normals, n x F; e: noise, n x t.
        """
        model, t = self.model(), self.x.shape[1]
        features = RandomFeatures(s / model.lengthscales, b)
        w = w * (2 * model.covar_module.outputscale[:, None] / s.shape[1]).sqrt()
        K = model.covariance(self.x, self.x) + torch.diag_embed(self.hyper.noise[:, None].expand(-1, t))
        residual = self.y - PathwiseDraw(self, features, w, torch.zeros_like(self.y)).prior_values(self.x) - e
        v = torch.cholesky_solve(residual[..., None], cholesky(K))[..., 0]
        return PathwiseDraw(self, features, w, v)


@dataclass(frozen=True)
class PathwiseDraw:
    """n drawn functions `f(u) = sum_j w_j cos(s_j . u + b_j) + k(u, X) v`; w: n x F; v: n x t.

    features: s_j and b_j for j = 1..F. X: the observed points of `posterior`. An input warp is applied to u and X
    first.
    """

    posterior: Posterior
    features: RandomFeatures
    w: Tensor
    v: Tensor

    def select(self, rows: Tensor) -> "PathwiseDraw":
        features = RandomFeatures(self.features.frequencies[rows], self.features.phases[rows])
        return PathwiseDraw(self.posterior.select(rows), features, self.w[rows], self.v[rows])

    def __call__(self, u: Tensor) -> Tensor:
        """Evaluate the draws at unit-cube points, `n x k x D -> n x k`."""
        model = self.posterior.model()
        update = model.covariance(u, self.posterior.x) @ self.v[..., None]  # n x k x 1
        return self.prior_values(u) + update[..., 0]

    def prior_values(self, u: Tensor) -> Tensor:
        """Evaluate the prior draws f0, `n x k x D -> n x k`."""
        warped = self.posterior.model().inputs(u)
        return (torch.cos(self.features.angles(warped)) @ self.w[..., None])[..., 0]

    def blockwise(self, u: Tensor) -> Tensor:
        """Evaluate the draws, `n x k x D -> n x k`, one block of agents after another."""
        width = self.w.shape[1] + self.v.shape[1]
        values = torch.empty_like(u[..., 0])
        for rows in batches.blocks(len(u), u.shape[1] * width, u.device):
            values[rows] = self.select(rows)(u[rows])
        return values

    def slopes(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and gradients at one point for each agent, `n x D -> n, n x D`."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            value = self(u[:, None])[:, 0]
            (gradient,) = torch.autograd.grad(value.sum(), u)
        return value.detach(), gradient


def maximizers_in_box(draw: PathwiseDraw, acquisition: Acquisition, points: Tensor) -> Tensor:
    """Return the maximiser of each draw in a box, n x D, by BFGS ascents from the best candidate and all starts.

    points: the candidates of each draw, then its starts, `n x (n_candidates + n_starts) x D`.
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
    shortest = draw.posterior.model().lengthscales.amin((1, 2))  # n
    step = torch.full_like(x0[:, 0], _LONGEST_STEP).minimum(shortest[owner])
    stopping = optimize.Stopping(1e-6, 1e-8, acquisition.max_iterations)
    x, value = optimize.minimize(negative, x0, torch.zeros_like(x0), torch.ones_like(x0), step, stopping, owner)
    return _best(x.view(n, k, D), -value.view(n, k))


def _best(points: Tensor, values: Tensor) -> Tensor:
    return points[torch.arange(len(points), device=points.device), values.argmax(1)]


def _root(covariance: Tensor, variance: Tensor) -> Tensor:
    """Return R with `R R^T = C = covariance + _JITTER * variance * I`; negative eigenvalues of C count as 0."""
    diagonal = (_JITTER * variance)[:, None].expand(-1, covariance.shape[1])
    C = covariance + torch.diag_embed(diagonal)
    R, info = torch.linalg.cholesky_ex(C)
    failed = info.nonzero()[:, 0]
    if len(failed):
        eigenvalues, vectors = torch.linalg.eigh(C[failed[batches.filled(len(failed), batches.PRODUCTS, C.device)]])
        R[failed] = (vectors * eigenvalues.clamp(min=0).sqrt()[:, None, :])[: len(failed)]
    return R
