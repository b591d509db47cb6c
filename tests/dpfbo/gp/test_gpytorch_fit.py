"""Fits by GPyTorch: the value, gradient and information of the likelihood, and what the fits find."""

import math

import pytest
import torch
from torch import Tensor

from dpfbo.gp import gpytorch_fit, gpytorch_model, hyperparameters
from dpfbo.gp.gpytorch_model import Models
from dpfbo.gp.own_gp import Hyperparameters, KernelParameters, OwnGP
from tests.dpfbo.gp.likelihoods import closed_form

CPU = torch.device("cpu")
SETTINGS = [
    OwnGP("gpytorch"),
    OwnGP("gpytorch", kernel="matern52", ard=True, priors=True),
    OwnGP("gpytorch", kernel="matern32", warp=True),
]
KINDS = pytest.mark.parametrize("own", SETTINGS, ids=["se", "matern52", "warped matern32"])


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(N: int, t: int, scales: list[float], own: OwnGP, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws of GPs with these parameters (noise, variance, length-scales ..) at uniform points: N x t x D, N x t."""
    D = len(scales) - 2 if own.ard else 2
    x, raw = uniforms(N, t, D, seed=seed), torch.tensor(scales, dtype=torch.float64).log().expand(N, -1)
    with torch.no_grad():
        K = Models().of(KernelParameters(own, raw), x, x[..., 0]).covariance(x, x)
    A = K + scales[0] * torch.eye(t, dtype=torch.float64)
    return x, (torch.linalg.cholesky(A) @ normals(N, t, 1, seed=seed + 1))[..., 0]


def some(own: OwnGP, N: int = 4, t: int = 12) -> tuple[KernelParameters, Tensor, Tensor]:
    """Parameters near the middle of what matters, and a wave with noise."""
    start = gpytorch_model.start(own, N, 2, CPU).raw.clone()
    start[:, :3] = torch.tensor([0.02, 1.0, 0.4], dtype=torch.float64).log()
    raw = start + 0.5 * normals(*start.shape, seed=5)
    x = uniforms(N, t, 2, seed=6)
    return KernelParameters(own, raw), x, torch.sin(6 * x[..., 0]) + 0.1 * normals(N, t, seed=7)


def test_the_se_likelihood_is_the_closed_form() -> None:
    """Value and gradient; and the information `tr(A^-1 A_i A^-1 A_j) / 2t` up to the error of a difference quotient."""
    _, x, y = some(SETTINGS[0])
    hyper = Hyperparameters(*(0.1 + uniforms(4, 3, seed=8)).unbind(1))
    theta = torch.stack([hyper.lengthscale, hyper.variance, hyper.noise], 1).log()
    value, gradient = closed_form(theta, x, y)
    ours = gpytorch_model.kernel_parameters(hyper)
    value_too, gradient_too = gpytorch_fit.log_likelihood(ours, x, y, Models())
    assert torch.allclose(value_too, value, rtol=0, atol=1e-10)
    assert torch.allclose(gradient_too.flip(1), gradient, rtol=0, atol=1e-10)  # the columns are in the other order
    D2, t = hyperparameters.squared_distances(x, x), x.shape[1]
    K, one = hyperparameters.se_kernel(D2, hyper), hyper.noise[:, None, None] * torch.eye(t, dtype=x.dtype)
    parts = [K * D2 / hyper.lengthscale[:, None, None] ** 2, K, one]  # derivatives by the logarithms
    B = torch.stack([torch.linalg.solve(K + one, part) for part in parts], 1)
    information = torch.einsum("niab,njba->nij", B, B) / (2 * t)
    information_too = gpytorch_fit.information(ours, x, Models())
    assert torch.allclose(information_too.flip(1, 2), information, rtol=1e-3, atol=1e-4)


@KINDS
def test_the_gradient_is_that_of_finite_differences(own: OwnGP) -> None:
    """The likelihood with the priors, in every raw parameter: central differences of step 1e-5."""
    hyper, x, y = some(own)
    _, gradient = gpytorch_fit.log_likelihood(hyper, x, y, Models())
    for k in range(hyper.raw.shape[1]):
        step = torch.zeros_like(hyper.raw)
        step[:, k] = 1e-5
        up, down = (
            gpytorch_fit.log_likelihood(KernelParameters(own, hyper.raw + s), x, y, Models())[0] for s in (step, -step)
        )
        assert torch.allclose(gradient[:, k], (up - down) / 2e-5, rtol=0, atol=1e-5)


@KINDS
def test_agents_do_not_mix_in_a_batch(own: OwnGP) -> None:
    """Likelihood and fit of each agent, alone and in a batch, to the bit."""
    hyper, x, y = some(own, N=5)
    value, gradient = gpytorch_fit.log_likelihood(hyper, x, y, Models())
    fitted = gpytorch_fit.fit(x, y, own)
    for rows in (torch.tensor([3]), torch.tensor([0, 4])):
        value_alone, gradient_alone = gpytorch_fit.log_likelihood(hyper.select(rows), x[rows], y[rows], Models())
        assert torch.equal(value_alone, value[rows]) and torch.equal(gradient_alone, gradient[rows])
        assert torch.equal(gpytorch_fit.fit(x[rows], y[rows], own).raw, fitted.raw[rows])


def test_the_fit_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, x, y = some(SETTINGS[1], N=20)
    whole = gpytorch_fit.fit(x, y, SETTINGS[1])
    monkeypatch.setattr("dpfbo.gp.batches._BLOCK", 3000)  # blocks of four agents
    assert torch.equal(gpytorch_fit.fit(x, y, SETTINGS[1]).raw, whole.raw)


@pytest.mark.parametrize("t", [10, 40])
def test_the_fit_of_the_se_kernel_is_as_good_as_the_closed_form(t: int) -> None:
    """From the published start: at most one agent in 30 ends in a worse optimum, by .001 an observation."""
    N, own = 30, SETTINGS[0]
    x = uniforms(N, t, 2, seed=9)
    y = torch.sin(6 * x[..., 0] + 6 * uniforms(N, 1, seed=10)) + 0.1 * normals(N, t, seed=11)
    expected = gpytorch_model.kernel_parameters(hyperparameters.fit(x, y, OwnGP().start(N)))
    ours, theirs = (gpytorch_fit.log_likelihood(h, x, y, Models())[0] for h in (gpytorch_fit.fit(x, y, own), expected))
    assert int((theirs - ours > 1e-3).sum()) <= 1


def test_the_fit_finds_the_truth_and_the_axis_without_effect() -> None:
    """The fit finds the length-scales of 40 GPs of a Matern kernel, whose third axis does not matter.

    Mean logarithms are within 4 standard errors and .15; the third length-scale is at least 5 times the others.
    """
    own = OwnGP("gpytorch", lengthscale=0.5, noise=0.1, kernel="matern52", ard=True)
    truth = [0.01, 1.0, 0.2, 0.4, 100.0]
    x, y = drawn(40, 60, truth, own, seed=12)
    fitted = gpytorch_fit.fit(x, y, own).raw
    error = fitted[:, :4] - torch.tensor(truth[:4], dtype=torch.float64).log()
    assert torch.all(error.mean(0).abs() < 4 * error.std(0) / math.sqrt(40) + 0.15)
    assert int((fitted[:, 4] > fitted[:, 2:4].amax(1) + math.log(5)).sum()) >= 36


def test_the_fit_finds_a_warp() -> None:
    """A wave in x^2 is no stationary function of x, but one of w(x): the fit gains, and finds a near 2."""
    N, t = 20, 30
    x = uniforms(N, t, 1, seed=13)
    y = torch.sin(12 * x[..., 0] ** 2 + 6 * uniforms(N, 1, seed=14)) + 0.02 * normals(N, t, seed=15)
    plain, warped = (OwnGP("gpytorch", lengthscale=0.3, noise=0.01, warp=warp) for warp in (False, True))
    values = [gpytorch_fit.log_likelihood(gpytorch_fit.fit(x, y, own), x, y, Models())[0] for own in (plain, warped)]
    gain = values[1] - values[0]
    assert float(gain.mean()) > 4 * float(gain.std()) / math.sqrt(N)
    assert 1.3 < float(gpytorch_fit.fit(x, y, warped).raw[:, 3].exp().median()) < 3


def test_priors_keep_fits_of_few_points_near_the_settings() -> None:
    """Two points say little: with priors every logarithm stays within two spreads of its prior, without it does not."""
    x, y = uniforms(20, 2, 2, seed=16), normals(20, 2, seed=17)
    values = {"lengthscale": 0.3, "variance": 1.0, "noise": 0.01}
    centre = torch.tensor([0.01, 1.0, 0.3], dtype=torch.float64).log()
    spread = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    far = [
        int(((gpytorch_fit.fit(x, y, OwnGP("gpytorch", priors=p, **values)).raw - centre).abs() > 2 * spread).sum())
        for p in (True, False)
    ]
    assert far[0] == 0 and far[1] >= 5


@KINDS
def test_an_agent_without_a_likelihood_keeps_its_start_and_disturbs_nobody(own: OwnGP) -> None:
    _, x, y = some(own)
    sick = y.clone()
    sick[1, 4] = math.nan
    fitted, healthy = gpytorch_fit.fit(x, sick, own).raw, gpytorch_fit.fit(x, y, own).raw
    assert torch.equal(fitted[1], gpytorch_model.start(own, 4, 2, CPU).raw[1])
    assert torch.equal(fitted[[0, 2, 3]], healthy[[0, 2, 3]])


def test_an_impossible_covariance_has_no_likelihood_and_disturbs_nobody() -> None:
    """Agent 1 has an infinite variance; the others keep theirs."""
    hyper, x, y = some(SETTINGS[0])
    value, gradient = gpytorch_fit.log_likelihood(hyper, x, y, Models())
    raw = hyper.raw.clone()
    raw[1, 1] = 1000
    found, slopes = gpytorch_fit.log_likelihood(KernelParameters(SETTINGS[0], raw), x, y, Models())
    assert float(found[1]) == -math.inf and torch.isfinite(slopes).all()
    assert torch.allclose(found[[0, 2, 3]], value[[0, 2, 3]], rtol=0, atol=1e-12)
    assert torch.allclose(slopes[[0, 2, 3]], gradient[[0, 2, 3]], rtol=0, atol=1e-12)
    F = gpytorch_fit.information(KernelParameters(SETTINGS[0], raw), x, Models())
    assert torch.equal(F[1], torch.eye(3, dtype=torch.float64)) and torch.isfinite(F).all()


def test_a_covariance_that_is_not_positive_definite_has_no_information() -> None:
    """Thirty points on a line, without noise: Cholesky stops early, and its finite, partial factor is not used."""
    hyper, _, _ = some(SETTINGS[0])
    raw = torch.zeros_like(hyper.raw)
    raw[:, 0] = -1000  # the log of the noise variance
    x = torch.linspace(0, 1, 30, dtype=torch.float64)[None, :, None].expand(len(raw), -1, 2)
    F = gpytorch_fit.information(KernelParameters(SETTINGS[0], raw), x, Models())
    assert torch.equal(F, torch.eye(3, dtype=torch.float64).expand_as(F))


@pytest.mark.parametrize(
    "y", [torch.zeros(12), 1e6 * torch.ones(12), torch.eye(12)[0]], ids=["zero", "huge", "outlier"]
)
@pytest.mark.parametrize("equal_points", [False, True])
@KINDS
def test_degenerate_data_stay_within_bounds(own: OwnGP, y: Tensor, equal_points: bool) -> None:
    x = torch.full((1, 12, 2), 0.5, dtype=torch.float64) if equal_points else uniforms(1, 12, 2)
    raw = gpytorch_fit.fit(x, y.double()[None], own).raw
    low, high, _ = gpytorch_model.bounds_and_precision(own, 2, CPU)
    assert torch.all(low <= raw) and torch.all(raw <= high)
