"""Maximum likelihood of one GP: the likelihood, its gradient, and the fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, multivariate_normal

from dpfbo.outsourced.hyperparameters import Belief, fit, profile

TRUE = Belief(1.5, variance=4.0, noise=0.3, mean=7.0)
START = Belief(3.0, variance=1.0, noise=0.01)


def covariance(x, hyper):
    z = x / hyper.lengthscale
    return hyper.variance * torch.exp(-0.5 * torch.cdist(z, z) ** 2) + hyper.noise * torch.eye(len(x)).double()


def drawn(m, seed=0, hyper=TRUE):
    g = torch.Generator().manual_seed(seed)
    x = 100 + 8 * torch.rand(m, 2, generator=g, dtype=torch.float64)
    L = torch.linalg.cholesky(covariance(x, hyper))
    return x, hyper.mean + L @ torch.randn(m, generator=g, dtype=torch.float64)


def log_likelihood(x, y, hyper):
    """The likelihood of `fit`, at the best mean for these hyper-parameters."""
    theta = torch.tensor([hyper.lengthscale, hyper.variance, hyper.noise]).double().log()
    return profile(theta, x - x.mean(0), y)[0]


def test_gradient_is_the_slope():
    x, y = drawn(20)
    x, theta = x - x.mean(0), torch.tensor([0.5, 0.2, -2.0]).double()
    gradient = profile(theta, x, y)[1]
    for i in range(3):
        step = torch.zeros_like(theta)
        step[i] = 1e-5
        slope = (profile(theta + step, x, y)[0] - profile(theta - step, x, y)[0]) / 2e-5
        assert float(gradient[i]) == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_likelihood_is_that_of_the_normal_distribution_at_its_best_mean():
    x, y = drawn(15)
    K, at = covariance(x, TRUE).numpy(), log_likelihood(x, y, TRUE)
    values = [multivariate_normal(np.full(15, mean), K).logpdf(y.numpy()) for mean in np.linspace(-5, 20, 2001)]
    assert at == pytest.approx(max(values), abs=1e-3)
    assert at >= max(values)


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_is_not_much_less_likely_than_the_fit(seed):
    x, y = drawn(150, seed)
    found = fit(x, y, START)
    ratio = 2 * (log_likelihood(x, y, found) - log_likelihood(x, y, TRUE))
    assert 0 < ratio < chi2.isf(1e-4, 3)  # Wilks; length-scale, variance, noise
    precision = torch.linalg.solve(covariance(x, found), torch.ones(150).double()).sum()
    assert abs(found.mean - TRUE.mean) < 4 / math.sqrt(precision)


@pytest.mark.parametrize("m", [2, 3, 7, 25])
def test_never_less_likely_than_the_start(m):
    for seed in range(3):
        x, y = drawn(m, seed)
        assert log_likelihood(x, y, fit(x, y, START)) >= log_likelihood(x, y, START) - 1e-9


def test_units_do_not_matter():
    x, y = drawn(40)
    found, scaled = fit(x, y, START), fit(1e3 * x, 1e-2 * y, Belief(3e3, 1e-4, 1e-6))
    assert scaled.lengthscale == pytest.approx(1e3 * found.lengthscale, rel=1e-4)
    assert (scaled.variance, scaled.noise) == pytest.approx((1e-4 * found.variance, 1e-4 * found.noise), rel=1e-4)
    assert scaled.mean == pytest.approx(1e-2 * found.mean, rel=1e-4)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([[0, 0], [0, 0], [0, 0]], [1, 2, 3]),  # one row again and again
        ([[0, 0], [1, 2], [3, 1]], [5, 5, 5]),
        ([[0, 0], [0, 0]], [5, 5]),
        ([[0, 0], [1e-9, 0], [1e6, 0]], [1, -1, 1e6]),
    ],
)
def test_degenerate_tables_give_numbers(x, y):
    x, y = torch.tensor(x).double(), torch.tensor(y).double()
    found = fit(x, y, START)  # Belief refuses what is not finite and positive
    assert y.min() - 1e-9 <= found.mean <= y.max() + 1e-9


@pytest.mark.parametrize("change", [{"lengthscale": 0.0}, {"variance": -1.0}, {"noise": math.nan}])
def test_bad_hyperparameters_are_refused(change):
    with pytest.raises(ValueError, match="must be a finite number above 0"):
        replace(START, **change)
