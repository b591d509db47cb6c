"""An agent's Thompson sampling with the shared prior, all agents one batch.

In the coordinates of the broadcast (weights `w = X r`, features `psi = X' phi`) the prior of an agent's weights is
`r ~ N(m_n, diag(spectrum + a))`, with `a` a factor of the residual variance tau. With y in units of `scale`, the
constant c_n unknown:

    K_a = Psi diag(spectrum + a) Psi' + lam I,        residual = y - Psi m_n

    log p(y | a) = -(1/2) [residual' P residual + log|K_a| + log(1' K_a^-1 1)] + const,
    P = K_a^-1 - K_a^-1 1 1' K_a^-1 / (1' K_a^-1 1)

(restricted likelihood: that of the contrasts of y, whatever the constant). The gate compares it with the same of the
agent's own GP, without any transfer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.statistics import centred
from dpfbo.gp import batches
from dpfbo.gp.posterior import cholesky


@dataclass(frozen=True)
class Transfer:
    """The shared prior beside the observations of some agents.

    prior: the broadcast. psi: n x t x M, the agents' features in its coordinates; z: n x t, observations in units of
    scale; mean: n x M, each agent's prior mean, without what its own message told the server.
    """

    model: PriorModel
    prior: SharedPrior
    psi: Tensor
    z: Tensor
    mean: Tensor

    @staticmethod
    def of(model: PriorModel, prior: SharedPrior, Phi: Tensor, y: Tensor, n_init: int) -> "Transfer":
        """Phi: n x t x M; y: n x t; the first n_init of them are the public design."""
        psi, mean = batches.product(Phi, prior.rotation), prior.mean.expand(len(Phi), -1)
        if model.leave_own_out:
            message = model.statistics.messages(Phi[:, :n_init], y[:, :n_init])
            norm = message.norm(dim=1, keepdim=True)
            kept = (prior.clip_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)  # n x 1
            fitted = centred(psi[:, :n_init]) @ mean.unsqueeze(-1)
            expected = (Phi[:, :n_init].mT @ fitted).squeeze(-1)
            mean = mean - batches.product(kept * (message[:, :-1] - expected), prior.gain.mT)
        return Transfer(model, prior, psi, y / model.scale, mean)

    def select(self, rows: Tensor) -> "Transfer":
        """The same of some agents."""
        return Transfer(self.model, self.prior, self.psi[rows], self.z[rows], self.mean[rows])

    def log_likelihoods(self) -> Tensor:
        """Log restricted likelihood of each agent's observations for each factor of the residual, n x K."""
        residual = self.z - (self.psi @ self.mean.unsqueeze(-1)).squeeze(-1)
        common = (self.psi * self.prior.spectrum) @ self.psi.mT
        own = self.psi @ self.psi.mT
        columns = []
        for factor in self.model.residuals:
            K = common + factor * own
            K.diagonal(dim1=1, dim2=2).add_(self.prior.noise)
            columns.append(restricted_likelihood(cholesky(K), residual))
        return torch.stack(columns, 1)

    def draw(self, factor: Tensor, w0: Tensor, e: Tensor, c: Tensor) -> Tensor:
        """Posterior draws of the agents' weights by Matheron's rule, n x M, in units of scale.

        factor: n, of the residual variance. w0: n x M, e: n x t, c: n standard normals for the prior's weights, the
        noise, and the agent's constant. The first are in the weights' own coordinates: eigenvectors have any sign,
        and of equal eigenvalues any basis, so that rounding would decide what a number drawn in theirs means.
        """
        d = self.prior.spectrum + factor[:, None]  # n x M
        K = (self.psi * d[:, None]) @ self.psi.mT
        K.diagonal(dim1=1, dim2=2).add_(self.prior.noise)
        L = cholesky(K)
        start = self.mean + d.sqrt() * batches.product(w0, self.prior.directions)
        ones = torch.ones_like(self.z).unsqueeze(-1)
        half = torch.linalg.solve_triangular(L, ones, upper=False)  # n x t x 1
        precision = half.square().sum((1, 2))  # 1' K^-1 1
        residual = self.z - (self.psi @ self.mean.unsqueeze(-1)).squeeze(-1)
        white = torch.linalg.solve_triangular(L, residual.unsqueeze(-1), upper=False)
        constant = (half * white).sum((1, 2)) / precision + c * precision.rsqrt()
        left = self.z - constant[:, None] - (self.psi @ start.unsqueeze(-1)).squeeze(-1) - self.prior.noise.sqrt() * e
        solved = torch.cholesky_solve(left.unsqueeze(-1), L)
        rotated = start + d * (self.psi.mT @ solved).squeeze(-1)
        return batches.product(rotated, self.prior.rotation.mT)


def restricted_likelihood(L: Tensor, residual: Tensor) -> Tensor:
    """Log density of the contrasts of `residual` (n x t) under covariances with Cholesky factors L; n, up to the same
    constant for all covariances."""
    ones = torch.ones_like(residual)
    half = torch.linalg.solve_triangular(L, torch.stack([residual, ones], -1), upper=False)  # n x t x 2
    r, one = half.unbind(-1)
    precision = one.square().sum(1)
    quadratic = r.square().sum(1) - (r * one).sum(1).square() / precision
    return -0.5 * (quadratic + precision.log()) - L.diagonal(dim1=1, dim2=2).log().sum(1)


def chosen_model(log_likelihoods: Tensor, gate: str, u: Tensor) -> Tensor:
    """The model that each agent follows in this query, n indices. log_likelihoods: n x K; u: n uniforms.

    mixture: index k with probability `p(y | k) / sum_j p(y | j)`; selection: the most probable one.
    """
    if gate == "selection":
        return log_likelihoods.argmax(1)
    edges = torch.softmax(log_likelihoods, 1).cumsum(1)
    return (u[:, None] >= edges[:, :-1]).sum(1)
