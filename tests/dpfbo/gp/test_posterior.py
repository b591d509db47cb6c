"""The message of an agent: the law of eq. 2, and the linear algebra behind it."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfbo.gp.features import shared_features
from dpfbo.gp.posterior import FactorisationError, cholesky, sample_weights


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def eye(t: int) -> Tensor:
    return torch.eye(t, dtype=torch.float64)


def some_features(t: int, M: int, lengthscale: float, seed: int = 0) -> Tensor:
    u = torch.rand(1, t, 2, dtype=torch.float64, generator=generator(seed))
    return shared_features(M, 2, lengthscale, np.random.default_rng(seed))(u)  # 1 x t x M


def eq_2(Phi: Tensor, y: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """Mean nu and covariance lam Sigma^-1 of eq. 2, from its own M x M matrix (Phi: t x M)."""
    Sigma = Phi.T @ Phi + lam * eye(Phi.shape[1])
    return torch.linalg.solve(Sigma, Phi.T @ y), lam * torch.linalg.inv(Sigma)


@pytest.mark.parametrize(
    ("t", "M", "lam", "lengthscale"),
    [(6, 8, 0.1, 0.5), (1, 5, 0.01, 0.2), (20, 6, 0.3, 0.3), (12, 10, 1e-3, 2.0)],
)
def test_a_message_has_the_law_of_eq_2(t: int, M: int, lam: float, lengthscale: float) -> None:
    """40000 messages at once: every entry of mean and covariance within 5 standard errors."""
    n = 40_000
    Phi, y = some_features(t, M, lengthscale), normals(1, t, seed=1)
    L = cholesky(Phi @ Phi.mT + lam * eye(t))
    w0, e = normals(n, M, seed=2), math.sqrt(lam) * normals(n, t, seed=3)
    omega = sample_weights(Phi.expand(n, -1, -1), L.expand(n, -1, -1), y.expand(n, -1), w0, e)
    assert omega.shape == (n, M)

    nu, C = eq_2(Phi[0], y[0], lam)
    centred = omega - nu
    mean_error = (C.diagonal() / n).sqrt()
    assert torch.all(centred.mean(0).abs() < 5 * mean_error)
    covariance_error = ((torch.outer(C.diagonal(), C.diagonal()) + C**2) / n).sqrt()
    assert torch.all((centred.T @ centred / n - C).abs() < 5 * covariance_error)

    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(C), centred.T, upper=False)  # N(0, I) if right
    kurtosis = (whitened**4).mean(1)
    assert torch.all((kurtosis - 3).abs() < 5 * math.sqrt(96 / n))


@pytest.mark.parametrize(("t", "M", "lam"), [(1, 5, 0.01), (10, 50, 0.01), (60, 20, 0.1), (15, 100, 1e-4)])
def test_without_noise_the_message_is_the_posterior_mean(t: int, M: int, lam: float) -> None:
    Phi, y = some_features(t, M, 0.3), normals(1, t, seed=1)
    L = cholesky(Phi @ Phi.mT + lam * eye(t))
    zero = torch.zeros(1, M, dtype=torch.float64)
    nu, _ = eq_2(Phi[0], y[0], lam)
    omega = sample_weights(Phi, L, y, zero, torch.zeros_like(y))[0]
    assert float((omega - nu).norm()) <= 1e-9 * float(nu.norm())


def test_a_message_is_affine_in_targets_and_noise() -> None:
    """`omega(y, w0, e) = nu(y - e) + omega(0, w0, 0)`: the observation noise is subtracted, not added."""
    Phi, y, w0, e = some_features(7, 9, 0.3), normals(1, 7, seed=1), normals(1, 9, seed=2), normals(1, 7, seed=3)
    L = cholesky(Phi @ Phi.mT + 0.1 * eye(7))
    none = torch.zeros_like(y)
    whole = sample_weights(Phi, L, y, w0, e)
    nu, _ = eq_2(Phi[0], (y - e)[0], 0.1)
    assert torch.allclose(whole, nu + sample_weights(Phi, L, none, w0, none), rtol=0, atol=1e-11)


def test_a_batch_of_messages_equals_one_by_one() -> None:
    N, t, M = 7, 9, 12
    Phi = torch.cat([some_features(t, M, 0.3, seed) for seed in range(N)])
    L = cholesky(Phi @ Phi.mT + 0.01 * eye(t))
    y, w0, e = normals(N, t, seed=1), normals(N, M, seed=2), normals(N, t, seed=3)
    batch = sample_weights(Phi, L, y, w0, e)
    for n in range(N):
        k = slice(n, n + 1)
        alone = sample_weights(Phi[k], cholesky(Phi[k] @ Phi[k].mT + 0.01 * eye(t)), y[k], w0[k], e[k])
        assert torch.allclose(alone[0], batch[n], rtol=0, atol=1e-12)


def test_inputs_are_not_changed() -> None:
    Phi, y, w0, e = some_features(5, 8, 0.3), normals(1, 5), normals(1, 8), normals(1, 5)
    K = Phi @ Phi.mT + 0.1 * eye(5)
    inputs = [Phi, y, w0, e, K]
    before = [a.clone() for a in inputs]
    L = cholesky(K)
    sample_weights(Phi, L, y, w0, e)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_cholesky_of_a_good_matrix_has_no_jitter() -> None:
    K = some_features(8, 20, 0.3) @ some_features(8, 20, 0.3).mT + 1e-2 * eye(8)
    assert torch.equal(cholesky(K), torch.linalg.cholesky(K))


def test_cholesky_of_a_singular_matrix_adds_no_more_than_it_says() -> None:
    """At most 1e-8 of the mean diagonal, and nothing off the diagonal."""
    K = 50 * torch.ones(1, 4, 4, dtype=torch.float64)
    L = cholesky(K)
    added = L @ L.mT - K
    assert torch.all(added.diagonal(dim1=1, dim2=2) <= 1.001e-8 * 50)
    assert torch.all((added - torch.diag_embed(added.diagonal(dim1=1, dim2=2))).abs() < 1e-12)


def test_one_agent_in_need_of_jitter_does_not_change_the_others() -> None:
    """Otherwise an agent's numbers would depend on the agents that share its batch, shard or machine."""
    good = some_features(6, 20, 0.3) @ some_features(6, 20, 0.3).mT + 1e-2 * eye(6)
    singular = torch.ones(1, 6, 6, dtype=torch.float64)
    alone, together = cholesky(good), cholesky(torch.cat([good, singular]))
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1], cholesky(singular)[0])


@pytest.mark.parametrize(
    "bad",
    [
        torch.tensor([[1.0, 2.0], [2.0, 1.0]]),
        torch.tensor([[-1.0, 0.0], [0.0, -1.0]]),
        torch.tensor([[1.0, 0.0], [0.0, -1e-6]]),
        torch.tensor([[1.0, math.nan], [math.nan, 1.0]]),
        torch.tensor([[math.inf, 0.0], [0.0, 1.0]]),
        torch.zeros(2, 2),
    ],
    ids=["indefinite", "negative", "slightly negative", "nan", "inf", "zero"],
)
def test_a_matrix_that_is_not_positive_definite_is_refused(bad: Tensor) -> None:
    with pytest.raises(FactorisationError, match="1 of 3 Gram matrices are not positive definite"):
        cholesky(torch.stack([eye(2), bad.double(), 2 * eye(2)]))
    assert issubclass(FactorisationError, ArithmeticError)
