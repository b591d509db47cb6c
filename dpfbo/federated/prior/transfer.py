"""An agent's Thompson sampling with the shared prior, all agents one batch.

In the coordinates of the broadcast (weights `w = X r`, features `psi = X' phi`) the prior of an agent's weights is
`r ~ N(m_n, diag(spectrum + a))`, with `a` a factor of the residual variance tau. With y in units of `scale`, the
constant c_n unknown:

    K_a = Psi diag(spectrum + a) Psi' + lam I,        residual = y - Psi m_n

    log p(y | a) = -(1/2) [residual' P residual + log|K_a| + log(1' K_a^-1 1)] + const,
    P = K_a^-1 - K_a^-1 1 1' K_a^-1 / (1' K_a^-1 1)

(restricted likelihood: that of the contrasts of y, whatever the constant). The gate compares it with the same of a
model without any transfer, in which the prior is `r ~ N(0, alone I)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.received import Observed, ObservedOnGrid, OnGrid, Received, models
from dpfbo.federated.prior.statistics import centred
from dpfbo.gp import batches
from dpfbo.gp.compiled import calls
from dpfbo.gp.compiled.loading import computes
from dpfbo.gp.hyperparameters import gram_cholesky
from dpfbo.gp.own_gp import AnyHyperparameters, Hyperparameters, KernelParameters
from dpfbo.gp.posterior import cholesky


@dataclass(frozen=True)
class Transfer:
    """The shared prior beside the observations of some agents.

    prior: the broadcast. points: where they observed. z: n x t, observations in units of scale; mean: n x M, each
    agent's prior mean, without what its own message told the server; expected: n x t, that mean at its points. models:
    as `received.models` gives them. On a grid with tables, compiled code replaces the factors of all agents.
    """

    model: PriorModel
    prior: SharedPrior
    points: Observed
    z: Tensor
    mean: Tensor
    expected: Tensor
    models: tuple[Tensor, Tensor]

    @staticmethod
    def to(model: PriorModel, received: Received, y: Tensor, features: Callable[[int, int], Tensor]) -> "Transfer":
        """The transfer to agents that have received the prior. features: see `Received.observed`."""
        points, expected = received.observed(y.shape[1], features)
        tried = models(model, received.prior)
        return Transfer(model, received.prior, points, y / model.scale, received.mean, expected, tried)

    @property
    def n_models(self) -> int:
        return len(self.models[0])

    def log_likelihoods(self) -> Tensor:
        return torch.stack([self._log_likelihood(k) for k in range(self.n_models)], 1)

    def _log_likelihood(self, k: int) -> Tensor:
        residual = self.z - self.models[0][k] * self.expected
        if self._tables is None:
            return restricted_likelihood(self._factors[k], residual)
        table, index = self._tables.covariances[k], self.points.index  # type: ignore[union-attr]
        found = calls.likelihoods_on_table(table, index, float(self.prior.noise), residual)
        failed = found.isnan().nonzero()[:, 0]  # these need jitter
        if len(failed):
            found[failed] = restricted_likelihood(self._factor(k, failed), residual[failed])
        return found

    @cached_property
    def _tables(self) -> OnGrid | None:
        """The tables, if compiled code computes with them."""
        return self.points.tables if isinstance(self.points, ObservedOnGrid) and computes(self.z) else None

    @cached_property
    def _factors(self) -> list[Tensor]:
        """For each model the Cholesky factors of the observations' covariance, n x t x t."""
        return [self._factor(k) for k in range(self.n_models)]

    def _factor(self, k: int, rows: Tensor | None = None) -> Tensor:
        K = (self.points if rows is None else self.points.select(rows)).covariance(k)
        K.diagonal(dim1=1, dim2=2).add_(self.prior.noise)
        return cholesky(K)

    def draw(self, rows: Tensor, index: Tensor, w0: Tensor, e: Tensor, c: Tensor) -> Tensor:
        """Posterior draws of r by Matheron's rule, of the agents `rows`: k x M, in units of scale.

        index: k, the model of each. w0: k x M, e: k x t, c: k standard normals for the prior's weights, the noise, and
        the agent's constant. The first are in the weights' own coordinates: eigenvectors have any sign, and of equal
        eigenvalues any basis, so that rounding would decide what a number drawn in theirs means.
        """
        shared, factor = (x[index] for x in self.models)
        points, z, expected = self.points.select(rows), self.z[rows], shared[:, None] * self.expected[rows]
        d = shared[:, None] * self.prior.spectrum + factor[:, None]  # k x M
        own = d.sqrt() * batches.product(w0, self.prior.directions)
        residual = z - expected
        rest = residual - points.values(own) - self.prior.noise.sqrt() * e
        solved = torch.empty_like(residual)
        for k in range(self.n_models):
            of_k = (index == k).nonzero()[:, 0]
            if len(of_k):
                solved[of_k] = self._solved(k, rows[of_k], residual[of_k], rest[of_k], c[of_k])
        return shared[:, None] * self.mean[rows] + own + d * points.sums(solved)

    def _solved(self, k: int, rows: Tensor, residual: Tensor, rest: Tensor, c: Tensor) -> Tensor:
        """`K^-1 (rest - constant)` of the agents `rows` under model k, with a draw of each one's constant, n x t."""
        if self._tables is None:
            return solved_without_constant(self._factors[k][rows], residual, rest, c)
        table, index = self._tables.covariances[k], self.points.index[rows]  # type: ignore[union-attr]
        found = calls.solutions_on_table(table, index, float(self.prior.noise), residual, rest, c)
        failed = found[:, 0].isnan().nonzero()[:, 0]
        if len(failed):
            L = self._factor(k, rows[failed])
            found[failed] = solved_without_constant(L, residual[failed], rest[failed], c[failed])
        return found

    def weights(self, r: Tensor) -> Tensor:
        """The weights `X r`, k x M."""
        return batches.product(r, self.prior.rotation.mT)


def own_mean(model: PriorModel, prior: SharedPrior, Phi: Tensor, y: Tensor, n_init: int) -> Tensor:
    """Each agent's prior mean in the coordinates of the broadcast, n x M, without what its message told the server.

    Phi: n x t x M, y: n x t; the first n_init of them are those of the message.
    """
    mean = prior.mean.expand(len(Phi), -1)
    if not model.leave_own_out:
        return mean
    return mean - batches.product(_told(model, prior, Phi, y, n_init), prior.gain.mT)


def _told(model: PriorModel, prior: SharedPrior, Phi: Tensor, y: Tensor, n_init: int) -> Tensor:
    """Each agent's message as the server took it, less what its posterior mean expects of it, n x M."""
    expected = (Phi @ (prior.rotation @ prior.mean).expand(len(Phi), -1).unsqueeze(-1)).squeeze(-1)
    message = model.statistics.messages(Phi[:, :n_init], y[:, :n_init])
    fitted = (Phi[:, :n_init].mT @ centred(expected[:, :n_init]).unsqueeze(-1)).squeeze(-1)
    norm = message.norm(dim=1, keepdim=True)
    kept = (prior.clip_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)  # n x 1
    kept = torch.where(norm.isfinite(), kept, 0.0)  # the server took a message that is not finite for zeros
    message = torch.where(norm.isfinite(), message, 0.0)
    return kept * (message[:, :-1] - fitted)


def restricted_likelihood(L: Tensor, residual: Tensor) -> Tensor:
    """Log density of the contrasts of `residual` (n x t) under covariances with Cholesky factors L; n.

    It is right up to a constant that all covariances share.
    """
    ones = torch.ones_like(residual)
    half = torch.linalg.solve_triangular(L, torch.stack([residual, ones], -1), upper=False)  # n x t x 2
    r, one = half.unbind(-1)
    precision = one.square().sum(1)
    quadratic = r.square().sum(1) - (r * one).sum(1).square() / precision
    return -0.5 * (quadratic + precision.log()) - L.diagonal(dim1=1, dim2=2).log().sum(1)


def own_likelihood(x: Tensor, hyper: AnyHyperparameters, z: Tensor, scale: float) -> Tensor:
    """Log restricted likelihoods of agents' own GPs, n. x: n x t x D; z: n x t, observations in units of scale."""
    if x.shape[2] > 1 or isinstance(hyper, KernelParameters) or not computes(x, z):
        return restricted_likelihood(gram_cholesky(x, hyper, hyper.noise) / scale, z)
    scaled = Hyperparameters(hyper.lengthscale, hyper.variance / scale**2, hyper.noise / scale**2)
    found = calls.likelihoods_on_line(x[..., 0], scaled, z)
    failed = found.isnan().nonzero()[:, 0]
    if len(failed):
        some = hyper.select(failed)
        found[failed] = restricted_likelihood(gram_cholesky(x[failed], some, some.noise) / scale, z[failed])
    return found


def solved_without_constant(L: Tensor, residual: Tensor, rest: Tensor, c: Tensor) -> Tensor:
    """`K^-1 (rest - m)`, n x t, with m = `1' K^-1 residual / p + c / sqrt(p)` and p = `1' K^-1 1`. L: factors of K."""
    r, one = torch.linalg.solve_triangular(L, torch.stack([residual, torch.ones_like(rest)], -1), upper=False).unbind(
        -1
    )
    precision = one.square().sum(1)
    constant = (one * r).sum(1) / precision + c * precision.rsqrt()
    return torch.cholesky_solve((rest - constant[:, None]).unsqueeze(-1), L).squeeze(-1)


def chosen_model(log_likelihoods: Tensor, u: Tensor) -> Tensor:
    """The model k that each agent follows in this query, n indices, drawn with probability `p(y | k) / sum_j p(y | j)`.

    log_likelihoods: n x K; u: n uniforms.
    """
    edges = torch.softmax(log_likelihoods, 1).cumsum(1)
    return (u[:, None] >= edges[:, :-1]).sum(1)
