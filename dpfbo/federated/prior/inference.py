"""The server's inference from the noisy sum of all agents' statistics: post-processing, which costs no privacy.

With `A`, `A_n` public, D_v = diag(v), D_tau = diag(tau), released linear part b, released scalar beta and noise s:

    b ~ N(0, V),  V = A D_v A + sum_n A_n D_tau A_n + lam A + s^2 I
    E[sum y'Hy | b] = mu' A mu + tr(A S) + tr(A D_tau) + lam (number of contrasts)
    g | b ~ N(mu, S),    mu = D_v A V^-1 b,    S = D_v - D_v A V^-1 A D_v

v, tau and lam maximise the evidence of (b, beta) times weak priors around the assumed scale, which is 1 here. All of it
is computed in the eigenvectors U of `A = U diag(a) U'` that the designs reach at all, r of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.federated.prior.statistics import DesignSums
from dpfbo.gp import optimize
from dpfbo.gp.posterior import cholesky

_STARTS = (0.1, 0.5, 0.9)  # shares of variance that all agents have in common, where the search begins
_BOUND = 4.0  # standard deviations of the priors beyond which no hyper-parameter is looked for
_SHARED = (2.0, 2.0)  # mean and sd of the prior of logit(share of the variance that is common)
_VARIANCE = (0.0, 1.5)  # of log(total variance of all blocks)
_SPLIT = (0.0, 2.0)  # of each block's logarithm of its share of the variance
_NOISE = (math.log(0.03), 2.0)  # of log(lam)
_REACHED = 1e-8  # eigenvalues of A, over the largest, below which no design reaches a direction
_STOPPING = optimize.Stopping(gradient=1e-5, relative_decrease=1e-9, max_iterations=60)


@dataclass(frozen=True)
class Variances:
    """The hyper-parameters. common: v, J; own: tau, J, by block of features; noise: lam. Unit: scale^2."""

    common: Tensor
    own: Tensor
    noise: Tensor


@dataclass(frozen=True)
class Released:
    """The released sum in the units of one message.

    linear: b, M; scalar: beta / kappa; sd: noise of b's entries; scalar_sd: noise of the scalar.
    """

    linear: Tensor
    scalar: Tensor
    sd: float
    scalar_sd: float


@dataclass(frozen=True)
class CommonPosterior:
    """The posterior of the common weights.

    mean: mu, M; covariance: S, M x M; gain: `D_v A V^-1`, M x M, of b; common, own: v and tau by feature, M; noise:
    lam; own_share: the part of an objective's variance that is the agent's own.
    """

    mean: Tensor
    covariance: Tensor
    gain: Tensor
    common: Tensor
    own: Tensor
    noise: Tensor
    own_share: float


def reached(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (r) and eigenvectors (M x r) of A, without the directions that no design reaches."""
    a, U = torch.linalg.eigh(A)
    kept = a > _REACHED * a[-1]
    return a[kept], U[:, kept]


def floor(a: Tensor) -> Tensor:
    """The variance that every direction of a release has at least; a: eigenvalues in ascending order."""
    return _REACHED * a[-1]


class Evidence:
    """The evidence of a release, as a function of theta.

    theta: logit of the common share of the variance, log variance, the J - 1 log ratios of the blocks' variances to the
    first one's, and log lam unless it is given. noise: lam in units of scale^2, None to infer it.
    """

    def __init__(self, released: Released, sums: DesignSums, noise: float | None) -> None:
        self.released, self.sums = released, sums
        self.blocks, self.noise = len(sums.squares), noise
        self.a, self.U = reached(sums.A)
        AU = (self.U * self.a).unflatten(0, (self.blocks, -1))  # J x m x r
        self.common = AU.mT @ AU  # U' A E_j A U, J x r x r
        self.own = self.U.T @ sums.squares @ self.U  # J x r x r
        self.b = self.U.T @ released.linear
        self.traces = sums.A.diagonal().unflatten(0, (self.blocks, -1)).sum(1)  # tr(A E_j)
        inferred = [] if noise is not None else [_NOISE]
        prior = [_SHARED, _VARIANCE, *[_SPLIT] * (self.blocks - 1), *inferred]
        self.centre, self.sd = torch.tensor(prior, dtype=torch.float64, device="cpu").T

    def variances(self, theta: Tensor) -> Variances:
        """Hyper-parameters from theta, b x p. A block of J has J times its part: its features have norm 1 / sqrt(J)."""
        first = torch.zeros_like(theta[:, :1])
        split = torch.softmax(torch.cat([first, theta[:, 2 : 1 + self.blocks]], 1), 1) * self.blocks
        total, share = theta[:, 1:2].exp() * split, torch.sigmoid(theta[:, :1])
        noise = theta[:, -1].exp() if self.noise is None else torch.full_like(theta[:, 0], self.noise)
        return Variances(share * total, (1 - share) * total, noise)

    def covariance(self, h: Variances) -> tuple[Tensor, Tensor]:
        """`U' A D_v A U` and `U' V U`, each b x r x r."""
        C = torch.einsum("bj,jkl->bkl", h.common, self.common)
        diagonal = h.noise[:, None] * self.a + self.released.sd**2 + floor(self.a)
        return C, C + torch.einsum("bj,jkl->bkl", h.own, self.own) + torch.diag_embed(diagonal)

    def log_density(self, theta: Tensor) -> Tensor:
        """Log evidence of b and of the scalar, plus the log priors, b values."""
        h = self.variances(theta)
        C, V = self.covariance(h)
        L, _ = torch.linalg.cholesky_ex(V)
        w = torch.cholesky_solve(self.b[None, :, None].expand(len(L), -1, 1), L)  # V^-1 b
        evidence = -0.5 * (w.squeeze(-1) @ self.b) - L.diagonal(dim1=1, dim2=2).log().sum(1)
        doubled = (C / self.a) @ C  # U' A D_v A D_v A U
        known = (w.mT @ doubled @ w).flatten() - torch.cholesky_solve(doubled, L).diagonal(dim1=1, dim2=2).sum(1)
        expected = known + (h.common + h.own) @ self.traces + h.noise * self.sums.contrasts  # of the scalar
        variance = self.released.scalar_sd**2 + 2 * expected.square() / self.sums.contrasts
        scalar = -0.5 * ((self.released.scalar - expected).square() / variance + variance.log())
        return evidence + scalar - 0.5 * ((theta - self.centre) / self.sd).square().sum(1)

    def posterior(self, theta: Tensor) -> CommonPosterior:
        """The posterior at one theta, p."""
        h = self.variances(theta[None])
        _, V = self.covariance(h)
        v, tau = (x[0].repeat_interleave(len(self.sums.A) // self.blocks) for x in (h.common, h.own))
        vAU = v[:, None] * (self.U * self.a)  # D_v A U, M x r
        solved = torch.cholesky_solve(vAU.T, cholesky(V)[0])  # V^-1 U' A D_v
        S = torch.diag_embed(v) - vAU @ solved
        gain = solved.T @ self.U.T
        return CommonPosterior(
            gain @ self.released.linear, 0.5 * (S + S.T), gain, v, tau, h.noise[0], float(torch.sigmoid(-theta[0]))
        )


def infer(released: Released, sums: DesignSums, noise: float | None = None) -> CommonPosterior:
    """The posterior of the common weights at the hyper-parameters of largest posterior density; see `Evidence`."""
    evidence = Evidence(released, sums, noise)

    def negative(theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, None]:
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            value = -evidence.log_density(theta)
            (gradient,) = torch.autograd.grad(value.sum(), theta)
        return value.detach(), gradient, None

    start = evidence.centre.repeat(len(_STARTS), 1)
    start[:, 0] = torch.logit(torch.tensor(_STARTS, dtype=torch.float64, device="cpu"))
    low, high = ((evidence.centre + side * _BOUND * evidence.sd).expand_as(start) for side in (-1, 1))
    step = torch.ones(len(start), dtype=torch.float64, device="cpu")
    theta, value = optimize.minimize(negative, start, low, high, step, _STOPPING)
    return evidence.posterior(theta[value.argmin()])
