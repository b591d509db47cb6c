"""Squared-exponential kernels, and Nystroem features of their average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.gp import batches
from dpfbo.space.domain import Domain, embedded
from dpfbo.space.mixed import MixedBox

_MOST = 4096  # largest number of features: several matrices of this size are factorised
_JITTER = 1e-4  # added to the diagonal of the kernel matrix of the inducing points


def scaled_kernels(a: Tensor, b: Tensor, lengthscales: Sequence[float]) -> Tensor:
    """Compute SE kernels whose length-scales grow with the dimension, `exp(-|x - x'|^2 / (2 l^2 D / 3))`.

    Distances in the unit cube also grow like sqrt(D), so the same length-scales suit every dimension D.

    Args:
        a: Points in the unit cube, or in the embedding of a `MixedBox`, `... x n x D`.
        b: Points of the same space, `... x m x D`.
        lengthscales: The L length-scales l.

    Returns:
        `... x L x n x m`.

    Example:
        >>> x = torch.tensor([[0.0], [0.5]])
        >>> scaled_kernels(x, x, [0.5])[0, 0, 1]
        tensor(0.2231)
    """
    squares = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
    scale = torch.tensor([-1.5 / (l * l * a.shape[-1]) for l in lengthscales], dtype=a.dtype, device=a.device)
    return (squares.unsqueeze(-3) * scale[:, None, None]).exp()


@dataclass(frozen=True)
class NystromFeatures:
    """The map `psi(x) = R^-1 k(U, x)` with `k(U, U) = R R'`, so that `psi(x) . psi(x')` approximates k (Williams 2001).

    k is the mean of `scaled_kernels`, and U are the first M points of a Sobol sequence. The map is public: it depends
    on the domain and on settings alone.

    Args:
        inducing: The points U, embedded if `space` is given, M x D.
        root: R, M x M.
        lengthscales: The length-scales of the kernels.
        space: The domain if it is a box with discrete axes: its points are embedded into D coordinates before k is
            computed. None for other domains.

    Example:
        >>> from dpfbo.space.domain import Box
        >>> features = NystromFeatures.of(Box((0.0,), (1.0,)), 20, (0.2, 0.4))
        >>> psi = features(torch.tensor([[[0.3], [0.4]]]).double())
        >>> psi.shape, round(float(psi[0, 0] @ psi[0, 0]), 2)
        (torch.Size([1, 2, 20]), 1.0)
    """

    inducing: Tensor
    root: Tensor
    lengthscales: tuple[float, ...]
    space: MixedBox | None = None

    @staticmethod
    def of(domain: Domain, n_features: int, lengthscales: Sequence[float]) -> NystromFeatures:
        """Make the map for a domain, in float64 on the CPU."""
        checks.integer("n_features", n_features, minimum=2, maximum=_MOST)
        u = torch.quasirandom.SobolEngine(domain.dimension).draw(n_features, dtype=torch.float64)
        space = domain if isinstance(domain, MixedBox) else None
        U = embedded(domain, u if space is None else space.snap(u))
        K = scaled_kernels(U, U, lengthscales).mean(0)
        K.diagonal().add_(_JITTER)
        return NystromFeatures(U, torch.linalg.cholesky(K), tuple(lengthscales), space)

    @property
    def size(self) -> int:
        return len(self.inducing)

    def __call__(self, u: Tensor) -> Tensor:
        """Compute the features of unit-cube points, `B x k x D -> B x k x M`."""
        x = u if self.space is None else self.space.embed(u)
        points = x.flatten(0, 1)
        k = scaled_kernels(self.inducing, batches.padded(points), self.lengthscales).mean(0)  # M x n
        psi = torch.linalg.solve_triangular(self.root, k, upper=False).mT
        return psi[: len(points)].unflatten(0, u.shape[:2])

    @cached_property
    def coefficients(self) -> Tensor:
        """The prior covariance of the weights w under each of the L kernels, L x M x M.

        The weights of a GP draw f are `w = R^-1 f(U)`, so that `psi . w` equals f at the points U.
        """
        K = scaled_kernels(self.inducing, self.inducing, self.lengthscales)
        half = torch.linalg.solve_triangular(self.root, K, upper=False)  # R^-1 K_l
        return torch.linalg.solve_triangular(self.root, half.mT, upper=False)

    def mean_variance(self, covariances: Tensor) -> Tensor:
        """Return L numbers: the variance of `psi . w` over the points U, averaged over w ~ N(0, C).

        covariances: L x M x M, one matrix C for each result.
        """
        K = self.root @ covariances @ self.root.mT
        return K.diagonal(dim1=1, dim2=2).mean(1) - K.mean((1, 2))

    def to(self, device: torch.device) -> NystromFeatures:
        """Copy the map to another device."""
        return NystromFeatures(self.inducing.to(device), self.root.to(device), self.lengthscales, self.space)
