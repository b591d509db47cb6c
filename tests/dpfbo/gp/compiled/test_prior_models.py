"""Compiled likelihoods and solutions under models with an unknown constant: those of the tensor code."""

import pytest
import torch

from dpfbo.federated.prior import transfer
from dpfbo.federated.prior.transfer import own_likelihood, restricted_likelihood, solved_without_constant
from dpfbo.gp.compiled import calls
from dpfbo.gp.compiled.loading import SWITCH, library
from dpfbo.gp.hyperparameters import gram_cholesky
from dpfbo.gp.own_gp import Hyperparameters
from dpfbo.gp.posterior import cholesky

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler")
G = 60
NOISE = 0.03


def normals(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def observations(n, t, seed=0):
    """A covariance table, rows of it, residuals, and what solutions need."""
    psi = normals(G, 25, seed=5)
    index = torch.randint(0, G, (n, t), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    return psi @ psi.T, index, normals(n, t, seed=1), normals(n, t, seed=2), normals(n, seed=3)


def factors(table, index, noise=NOISE):
    rows = index.long()
    K = table[rows[:, :, None], rows[:, None, :]]
    K.diagonal(dim1=1, dim2=2).add_(noise)
    return cholesky(K)


@pytest.mark.parametrize("t", [1, 2, 7, 8, 9, 16, 17, 40, 70])
def test_tables_give_what_tensors_give(t):
    table, index, residual, rest, c = observations(50, t)
    L = factors(table, index)
    likelihoods = calls.likelihoods_on_table(table, index, NOISE, residual)
    torch.testing.assert_close(likelihoods, restricted_likelihood(L, residual), rtol=1e-9, atol=1e-9)
    solutions = calls.solutions_on_table(table, index, NOISE, residual, rest, c)
    torch.testing.assert_close(solutions, solved_without_constant(L, residual, rest, c), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("t", [1, 6, 8, 33])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_own_processes_give_what_tensors_give(t, scale, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    x = torch.rand(40, t, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
    u = torch.rand(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    hyper = Hyperparameters(0.01 * 300 ** u[0], 0.1 + u[1], 1e-3 + u[2])
    z = normals(40, t, seed=6)
    expected = restricted_likelihood(gram_cholesky(x, hyper, hyper.noise) / scale, z)
    torch.testing.assert_close(own_likelihood(x, hyper, z, scale), expected, rtol=1e-8, atol=1e-8)


def test_contrasts_alone_count():
    """Another constant changes neither likelihood nor solution."""
    table, index, residual, rest, c = observations(20, 9)
    for moved in (residual, residual + 3.0):
        torch.testing.assert_close(
            calls.likelihoods_on_table(table, index, NOISE, moved),
            calls.likelihoods_on_table(table, index, NOISE, residual),
        )
    torch.testing.assert_close(
        calls.solutions_on_table(table, index, NOISE, residual + 3.0, rest + 3.0, c),
        calls.solutions_on_table(table, index, NOISE, residual, rest, c),
    )


def test_every_agent_is_computed_by_itself():
    table, index, residual, rest, c = observations(30, 11)
    rows = torch.tensor([29, 3, 4])
    whole = calls.likelihoods_on_table(table, index, NOISE, residual)
    assert torch.equal(calls.likelihoods_on_table(table, index[rows], NOISE, residual[rows]), whole[rows])
    whole = calls.solutions_on_table(table, index, NOISE, residual, rest, c)
    part = calls.solutions_on_table(table, index[rows], NOISE, residual[rows], rest[rows], c[rows])
    assert torch.equal(part, whole[rows])


def test_a_matrix_that_is_not_positive_definite_is_not_a_number():
    table, index, residual, rest, c = observations(12, 5)
    index[4] = torch.tensor([1, 1, 2, 3, 4])
    found = calls.likelihoods_on_table(-table, index, 0.0, residual)
    assert found.isnan().all()
    table[7, 7] = -5.0
    index = torch.where(index == 7, 8, index)
    index[3, 2] = 7
    found = calls.likelihoods_on_table(table, index, NOISE, residual)
    assert found.isnan().nonzero()[:, 0].tolist() == [3]
    solved = calls.solutions_on_table(table, index, NOISE, residual, rest, c)
    assert solved[:, 0].isnan().nonzero()[:, 0].tolist() == [3]


def test_what_needs_jitter_is_left_to_the_tensor_code(monkeypatch):
    """Agents whose own covariance is singular get the likelihood of the tensor code, the others their own."""
    monkeypatch.setenv(SWITCH, "1")
    found, called = calls.likelihoods_on_line, []

    def failing(points, hyper, residual):
        values = found(points, hyper, residual)
        called.append(len(values))
        values[[1, 5]] = torch.nan
        return values

    monkeypatch.setattr(transfer.calls, "likelihoods_on_line", failing)
    x, z, ones = torch.rand(8, 4, 1, dtype=torch.float64), normals(8, 4, seed=1), torch.ones(8, dtype=torch.float64)
    hyper = Hyperparameters(0.3 * ones, ones, 0.01 * ones)
    expected = restricted_likelihood(gram_cholesky(x, hyper, hyper.noise), z)
    torch.testing.assert_close(own_likelihood(x, hyper, z, 1.0), expected, rtol=1e-9, atol=1e-9)
    assert called == [8]


@pytest.mark.parametrize("row", [-1, G])
def test_a_row_that_is_none_is_refused(row):
    table, index, residual, _, _ = observations(5, 4)
    index[2, 1] = row
    with pytest.raises(ValueError, match=f"index must hold rows of the table, 0 to {G - 1}"):
        calls.likelihoods_on_table(table, index, NOISE, residual)


def test_very_small_and_large_covariances_keep_their_determinants():
    """70 diagonals of a factor multiply to numbers that no double holds."""
    for size in (1e-8, 1e8):
        n, t = 3, 70
        table, index = size * torch.eye(t, dtype=torch.float64), torch.arange(t).expand(n, t)
        residual = size**0.5 * normals(n, t, seed=3)
        L = cholesky(table.expand(n, t, t))
        found = calls.likelihoods_on_table(table, index, 0.0, residual)
        torch.testing.assert_close(found, restricted_likelihood(L, residual), rtol=1e-10, atol=0.0)
