"""Releases after the first: their public points, and inference from all releases together.

In round i = 1..k-1 every agent queries the maximiser of a draw of what is shared, from the prior that was broadcast in
round i - 1 and the run's public seed. Its point is therefore public. Its message is what that one observation adds to
its statistics; with m earlier observations, means over them, and y in units of `scale`,

    Phi_n' H y_n  grows by  u w,    u = sqrt(m / (m + 1)) (phi - mean phi),    w = sqrt(m / (m + 1)) (y - mean y),

and `A_n` by `u u'`. The noise of w is independent of all that the agent sent before. So with `Z_0 = H Phi_n` and
`Z_i = u'` (rows) release i has the linear part

    b_i = sum_n Z_i' (Z_i (g + h_n) + N(0, lam I)) + N(0, s_i^2 I)

and the releases are dependent through g and h_n alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfbo.deprecation import experimental
from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.prior.inference import CommonPosterior, Released, floor, reached
from dpfbo.gp import batches
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.features import RandomFeatures
from dpfbo.gp.posterior import cholesky
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain
from dpfbo.space.regions import Regions


@dataclass(frozen=True)
class LaterDesign:
    """The points of the rounds that end with a later release: everybody who has the broadcasts can compute them."""

    features: RandomFeatures
    domain: Domain
    acquisition: Acquisition
    streams: Streams

    def points(self, prior: SharedPrior, agents: Tensor, t: int) -> Tensor:
        """Unit-cube points of the agents (n ids) in round t, n x D, for the prior that was broadcast in round t - 1."""
        numbers = self.streams.normal("design/weights", agents, t, len(prior.rotation))
        r = prior.mean + prior.spectrum.sqrt() * batches.product(numbers, prior.directions)
        weights = batches.product(r, prior.rotation.mT)[:, None]
        shift = self.acquisition.shift(self.domain, self.streams, "acquisition", t, agents.device)
        return self.acquisition.maximize_shared(
            self.features, weights, Regions(1, self.domain.dimension), self.domain, shift
        )


@dataclass(frozen=True)
class JointSums:
    """Public sums over all agents, for k releases with rows `Z_i`, n x k_i x M an agent.

    A: `sum Z_i' Z_i`, k x M x M. cross: `sum Z_i' Z_i D_tau Z_j' Z_j`, k x k x M x M.
    """

    A: Tensor
    cross: Tensor

    @staticmethod
    def of(parts: Iterable[Sequence[Tensor]], own: Tensor) -> "JointSums":
        """parts: `Z_0 .. Z_{k-1}` of some agents each; own: tau by feature, M."""
        total: JointSums | None = None
        for rows in parts:
            flat = [Z.flatten(0, 1) for Z in rows]
            A = torch.stack([Z.T @ Z for Z in flat])
            scaled = [Z * own for Z in rows]
            cross = torch.stack([
                torch.stack([flat[i].T @ ((scaled[i] @ rows[j].mT) @ rows[j]).flatten(0, 1) for j in range(len(rows))])
                for i in range(len(rows))
            ])  # fmt: skip
            total = JointSums(A, cross) if total is None else JointSums(total.A + A, total.cross + cross)
        if total is None:
            raise ValueError("the sums need at least one agent")
        return total


@experimental("0.1.0", "more than one release of a private prior")
def joint_posterior(first: CommonPosterior, releases: Sequence[Released], sums: JointSums) -> CommonPosterior:
    """The posterior of the common weights given all releases, with the hyper-parameters of the first one's posterior.

        V_ij = A_i D_v A_j + sum_n A_ni D_tau A_nj  (+ lam A_i + s_i^2 I if i = j),    c_i = D_v A_i
        mu = c V^-1 b,    S = D_v - c V^-1 c'

    computed in the eigenvectors of each A_i that its design reaches. gain: M x kM, of the stacked b.
    """
    bases = [reached(A) for A in sums.A]  # eigenvalues r_i, eigenvectors M x r_i
    AU = [U * a for a, U in bases]  # A_i U_i
    c = first.common[:, None] * torch.cat(AU, 1)  # M x r
    V = torch.cat(AU, 1).T @ c
    edges = torch.tensor([0] + [len(a) for a, _ in bases], device="cpu").cumsum(0).tolist()
    for i, (a, U) in enumerate(bases):
        rows = slice(edges[i], edges[i + 1])
        for j, (_, W) in enumerate(bases):
            V[rows, edges[j] : edges[j + 1]] += U.T @ sums.cross[i, j] @ W
        V[rows, rows].diagonal().add_(first.noise * a + releases[i].sd ** 2 + floor(a))
    U = torch.block_diag(*(U for _, U in bases))  # kM x r
    gain = torch.cholesky_solve(c.T, cholesky(V[None])[0]).T  # c V^-1
    S = torch.diag_embed(first.common) - gain @ c.T
    mean = gain @ (U.T @ torch.cat([r.linear for r in releases]))
    return replace(first, mean=mean, covariance=0.5 * (S + S.T), gain=gain @ U.T)
