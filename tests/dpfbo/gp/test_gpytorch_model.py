"""The agents' GPs as a model of GPyTorch: its parameters, its kernels and warp, and what is refused."""

import math
import subprocess
import sys

import pytest
import torch
from sklearn.gaussian_process.kernels import Matern
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.gp import gpytorch_model, hyperparameters
from dpfbo.gp.gpytorch_model import Kumaraswamy, Models
from dpfbo.gp.own_gp import Hyperparameters, KernelParameters, OwnGP


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def covariance(own: OwnGP, raw: Tensor, a: Tensor, b: Tensor) -> Tensor:
    model = Models().of(KernelParameters(own, raw), a, a[..., 0])
    with torch.no_grad():
        return model.covariance(a, b)


def own(kernel: str = "rbf", **others: object) -> OwnGP:
    return OwnGP("gpytorch", kernel=kernel, **others)  # type: ignore[arg-type]


def test_gpytorch_is_not_loaded_without_need() -> None:
    """Its import takes seconds in every process of an agent."""
    asks = "import sys, dpfbo.federated.population.agents, runners.run; print('gpytorch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_se_kernel_is_that_of_the_closed_form() -> None:
    a, b = uniforms(3, 6, 2), uniforms(3, 4, 2, seed=1)
    hyper = Hyperparameters(*(0.1 + uniforms(3, 3, seed=2)).unbind(1))
    expected = hyperparameters.se_kernel(hyperparameters.squared_distances(a, b), hyper)
    raw = gpytorch_model.kernel_parameters(hyper).raw
    assert torch.allclose(covariance(own(), raw, a, b), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kernel", "nu"), [("matern32", 1.5), ("matern52", 2.5)])
@pytest.mark.parametrize("ard", [False, True])
def test_matern_kernels_are_those_of_scikit_learn(kernel: str, nu: float, ard: bool) -> None:
    a, b = uniforms(2, 5, 2), uniforms(2, 4, 2, seed=1)
    raw = torch.tensor([[0.1, 2.0, 0.3, 0.8], [0.1, 0.5, 0.6, 0.2]], dtype=torch.float64)[:, : 4 if ard else 3]
    K = covariance(own(kernel, ard=ard), raw.log(), a, b)
    for n in range(2):
        expected = float(raw[n, 1]) * Matern(raw[n, 2:].numpy(), nu=nu)(a[n].numpy(), b[n].numpy())
        assert torch.allclose(K[n], torch.from_numpy(expected), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        (own(), 3),
        (own("matern52", ard=True), 5),
        (own(ard=True, warp=True, priors=True), 11),
    ],
    ids=lambda value: "-".join(value.extensions) if isinstance(value, OwnGP) else str(value),
)
def test_parameters_are_columns_that_start_within_their_bounds(settings: OwnGP, columns: int) -> None:
    """The agents have three axes; what is written to a model is read from it."""
    start = gpytorch_model.start(settings, 4, 3, torch.device("cpu"))
    low, high, precision = gpytorch_model.bounds_and_precision(settings, 3, torch.device("cpu"))
    assert start.raw.shape == (4, columns) and start.raw.dtype == torch.float64
    assert low.shape == high.shape == precision.shape == (columns,)
    assert torch.all(low <= start.raw) and torch.all(start.raw <= high)
    assert start.raw[:, :2].exp().flatten().tolist() == pytest.approx([1e-6, 0.1] * 4)
    assert start.noise.tolist() == pytest.approx([1e-6] * 4)
    moved = start.raw + uniforms(4, columns)
    x = uniforms(4, 2, 3)
    model = Models().of(KernelParameters(settings, moved), x, x[..., 0])
    written = torch.cat([p.detach().reshape(4, -1) for p in model.raw_parameters()], 1)
    assert torch.equal(written, moved)
    assert torch.equal(KernelParameters(settings, moved).select(torch.tensor([2, 0])).raw, moved[[2, 0]])


def test_a_model_is_used_again_with_other_data() -> None:
    models, x = Models(), uniforms(3, 5, 2)
    for seed in range(2):
        raw = uniforms(3, 3, seed=seed)
        model = models.of(KernelParameters(own(), raw), x, x[..., 0])
        with torch.no_grad():
            K = model.covariance(x, x)
        assert torch.equal(K, covariance(own(), raw, x, x))


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.3, 2.0), (4.0, 0.5), (10.0, 10.0), (0.1, 0.1)])
def test_the_warp_maps_the_interval_onto_itself_and_rises(a: float, b: float) -> None:
    warp = Kumaraswamy(1, torch.Size([1])).double()
    warp.raw_a.data.fill_(math.log(a))
    warp.raw_b.data.fill_(math.log(b))
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)[None, :, None]
    with torch.no_grad():
        w = warp(x)[0, :, 0]
    expected = 1 - (1 - x[0, :, 0] ** a) ** b
    assert torch.allclose(w[1:-1], expected[1:-1], rtol=0, atol=1e-12)
    assert torch.all(w.diff() >= 0) and float(w.min()) >= 0 and float(w.max()) <= 1
    if a == b == 1:
        assert torch.allclose(w, x[0, :, 0], rtol=0, atol=2e-7)


def test_the_warp_has_finite_slopes_on_the_boundary() -> None:
    warp = Kumaraswamy(2, torch.Size([1])).double()
    for name in ("raw_a", "raw_b"):
        getattr(warp, name).data.fill_(math.log(0.2))
    x = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.5, 1e-9]]], dtype=torch.float64, requires_grad=True)
    slopes = torch.autograd.grad(warp(x).sum(), [x, warp.raw_a, warp.raw_b])
    assert all(torch.isfinite(slope).all() for slope in slopes)


def test_a_warped_kernel_is_the_kernel_of_warped_points() -> None:
    a, b = uniforms(2, 5, 2), uniforms(2, 4, 2, seed=1)
    raw = torch.cat([uniforms(2, 3, seed=2), uniforms(2, 4, seed=3) - 0.5], 1)
    exponent_a, exponent_b = raw[:, None, 3:5].exp(), raw[:, None, 5:].exp()
    warped = [1 - (1 - x**exponent_a) ** exponent_b for x in (a, b)]
    expected = covariance(own(), raw[:, :3], *warped)
    assert torch.allclose(covariance(own(warp=True), raw, a, b), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kernel": "matern12"}, "kernel must be one of 'rbf', 'matern32', 'matern52', got 'matern12'"),
        ({"kernel": "matern52", "fit": "closed_form"}, "fit must be gpytorch or given for kernel=matern52, got"),
        ({"ard": True, "fit": "closed_form"}, "fit must be gpytorch or given for ard=True, got 'closed_form'"),
        ({"warp": "yes"}, "warp must be one of True, False, got 'yes'"),
        ({"warp": True, "fit": "given"}, "warp has no effect on fit=given: leave it out, got True"),
        ({"priors": True, "fit": "given"}, "priors has no effect on fit=given: leave it out, got True"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError) as refusal:
        OwnGP(**{"fit": "gpytorch", **settings})  # type: ignore[arg-type]
    assert says in str(refusal.value)


def test_priors_are_normal_in_the_logarithm() -> None:
    """Their modes are the values of the settings; the precisions for Fisher scoring are theirs."""
    settings = own(ard=True, warp=True, priors=True, lengthscale=0.3, variance=2.0, noise=0.01)
    x = uniforms(2, 4, 2)
    model = Models().of(gpytorch_model.start(settings, 2, 2, x.device), x, x[..., 0])
    raw = model.raw_parameters()
    with torch.no_grad():
        for p in raw:
            p.add_(0.7)
    log_density = sum(prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in model.named_priors())
    slopes = torch.autograd.grad(log_density, raw)
    *_, precision = gpytorch_model.bounds_and_precision(settings, 2, torch.device("cpu"))
    assert torch.all(precision > 0)
    found = torch.cat([slope.reshape(2, -1) for slope in slopes], 1)
    assert torch.allclose(found, -0.7 * precision.expand(2, -1), rtol=1e-6, atol=0)
