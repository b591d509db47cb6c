"""Posterior draws of the weights of random features; an agent's message can be such a draw (Dai et al. 2021, eq. 2).

Let `Phi` be the `t x M` features of t observations y, `lam` the noise variance, and `K = Phi Phi^T + lam I`. The
posterior is `omega ~ N(nu, lam Sigma^-1)` with `Sigma = Phi^T Phi + lam I` and `nu = Sigma^-1 Phi^T y`. Matheron's rule
draws from it by

    omega = w0 + Phi^T K^-1 (y - Phi w0 - e),    w0 ~ N(0, I_M),    e ~ N(0, lam I_t).
"""

import torch
from torch import Tensor

_JITTERS = (1e-10, 1e-8)  # fractions of the mean diagonal, tried in this order on matrices that cannot be factorised


class FactorisationError(ArithmeticError):
    """A Gram matrix is not positive definite, even with jitter on its diagonal."""


def cholesky(K: Tensor) -> Tensor:
    """Compute lower Cholesky factors of `N x t x t` matrices.

    If a matrix has no factor, 1e-10 times the mean of its diagonal is added to the diagonal. If the matrix still has
    no factor, 1e-8 times the mean is added instead. Raises FactorisationError if this fails as well.
    """
    L, info = torch.linalg.cholesky_ex(K)
    failed = _failed(L, info)
    for jitter in _JITTERS:
        if len(failed) == 0:
            return L
        again = K[failed]
        scale = again.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        again = again + jitter * scale * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        L[failed], info = torch.linalg.cholesky_ex(again)
        failed = failed[_failed(L[failed], info)]
    if len(failed):
        raise FactorisationError(f"{len(failed)} of {len(K)} Gram matrices are not positive definite")
    return L


def _failed(L: Tensor, info: Tensor) -> Tensor:
    return ((info != 0) | ~torch.isfinite(L.diagonal(dim1=-2, dim2=-1)).all(-1)).nonzero()[:, 0]


def sample_weights(Phi: Tensor, L: Tensor, y: Tensor, w0: Tensor, e: Tensor) -> Tensor:
    """Compute posterior draws omega of the weights by Matheron's rule, N x M.

    Phi: N x t x M, the features; L: N x t x t, the Cholesky factor of `Phi Phi^T + lam I` with noise variance lam;
    y: N x t, the observations; w0: N x M prior draws; e: N x t noise draws. With w0 = 0 and e = 0, omega is the
    posterior mean.

    Example:
        >>> Phi, y = torch.eye(2)[None], torch.tensor([[1.0, 2.0]])
        >>> sample_weights(Phi, cholesky(2 * torch.eye(2)[None]), y, torch.zeros(1, 2), torch.zeros(1, 2))
        tensor([[0.5000, 1.0000]])
    """
    residual = y - (Phi @ w0.unsqueeze(-1)).squeeze(-1) - e  # N x t
    v = torch.cholesky_solve(residual.unsqueeze(-1), L)  # N x t x 1
    return w0 + (Phi.mT @ v).squeeze(-1)


def mean_weights(Phi: Tensor, L: Tensor, y: Tensor) -> Tensor:
    """Compute posterior means of the weights, `nu = Phi^T (Phi Phi^T + lam I)^-1 y`, N x M.

    The arguments are those of `sample_weights`.
    """
    v = torch.cholesky_solve(y.unsqueeze(-1), L)  # N x t x 1
    return (Phi.mT @ v).squeeze(-1)
