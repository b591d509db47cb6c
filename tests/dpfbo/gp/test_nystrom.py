"""Kernels and Nystroem features: direct formulas, closeness to the mean kernel, and covariances of weights."""

import numpy as np
import pytest
import torch

from dpfbo.checks import SettingError
from dpfbo.gp.nystrom import NystromFeatures, scaled_kernels
from dpfbo.space.axes import Categorical, Float, Integer
from dpfbo.space.domain import Box, Grid, embedded
from dpfbo.space.mixed import MixedBox

LENGTHSCALES = (0.2, 0.4, 0.8)
DOMAINS = {
    "line": Box((0.0,), (2.0,)),
    "square": Box((0.0, -1.0), (1.0, 3.0)),
    "grid": Grid(torch.linspace(0, 1, 50, dtype=torch.float64)[:, None], (0.0,), (1.0,)),
    "mixed": MixedBox((Float(0, 1), Categorical(range(3)), Integer(1, 5))),
}


def uniforms(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def points_of(domain, n, k, seed=1):
    u = uniforms(n, k, domain.dimension, seed=seed)
    return domain.snap(u) if isinstance(domain, MixedBox) else u


def errors(domain, n_features, lengthscales=LENGTHSCALES):
    """`psi(x) . psi(x')` less the mean kernel at 60 pairs of points."""
    a, b = points_of(domain, 1, 60), points_of(domain, 1, 60, seed=2)
    f = NystromFeatures.of(domain, n_features, lengthscales)
    k = scaled_kernels(embedded(domain, a)[0], embedded(domain, b)[0], lengthscales).mean(0)
    return f(a)[0] @ f(b)[0].T - k


class TestKernels:
    def test_they_are_the_formula(self):
        a, b = uniforms(2, 5, 3), uniforms(2, 4, 3, seed=1)
        found = scaled_kernels(a, b, LENGTHSCALES)
        assert found.shape == (2, 3, 5, 4)
        for n, l, i, j in np.ndindex(*found.shape):
            distance = float((a[n, i] - b[n, j]).pow(2).sum())
            assert found[n, l, i, j].item() == pytest.approx(np.exp(-distance / (2 * LENGTHSCALES[l] ** 2 * 3 / 3)))
        one = scaled_kernels(a[0, :, :1], b[0, :, :1], [0.3])[0]
        assert torch.allclose(one, torch.exp(-((a[0, :, :1] - b[0, :, :1].T) ** 2) / (2 * 0.3**2 / 3)))

    @pytest.mark.parametrize("D", [1, 4, 20])
    def test_a_typical_distance_has_the_same_kernel_in_every_dimension(self, D):
        """The mean squared distance of uniform points is D / 6, so that the kernel there is exp(-1 / (4 l^2))."""
        a, b = uniforms(4000, D), uniforms(4000, D, seed=1)
        typical = -torch.log(scaled_kernels(a[:, None], b[:, None], [0.5])).mean()
        se = (a - b).pow(2).sum(1).std() * 1.5 / (0.25 * D) / 4000**0.5
        assert abs(typical - 1.0) < 4 * se

    def test_they_are_one_at_equal_points_and_keep_the_dtype(self):
        x = uniforms(1, 6, 2).float()
        found = scaled_kernels(x, x, [0.01, 100.0])
        assert found.dtype == torch.float32
        assert torch.equal(found.diagonal(dim1=2, dim2=3), torch.ones(1, 2, 6))


class TestFeatures:
    @pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
    def test_more_features_are_closer_to_the_mean_kernel(self, domain):
        few, some, many = (errors(domain, M).pow(2).mean().sqrt() for M in (10, 40, 160))
        assert many < some < few
        assert many < 0.01

    @pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
    def test_the_kernel_is_exact_at_inducing_points(self, domain):
        """Up to the jitter, 1e-4; psi(U) is `(R - jitter R^-1')'`."""
        f = NystromFeatures.of(domain, 12, LENGTHSCALES)
        K = scaled_kernels(f.inducing, f.inducing, LENGTHSCALES).mean(0)
        psi = torch.linalg.solve_triangular(f.root, K, upper=False).T
        assert torch.allclose(psi @ psi.T, K, rtol=0, atol=2e-4)
        assert torch.allclose(f.root @ f.root.T, K + 1e-4 * torch.eye(12, dtype=torch.float64))

    def test_variances_do_not_exceed_those_of_the_kernel(self):
        """What features leave out is missing: `psi . psi <= 1`."""
        for domain in DOMAINS.values():
            assert (NystromFeatures.of(domain, 20, LENGTHSCALES)(points_of(domain, 3, 50)).pow(2).sum(2) <= 1).all()

    def test_a_mixed_box_has_features_of_its_values(self):
        """Points that are snapped to the same values have the same features."""
        domain = DOMAINS["mixed"]
        f, u = NystromFeatures.of(domain, 20, LENGTHSCALES), uniforms(2, 30, 3)
        assert f.inducing.shape == (20, domain.embedded_dimension)
        x = domain.embed(domain.snap(u))
        k = scaled_kernels(f.inducing, x.flatten(0, 1), LENGTHSCALES).mean(0)
        expected = torch.linalg.solve(f.root, k).T.view(2, 30, 20)
        assert torch.allclose(f(domain.snap(u)), expected)

    def test_the_map_depends_on_nothing_but_public_settings(self):
        one, other = (NystromFeatures.of(Box((0.0,), (1.0,)), 15, LENGTHSCALES) for _ in range(2))
        assert torch.equal(one.inducing, other.inducing) and torch.equal(one.root, other.root)
        scaled = NystromFeatures.of(Box((-7.0,), (30.0,)), 15, LENGTHSCALES)  # the unit cube is what counts
        assert torch.equal(one.inducing, scaled.inducing)

    @pytest.mark.parametrize("k", [1, 2, 15, 16, 17])
    def test_features_of_a_point_do_not_depend_on_the_others(self, k):
        """To the bit."""
        f, u = NystromFeatures.of(DOMAINS["square"], 40, LENGTHSCALES), uniforms(5, 20, 2)
        whole = f(u)
        assert torch.equal(f(u[:, :k]), whole[:, :k])
        assert torch.equal(f(u[3:4, :k]), whole[3:4, :k])

    def test_gradients_flow_through_the_map(self):
        f, u = NystromFeatures.of(DOMAINS["mixed"], 10, LENGTHSCALES), points_of(DOMAINS["mixed"], 1, 3)
        u[..., 0] = torch.tensor([0.2, 0.5, 0.8])
        w = uniforms(10, seed=4)
        v = u.clone().requires_grad_()
        (f(v) @ w).sum().backward()
        h = torch.zeros_like(u)
        h[..., 0] = 1e-5
        slope = (f(u + h) - f(u - h)) @ w / 2e-5
        assert torch.allclose(v.grad[..., 0], slope, atol=1e-6)

    @pytest.mark.parametrize("M", [0, -1, 2.5, True, 10**7])
    def test_a_bad_number_of_features_is_one_sentence(self, M):
        with pytest.raises(SettingError, match="n_features must be (an integer|at most)"):
            NystromFeatures.of(DOMAINS["line"], M, LENGTHSCALES)


class TestCoefficients:
    @pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
    def test_they_reproduce_each_kernel(self, domain):
        """`psi(x)' D_l psi(x')` is close to k_l, and closer with more features, though one map serves all kernels."""
        a, b = points_of(domain, 1, 40), points_of(domain, 1, 40, seed=2)
        K = scaled_kernels(embedded(domain, a)[0], embedded(domain, b)[0], LENGTHSCALES)
        error = []
        for M in (10, 160):
            f = NystromFeatures.of(domain, M, LENGTHSCALES)
            D = f.coefficients
            assert D.shape == (3, M, M)
            error.append((f(a)[0] @ D @ f(b)[0].T - K).pow(2).mean((1, 2)).sqrt())
        assert (error[1] < error[0]).all()
        assert (error[1] < 0.03).all()

    def test_their_mean_is_the_identity(self):
        """The mean over kernels is the mean kernel, whose weights are independent, up to the jitter."""
        f = NystromFeatures.of(DOMAINS["square"], 12, (0.1, 0.2))
        whole = f.coefficients.mean(0)
        eye = torch.eye(12, dtype=torch.float64)
        jitter = torch.linalg.solve_triangular(f.root, eye, upper=False)
        assert torch.allclose(whole, eye - 1e-4 * jitter @ jitter.T)

    def test_they_are_covariances(self):
        """Symmetric, and without negative variances up to rounding."""
        for domain in DOMAINS.values():
            D = NystromFeatures.of(domain, 80, LENGTHSCALES).coefficients
            assert torch.allclose(D, D.mT, atol=1e-9)
            assert (torch.linalg.eigvalsh(D) > -1e-9).all()

    def test_mean_variance_is_that_of_draws(self):
        """`g(x) = psi(x) . w` over the inducing points, less its mean over them, within 4 standard errors."""
        f = NystromFeatures.of(DOMAINS["square"], 30, LENGTHSCALES)
        D = f.coefficients
        found = f.mean_variance(D)
        n = 20_000
        w = torch.randn(n, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        for l in range(3):
            S, Q = torch.linalg.eigh(D[l])
            values = w * S.clamp(min=0).sqrt() @ Q.T @ f.root.T  # n x M, at U
            variance = values.var(1, correction=0)
            assert abs(variance.mean() - found[l]) < 4 * variance.std() / n**0.5


def test_a_copy_on_another_device_is_the_same_map():
    f = NystromFeatures.of(DOMAINS["mixed"], 10, LENGTHSCALES)
    there = f.to(torch.device("meta"))
    assert {there.inducing.device.type, there.root.device.type} == {"meta"}
    assert there.size == f.size and there.lengthscales == f.lengthscales and there.space is f.space
