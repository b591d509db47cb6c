"""The plain loop against the library: equal laws term by term, and equal mean results of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import cho_solve
from threadpoolctl import threadpool_limits
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.population.agents import FOLLOW_PROBABILITY
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.gp import hyperparameters, posterior
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.features import FeatureFunction, RandomFeatures
from dpfbo.gp.own_gp import OwnGP
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Grid
from dpfbo.space.regions import Regions
from runners.bench import plain_loop
from runners.compose.composition import build, federated
from runners.compose.configuration import composed
from runners.compose.federated import FederatedExperiment
from tests.dpfbo.gp.likelihoods import closed_form
from tests.helpers.small_runs import FAST

SMOOTH = [
    "problem.n_agents=20",
    "problem.grid_size=200",
    "problem.lengthscale=0.1",
    "problem.preset.message.lengthscale=0.1",
    "problem.preset.own_gp.lengthscale=0.1",
    "problem.preset.own_draw=rff",
    "n_init=3",
    "rounds=10",
]
BRANIN = ["problem.n_agents=8", "rounds=8", "acquisition.n_candidates=200", "acquisition.n_starts=4"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: the matrices are small, and threads of a busy machine wait for each other."""
    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)


def compose(problem: str, algorithm: str, seed: int, *overrides: str) -> FederatedExperiment:
    given = [f"problem={problem}", f"algorithm={algorithm}", f"seed={seed}", *FAST, *overrides]
    return federated(build(composed(given)))


def random_map(
    rng: np.random.Generator, M: int, D: int, lengthscale: float
) -> tuple[plain_loop.Features, RandomFeatures]:
    """The same map for the plain loop and for the library."""
    features = plain_loop.Features.draw(M, D, lengthscale, rng)
    return features, RandomFeatures(torch.from_numpy(features.s)[None], torch.from_numpy(features.b)[None])


def settings(P: int, q: float, z: float, S: float) -> Any:
    privacy = SimpleNamespace(mechanism=SubsampledGaussian(q, z, S))
    return SimpleNamespace(algorithm=SimpleNamespace(private=True, P=P), privacy=privacy)


# The message (eq. 2)


@pytest.mark.parametrize(("t", "lam"), [(5, 1e-2), (60, 1e-2), (30, 1e-4)])
def test_message_has_the_law_of_the_library(t: int, lam: float) -> None:
    """Matheron's rule is affine in (w0, e): without noise it gives nu, and its linear part gives the covariance."""
    M, rng = 40, np.random.default_rng(0)
    features, _ = random_map(rng, M, 2, 0.3)
    Phi, y = features(rng.random((t, 2))), rng.standard_normal(t)
    nu, L = plain_loop.weight_posterior(Phi, y, lam)
    Phi_t, K = torch.from_numpy(Phi), torch.from_numpy(Phi @ Phi.T + lam * np.eye(t))[None]

    def library(y: Tensor, w0: Tensor, e: Tensor) -> Tensor:
        n = len(w0)
        factor = posterior.cholesky(K).expand(n, -1, -1)
        return posterior.sample_weights(Phi_t.expand(n, -1, -1), factor, y.expand(n, -1), w0, e)

    def zeros(n: int, k: int) -> Tensor:
        return torch.zeros(n, k, dtype=torch.float64)

    mean = library(torch.from_numpy(y), zeros(1, M), zeros(1, t))[0]
    np.testing.assert_allclose(nu, mean, atol=1e-8)
    from_w0 = library(zeros(1, t)[0], torch.eye(M, dtype=torch.float64), zeros(M, t))  # rows: image of each unit vector
    from_e = library(zeros(1, t)[0], zeros(t, M), torch.eye(t, dtype=torch.float64))
    covariance = from_w0.T @ from_w0 + lam * from_e.T @ from_e
    np.testing.assert_allclose(lam * cho_solve((L, True), np.eye(M)), covariance, atol=1e-8)


def test_draws_follow_the_posterior() -> None:
    """Mean and covariance of 20000 draws, within 5 standard errors."""
    rng, M, lam, n = np.random.default_rng(1), 6, 0.1, 20_000
    Phi, y = rng.standard_normal((4, M)), rng.standard_normal(4)
    nu, L = plain_loop.weight_posterior(Phi, y, lam)
    draws = np.stack([plain_loop.draw_weights(Phi, y, lam, rng) for _ in range(n)])
    white = (draws - nu) @ L / math.sqrt(lam)  # N(0, I) under eq. 2
    assert np.abs(white.mean(0)).max() < 5 / math.sqrt(n)
    assert np.abs(np.cov(white.T) - np.eye(M)).max() < 5 * math.sqrt(2 / n)


# The own Gaussian process


@pytest.mark.parametrize("theta", [(0.0, -2.3, -13.8), (-1.5, 0.3, -4.0), (1.0, 1.0, 0.0)])
def test_likelihood_is_that_of_the_library(theta: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(2)
    X, y = rng.random((7, 3)), rng.standard_normal(7)
    value, gradient = plain_loop.log_likelihood(np.array(theta), X, y)
    tensors = (torch.tensor([theta], dtype=torch.float64), torch.from_numpy(X)[None], torch.from_numpy(y)[None])
    ours, slope = closed_form(*tensors)
    np.testing.assert_allclose(value / len(y), ours[0], rtol=1e-8)
    np.testing.assert_allclose(gradient / len(y), slope[0], rtol=1e-6, atol=1e-8)


def test_likelihood_of_a_singular_matrix_is_minus_infinity() -> None:
    value, _ = plain_loop.log_likelihood(np.log([1.0, 1e3, 1e-30]), np.zeros((3, 1)), np.ones(3))
    assert value == -math.inf


@pytest.mark.parametrize("noise", [0.3, 0.0])
def test_fit_is_that_of_the_library(noise: float) -> None:
    """From a start near one optimum both find it; the library stops when it gains 1e-6 a step."""
    rng = np.random.default_rng(3)
    X = rng.random((30, 2))
    y = np.sin(5 * X[:, 0]) + X[:, 1] + noise * rng.standard_normal(30)
    start = OwnGP(lengthscale=0.5, variance=1.0, noise=0.1).start(1)
    found = plain_loop.fit(X, y, np.array([0.5, 1.0, 0.1]))
    hyper = hyperparameters.fit(torch.from_numpy(X)[None], torch.from_numpy(y)[None], start)
    library = np.array([hyper.lengthscale[0], hyper.variance[0], hyper.noise[0]])
    values = [
        plain_loop.log_likelihood(np.log(h), X, y)[0] / len(y) for h in (np.array([0.5, 1.0, 0.1]), found, library)
    ]
    assert values[1] > values[0] + 0.02
    assert values[1] == pytest.approx(values[2], abs=1e-4)


def test_fit_from_the_start_of_the_paper_gains() -> None:
    """There the Gram matrix is nearly singular and the first steps are wild; the fit stays within its bounds."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        X = rng.random((10, 2))
        y, start = np.sin(5 * X[:, 0]), np.array([1.0, 0.1, 1e-6])
        found = plain_loop.fit(X, y, start)
        low, high = plain_loop.HYPER_BOUNDS.T
        assert (found >= low * (1 - 1e-9)).all() and (found <= high * (1 + 1e-9)).all()
        gain = plain_loop.log_likelihood(np.log(found), X, y)[0] - plain_loop.log_likelihood(np.log(start), X, y)[0]
        assert gain > 0


# Regions, features, acquisition


@pytest.mark.parametrize(("P", "D"), [(1, 2), (2, 1), (4, 2), (4, 3), (6, 2), (8, 3), (12, 2), (3, 1)])
def test_regions_are_those_of_the_library(P: int, D: int) -> None:
    regions, X = Regions(P, D), np.random.default_rng(4).random((500, D))
    X[:20] = np.round(X[:20] * 12) / 12  # on the faces
    parts = plain_loop.region_parts(P, D)
    assert parts == regions.parts
    of = plain_loop.regions_of(X, parts)
    np.testing.assert_array_equal(of, regions.region_of(torch.from_numpy(X)))
    lower, upper = regions.bounds(torch.from_numpy(of))
    corners = [plain_loop.cell_bounds(cell, parts) for cell in plain_loop.cells_of(X, parts)]
    np.testing.assert_allclose(np.array(corners).transpose(1, 0, 2), np.stack([lower, upper]), atol=1e-12)


@pytest.mark.parametrize(
    "domain", [Box((0.0, 0.0), (1.0, 1.0)), Grid(torch.rand(300, 2).double(), (0.0, 0.0), (1.0, 1.0))]
)
def test_initial_points_lie_in_their_region(domain: Box | Grid) -> None:
    parts, rng = plain_loop.region_parts(4, 2), np.random.default_rng(5)
    for region in range(4):
        X = plain_loop.initial_points(region, 50, parts, domain, rng)
        assert (plain_loop.regions_of(X, parts) == region).all()
        assert len(np.unique(X, axis=0)) > 20


def test_gradient_is_that_of_the_function() -> None:
    rng, h = np.random.default_rng(6), 1e-6
    features, _ = random_map(rng, 30, 2, 0.3)
    omega, x = rng.standard_normal(30), rng.random(2)
    value, gradient = features.value_and_gradient(x, omega)
    assert value == pytest.approx(float(features(x[None])[0] @ omega))
    steps = [(features((x + h * e)[None]) - features((x - h * e)[None]))[0] @ omega / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(gradient, steps, rtol=1e-6)


@pytest.mark.parametrize("P", [1, 4])
def test_argmax_is_that_of_the_library(P: int) -> None:
    """The same functions on a box, maximised by both: the same best value; on a grid the same point."""
    rng, box = np.random.default_rng(7), Box((0.0, 0.0), (1.0, 1.0))
    grid = Grid(torch.from_numpy(rng.random((500, 2))), (0.0, 0.0), (1.0, 1.0))
    many = Acquisition(n_candidates=1000, n_starts=40, max_iterations=100)
    for _ in range(5):
        features, shared = random_map(rng, 50, 2, 0.3)
        omega = rng.standard_normal((P, 50))
        function = FeatureFunction(shared, torch.from_numpy(omega)[None], Regions(P, 2), torch.tensor([0.3]).double())

        def value(x: np.ndarray, function: FeatureFunction = function) -> float:
            return float(function(torch.from_numpy(x)[None, None]))

        shift = torch.from_numpy(rng.random(2))
        x = plain_loop.maximise(features, omega, box, many, rng)
        assert value(x) == pytest.approx(value(many.maximize(function, box, shift)[0].numpy()), abs=1e-6)
        on_grid = many.maximize(function, grid, torch.zeros(0))[0]
        np.testing.assert_array_equal(plain_loop.maximise(features, omega, grid, many, rng), on_grid)


# The agent (Algo. 2)


@dataclass
class Watched:
    """A problem that records all queries. asked: (agent, round, points k x D in natural units)."""

    problem: Problem
    asked: list[tuple[int, int, np.ndarray]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        self.asked.append((int(agents[0]), round, x[0].numpy()))
        return self.problem.evaluate(agents, x, streams, round)


def capture_maximise(monkeypatch: pytest.MonkeyPatch) -> list[tuple[plain_loop.Features, np.ndarray]]:
    """Replace the search by one that records its arguments and returns the origin."""
    seen: list[tuple[plain_loop.Features, np.ndarray]] = []

    def maximise(features: plain_loop.Features, omega: np.ndarray, *args: object) -> np.ndarray:
        seen.append((features, omega))
        return np.zeros(features.s.shape[1])

    monkeypatch.setattr(plain_loop, "maximise", maximise)
    return seen


def test_queries_go_where_they_should() -> None:
    """Initial points lie in region n mod P, all points in the domain, and no agent queries a point twice."""
    e = compose("branin", "dp_fts_de", 0, *BRANIN)
    watched = Watched(e.problem)
    plain_loop.run(watched, e.settings, e.rounds, 0)
    low, high = (np.array(b) for b in (e.problem.domain.lower, e.problem.domain.upper))
    for agent in range(8):
        mine = [(t, (x - low) / (high - low)) for n, t, x in watched.asked if n == agent]
        assert [(t, len(u)) for t, u in mine] == [(0, 5), *((t, 1) for t in range(1, 9))]
        initial, u = mine[0][1], np.concatenate([u for _, u in mine])
        assert (Regions(4, 2).region_of(torch.from_numpy(initial)) == agent % 4).all()
        assert (u >= 0).all() and (u <= 1).all()
        assert len(np.unique(u.round(8), axis=0)) == 13


@pytest.mark.parametrize("follow", ["inverse_sqrt", "inverse", "inverse_square", "never"])
def test_the_server_is_followed_as_often_as_in_the_library(follow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    e = compose("branin", "dp_fts_de", 0, f"algorithm.follow={follow}", "problem.preset.message.M=7")
    seen, rng, n = capture_maximise(monkeypatch), np.random.default_rng(10), 1000
    shared, omega = plain_loop.Features.draw(7, 2, 0.2, rng), np.ones((4, 7))
    for t in (1, 4):
        seen.clear()
        for _ in range(n):
            agent = plain_loop.PlainAgent(0, np.array([1.0, 0.1, 1e-6]), np.full((1, 2), 0.5), np.ones(1))
            plain_loop.query(agent, t, omega, shared, e.problem.domain, e.settings, rng, PhaseClock())
        followed = [features is shared and w is omega for features, w in seen]
        p = FOLLOW_PROBABILITY[follow](t)
        assert abs(np.mean(followed) - p) <= 4 * math.sqrt(p * (1 - p) / n)


def test_a_repeated_query_is_replaced_on_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    e, rng = compose("branin", "dp_fts_de", 0), np.random.default_rng(11)
    capture_maximise(monkeypatch)
    shared, omega, hyper = plain_loop.Features.draw(100, 2, 0.2, rng), np.ones((4, 100)), np.array([1.0, 0.1, 1e-6])
    for X, replaced in ((np.zeros((1, 2)), True), (np.array([[0.0, 0.1]]), False)):
        agent = plain_loop.PlainAgent(0, hyper, X, np.ones(1))
        x = plain_loop.query(agent, 1, omega, shared, e.problem.domain, e.settings, rng, PhaseClock())
        assert (x > 0).all() == replaced


def test_fits_come_every_five_observations_and_start_from_the_stated_values(monkeypatch: pytest.MonkeyPatch) -> None:
    e = compose("branin", "ts", 0, *BRANIN, "problem.n_agents=1")
    seen: list[tuple[int, float]] = []

    def fit(X: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
        seen.append((len(y), float(start[0])))
        return start / 2

    monkeypatch.setattr(plain_loop, "fit", fit)
    plain_loop.run(e.problem, e.settings, e.rounds, 0)
    assert seen == [(5, 1.0), (10, 1.0)]


@pytest.mark.parametrize("noise", [0.1, 1e-8])
def test_own_draw_follows_its_posterior(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of fresh features scaled by the kernel's deviation, whitened: N(0, I) within 5 standard errors."""
    F, n, rng = 5, 2000, np.random.default_rng(12)
    e = compose("branin", "ts", 0, f"algorithm.own_draw.n_features={F}")
    seen = capture_maximise(monkeypatch)
    agent = plain_loop.PlainAgent(0, np.array([0.5, 4.0, noise]), 1 - rng.random((3, 2)), np.array([1.0, -2.0, 0.5]))
    shared = plain_loop.Features.draw(100, 2, 0.2, rng)
    for _ in range(n):
        plain_loop.query(agent, 1, np.zeros((1, 100)), shared, e.problem.domain, e.settings, rng, PhaseClock())
    white = []
    for fresh, w in seen:
        nu, L = plain_loop.weight_posterior(2.0 * fresh(agent.X), agent.y, max(noise, 1e-5))
        white.append((w[0] - nu) @ L / math.sqrt(max(noise, 1e-5)))
    assert np.abs(np.mean(white, 0)).max() < 5 / math.sqrt(n)
    assert np.abs(np.cov(np.transpose(white)) - np.eye(F)).max() < 5 * math.sqrt(2 / n)
    frequencies = np.concatenate([fresh.s for fresh, _ in seen])
    assert frequencies.std() == pytest.approx(1 / 0.5, rel=5 / math.sqrt(2 * frequencies.size))


# The server (Algo. 1)


@pytest.mark.parametrize("t", [0, 4, 5, 7, 9, 30])
def test_weights_are_those_of_the_library(t: int) -> None:
    weights = Softmax(Decay(5, 5), 15.0)
    library = weights(t, torch.arange(10) % 4, 4)
    np.testing.assert_allclose(plain_loop.region_weights(t, 10, 4, weights), library, atol=1e-12)


def test_sum_is_that_of_the_library_when_all_are_chosen() -> None:
    """With q = 1 and z = 0 nothing is random: clip and sum, with messages on both sides of the clip norm."""
    rng = np.random.default_rng(8)
    messages = rng.standard_normal((12, 5)) * rng.uniform(0.1, 10, (12, 1))
    messages[3] = 0
    weights = plain_loop.region_weights(3, 12, 4, Softmax(Decay(0, 8), 2.0))
    ours = plain_loop.aggregate(messages, weights, settings(4, 1.0, 0.0, 6.0), rng)
    mechanism = SubsampledGaussian(1.0, 0.0, 6.0)
    entropy = SeededEntropy(Streams(0))
    release, private = mechanism.release(torch.from_numpy(messages), torch.from_numpy(weights), 5, entropy, 0)
    assert 0 < private.n_clipped < 11
    np.testing.assert_allclose(ours, release.values, atol=1e-12)


def test_noise_and_choice_are_those_of_the_library() -> None:
    """Standard deviation of the noise within 4 standard errors of z times the sensitivity; sum unbiased under q."""
    rng, N, P, M, q = np.random.default_rng(9), 12, 4, 20_000, 0.3
    weights = plain_loop.region_weights(0, N, P, Softmax(Decay(5, 5), 2.0))
    noise = plain_loop.aggregate(np.zeros((N, M)), weights, settings(P, q, 0.7, 6.0), rng)
    sigma = 0.7 * SubsampledGaussian(q, 0.7, 6.0).sensitivity(torch.from_numpy(weights))
    assert noise.std() == pytest.approx(sigma, rel=4 / math.sqrt(2 * P * M))
    ones, n = np.full((N, 1), 0.5), 4000
    sums = np.stack([plain_loop.aggregate(ones, weights, settings(P, q, 0.0, 6.0), rng)[:, 0] for _ in range(n)])
    assert (np.abs(sums.mean(0) - 0.5) < 4 * sums.std(0) / math.sqrt(n)).all()


# Whole runs


@pytest.mark.parametrize(("problem", "overrides"), [("branin", BRANIN), ("synthetic", SMOOTH)])
@pytest.mark.parametrize("algorithm", ["ts", "fts", "dp_fts_de"])
def test_run_improves_on_the_initial_points(problem: str, overrides: list[str], algorithm: str) -> None:
    experiment = compose(problem, algorithm, 0, *overrides)
    metric, clock = plain_loop.run(experiment.problem, experiment.settings, experiment.rounds, 0)
    assert np.isfinite(metric).all()
    assert (np.diff(metric, axis=1) <= 0).all()
    assert metric[:, -1].mean() < 0.6 * metric[:, 0].mean()
    with_server = set() if algorithm == "ts" else {"message", "server", "acquisition"}
    fits = {"fit"} if problem == "branin" else set()
    assert set(clock.seconds) == {"objective", "own_draw"} | with_server | fits


def test_same_seed_same_run() -> None:
    experiment = compose("branin", "dp_fts_de", 0, *BRANIN)
    first, again, other = (plain_loop.run(experiment.problem, experiment.settings, 3, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_settings_of_the_library_alone_are_refused() -> None:
    experiment = compose("synthetic", "random_server", 0, "rounds=2", "problem.preset.own_draw=rff")
    with pytest.raises(ValueError, match=r"algorithm\.server must be one of None, 'Server', got 'RandomServer'"):
        plain_loop.run(experiment.problem, experiment.settings, 2, 0)
    experiment = compose("synthetic", "dp_fts_de", 0, "rounds=2")
    with pytest.raises(ValueError, match=r"own_draw\.method must be one of 'rff', got 'exact'"):
        plain_loop.run(experiment.problem, experiment.settings, 2, 0)


@pytest.mark.parametrize(
    ("problem", "algorithm", "overrides", "seeds"),
    [
        ("synthetic", "ts", SMOOTH, 10),
        pytest.param("synthetic", "dp_fts_de", [*SMOOTH, "privacy.z=0.1"], 40, marks=pytest.mark.slow),
        ("branin", "dp_fts_de", [*BRANIN, "privacy.z=0.1"], 8),
    ],
)
def test_runs_end_as_those_of_the_library(problem: str, algorithm: str, overrides: list[str], seeds: int) -> None:
    """Mean simple regret over agents and rounds, paired by seed: the difference within 4 standard errors of zero."""
    difference, regret = [], []
    for seed in range(seeds):
        e = compose(problem, algorithm, seed, *overrides)
        library = federation.run(federation.LocalPopulation.of(e.problem, e.agents), e.server(Ledger(None)), e.rounds)
        theirs = np.mean([record.mean for record in library.rounds[1:]])
        ours = plain_loop.run(e.problem, e.settings, e.rounds, seed)[0][:, 1:].mean()
        difference.append(ours - theirs)
        regret.append(theirs)
    standard_error = np.std(difference, ddof=1) / math.sqrt(seeds)
    assert standard_error < 0.25 * np.mean(regret)  # a larger error would hide any difference
    assert abs(np.mean(difference)) < 4 * standard_error
