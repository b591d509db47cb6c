"""The agents' own Gaussian processes: the likelihood, its gradient, and the fit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize as scipy_minimize
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor

from dpfbo.gp import hyperparameters
from dpfbo.gp.own_gp import BOUNDS, Hyperparameters, OwnGP
from tests.dpfbo.gp.likelihoods import closed_form, fitted, likelihood, logarithms

OBJECTIVES = ["closed_form", "gpytorch"]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def well_posed(N: int, t: int, D: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws of GPs with length-scales .15 to .4, variance .5 to 2 and noise .01 to .05: N x t x D, N x t."""
    x, h = uniforms(N, t, D, seed=seed), uniforms(N, 3, seed=seed + 1)
    truth = Hyperparameters(0.15 + 0.25 * h[:, 0], 0.5 + 1.5 * h[:, 1], 0.01 + 0.04 * h[:, 2])
    z = torch.special.ndtri(uniforms(N, t, 1, seed=seed + 2).clamp(1e-9))
    return x, (hyperparameters.gram_cholesky(x, truth, truth.noise) @ z)[..., 0]


def random_theta(N: int, seed: int = 3) -> Tensor:
    """Logarithms of length-scale .1 to 1, variance .2 to 2, noise .001 to .1."""
    low, high = numbers(0.1, 0.2, 1e-3).log(), numbers(1.0, 2.0, 0.1).log()
    return low + (high - low) * uniforms(N, 3, seed=seed)


def log_likelihood(theta: np.ndarray, x: Tensor, y: Tensor) -> float:
    """Log likelihood per observation, by scipy alone. x: t x D; y: t."""
    l, variance, noise = np.exp(theta)
    K = variance * RBF(l)(x.numpy()) + noise * np.eye(len(x))
    return float(multivariate_normal.logpdf(y.numpy(), cov=K)) / len(x)


@pytest.mark.parametrize("D", [1, 2, 5])
def test_the_kernel_is_the_squared_exponential(D: int) -> None:
    a, b = uniforms(3, 6, D), uniforms(3, 4, D, seed=1)
    hyper = Hyperparameters(numbers(0.1, 0.3, 2.0), numbers(0.5, 1.0, 3.0), numbers(0.1, 0.1, 0.1))
    K = hyperparameters.se_kernel(hyperparameters.squared_distances(a, b), hyper)
    for n in range(3):
        expected = float(hyper.variance[n]) * RBF(float(hyper.lengthscale[n]))(a[n].numpy(), b[n].numpy())
        assert np.allclose(K[n], expected, rtol=1e-12, atol=1e-14)


def test_the_gram_matrix_has_the_noise_on_its_diagonal() -> None:
    x, noise = uniforms(2, 5, 2), numbers(0.1, 0.01)
    hyper = Hyperparameters(numbers(0.3, 0.2), numbers(1.0, 2.0), numbers(9.0, 9.0))  # the given noise counts
    L = hyperparameters.gram_cholesky(x, hyper, noise)
    K = hyperparameters.se_kernel(hyperparameters.squared_distances(x, x), hyper) + noise[:, None, None] * torch.eye(
        5, dtype=torch.float64
    )
    assert torch.allclose(L @ L.mT, K, rtol=0, atol=1e-13)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("t", "D"), [(1, 1), (12, 1), (30, 2), (20, 5)])
def test_the_likelihood_is_that_of_scipy(objective: str, t: int, D: int) -> None:
    x, y = well_posed(6, t, D)
    theta = random_theta(6)
    value, _ = likelihood(objective, theta, x, y)
    for n in range(6):
        assert float(value[n]) == pytest.approx(log_likelihood(theta[n].numpy(), x[n], y[n]), abs=1e-8)


@pytest.mark.parametrize(("t", "D"), [(1, 1), (12, 1), (30, 2), (20, 5)])
def test_both_objectives_have_the_same_value_and_gradient(t: int, D: int) -> None:
    x, y = well_posed(8, t, D)
    theta = random_theta(8)
    value, gradient = closed_form(theta, x, y)
    value_too, gradient_too = likelihood("gpytorch", theta, x, y)
    assert value.shape == value_too.shape == (8,) and gradient.shape == gradient_too.shape == (8, 3)
    assert torch.allclose(value, value_too, rtol=0, atol=1e-8)
    assert torch.allclose(gradient, gradient_too, rtol=0, atol=1e-8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_is_that_of_finite_differences(objective: str) -> None:
    """Central differences of step 1e-5: an error of 1e-10 from the cubic term and 1e-11 from rounding."""
    x, y = well_posed(8, 15, 2)
    theta, h = random_theta(8), 1e-5
    _, gradient = likelihood(objective, theta, x, y)
    for axis in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[axis] = h
        up, down = (closed_form(theta + s, x, y)[0] for s in (step, -step))
        assert torch.allclose(gradient[:, axis], (up - down) / (2 * h), rtol=0, atol=1e-6)
        assert gradient[:, axis].abs().max() > 1e-2, "nothing to compare"


def profiled(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return hyperparameters.profile(theta, hyperparameters.squared_distances(x, x), y)


# (log l, log eta) and a factor of y, with which the best variance is free, at its lower bound, or so that the noise is
# at its lower or upper bound
PROFILES = {"free": (-1.0, -4.0, 1.0), "least variance": (-1.0, -3.0, 1e-5), "least noise": (-0.5, -9.2, 1e-4)}
PROFILES |= {"most variance": (-1.0, -4.0, 1e4), "most noise": (-1.0, 3.0, 1e4)}
CASES = pytest.mark.parametrize("case", PROFILES)


@CASES
def test_the_profile_has_the_best_variance_within_the_bounds(case: str) -> None:
    """No variance on a fine grid within the bounds of variance and noise is more likely; one of them comes close."""
    x, y = well_posed(4, 20, 2)
    log_l, log_eta, factor = PROFILES[case]
    value, _, _ = profiled(numbers(log_l, log_eta).expand(4, 2), x, factor * y)
    eta = math.exp(log_eta)
    low = max(BOUNDS["variance"][0], BOUNDS["noise"][0] / eta)
    high = min(BOUNDS["variance"][1], BOUNDS["noise"][1] / eta)
    variances = torch.linspace(math.log(low), math.log(high), 2000, dtype=torch.float64)
    others = torch.stack(
        [closed_form(numbers(log_l, v, v + log_eta).expand(4, 3), x, factor * y)[0] for v in variances.tolist()]
    )
    best = others.max(0)
    assert torch.allclose(-value, best.values, rtol=0, atol=1e-4) and torch.all(-value >= best.values - 1e-9)
    at_an_end = (best.indices == 0) | (best.indices == 1999)
    assert torch.all(at_an_end == (case != "free"))


@CASES
@pytest.mark.parametrize(("t", "D"), [(1, 1), (20, 3)])
def test_derivatives_of_the_profile_are_those_of_finite_differences(case: str, t: int, D: int) -> None:
    x, y = well_posed(4, t, D)
    log_l, log_eta, factor = PROFILES[case]
    theta, h = numbers(log_l, log_eta) + 0.1 * uniforms(4, 2, seed=5), 1e-5
    _, gradient, hessian = profiled(theta, x, factor * y)
    assert gradient.shape == (4, 2) and hessian.shape == (4, 2, 2)
    for axis in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = h
        up, down = (profiled(theta + s, x, factor * y) for s in (step, -step))
        scale = 1 + gradient.abs().amax()
        assert torch.allclose(gradient[:, axis], (up[0] - down[0]) / (2 * h), rtol=1e-5, atol=1e-6 * float(scale))
        assert torch.allclose(hessian[:, axis], (up[1] - down[1]) / (2 * h), rtol=1e-5, atol=1e-5 * float(scale))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_agents_do_not_mix_in_a_batch(objective: str) -> None:
    x, y = well_posed(5, 10, 2)
    theta = random_theta(5)
    value, gradient = likelihood(objective, theta, x, y)
    for n in range(5):
        k = slice(n, n + 1)
        value_alone, gradient_alone = likelihood(objective, theta[k], x[k], y[k])
        assert torch.allclose(value_alone[0], value[n], rtol=0, atol=1e-12)
        assert torch.allclose(gradient_alone[0], gradient[n], rtol=0, atol=1e-11)


def test_an_impossible_covariance_has_no_likelihood() -> None:
    """20 equal points with variance 1000 and a noise below its rounding."""
    x = torch.full((1, 20, 1), 0.3, dtype=torch.float64)
    value, _ = closed_form(numbers(0.0, math.log(1e3), math.log(1e-18))[None], x, uniforms(1, 20))
    assert float(value) == -math.inf


def by_lbfgsb(x: Tensor, y: Tensor, start: Hyperparameters) -> Tensor:
    """Log likelihoods per observation that scipy's L-BFGS-B reaches with its default tolerances, N."""
    bounds = np.log([BOUNDS[name] for name in ("lengthscale", "variance", "noise")])
    reached = []
    for n in range(len(x)):

        def negative(z: np.ndarray, n: int = n) -> tuple[float, np.ndarray]:
            value, gradient = closed_form(torch.from_numpy(z)[None], x[n : n + 1], y[n : n + 1])
            return -float(value), -gradient[0].numpy()

        begin = logarithms(start)[n].numpy()
        reached.append(-scipy_minimize(negative, begin, jac=True, method="L-BFGS-B", bounds=bounds).fun)
    return torch.tensor(reached, dtype=torch.float64)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("begin", [(0.3, 1.0, 0.03), (1.0, 1.0, 0.1)])
def test_the_fit_is_as_good_as_that_of_lbfgsb(objective: str, D: int, begin: tuple[float, float, float]) -> None:
    """From a start of the right order of magnitude the fit finds the optimum.

    All but a tenth of the agents, which may end in another local optimum, lose at most 1e-4 an observation.
    """
    N = 30 if objective == "closed_form" else 8
    x, y = well_posed(N, 40, D, seed=20 + D)
    start = OwnGP("closed_form", 5, *begin).start(N)
    value, _ = closed_form(logarithms(fitted(objective, x, y, *begin)), x, y)
    assert int((by_lbfgsb(x, y, start) - value > 1e-4).sum()) <= N // 10


@pytest.mark.parametrize("D", [1, 2])
def test_from_the_published_start_the_fit_ends_where_it_is_flat(D: int) -> None:
    """Start (1, .1, 1e-6) on noisy data: a fit is unfinished if a slope in a logarithm exceeds .01 an observation."""
    x, y = well_posed(40, 40, D, seed=70 + D)
    theta = logarithms(hyperparameters.fit(x, y, OwnGP().start(40)))
    _, gradient = closed_form(theta, x, y)
    low, high = (torch.tensor(b, dtype=torch.float64).log() for b in zip(*BOUNDS.values(), strict=True))
    slope = (theta + gradient).clamp(low, high) - theta
    assert int((slope.abs() > 1e-2).any(1).sum()) == 0, "agents whose fit is unfinished"


def test_from_the_published_start_the_fit_is_no_worse_than_lbfgsb() -> None:
    """80 agents, many local optima: either may win, but L-BFGS-B not by more than 2 standard errors of fair coins."""
    x, y = well_posed(80, 40, 2, seed=80)
    start = OwnGP().start(80)
    value, _ = closed_form(logarithms(hyperparameters.fit(x, y, start)), x, y)
    difference = value - by_lbfgsb(x, y, start)
    better, worse = int((difference > 0.01).sum()), int((difference < -0.01).sum())
    assert worse - better <= 2 * math.sqrt(worse + better), f"{worse} worse and {better} better than L-BFGS-B"


def test_the_fit_finds_the_truth() -> None:
    """60 GPs with the same hyper-parameters: the mean logarithms are right to 4 standard errors and a bias of .1."""
    N, t = 60, 80
    truth = OwnGP("given", lengthscale=0.1, variance=1.0, noise=0.01).start(N)
    x = uniforms(N, t, 1, seed=7)
    z = torch.special.ndtri(uniforms(N, t, 1, seed=8).clamp(1e-9))
    y = (hyperparameters.gram_cholesky(x, truth, truth.noise) @ z)[..., 0]
    error = logarithms(fitted("closed_form", x, y, 0.3, 0.5, 0.03)) - logarithms(truth)
    assert torch.all(error.mean(0).abs() < 4 * error.std(0) / math.sqrt(N) + 0.1)
    assert torch.all(error.std(0) < numbers(0.4, 1.2, 0.4)), "too wide to mean anything"


def test_both_objectives_fit_the_same_hyperparameters() -> None:
    x, y = well_posed(8, 40, 2, seed=50)
    one, other = (fitted(objective, x, y, 0.3, 1.0, 0.03) for objective in OBJECTIVES)
    for a, b in zip(vars(one).values(), vars(other).values(), strict=True):
        assert torch.allclose(a.log(), b.log(), rtol=0, atol=5e-2)


def test_an_agent_fits_the_same_alone_and_in_a_batch() -> None:
    x, y = well_posed(6, 30, 2, seed=60)
    together = hyperparameters.fit(x, y, OwnGP().start(6))
    for n in range(6):
        alone = hyperparameters.fit(x[n : n + 1], y[n : n + 1], OwnGP().start(1))
        for a, b in zip(vars(alone).values(), vars(together.select(torch.tensor([n]))).values(), strict=True):
            assert torch.allclose(a.log(), b.log(), rtol=0, atol=1e-6)


def test_the_fit_starts_from_what_it_is_given() -> None:
    """At the optimum nothing moves: a second fit from the first keeps its place."""
    x, y = well_posed(6, 40, 2, seed=50)
    first = hyperparameters.fit(x, y, OwnGP(lengthscale=0.3, variance=1.0, noise=0.03).start(6))
    second = hyperparameters.fit(x, y, first)
    for a, b in zip(vars(first).values(), vars(second).values(), strict=True):
        assert torch.allclose(a.log(), b.log(), rtol=0, atol=0.05)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_agent_without_a_likelihood_keeps_its_start_and_disturbs_nobody(objective: str) -> None:
    x, y = well_posed(3, 15, 2)
    sick = y.clone()
    sick[1, 4] = math.nan
    start = OwnGP().start(3)
    try:
        found = fitted(objective, x, sick, 1.0, 0.1, 1e-6)
    except Exception as error:
        pytest.fail(f"one agent's NaN ends the fit of all agents: {type(error).__name__}")
    healthy = fitted(objective, x, y, 1.0, 0.1, 1e-6)
    for name in ("lengthscale", "variance", "noise"):
        assert float(getattr(found, name)[1]) == pytest.approx(float(getattr(start, name)[1]), rel=1e-12)
        kept = getattr(found, name)[[0, 2]].log()
        assert torch.allclose(kept, getattr(healthy, name)[[0, 2]].log(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "y",
    [torch.zeros(12), torch.ones(12), 1e6 * torch.ones(12), 1e-9 * torch.arange(12.0), torch.eye(12)[0]],
    ids=["zero", "constant", "huge", "tiny", "outlier"],
)
@pytest.mark.parametrize("equal_points", [False, True])
def test_degenerate_data_stay_finite_and_within_bounds(y: Tensor, equal_points: bool) -> None:
    x = torch.full((1, 12, 2), 0.5, dtype=torch.float64) if equal_points else uniforms(1, 12, 2)
    found = hyperparameters.fit(x, y.double()[None], OwnGP().start(1))
    for name, (low, high) in BOUNDS.items():
        assert low * (1 - 1e-9) <= float(getattr(found, name)) <= high * (1 + 1e-9)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_the_fit_follows_the_scale_of_the_observations(factor: float) -> None:
    x, y = well_posed(6, 30, 2, seed=60)
    start = OwnGP("closed_form", 5, 0.3, 1.0, 0.03).start(6)
    small, large = hyperparameters.fit(x, y, start), hyperparameters.fit(x, factor * y, start)
    assert torch.allclose(large.lengthscale, small.lengthscale, rtol=1e-6)
    assert torch.allclose(large.variance, factor**2 * small.variance, rtol=1e-5)
    assert torch.allclose(large.noise, factor**2 * small.noise, rtol=1e-5)


def test_the_fit_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = well_posed(7, 20, 2, seed=61)
    whole = hyperparameters.fit(x, y, OwnGP().start(7))
    monkeypatch.setattr("dpfbo.gp.hyperparameters._BLOCK", 3 * 20**2)  # the last block has one agent
    for a, b in zip(vars(whole).values(), vars(hyperparameters.fit(x, y, OwnGP().start(7))).values(), strict=True):
        assert torch.equal(a, b)


def test_the_fit_changes_no_input() -> None:
    x, y = well_posed(2, 10, 1)
    start = OwnGP().start(2)
    before = [a.clone() for a in (x, y, *vars(start).values())]
    hyperparameters.fit(x, y, start)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, y, *vars(start).values()), strict=True))


def test_selected_rows_are_those_agents() -> None:
    hyper = Hyperparameters(numbers(1, 2, 3), numbers(4, 5, 6), numbers(7, 8, 9))
    picked = hyper.select(torch.tensor([2, 0]))
    assert [v.tolist() for v in vars(picked).values()] == [[3, 1], [6, 4], [9, 7]]


def test_when_a_refit_is_due() -> None:
    own = OwnGP(every=5)
    assert [t for t in range(1, 31) if own.due(t)] == [5, 10, 15, 20, 25, 30]
    assert [t for t in range(1, 8) if OwnGP("gpytorch", every=1).due(t)] == list(range(1, 8))


@given(every=st.integers(1, 100), count=st.integers(1, 1000))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_given_hyperparameters_are_never_refitted(every: int, count: int) -> None:
    assert not OwnGP("given", every=every).due(count)


def test_every_agent_starts_from_the_settings() -> None:
    start = OwnGP("given", lengthscale=0.03, variance=1.0, noise=0.01).start(4)
    assert start.lengthscale.tolist() == [0.03] * 4 and start.lengthscale.dtype == torch.float64
    assert start.variance.tolist() == [1.0] * 4 and start.noise.tolist() == [0.01] * 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fit": "mle"}, "fit must be one of 'closed_form', 'gpytorch', 'given', got 'mle'"),
        ({"fit": None}, "fit must be one of"),
        ({"every": 0}, "every must be an integer of at least 1, got 0"),
        ({"every": 2.5}, "every must be an integer"),
        ({"lengthscale": 0}, "lengthscale must be a finite number above 0, got 0"),
        ({"lengthscale": -1.0}, "lengthscale must be"),
        ({"variance": math.nan}, "variance must be a finite number above 0, got nan"),
        ({"noise": math.inf}, "noise must be a finite number above 0, got inf"),
        ({"noise": "a"}, "noise must be a finite number above 0, got 'a'"),
        ({"lengthscale": 1e-3}, "lengthscale must lie in"),
        ({"lengthscale": 101}, "lengthscale must lie in"),
        ({"variance": 1e4}, "variance must lie in"),
        ({"noise": 1e-9}, "noise must lie in"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        OwnGP(**settings)  # type: ignore[arg-type]
    assert said in str(caught.value)
