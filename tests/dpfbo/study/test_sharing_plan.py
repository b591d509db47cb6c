"""What a private prior's release is expected to carry."""

import warnings

import pytest
import torch

import dpfbo
from dpfbo import Box, SettingError
from dpfbo.federated.prior import DesignSums, expected_signal

CUBE = Box((0.0,) * 3, (1.0,) * 3)


def signal(n_agents, epsilon, **more):
    return dpfbo.plan(CUBE, n_agents, epsilon, n_init=3, delta=1e-3, **more).signal


def test_more_agents_and_more_epsilon_leave_more_of_the_signal():
    by_epsilon = [signal(12, epsilon) for epsilon in (0.1, 0.5, 1, 4, 100)]
    by_agents = [signal(n, 0.5) for n in (6, 12, 25, 100)]
    assert by_epsilon == sorted(by_epsilon) and by_agents == sorted(by_agents)
    assert by_epsilon[0] < 0.15 and 0.9 < by_epsilon[-1] <= 1


def test_large_numbers_of_agents_continue_the_small_ones():
    assert signal(512, 0.1) < signal(600, 0.1) < signal(512, 0.13)


def test_the_sentence_names_what_would_be_enough():
    weak = dpfbo.plan(CUBE, 6, 0.25, n_init=3, delta=1e-3)
    assert weak.weak and weak.enough_epsilon == 2 and weak.enough_agents == 64
    assert str(weak).endswith("epsilon 2 or 64 agents would keep half of it")
    enough = dpfbo.plan(CUBE, 6, 2, n_init=3, delta=1e-3)
    assert enough.signal >= 0.5 and not enough.weak and "would" not in str(enough)
    assert dpfbo.plan(CUBE, 64, 0.25, n_init=3, delta=1e-3).signal >= 0.5


def test_the_signal_is_the_correlation_of_the_means_with_and_without_noise():
    """Monte Carlo with the model's own objectives of one length-scale."""
    study = dpfbo.create_study(CUBE, n_agents=20, epsilon=1.0, n_init=3, delta=1e-3, rounds=1, rng="seeded")
    agents = study.agents
    features, sums = agents.features, DesignSums.of(agents.design, agents.features, 20)
    g = torch.Generator().manual_seed(0)
    D, A, middle = features.coefficients[2], sums.A, 2
    kappa, rho, z = sums.kappa[middle], 0.7, study.mechanism.noise_multiplier
    half = kappa.sqrt() * torch.linalg.cholesky(D + 1e-9 * torch.eye(len(D), dtype=D.dtype))
    shared = rho**0.5 * torch.randn(400, len(D), generator=g, dtype=D.dtype) @ half.T
    root = torch.linalg.cholesky(kappa * (1 - rho) * sums.Q[middle] + 1e-9 * torch.eye(len(D), dtype=D.dtype))
    b = shared @ A + torch.randn(400, len(D), generator=g, dtype=D.dtype) @ root.T
    noisy = b + z * torch.randn(400, len(D), generator=g, dtype=D.dtype)
    explained = []
    for values, sd in ((noisy, z), (b, 0.01)):
        V = kappa * (rho * A @ D @ A + (1 - rho) * sums.Q[middle]) + sd**2 * torch.eye(len(D), dtype=D.dtype)
        means = values @ torch.linalg.solve(V, A @ D * rho * kappa)
        at = means @ features.root.T
        explained.append((at - at.mean(1, keepdim=True)).square().mean())
    one = expected_signal(DesignSums(20, A, sums.Q[[2, 2, 2, 2, 2]]), _Only(features, D), z)
    assert float((explained[0] / explained[1]).sqrt()) == pytest.approx(one, abs=0.03)


class _Only:
    """Features whose kernels all are one."""

    def __init__(self, features, D):
        self._features, self._D = features, D

    @property
    def coefficients(self):
        return self._D.expand(5, -1, -1)

    def mean_variance(self, covariances):
        return self._features.mean_variance(covariances)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n_agents": 0}, "n_agents must be"), ({"epsilon": 0}, "epsilon must be"), ({"n_init": 1}, "n_init must be"),
        ({"delta": 1.0}, "delta must"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(given, words):
    with pytest.raises((SettingError, ValueError), match=words):
        dpfbo.plan(CUBE, **({"n_agents": 9} | given))


def test_optimize_warns_before_it_shares_noise():
    space = {"x": dpfbo.Float(0, 1)}
    f = lambda agent, x: x["x"]
    with pytest.warns(UserWarning, match=r"epsilon 0\.05, .* is expected to keep .*% of its signal"):
        dpfbo.optimize(f, space, n_agents=4, epsilon=0.05, delta=1e-3, rounds=1, n_init=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dpfbo.optimize(f, space, n_agents=25, epsilon=4.0, delta=1e-3, rounds=1, n_init=2)
        dpfbo.optimize(f, space, n_agents=4, algorithm="local", rounds=1, n_init=2)
