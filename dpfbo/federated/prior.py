"""The private prior: the agents' messages of norm 1, and the posterior of the shared function given their noisy sum.

Let `Psi_n` (n_init x M) be the features at agent n's public initial points, q_n the normal scores of its observations
there, and `H = I - 11'/n_init` the centring matrix. The agent sends a message of norm 1; the sum has sensitivity 1, and
nothing is clipped:

    s_n = Psi_n' H q_n / |Psi_n' H q_n|

The model of agent n's objective is linear in the features, with the weights `g + h_n`. All agents share g, with prior
covariance `rho kappa_l D_l`; h_n is the agent's own, with covariance `(1 - rho) kappa_l D_l`. The number rho is the
shared fraction of the variance. D_l is the covariance of the weights of GP draws with the SE kernel of length-scale l.
Let `A_n = Psi_n' H Psi_n`, `A = sum_n A_n` and `Q_l = sum_n A_n D_l A_n`. The model replaces the message s_n by
`A_n (g + h_n)`. The scale `kappa_l = N / tr(Q_l)` makes the mean squared norm of these N vectors 1. The model of the
released sum b, with noise of sd s, is

    b ~ N(0, V),    V = kappa_l (rho A D_l A + (1 - rho) Q_l) + s^2 I

The posterior of g is

    g | b ~ N(G b, rho kappa_l (D_l - G A D_l)),    G = rho kappa_l D_l A V^-1

This mean and this covariance are averaged over rho and l, weighted by the evidence of b. The initial points are public,
so this inference is a post-processing of b.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.gp import batches
from dpfbo.gp.averaged_gp import KnownMean, normal_scores
from dpfbo.gp.design import Design
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.gp.posterior import cholesky

FEATURES = 80  # M
_BLOCK = 2_000_000  # most numbers in the features of designs that are in memory at once
_SHARED = torch.arange(10, dtype=torch.float64, device="cpu") / 10  # the values of rho to average over
_TRUST = 6.0  # prior weight, after n_init observations, of a model with a shared mean that explains all variance
_LEAST_WEIGHT = 1e-9  # models with a smaller prior weight are left out
_ROUNDING = 1e-12  # messages have norm 1 less this, so that rounding makes none longer than the clip norm
_TYPICAL = 0.7  # typical shared fraction of an objective's variance on tuning problems (docs/concepts/prior.md)
_LEAST_NOISE = 0.01  # least standard deviation of the noise that inference assumes


def messages(psi: Tensor, y: Tensor) -> Tensor:
    """Return the agents' messages to the server of the private prior, n x M.

    The message of an agent is zero if all observations of this agent are equal.

    psi: the features at the agents' initial points, n x n_init x M; y: the observations there, n x n_init.
    """
    q = normal_scores(y)  # their mean is 0
    linear = (centred(psi).mT @ q.unsqueeze(-1)).squeeze(-1)
    norm = linear.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, (1 - _ROUNDING) * linear / norm.clamp(min=torch.finfo(norm.dtype).tiny), 0.0)


def centred(psi: Tensor) -> Tensor:
    """Return `H Psi`: the features psi, n x k x M, less their mean over an agent's k points."""
    return psi - psi.mean(1, keepdim=True)


@dataclass(frozen=True)
class DesignSums:
    """The public sums A (M x M) and Q_l (L x M x M for L length-scales) over the designs of all N agents.

    `A = sum_n A_n` and `Q_l = sum_n A_n D_l A_n`, where `A_n = Psi_n' H Psi_n` and `H Psi_n` are the centred features
    at agent n's initial points. D_l is the covariance of the weights of GP draws with length-scale l.
    """

    n_agents: int
    A: Tensor
    Q: Tensor

    @property
    def kappa(self) -> Tensor:
        """The L numbers `kappa_l` that scale the prior covariance so that messages have a mean squared norm of 1."""
        return self.n_agents / self.Q.diagonal(dim1=1, dim2=2).sum(1)

    @staticmethod
    @batches.one_thread()  # so that every machine rounds alike
    def of(design: Design, features: NystromFeatures, n_agents: int) -> "DesignSums":
        """Compute the sums over the designs of agents 0..N-1."""
        n, D = 0, features.coefficients
        A, Q = torch.zeros_like(D[0]), torch.zeros_like(D)
        size = max(1, _BLOCK // (design.n_init * features.size))
        for ids in torch.arange(n_agents, device="cpu").split(size):
            psi = features(design.points(ids))
            Z = centred(psi)  # A_n = Z' Z
            flat = Z.flatten(0, 1)
            A += flat.T @ flat
            for q, d in zip(Q, D, strict=True):
                q += flat.T @ ((Z @ d @ Z.mT) @ Z).flatten(0, 1)
            n += len(psi)
        return DesignSums(n, A, Q)


def infer(values: Tensor, b: Tensor, noise: float, sums: DesignSums, features: NystromFeatures) -> SharedPrior:
    """Infer the posterior of the shared function from the noisy sum of all messages.

    Args:
        values: The release, 1 x M, which is stored in the result. The inference itself uses only b.
        b: The noisy sum of all messages, M, computed from the release.
        noise: The standard deviation of the noise in b.
        sums: The public sums over all designs.
        features: The map of the M features.

    Returns:
        The posterior of the shared function, in units of an objective's standard deviation.
    """
    D, A, rho = features.coefficients, sums.A, _SHARED.to(b)
    kappa = sums.kappa  # L
    unit = features.mean_variance(D)  # L; kappa D_l is in units of a message, D_l / unit in those of an objective
    AD = A @ D  # L x M x M
    V = rho[:, None, None] * (AD @ A)[:, None] + (1 - rho)[:, None, None] * sums.Q[:, None]  # L x R x M x M
    V = kappa[:, None, None, None] * V
    V.diagonal(dim1=2, dim2=3).add_(max(noise, _LEAST_NOISE) ** 2)
    root = cholesky(V.flatten(0, 1)).view_as(V)
    sides = torch.cat([b[:, None].expand(len(D), -1, 1), AD], 2)[:, None].expand(-1, len(rho), -1, -1)
    white = torch.linalg.solve_triangular(root, sides, upper=False)
    b_white, AD_white = white[..., 0], white[..., 1:]
    evidence = -0.5 * b_white.square().sum(2) - root.diagonal(dim1=2, dim2=3).log().sum(2)
    p = torch.softmax(evidence.flatten(), 0).view_as(evidence)  # L x R
    mean = (AD_white.mT @ b_white.unsqueeze(-1))[..., 0]  # D A V^-1 b
    mean = torch.einsum("lr,lrm->m", p * rho * (kappa / unit).sqrt()[:, None], mean)
    weight = p * rho.square() * (kappa / unit)[:, None]
    explained = torch.einsum("lr,lrij->ij", weight, AD_white.mT @ AD_white)
    shared = (p * rho).sum(1)  # L
    left = torch.einsum("l,lij->ij", shared / unit, D) - explained
    share = features.mean_variance(explained[None])[0].clamp(0, 1)
    triangle = left[*torch.tril_indices(*left.shape, device=left.device)]
    return SharedPrior(values, mean, triangle, p.sum(1), shared.sum(), share)


def expected_signal(sums: DesignSums, features: NystromFeatures, noise: float) -> float:
    """Return the expected correlation, from 0 to 1, of two posterior means of the shared function.

    The first mean is inferred from the noisy sum of the messages, and the second from the exact sum. The squared
    correlation is the variance of the first mean divided by the variance of the second. Both variances are computed
    from public values, for objectives that are GP draws and share 70 % of their variance. Both variances are averaged
    over the length-scales of the GPs: the list `features.lengthscales`, of L numbers, without its first and its last
    `floor(L / 4)` numbers.
    """
    D = features.coefficients
    middle = slice(len(D) // 4, len(D) - len(D) // 4)
    kappa, D, Q = (x[middle] for x in (sums.kappa, D, sums.Q))
    AD = sums.A @ D
    unit, explained = kappa / features.mean_variance(D), []
    for sd in (noise, 0.0):
        V = kappa[:, None, None] * (_TYPICAL * AD @ sums.A + (1 - _TYPICAL) * Q)
        V.diagonal(dim1=1, dim2=2).add_(max(sd, _LEAST_NOISE) ** 2)
        white = torch.linalg.solve_triangular(cholesky(V), AD, upper=False)
        explained.append(float((unit * features.mean_variance(white.mT @ white)).sum()))
    return min((explained[0] / explained[1]) ** 0.5, 1.0)


@lru_cache(maxsize=2)
def symmetric(triangle: Tensor, M: int) -> Tensor:
    """Return the symmetric M x M matrix with this lower triangle, M (M + 1) / 2 numbers by rows."""
    whole = triangle.new_zeros(M, M)
    i, j = torch.tril_indices(M, M, device=triangle.device)
    whole[i, j] = whole[j, i] = triangle
    return whole


def known_mean(prior: SharedPrior, n_init: int, t: int) -> KnownMean:
    """Return the shared mean as a `KnownMean`, with the prior weights of the models that use the shared mean.

    For each length-scale l, there are models with and without the shared mean. After t observations, the prior weight
    of a model with length-scale l and the shared mean is `w_l = 6 L p_l R (n_init / t)^3` times the prior weight of the
    model with the same length-scale and without the shared mean. L is the number of length-scales, and p_l is the
    probability of length-scale l given the release. R is the fraction of an objective's variance that the release
    explains. As t grows, w_l falls, like the weight of a user's prior in piBO (Hvarfner et al., ICLR 2022).
    """
    covariance = symmetric(prior.covariance, len(prior.mean))
    weights = _TRUST * (n_init / t) ** 3 * len(prior.evidence) * prior.evidence * prior.explained
    return KnownMean(prior.mean, covariance, 1 - prior.shared, weights.where(weights >= _LEAST_WEIGHT, 0.0).log())
