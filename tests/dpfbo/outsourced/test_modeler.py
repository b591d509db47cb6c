"""The modeler: its posterior against a direct solve, its kernel against Monte Carlo, and its choice of candidates."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfbo.outsourced.hyperparameters import Belief
from dpfbo.outsourced.modeler import CandidatePosterior, Kernel, Modeler, Policy, beta, noise_aware_kernel
from dpfbo.outsourced.transforms import Candidates


def points(m, r=2, size=3.0, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-size, size, (m, r)))


def direct(z, kernel, indices, y):
    """Mean and variance of all candidates by numpy's solver, with distances taken coordinate by coordinate."""
    z = z.numpy()
    rows = np.stack([kernel.amplitude * np.exp(-0.5 * ((z - z[i]) ** 2).sum(1)) for i in indices])
    rows[np.arange(len(indices)), indices] += kernel.nugget
    weights = np.linalg.solve(rows[:, indices] + kernel.noise * np.eye(len(indices)), rows)
    mean = kernel.mean + weights.T @ (np.asarray(y) - kernel.mean)
    return mean, kernel.amplitude + kernel.nugget - (rows * weights).sum(0)


@pytest.mark.parametrize("nugget", [0.0, 0.4])
@pytest.mark.parametrize("noise", [0.3, 1e-5])
def test_posterior_of_sixty_measurements(nugget, noise):
    """Updates one by one, one refit and a direct solve agree, with repeats and 3000 candidates."""
    rng = np.random.default_rng(3)
    z, kernel = points(3000, 3), Kernel(1.3, nugget, noise, -0.7)
    indices = [*rng.integers(0, 3000, 35).tolist(), *rng.integers(0, 9, 24).tolist(), 2999]
    assert len(indices) == 60 and len(set(indices)) < 50
    y = rng.normal(-0.7, 1.2, 60).tolist()
    one_by_one, at_once = CandidatePosterior(z, kernel, 60), CandidatePosterior(z, kernel, 60)
    for index, value in zip(indices, y, strict=True):
        one_by_one.observe(index, value)
    at_once.refit(indices, y)
    for posterior in (one_by_one, at_once):
        mean, variance = direct(z, kernel, indices, y)
        assert np.abs(posterior.mean.numpy() - mean).max() < 1e-8
        assert np.abs(posterior.variance.numpy() - variance).max() < 1e-8


@pytest.mark.parametrize("noise", [1e-2, 1e-5])
def test_posterior_goes_on_after_a_refit(noise):
    z, kernel = points(400, seed=1), Kernel(1.0, 0.0, noise, 0.0)
    y = np.random.default_rng(0).normal(size=30).tolist()
    indices = [*range(0, 290, 10), 10]
    expected, refitted = CandidatePosterior(z, kernel, 30), CandidatePosterior(z, kernel, 30)
    refitted.observe(399, 5.0)
    refitted.refit(indices[:20], y[:20])
    for k, (index, value) in enumerate(zip(indices, y, strict=True)):
        expected.observe(index, value)
        if k >= 20:
            refitted.observe(index, value)
    scale = float(expected.mean.abs().max())
    assert float((expected.mean - refitted.mean).abs().max()) < 1e-8 * max(scale, 1.0)
    assert float((expected.variance - refitted.variance).abs().max()) < 1e-8


def test_posterior_holds_no_more_than_it_was_made_for():
    posterior = CandidatePosterior(points(5), Kernel(1.0, 0.0, 0.1, 0.0), 2)
    posterior.observe(0, 1.0)
    posterior.observe(0, 1.0)
    with pytest.raises(ValueError, match="at most 2 measurements"):
        posterior.observe(1, 1.0)


# --- the noise-aware kernel


@pytest.mark.parametrize("variances", [(0.5, 0.5), (0.0, 2.0), (9.0, 0.1)])
@pytest.mark.parametrize("apart", [(0.0, 0.0), (1.0, -0.5), (3.0, 2.0)])
def test_aware_covariance_is_the_expectation_over_the_inputs(variances, apart):
    rng, n, l = np.random.default_rng(11), 100_000, 1.7
    a, b = (rng.normal(size=(n, 2)) * np.sqrt(variances) for _ in range(2))
    sample = 2.5 * np.exp(-((a - b + np.array(apart)) ** 2).sum(1) / (2 * l**2))
    z = torch.tensor([(0.0, 0.0), apart], dtype=torch.float64)
    known = torch.tensor(variances, dtype=torch.float64)
    scaled, kernel = noise_aware_kernel(Candidates(z, known), Belief(l, 2.5, 0.1, 0.3))
    got = kernel.amplitude * math.exp(-0.5 * float((scaled[0] - scaled[1]).square().sum()))
    assert abs(got - sample.mean()) < 4.5 * sample.std() / math.sqrt(n)
    assert sample.std() / math.sqrt(n) < 0.01
    assert kernel.amplitude + kernel.nugget == pytest.approx(2.5)
    assert (kernel.noise, kernel.mean) == (0.1, 0.3)


def test_unknown_variance_of_an_input_is_noise_if_every_measurement_takes_another_input():
    z, known = points(4), torch.full((2,), 0.8, dtype=torch.float64)
    same_points, same = noise_aware_kernel(Candidates(z, known), Belief(1.0, 2.0, 0.1, 0.0))
    fresh_points, fresh = noise_aware_kernel(Candidates(z, known, fresh=True), Belief(1.0, 2.0, 0.1, 0.0))
    assert torch.equal(same_points, fresh_points)
    assert fresh.amplitude == same.amplitude == pytest.approx(2.0 / 2.6)
    assert fresh.nugget == 0 and fresh.noise == pytest.approx(0.1 + same.nugget)
    often = [CandidatePosterior(z, kernel, 200) for kernel in (same, fresh)]
    for posterior in often:
        posterior.refit([0] * 200, [1.0] * 200)
        assert float(posterior.variance[0]) < 0.02  # 200 measurements determine both
    once = [CandidatePosterior(z, kernel, 1) for kernel in (same, fresh)]
    for posterior in once:
        posterior.observe(0, 1.0)
    assert float(once[0].variance[0]) == pytest.approx(2.0 - 2.0**2 / 2.1)
    assert float(once[1].variance[0]) == pytest.approx(2 / 2.6 - (2 / 2.6) ** 2 / 2.1)  # its mean over the inputs


def test_without_input_variance_it_is_the_plain_kernel():
    scaled, kernel = noise_aware_kernel(Candidates(points(4)), Belief(2.0, 1.5, 0.1, 0.0))
    assert torch.equal(scaled, points(4) / 2) and kernel == Kernel(1.5, 0.0, 0.1, 0.0)
    _, limit = noise_aware_kernel(
        Candidates(points(4), torch.zeros(2, dtype=torch.float64)), Belief(2.0, 1.5, 0.1, 0.0)
    )
    assert limit == kernel


# --- the choice of candidates


def test_beta():
    assert beta(1, 10_000, 0.05) == pytest.approx(2 * (math.log(10_000) + math.log(math.pi**2 / 6) + math.log(40)))
    assert beta(50, 10_000, 0.05) - beta(1, 10_000, 0.05) == pytest.approx(4 * math.log(50))


BELIEF = Belief(lengthscale=0.8, variance=1.0, noise=0.01, mean=0.2)


def objective(z):
    return torch.sin(2 * z[:, 0]) + 0.5 * torch.cos(z[:, 1])


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("noise_aware", [True, False])
def test_it_asks_for_the_largest_bound(noise_aware, repeat):
    """The direct posterior and a second version of the bound agree; step 1 is the first after the initial points."""
    z, known = points(60), torch.tensor([0.2, 0.1], dtype=torch.float64)
    f, modeler = objective(z), Modeler(Candidates(z, known), BELIEF, Policy(noise_aware=noise_aware, repeat=repeat), 25)
    scaled, kernel = noise_aware_kernel(Candidates(z, known if noise_aware else None), Belief(0.8, 1.0, 0.01, 0.2))
    indices = [7, 33]
    for index in indices:
        modeler.observe(index, float(f[index]))
    for t in range(1, 20):
        mean, variance = direct(scaled, kernel, indices, f[indices].numpy())
        bound = mean + np.sqrt(2 * np.log(60 * t**2 * np.pi**2 / (6 * 0.025)) * variance.clip(min=0))
        if not repeat:
            bound[indices] = -np.inf
        index = modeler.propose(0.5)
        assert type(index) is int
        assert bound[index] > bound.max() - 1e-9
        modeler.observe(index, float(f[index]))
        indices.append(index)
    assert len(set(indices)) == 21 or repeat


@pytest.mark.parametrize("policy", ["gp_ucb", "random"])
def test_without_repeats_every_candidate_is_measured_once_before_any_is_measured_again(policy):
    z = points(9)
    modeler = Modeler(Candidates(z), BELIEF, Policy(policy=policy, repeat=False), 14)
    asked = []
    for u in np.random.default_rng(0).uniform(size=14):
        asked.append(modeler.propose(float(u)))
        modeler.observe(asked[-1], float(objective(z)[asked[-1]]))
    assert sorted(asked[:9]) == list(range(9))
    assert all(0 <= index < 9 for index in asked[9:])


def test_with_repeats_gp_ucb_measures_the_best_again():
    z = points(9)
    modeler = Modeler(Candidates(z), Belief(0.1, 1.0, 0.5, 0.0), Policy(), 60)
    asked = []
    for _ in range(60):
        asked.append(modeler.propose(0.0))
        modeler.observe(asked[-1], 3.0 if asked[-1] == 4 else -1.0)
    assert len(set(asked)) == 9
    assert asked.count(4) == max(asked.count(k) for k in range(9)) > 12


@pytest.mark.parametrize("policy", ["gp_ucb", "random"])
def test_a_candidate_is_asked_for_as_often_as_it_seems_to_have_inputs(policy):
    """Noisy counts of 0.4 and below count as one; when all are used up, every candidate is allowed again."""
    counts = torch.tensor([2.6, -1.0, 0.4, 1.2], dtype=torch.float64)
    candidates = Candidates(points(4), torch.full((2,), 0.1, dtype=torch.float64), fresh=True, counts=counts)
    modeler = Modeler(candidates, Belief(1.0, 1.0, 1e-2, 0.0), Policy(policy=policy), 7)
    asked = []
    for k in range(7):
        asked.append(modeler.propose(k / 7))
        modeler.observe(asked[-1], 1.0 if asked[-1] == 0 else -1.0)
    assert sorted(asked[:6]) == [0, 0, 0, 1, 2, 3]
    assert 0 <= asked[6] < 4


def test_a_random_candidate_is_uniform():
    modeler = Modeler(Candidates(points(7)), BELIEF, Policy(policy="random"), 1)
    drawn = [modeler.propose(u) for u in np.random.default_rng(4).uniform(size=7000).tolist()]
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-4
    assert modeler.propose(0.0) == 0 and modeler.propose(1 - 2**-53) == 6
    left = Modeler(Candidates(points(7)), BELIEF, Policy(policy="random", repeat=False), 3)
    for index in (0, 3, 6):
        left.observe(index, 0.0)
    drawn = [left.propose(u) for u in np.random.default_rng(4).uniform(size=4000).tolist()]
    assert set(drawn) == {1, 2, 4, 5}
    assert stats.chisquare(np.bincount(drawn)[[1, 2, 4, 5]]).pvalue > 1e-4


# --- maximum likelihood


@pytest.mark.parametrize("wrong", [0.1, 12.0])
def test_a_fit_mends_a_wrong_length_scale(wrong):
    z = points(200, seed=2)
    K = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(2).numpy() / 1.2**2)
    f = np.linalg.cholesky(K + 1e-8 * np.eye(200)) @ np.random.default_rng(7).normal(size=200)
    errors = {}
    for fit in ("given", "ml"):
        modeler = Modeler(Candidates(z), Belief(wrong, 1.0, 1e-4, 0.0), Policy(fit=fit, every=20), 40)
        for index in range(40):
            modeler.observe(index, float(f[index]))
        errors[fit] = float(np.sqrt(np.mean((modeler._posterior.mean.numpy()[40:] - f[40:]) ** 2)))
    assert errors["ml"] < 0.5 * errors["given"]
    assert errors["ml"] < 0.3


def test_a_fit_needs_no_different_candidates():
    """Measurements of one candidate do not determine a length-scale, and must not end the run."""
    modeler = Modeler(Candidates(points(5)), BELIEF, Policy(fit="ml", every=2), 6)
    for y in (1.0, 1.1, 0.9, 1.0, 1.0, 1.0):
        modeler.observe(3, y)
        assert 0 <= modeler.propose(0.5) < 5
    constant = Modeler(Candidates(points(5)), BELIEF, Policy(fit="ml", every=2), 4)
    for index in range(4):
        constant.observe(index, 2.0)
        assert 0 <= constant.propose(0.5) < 5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"policy": "magic"}, r"policy must be one of 'gp_ucb', 'random', got 'magic'"),
        ({"fit": "no"}, r"fit must be one of 'given', 'ml', got 'no'"),
        ({"delta_ucb": 0}, r"delta_ucb must lie in \(0, 1\], got 0"),
        ({"every": 1}, r"every must be an integer of at least 2, got 1"),
        ({"repeat": "no"}, r"repeat must be one of True, False, got 'no'"),
        ({"noise_aware": None}, r"noise_aware must be one of True, False, got None"),
    ],
)
def test_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Policy(**settings)
