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

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.rotated import Observed, Rotated
from dpfbo.federated.prior.statistics import added, centred
from dpfbo.gp import batches
from dpfbo.gp.posterior import cholesky


@dataclass(frozen=True)
class Transfer:
    """The shared prior beside the observations of some agents.

    prior: the broadcast. points: where they observed. z: n x t, observations in units of scale; mean: n x M, each
    agent's prior mean, without what its own message told the server.
    """

    model: PriorModel
    prior: SharedPrior
    points: Observed
    z: Tensor
    mean: Tensor

    @staticmethod
    def of(
        model: PriorModel, prior: SharedPrior, Phi: Tensor, y: Tensor, n_init: int, points: Observed | None = None
    ) -> "Transfer":
        """The transfer to n agents.

        y: n x t; the first n_init observations are at the public design. Phi: n x t x M. points: the t observed ones;
        then Phi needs those observations only that the agents' messages told of.
        """
        if points is None:
            rotated = Rotated(prior, len(Phi), y.shape[1], n_init)
            points = rotated.observed(y.shape[1], lambda a, b: Phi[:, a:b])
        mean = prior.mean.expand(len(Phi), -1)
        if model.leave_own_out:
            expected = points.values(prior.mean[None])
            mean = mean - batches.product(_told(model, prior, Phi, y, n_init, expected), prior.gain.mT)
        return Transfer(model, prior, points, y / model.scale, mean)

    def select(self, rows: Tensor) -> "Transfer":
        """The same of some agents."""
        return Transfer(self.model, self.prior, self.points.select(rows), self.z[rows], self.mean[rows])

    @property
    def models(self) -> tuple[Tensor, Tensor]:
        """For each model: 1 with transfer or 0 without, and the factor of `X X'`; K each."""
        factors = torch.tensor(self.model.residuals, dtype=self.z.dtype, device=self.z.device)
        shared = torch.ones_like(factors)
        if not self.model.tries("features"):
            return shared, factors
        return torch.cat([shared, 0 * shared[:1]]), torch.cat([factors, self.prior.alone[None]])

    def log_likelihoods(self) -> Tensor:
        """Log restricted likelihood of each agent's observations under each of `models`, n x K."""
        expected = self.points.values(self.mean)
        pairs = zip(*self.models, strict=True)
        found = [restricted_likelihood(self._factors(s[None], a[None]), self.z - s * expected) for s, a in pairs]
        return torch.stack(found, 1)

    def draw(self, index: Tensor, w0: Tensor, e: Tensor, c: Tensor) -> Tensor:
        """Posterior draws of r by Matheron's rule, n x M, in units of scale; `X r` are the agents' weights.

        index: n, into `models`. w0: n x M, e: n x t, c: n standard normals for the prior's weights, the noise, and the
        agent's constant. The first are in the weights' own coordinates: eigenvectors have any sign, and of equal
        eigenvalues any basis, so that rounding would decide what a number drawn in theirs means.
        """
        shared, factor = (x[index] for x in self.models)
        d = shared[:, None] * self.prior.spectrum + factor[:, None]  # n x M
        L, mean = self._factors(shared, factor), shared[:, None] * self.mean
        start = mean + d.sqrt() * batches.product(w0, self.prior.directions)
        residual = self.z - self.points.values(mean)
        white = torch.linalg.solve_triangular(L, torch.stack([residual, torch.ones_like(residual)], -1), upper=False)
        r, one = white.unbind(-1)
        precision = one.square().sum(1)  # 1' K^-1 1
        constant = (one * r).sum(1) / precision + c * precision.rsqrt()
        left = self.z - constant[:, None] - self.points.values(start) - self.prior.noise.sqrt() * e
        solved = torch.cholesky_solve(left.unsqueeze(-1), L)
        return start + d * self.points.sums(solved.squeeze(-1))

    def weights(self, r: Tensor) -> Tensor:
        """The weights `X r`, n x M."""
        return batches.product(r, self.prior.rotation.mT)

    def _factors(self, shared: Tensor, factor: Tensor) -> Tensor:
        """Cholesky factors of the observations' covariance, n x t x t. shared, factor: n or 1, as in `models`."""
        K = shared[:, None, None] * self.points.common + factor[:, None, None] * self.points.own
        K.diagonal(dim1=1, dim2=2).add_(self.prior.noise)
        return cholesky(K)


def _told(model: PriorModel, prior: SharedPrior, Phi: Tensor, y: Tensor, n_init: int, expected: Tensor) -> Tensor:
    """Each agent's k messages as the server took them, less what its posterior mean expects of them, n x kM.

    expected: n x t, that mean at the observed points.
    """
    statistics, M, parts = model.statistics, Phi.shape[2], []
    for i in range(prior.gain.shape[1] // M):
        rows = n_init + i
        if i == 0:
            message, gain = statistics.messages(Phi[:, :rows], y[:, :rows]), 1.0
            fitted = (Phi[:, :rows].mT @ centred(expected[:, :rows]).unsqueeze(-1)).squeeze(-1)
        else:
            message, gain = statistics.later_messages(Phi[:, :rows], y[:, :rows], n_init), statistics.later_gain(n_init)
            fitted = added(expected[:, :rows])[:, None] * added(Phi[:, :rows])
        norm = message.norm(dim=1, keepdim=True)
        kept = (prior.clip_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)  # n x 1
        kept = torch.where(norm.isfinite(), kept, 0.0)  # the server took a message that is not finite for zeros
        message = torch.where(norm.isfinite(), message, 0.0)
        parts.append(kept * (message[:, :-1] / gain - fitted))
    return torch.cat(parts, 1)


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
