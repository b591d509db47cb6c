"""Own posterior draws: the exact draw has the law of the Gaussian process; an agent's draw is the same in any shard."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.gp import hyperparameters
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import ConfidenceScale, OwnDraw, exact_draw_on_grid
from dpfbo.gp.own_gp import Hyperparameters
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Grid
from tests.helpers.points import on_domain

GRID = torch.linspace(0, 1, 25, dtype=torch.float64)
ROWS = torch.tensor([2, 4, 10, 19])
X = GRID[ROWS]
Y = torch.tensor([0.3, 0.5, -0.4, 1.2], dtype=torch.float64)
STREAMS = Streams(3)
SQUARE = Box((0.0, 0.0), (1.0, 1.0))


def hyper_of(n, lengthscale, variance=0.7, noise=0.05):
    full = lambda value: torch.full((n,), value, dtype=torch.float64)
    return Hyperparameters(full(lengthscale), full(variance), full(noise))


def posterior(lengthscale):
    """Mean and covariance of the GP on the grid, by direct solution."""
    hyper = hyper_of(1, lengthscale)

    def k(a, b):
        return hyperparameters.se_kernel(hyperparameters.squared_distances(a[None, :, None], b[None, :, None]), hyper)[
            0
        ]

    K = k(X, X) + 0.05 * torch.eye(4, dtype=torch.float64)
    gain = torch.linalg.solve(K, k(X, GRID)).T
    return gain @ Y, k(GRID, GRID) - gain @ k(X, GRID)


@pytest.mark.parametrize("lengthscale", [0.006, 0.02, 0.3, 3.0, 60.0])
def test_exact_draw_has_the_posterior_law(lengthscale):
    """Every mean and covariance entry of 20000 draws within 5.5 SE (24 and 300 of them)."""
    n, streams = 20_000, Streams(1)
    agents, hyper = torch.arange(n), hyper_of(n, lengthscale)
    e = hyper.noise.sqrt()[:, None] * streams.normal("e", agents, 0, 4)
    f = exact_draw_on_grid(
        GRID, ROWS.expand(n, -1), Y.expand(n, -1), hyper, hyper.noise,
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
    """A batch with every length-scale gives each agent the draw that it gets alone."""
    streams, scales = Streams(2), torch.tensor([0.006, 0.03, 0.031, 0.5, 0.51, 2.0, 90.0], dtype=torch.float64)
    n = len(scales)
    agents = torch.arange(n)
    hyper = Hyperparameters(scales, torch.ones(n).double(), torch.full((n,), 0.01).double())
    grid = Grid(GRID[:, None], (0.0,), (1.0,))
    x = on_domain(grid, Streams(9).uniform("x", torch.arange(n), 0, 6)[..., None])
    y = Streams(9).normal("y", torch.arange(n), 0, 6)
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
    x = on_domain(domain, Streams(9).uniform("x", torch.arange(n), 0, 6)[..., None])
    y = Streams(9).normal("y", torch.arange(n), 0, 6)
    hyper, draw, acquisition = hyper_of(n, 0.2), OwnDraw(method, 50), Acquisition(100, 5)
    whole = draw.maximizers(agents, x, y, hyper, domain, acquisition, streams, 4)
    for rows in (torch.tensor([7]), torch.tensor([2, 5, 8])):
        part = draw.maximizers(agents[rows], x[rows], y[rows], hyper.select(rows), domain, acquisition, streams, 4)
        assert torch.allclose(part, whole[rows], atol=1e-6)
    assert not torch.allclose(whole, draw.maximizers(agents, x, y, hyper, domain, acquisition, streams, 5))


def test_feature_draws_approach_the_exact_ones():
    """With a sharp posterior both kinds of draw query the same neighbourhood equally often, within 4.5 SE."""
    n, streams = 3000, Streams(4)
    x = GRID[torch.tensor([5, 12, 19])].expand(n, -1)[..., None]
    y = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand(n, -1)
    hyper, grid = hyper_of(n, 0.2, 0.5, 0.01), Grid(GRID[:, None], (0.0,), (1.0,))
    agents, near = torch.arange(n), []
    for draw in (OwnDraw("exact"), OwnDraw("rff", 400)):
        u = draw.maximizers(agents, x, y, hyper, grid, Acquisition(), streams, 1)
        near.append(float(((u - 0.5).abs() < 0.1).double().mean()))
    assert abs(near[0] - near[1]) < 4.5 * (2 * 0.25 / n) ** 0.5 + 0.02  # 0.02: 400 features and unit norms
    assert near[0] > 0.3


@pytest.mark.parametrize("domain", [Box((0.0,), (1.0,)), Grid(torch.full((5, 2), 0.5), (0.0, 0.0), (1.0, 1.0))])
def test_exact_draw_needs_a_one_dimensional_grid(domain):
    with pytest.raises(ValueError, match="one-dimensional grid"):
        OwnDraw("exact").check_against(domain)


@pytest.mark.parametrize("settings", [("kriging",), ("rff", 0)])
def test_refusals(settings):
    with pytest.raises(ValueError, match=r"(method|n_features) must"):
        OwnDraw(*settings)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit_grid(points: Tensor) -> Grid:
    return Grid(points, (0.0,) * points.shape[1], (1.0,) * points.shape[1])


def same(n: int, lengthscale: float, variance: float = 1.0, noise: float = 0.01) -> Hyperparameters:
    one = torch.ones(n, dtype=torch.float64)
    return Hyperparameters(lengthscale * one, variance * one, noise * one)


def exact_posterior(
    grid: Tensor, x: Tensor, y: Tensor, l: float, variance: float, noise: float
) -> tuple[Tensor, Tensor]:
    """Exact mean (G) and covariance (G x G) of the latent function; x, y: t."""

    def k(a: Tensor, b: Tensor) -> Tensor:
        return variance * torch.exp(-0.5 * ((a[:, None] - b[None]) / l) ** 2)

    K = k(x, x) + noise * torch.eye(len(x), dtype=torch.float64)
    gain = torch.linalg.solve(K, k(x, grid)).T  # G x t
    return gain @ y, k(grid, grid) - gain @ k(x, grid)


@pytest.mark.parametrize("lengthscale", [5e-3, 0.02, 0.3, 3.0, 0.25, 0.2500001, 1.0, 100.0])
def test_exact_draws_are_exact(lengthscale: float) -> None:
    """The draw is linear in its normals: one row for each of them gives its covariance without any sampling."""
    grid = torch.linspace(0, 1, 21, dtype=torch.float64)
    index, y = torch.tensor([1, 4, 9, 10, 16, 20]), normals(6, seed=3)
    variance, noise, t = 2.0, 0.02, 6
    x = grid[index]
    size = 0

    def ask(octave: int, rows: Tensor, n: int) -> Tensor:
        nonlocal size
        size = n
        return torch.zeros(len(rows), n, dtype=torch.float64)

    def draw(rows: int, prior: object, e: Tensor) -> Tensor:
        hyper = same(rows, lengthscale, variance, noise)
        return exact_draw_on_grid(grid, index.expand(rows, -1), y.expand(rows, -1), hyper, hyper.noise, prior, e)  # type: ignore[arg-type]

    mean, C = exact_posterior(grid, x, y, lengthscale, variance, noise)
    assert torch.allclose(draw(1, ask, torch.zeros(1, t, dtype=torch.float64))[0], mean, rtol=0, atol=1e-8)

    unit = torch.eye(size + t, dtype=torch.float64)
    centred = draw(size + t, lambda octave, rows, n: unit[rows, :n], math.sqrt(noise) * unit[:, size:]) - mean
    assert torch.allclose(centred.T @ centred, C, rtol=0, atol=1e-8)


def maximizers(
    draw: OwnDraw,
    domain: Box | Grid,
    ids: Tensor,
    data: tuple[Tensor, Tensor, Hyperparameters],
    round: int = 4,
    acquisition: Acquisition = Acquisition(200, 6),
) -> Tensor:
    """Maximisers of the agents `ids`, which index the rows of the data."""
    x, y, hyper = data
    x = on_domain(domain, x)
    return draw.maximizers(ids, x[ids], y[ids], hyper.select(ids), domain, acquisition, STREAMS, round)


def some_data(n: int, t: int, D: int) -> tuple[Tensor, Tensor, Hyperparameters]:
    h = uniforms(n, 3, seed=9)
    hyper = Hyperparameters(0.02 + 0.5 * h[:, 0] ** 2, 0.5 + h[:, 1], 1e-7 + 0.05 * h[:, 2])
    return uniforms(n, t, D, seed=7), normals(n, t, seed=8), hyper


CASES = pytest.mark.parametrize(
    ("draw", "domain"),
    [
        (OwnDraw("exact"), unit_grid(torch.linspace(0, 1, 200, dtype=torch.float64)[:, None])),
        (OwnDraw("rff", 50), unit_grid(torch.linspace(0, 1, 200, dtype=torch.float64)[:, None])),
        (OwnDraw("rff", 50), unit_grid(uniforms(150, 2, seed=6))),
        (OwnDraw("rff", 50), SQUARE),
    ],
    ids=["exact on a line", "features on a line", "features on a plane grid", "features in a box"],
)


@CASES
@pytest.mark.parametrize("subset", [[0], [11], [3, 4, 5], [10, 2, 7], list(range(11))])
def test_any_part_of_the_agents_draws_what_it_draws_among_all(
    draw: OwnDraw, domain: Box | Grid, subset: list[int]
) -> None:
    data, ids = some_data(12, 6, domain.dimension), torch.tensor(subset)
    everyone = maximizers(draw, domain, torch.arange(12), data)
    part = maximizers(draw, domain, ids, data)
    assert part.shape == (len(subset), domain.dimension)
    if isinstance(domain, Grid):
        assert torch.equal(part, everyone[ids])
    else:
        assert torch.allclose(part, everyone[ids], rtol=0, atol=1e-8)


@CASES
def test_maximizers_lie_in_the_domain_and_change_with_the_round(draw: OwnDraw, domain: Box | Grid) -> None:
    data, ids = some_data(12, 6, domain.dimension), torch.arange(12)
    first, second = (maximizers(draw, domain, ids, data, round) for round in (4, 5))
    assert torch.equal(first, maximizers(draw, domain, ids, data, 4))
    assert int((first != second).any(1).sum()) > 8
    assert len(first.unique(dim=0)) > 8, "agents draw the same function"
    for points in (first, second):
        assert torch.all(points >= 0) and torch.all(points <= 1)
        if isinstance(domain, Grid):
            assert all((domain.unit_points == point).all(1).any() for point in points)


@CASES
def test_an_agent_that_has_seen_everything_queries_the_best(draw: OwnDraw, domain: Box | Grid) -> None:
    """A well-observed bump: every draw has its maximum near the bump's."""
    n, D = 20, domain.dimension
    x = uniforms(1, 40 * D, D, seed=1).expand(n, -1, -1)
    y = torch.exp(-0.5 * ((x - 0.3) / 0.2).pow(2).sum(-1))
    best = maximizers(draw, domain, torch.arange(n), (x, y, same(n, 0.2, 1.0, 1e-5)))
    assert torch.all((best - 0.3).norm(dim=1) < (0.12 if isinstance(domain, Grid) and D == 2 else 0.06))


@CASES
def test_the_observation_noise_has_a_floor(draw: OwnDraw, domain: Box | Grid) -> None:
    """Noise variances below 1e-5 sample like 1e-5: repeated points then cannot break the factorisation."""
    x, y, _ = some_data(6, 8, domain.dimension)
    x[:, 4:] = x[:, :4]
    tiny, floor, above = (
        maximizers(draw, domain, torch.arange(6), (x, y, same(6, 0.2, 1.0, noise))) for noise in (1e-8, 1e-5, 0.3)
    )
    assert torch.equal(tiny, floor)
    assert not torch.equal(above, floor)


def test_the_law_of_the_maximum_is_reached_with_many_features_and_not_with_few() -> None:
    """The maximum's cell of 12, by chi-square: with 5 features its law differs from the exact one, with 400 not."""
    n, cells = 2000, 12
    grid = unit_grid(torch.linspace(0, 1, 60, dtype=torch.float64)[:, None])
    x = numbers(0.1, 0.35, 0.8).view(1, 3, 1).expand(n, -1, -1)
    y = numbers(0.3, 0.8, -0.5).expand(n, -1)
    data = (x, y, same(n, 0.15, 1.0, 0.01))

    def histogram(draw: OwnDraw) -> Tensor:
        points = maximizers(draw, grid, torch.arange(n), data)[:, 0]
        return torch.bincount((points * cells).long().clamp(max=cells - 1), minlength=cells)

    exact = histogram(OwnDraw("exact"))

    def p_value(count: Tensor) -> float:
        used = (count + exact) >= 10
        return float(stats.chi2_contingency(torch.stack([count[used], exact[used]]).numpy()).pvalue)

    assert p_value(histogram(OwnDraw("rff", 400))) > 1e-3
    assert p_value(histogram(OwnDraw("rff", 5))) < 1e-6


class TestConfidenceScale:
    scale, n, noise = ConfidenceScale(norm_bound=1.5, noise_sd=0.3, delta=0.2), 40, 1.1

    def beta(self, lengthscale, variance=0.7):
        """By NumPy, of the observations at X."""
        K = variance * np.exp(-0.5 * ((X[:, None] - X).numpy() / lengthscale) ** 2)
        gamma = 0.5 * np.linalg.slogdet(np.eye(4) + K / self.noise)[1]
        return 1.5 + 0.3 * math.sqrt(2 * (gamma + 1 + math.log(4 / 0.2)))

    def observed(self):
        hyper, grid = hyper_of(self.n, 0.2, noise=self.noise), Grid(GRID[:, None], (0.0,), (1.0,))
        return hyper, grid, ROWS.expand(self.n, -1), Y.expand(self.n, -1), torch.arange(self.n)

    def test_exact_draws_deviate_from_the_mean_by_beta(self):
        hyper, grid, rows, y, agents = self.observed()
        e = hyper.noise.sqrt()[:, None] * STREAMS.normal("own_draw/noise", agents, 1, 4)
        normals = lambda k, n, size: STREAMS.normal(f"own_draw/weights/{k}", agents[n], 1, size)
        f = exact_draw_on_grid(GRID, rows, y, hyper, hyper.noise, normals, e).numpy()
        K = 0.7 * np.exp(-0.5 * ((GRID[:, None] - X).numpy() / 0.2) ** 2)  # G x t
        mean = K @ np.linalg.solve(K[ROWS] + self.noise * np.eye(4), Y.numpy())
        expected = GRID.numpy()[(mean + self.beta(0.2) * (f - mean)).argmax(1)]
        u = OwnDraw("exact", scale=self.scale).maximizers(
            agents, X.expand(self.n, -1)[..., None], y, hyper, grid, Acquisition(), STREAMS, 1
        )
        assert u[:, 0].tolist() == pytest.approx(expected)
        assert expected.tolist() != GRID.numpy()[f.argmax(1)].tolist()  # unscaled

    def test_feature_draws_deviate_from_the_mean_by_beta(self):
        hyper, grid, _, y, agents = self.observed()
        x, F = X.expand(self.n, -1)[..., None], 30
        s = STREAMS.normal("own_draw/frequencies", agents, 1, F).numpy() / 0.2
        b = 2 * math.pi * STREAMS.uniform("own_draw/phases", agents, 1, F).numpy()
        w0, e = (
            STREAMS.normal(f"own_draw/{name}", agents, 1, size).numpy() for name, size in (("weights", F), ("noise", 4))
        )
        for n in range(self.n):
            Phi = np.sqrt(2 / F) * np.cos(np.outer(GRID.numpy(), s[n]) + b[n])
            Phi *= math.sqrt(0.7) / np.linalg.norm(Phi, axis=1, keepdims=True)
            at = Phi[ROWS]
            K = at @ at.T + self.noise * np.eye(4)
            mean = at.T @ np.linalg.solve(K, Y.numpy())
            w = w0[n] + at.T @ np.linalg.solve(K, Y.numpy() - at @ w0[n] - math.sqrt(self.noise) * e[n])
            best = GRID[(Phi @ (mean + self.beta(0.2) * (w - mean))).argmax()]
            u = OwnDraw("rff", F, self.scale).maximizers(
                agents[n : n + 1], x[:1], y[:1], hyper.select(agents[:1]), grid, Acquisition(), STREAMS, 1
            )
            assert float(u) == pytest.approx(float(best))

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"norm_bound": 0}, "norm_bound must be a finite number above 0"),
            ({"noise_sd": -1.0}, "noise_sd must be"),
            ({"delta": 1.5}, r"delta must lie in \(0, 1\]"),
        ],
    )
    def test_refusals(self, changed, says):
        with pytest.raises(SettingError, match=says):
            ConfidenceScale(**{"norm_bound": 1.0, "noise_sd": 1.0, "delta": 0.1, **changed})

    def test_gpytorch_has_none(self):
        with pytest.raises(SettingError, match="scale has no effect on method=gpytorch"):
            OwnDraw("gpytorch", scale=self.scale)
