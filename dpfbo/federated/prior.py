"""The private prior: an agent's message of norm 1, and what the sum of all messages says about the shared function.

With `Psi_n` (n_init x M) the features of agent n's public design, `H = I - 11'/n_init` and q_n the normal scores of the
agent's first observations, the message is

    s_n = Psi_n' H q_n / |Psi_n' H q_n|,    so that the sum has sensitivity 1 and nothing is clipped.

An objective's weights are taken for `g + h_n`, with covariances `rho kappa D_l` of what all agents share and
`(1 - rho) kappa D_l` of an agent's own, D_l that of the kernel of length-scale l. With `A_n = Psi_n' H Psi_n`,
`A = sum_n A_n`, `Q_l = sum_n A_n D_l A_n` and `kappa_l = N / tr(Q_l)`, which makes messages as long as they are, the
released sum b with noise of standard deviation s is

    b ~ N(0, V),    V = kappa (rho A D_l A + (1 - rho) Q_l) + s^2 I

and g given b has mean `G b` with `G = rho kappa D_l A V^-1` and covariance `rho kappa D_l - G A D_l rho kappa`. rho
and l are averaged by the evidence of b. Designs are public: all of this is a post-processing of the release.
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
_BLOCK = 2_000_000  # features of the public design that are held at once
_SHARED = torch.arange(10, dtype=torch.float64, device="cpu") / 10  # the rho that are averaged
_TRUST = 6.0  # prior weight of each model that uses a mean which explains everything, before any observation
_LEAST_WEIGHT = 1e-9  # prior weight below which a model is left out
_ROUNDING = 1e-12  # by so much messages are shorter than 1, so that rounding makes none longer than the clip norm
_TYPICAL = 0.7  # part of an objective's variance that is shared, on tuning problems (docs/concepts/prior.md)
_LEAST_NOISE = 0.01  # least standard deviation of the noise that inference assumes


def messages(psi: Tensor, y: Tensor) -> Tensor:
    """The messages, n x M; zero if an agent's observations are all equal. psi: n x n_init x M; y: n x n_init."""
    q = normal_scores(y)  # their mean is 0
    linear = (centred(psi).mT @ q.unsqueeze(-1)).squeeze(-1)
    norm = linear.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, (1 - _ROUNDING) * linear / norm.clamp(min=torch.finfo(norm.dtype).tiny), 0.0)


def centred(psi: Tensor) -> Tensor:
    """`H Psi`, n x k x M."""
    return psi - psi.mean(1, keepdim=True)


@dataclass(frozen=True)
class DesignSums:
    """Public sums over all N agents. A: M x M; Q: L x M x M."""

    n_agents: int
    A: Tensor
    Q: Tensor

    @property
    def kappa(self) -> Tensor:
        """The variances, L, of weights with covariance D_l by which messages have norm 1 on average."""
        return self.n_agents / self.Q.diagonal(dim1=1, dim2=2).sum(1)

    @staticmethod
    @batches.one_thread()  # the same last digits on every machine
    def of(design: Design, features: NystromFeatures, n_agents: int) -> "DesignSums":
        """Add up the designs of agents 0..N-1, of as many at once as fit the memory for it."""
        n, D = 0, features.coefficients()
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
    """The shared function given a released sum.

    Args:
        values: The release as the server broadcasts it, 1 x M.
        b: The noisy sum of all messages, M.
        noise: The standard deviation of its noise.
        sums: The public sums of all designs.
        features: The features.

    Returns:
        The broadcast; its mean and covariance are in units of an objective's standard deviation.
    """
    D, A, rho = features.coefficients(), sums.A, _SHARED.to(b)
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
    """The part of a release's mean that the noise is expected to leave, from 0 to 1, by public numbers alone.

    It is the root of the part of an objective's variance that the mean explains on average, over the same part without
    noise: the correlation of both means. The objectives are taken for draws from the model's middle length-scales that
    share 70 % of their variance.
    """
    D = features.coefficients()
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
    """The symmetric M x M matrix with this lower triangle."""
    whole = triangle.new_zeros(M, M)
    i, j = torch.tril_indices(M, M, device=triangle.device)
    whole[i, j] = whole[j, i] = triangle
    return whole


def known_mean(prior: SharedPrior, n_init: int, t: int) -> KnownMean:
    """The mean, covariance and weights that the models of an agent with t observations take from the broadcast.

    Models that use the shared mean have the prior weight `6 L p_l R (n_init / t)^3`: p_l is the evidence of their
    length-scale, and R the part of an objective's variance that the release explains, so that a release of noise is
    not used. Like the weights of a user's prior in piBO (Hvarfner et al., ICLR 2022), they fall as observations come
    in, so that a shared mean that misleads does so for a while only.
    """
    covariance = symmetric(prior.covariance, len(prior.mean))
    weights = _TRUST * (n_init / t) ** 3 * len(prior.evidence) * prior.evidence * prior.explained
    return KnownMean(prior.mean, covariance, 1 - prior.shared, weights.where(weights >= _LEAST_WEIGHT, 0.0).log())
