"""Own posterior draws: the exact draw has the law of the Gaussian process; shards draw what the whole draws."""

import pytest
import torch

from dpfbo import gp
from dpfbo.acquisition import Acquisition
from dpfbo.domain import Box, Grid
from dpfbo.draws import OwnDraw, exact_draw_on_grid
from dpfbo.rng import Streams

GRID = torch.linspace(0, 1, 25, dtype=torch.float64)
X = torch.tensor([0.1, 0.15, 0.4, 0.8], dtype=torch.float64)
Y = torch.tensor([0.3, 0.5, -0.4, 1.2], dtype=torch.float64)


def hyperparameters(n, lengthscale, variance=0.7, noise=0.05):
    full = lambda value: torch.full((n,), value, dtype=torch.float64)  # noqa: E731
    return gp.Hyperparameters(full(lengthscale), full(variance), full(noise))


def posterior(lengthscale):
    """Mean and covariance of the GP on the grid, by direct solution."""
    hyper = hyperparameters(1, lengthscale)

    def k(a, b):
        return gp.se_kernel(gp.squared_distances(a[None, :, None], b[None, :, None]), hyper)[0]

    K = k(X, X) + 0.05 * torch.eye(4, dtype=torch.float64)
    gain = torch.linalg.solve(K, k(X, GRID)).T
    return gain @ Y, k(GRID, GRID) - gain @ k(X, GRID)


@pytest.mark.parametrize("lengthscale", [0.006, 0.02, 0.3, 3.0, 60.0])
def test_exact_draw_has_the_posterior_law(lengthscale):
    """Every mean and covariance entry of 20000 draws within 5.5 SE (24 and 300 of them)."""
    n, streams = 20_000, Streams(1)
    agents, hyper = torch.arange(n), hyperparameters(n, lengthscale)
    e = hyper.noise.sqrt()[:, None] * streams.normal("e", agents, 0, 4)
    f = exact_draw_on_grid(
        GRID, X.expand(n, -1), Y.expand(n, -1), hyper, hyper.noise,
        lambda octave, rows, size: streams.normal(f"w/{octave}", agents[rows], 0, size), e,
    )  # fmt: skip
    mean, covariance = posterior(lengthscale)
    sd = covariance.diagonal().clamp(min=1e-12).sqrt()
    assert ((f.mean(0) - mean).abs() < 5.5 * sd / n**0.5 + 1e-9).all()
    centred = f - mean
    empirical = centred.T @ centred / n
    se = torch.sqrt((covariance**2 + sd[:, None] ** 2 * sd**2) / n)
    assert ((empirical - covariance).abs() < 5.5 * se + 1e-9).all()


def test_agents_of_different_octaves_do_not_mix():
    """A batch with every length-scale gives each agent what it gets alone."""
    streams, scales = Streams(2), torch.tensor([0.006, 0.03, 0.031, 0.5, 0.51, 2.0, 90.0], dtype=torch.float64)
    n = len(scales)
    agents = torch.arange(n)
    hyper = gp.Hyperparameters(scales, torch.ones(n).double(), torch.full((n,), 0.01).double())
    x, y = torch.rand(n, 6, 1, dtype=torch.float64), torch.randn(n, 6, dtype=torch.float64)
    grid = Grid(GRID[:, None], (0.0,), (1.0,))
    draw = OwnDraw("exact")
    whole = draw.maximizers(agents, x, y, hyper, grid, Acquisition(), streams, 3)
    for a in range(n):
        rows = torch.tensor([a])
        alone = draw.maximizers(rows, x[rows], y[rows], hyper.select(rows), grid, Acquisition(), streams, 3)
        assert torch.equal(alone, whole[rows])


@pytest.mark.parametrize("method", ["rff", "exact"])
def test_shards_draw_what_the_whole_draws(method):
    streams, n = Streams(3), 9
    agents = torch.arange(n)
    domain = Grid(GRID[:, None], (0.0,), (1.0,)) if method == "exact" else Box((0.0,), (1.0,))
    x, y = torch.rand(n, 6, 1, dtype=torch.float64), torch.randn(n, 6, dtype=torch.float64)
    hyper, draw, acquisition = hyperparameters(n, 0.2), OwnDraw(method, 50), Acquisition(100, 5)
    whole = draw.maximizers(agents, x, y, hyper, domain, acquisition, streams, 4)
    for rows in (torch.tensor([7]), torch.tensor([2, 5, 8])):
        part = draw.maximizers(agents[rows], x[rows], y[rows], hyper.select(rows), domain, acquisition, streams, 4)
        assert torch.allclose(part, whole[rows], atol=1e-6)
    assert not torch.allclose(whole, draw.maximizers(agents, x, y, hyper, domain, acquisition, streams, 5))


def test_feature_draws_approach_the_exact_ones():
    """Where the posterior is sharp, both kinds of draw query the same neighbourhood as often, within 4.5 SE."""
    n, streams = 3000, Streams(4)
    x = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64).expand(n, -1)[..., None]
    y = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand(n, -1)
    hyper, grid = hyperparameters(n, 0.2, 0.5, 0.01), Grid(GRID[:, None], (0.0,), (1.0,))
    agents, near = torch.arange(n), []
    for draw in (OwnDraw("exact"), OwnDraw("rff", 400)):
        u = draw.maximizers(agents, x, y, hyper, grid, Acquisition(), streams, 1)
        near.append(float(((u - 0.5).abs() < 0.1).double().mean()))
    assert abs(near[0] - near[1]) < 4.5 * (2 * 0.25 / n) ** 0.5 + 0.02  # 0.02: 400 features and unit norms
    assert near[0] > 0.3


@pytest.mark.parametrize("domain", [Box((0.0,), (1.0,)), Grid(torch.rand(5, 2), (0.0, 0.0), (1.0, 1.0))])
def test_exact_draw_needs_a_one_dimensional_grid(domain):
    with pytest.raises(ValueError, match="one-dimensional grid"):
        OwnDraw("exact").check_against(domain)


@pytest.mark.parametrize("settings", [("kriging",), ("rff", 0)])
def test_refusals(settings):
    with pytest.raises(ValueError, match=r"algorithm\.own_draw"):
        OwnDraw(*settings)
