"""Maximum likelihood of one GP: the likelihood, its gradient, and the fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, multivariate_normal

from dpfbo.outsourced.hyperparameters import Fitted, fit, log_likelihood, profile

TRUE = Fitted((1.0, 2.5), variance=4.0, noise=0.3, mean=7.0)
START = Fitted((3.0, 3.0), variance=1.0, noise=0.01)


def covariance(x, hyper):
    z = x / torch.tensor(hyper.lengthscales).double()
    return hyper.variance * torch.exp(-0.5 * torch.cdist(z, z) ** 2) + hyper.noise * torch.eye(len(x)).double()


def drawn(m, seed=0, hyper=TRUE):
    g = torch.Generator().manual_seed(seed)
    x = 100 + 8 * torch.rand(m, len(hyper.lengthscales), generator=g, dtype=torch.float64)
    L = torch.linalg.cholesky(covariance(x, hyper))
    return x, hyper.mean + L @ torch.randn(m, generator=g, dtype=torch.float64)


@pytest.mark.parametrize(("hyper", "size"), [([0.3, -0.2, 0.4, -1.0], 2), ([0.5, 0.2, -2.0], 1)])
def test_gradient_is_the_slope(hyper, size):
    x, y = drawn(20)
    x, theta = x - x.mean(0), torch.tensor(hyper).double()
    gradient = profile(theta, x, y)[1]
    assert len(gradient) == size + 2
    for i in range(len(theta)):
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
    found = fit(x, y, START, ard=True)
    ratio = 2 * (log_likelihood(x, y, found) - log_likelihood(x, y, TRUE))
    assert 0 < ratio < chi2.isf(1e-4, 4)  # Wilks; length-scales, variance, noise
    assert found.lengthscales[1] > 1.5 * found.lengthscales[0]
    precision = torch.linalg.solve(covariance(x, found), torch.ones(150).double()).sum()
    assert abs(found.mean - TRUE.mean) < 4 / math.sqrt(precision)


def test_one_factor_keeps_the_ratio_of_the_length_scales():
    x, y = drawn(60)
    one = fit(x, y, replace(START, lengthscales=(2.0, 5.0)), ard=False)
    assert one.lengthscales[1] / one.lengthscales[0] == pytest.approx(2.5)
    each = fit(x, y, START, ard=True)
    assert log_likelihood(x, y, each) >= log_likelihood(x, y, one) - 1e-4


@pytest.mark.parametrize("m", [2, 3, 7, 25])
@pytest.mark.parametrize("ard", [True, False])
def test_never_less_likely_than_the_start(m, ard):
    for seed in range(3):
        x, y = drawn(m, seed)
        assert log_likelihood(x, y, fit(x, y, START, ard)) >= log_likelihood(x, y, START)


def test_units_do_not_matter():
    x, y = drawn(40)
    found, scaled = fit(x, y, START, True), fit(1e3 * x, 1e-2 * y, Fitted((3e3, 3e3), 1e-4, 1e-6), True)
    assert scaled.lengthscales == pytest.approx([1e3 * l for l in found.lengthscales], rel=1e-4)
    assert (scaled.variance, scaled.noise) == pytest.approx((1e-4 * found.variance, 1e-4 * found.noise), rel=1e-4)
    assert scaled.mean == pytest.approx(1e-2 * found.mean, rel=1e-4)


def test_the_same_every_time():
    assert fit(*drawn(30), START, False) == fit(*drawn(30), START, False)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([[0, 0], [0, 0], [0, 0]], [1, 2, 3]),  # one row again and again
        ([[0, 0], [1, 2], [3, 1]], [5, 5, 5]),
        ([[0, 0], [0, 0]], [5, 5]),
        ([[0, 0], [1e-9, 0], [1e6, 0]], [1, -1, 1e6]),
    ],
)
@pytest.mark.parametrize("ard", [True, False])
def test_degenerate_tables_give_numbers(x, y, ard):
    x, y = torch.tensor(x).double(), torch.tensor(y).double()
    found = fit(x, y, START, ard)  # Fitted refuses what is not finite and positive
    assert y.min() - 1e-9 <= found.mean <= y.max() + 1e-9


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (torch.zeros(1, 2), torch.zeros(1), "at least 2 rows"),
        (torch.zeros(3, 2), torch.zeros(2), "at least 2 rows"),
        (torch.zeros(3, 3), torch.zeros(3), "2 features"),
        (torch.zeros(3, 2), torch.tensor([0, math.nan, 0]), "finite"),
    ],
)
def test_bad_tables_are_refused(x, y, says):
    with pytest.raises(ValueError, match=says):
        fit(x, y, START, True)


@pytest.mark.parametrize("change", [{"lengthscales": (1.0, 0.0)}, {"variance": -1.0}, {"noise": math.nan}])
def test_bad_hyperparameters_are_refused(change):
    with pytest.raises(ValueError, match="must be a finite number above 0"):
        replace(START, **change)
