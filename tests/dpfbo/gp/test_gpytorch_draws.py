"""Draws of GPyTorch's posteriors: one law with the closed form, the same numbers in any batch, true maxima."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from dpfbo.gp import gpytorch_draws, gpytorch_model, hyperparameters
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.gpytorch_draws import Draw, Posterior
from dpfbo.gp.own_gp import AnyHyperparameters, Hyperparameters, KernelParameters, OwnGP
from dpfbo.gp.posterior import FactorisationError
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Domain, Grid
from tests.dpfbo.recorded_streams import RecordedStreams

SQUARE = Box((0.0, 0.0), (1.0, 1.0))
KINDS = {
    "se": OwnGP("gpytorch"),
    "matern32": OwnGP("gpytorch", kernel="matern32"),
    "matern52": OwnGP("gpytorch", kernel="matern52", ard=True),
    "warped": OwnGP("gpytorch", kernel="matern52", ard=True, warp=True),
}


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def line(size: int) -> Grid:
    return Grid(torch.linspace(0, 1, size, dtype=torch.float64)[:, None], (0.0,), (1.0,))


def se(n: int, lengthscale: float = 0.25, variance: float = 0.7, noise: float = 0.05) -> Hyperparameters:
    one = torch.ones(n, dtype=torch.float64)
    return Hyperparameters(lengthscale * one, variance * one, noise * one)


def parameters(own: OwnGP, n: int) -> KernelParameters:
    """Noise .05, variance .7, length-scales from .3 on, warps near the identity; the same for all agents."""
    p = gpytorch_model.start(own, 1, 2, torch.device("cpu")).raw.shape[1]
    values = torch.tensor([0.05, 0.7, 0.3, 0.5, 0.7, 1.5, 1.2, 0.8], dtype=torch.float64)[:p]
    return KernelParameters(own, values.log().expand(n, -1))


def law(hyper: KernelParameters, x: Tensor, y: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of one agent's posterior at points (k x D), from prior covariances, by direct solution."""
    everything = torch.cat([x, points])[None]
    with torch.no_grad():
        K = gpytorch_model.Models().of(hyper.select(torch.tensor([0])), everything, everything[..., 0])
        K = K.covariance(everything, everything)[0]
    t = len(x)
    gain = torch.linalg.solve(K[:t, :t] + hyper.noise[0] * torch.eye(t, dtype=torch.float64), K[:t, t:]).T
    return gain @ y, K[t:, t:] - gain @ K[:t, t:]


def se_law(x: Tensor, y: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """The same by the closed form, for `se`."""
    hyper = se(1)

    def k(a: Tensor, b: Tensor) -> Tensor:
        return hyperparameters.se_kernel(hyperparameters.squared_distances(a[None], b[None]), hyper)[0]

    gain = torch.linalg.solve(k(x, x) + 0.05 * torch.eye(len(x), dtype=torch.float64), k(x, points)).T
    return gain @ y, k(points, points) - gain @ k(x, points)


def draw(hyper: AnyHyperparameters, x: Tensor, y: Tensor, ids: Tensor | None = None, round: int = 4) -> Draw:
    n = len(x)
    return Draw(torch.arange(n) if ids is None else ids, x, y, hyper, hyper.noise, Streams(3), round)


def assert_law(f: Tensor, mean: Tensor, covariance: Tensor, kurtosis: float = 3.0) -> None:
    """Every mean and covariance entry of the draws (n x k) lies within 5 standard errors."""
    n = len(f)
    variance = covariance.diagonal()
    assert ((f.mean(0) - mean).abs() < 5 * (variance / n).sqrt() + 1e-9).all()
    centred = f - mean
    se = ((kurtosis - 1) / 2 * (covariance**2 + variance[:, None] * variance) / n).sqrt()
    assert ((centred.T @ centred / n - covariance).abs() < 5 * se + 1e-9).all()


X, Y = uniforms(5, 2, seed=1), normals(5, seed=2)
POINTS = uniforms(6, 2, seed=3)


def test_moments_of_the_se_kernel_are_the_closed_form() -> None:
    posterior = Posterior(gpytorch_model.kernel_parameters(se(2)), X.expand(2, -1, -1), Y.expand(2, -1))
    mean, covariance, variance = posterior.moments(POINTS.expand(2, -1, -1))
    expected = se_law(X, Y, POINTS)
    assert torch.allclose(mean, expected[0].expand(2, -1), rtol=0, atol=1e-10)
    assert torch.allclose(covariance, expected[1].expand(2, -1, -1), rtol=0, atol=1e-10)
    assert variance.tolist() == pytest.approx([0.7, 0.7])


@pytest.mark.parametrize("kind", KINDS)
def test_draws_at_points_have_the_law_of_the_posterior(kind: str) -> None:
    """The draw is linear in its normals: one row for each of them gives its covariance without any sampling."""
    k = len(POINTS)
    hyper = parameters(KINDS[kind], k + 1)
    posterior = Posterior(hyper, X.expand(k + 1, -1, -1), Y.expand(k + 1, -1))
    z = torch.cat([torch.zeros(1, k, dtype=torch.float64), torch.eye(k, dtype=torch.float64)])
    values = posterior.joint_draw(POINTS[None], z)
    mean, covariance = law(hyper, X, Y, POINTS)
    assert torch.allclose(values[0], mean, rtol=0, atol=1e-8)
    R = values[1:] - mean
    assert torch.allclose(R.T @ R, covariance, rtol=0, atol=1e-8)


def test_draws_on_a_grid_have_the_law_of_the_closed_form() -> None:
    """20000 draws of the SE kernel at 8 points of a line, with the method's own random numbers."""
    n, grid = 20_000, line(8)
    f = draw(se(n), X[:, :1].expand(n, -1, -1), Y.expand(n, -1))._joint(grid.unit_points[None])
    assert_law(f, *se_law(X[:, :1], Y, grid.unit_points))


def test_functions_have_the_law_of_the_closed_form() -> None:
    """20000 pathwise draws of the SE kernel in a box, each with features of its own."""
    n = 20_000
    f = draw(se(n), X.expand(n, -1, -1), Y.expand(n, -1)).function(50)(POINTS.expand(n, -1, -1))
    assert_law(f, *se_law(X, Y, POINTS), kurtosis=3.1)  # 3 + 1.5 / 50 of a sum of 50 random features


@pytest.mark.parametrize("kind", ["matern32", "matern52", "warped"])
def test_functions_have_the_law_of_their_kernel(kind: str) -> None:
    n = 20_000
    hyper = parameters(KINDS[kind], n)
    f = draw(hyper, X.expand(n, -1, -1), Y.expand(n, -1)).function(50)(POINTS.expand(n, -1, -1))
    assert_law(f, *law(hyper, X, Y, POINTS), kurtosis=3.1)


def test_the_law_of_the_maximum_is_that_of_the_exact_draws() -> None:
    """The maximum's cell of 12 on a line of 60 points, by chi-square, p > .001: two methods, one law."""
    n, cells, grid = 2000, 12, line(60)
    x = grid.unit_points[torch.tensor([6, 21, 47])].expand(n, -1, -1)
    y = torch.tensor([0.3, 0.8, -0.5], dtype=torch.float64).expand(n, -1)
    counts = []
    for method, seed in (("exact", 1), ("gpytorch", 2)):
        u = OwnDraw(method).maximizers(
            torch.arange(n), x, y, se(n, 0.15, 1.0, 0.01), grid, Acquisition(), Streams(seed), 1
        )
        counts.append(torch.bincount((u[:, 0] * cells).long().clamp(max=cells - 1), minlength=cells))
    used = sum(counts) >= 10
    assert float(stats.chi2_contingency(torch.stack(counts)[:, used].numpy()).pvalue) > 1e-3


CASES = pytest.mark.parametrize(
    ("own", "domain"),
    [
        (KINDS["se"], Grid(uniforms(150, 2, seed=6), (0.0, 0.0), (1.0, 1.0))),
        (KINDS["matern52"], SQUARE),
        (KINDS["warped"], SQUARE),
    ],
    ids=["grid", "matern52 in a box", "warped in a box"],
)


def data(own: OwnGP, n: int, t: int = 6) -> tuple[Tensor, Tensor, KernelParameters]:
    hyper = parameters(own, n)
    return (
        uniforms(n, t, 2, seed=7),
        normals(n, t, seed=8),
        replace(hyper, raw=hyper.raw + 0.3 * normals(*hyper.raw.shape)),
    )


def maximizers(own: OwnGP, domain: Domain, ids: Tensor, n: int, round: int = 4) -> Tensor:
    x, y, hyper = data(own, n)
    search = Acquisition(200, 5)
    return OwnDraw("gpytorch", 40).maximizers(ids, x[ids], y[ids], hyper.select(ids), domain, search, Streams(3), round)


@CASES
@pytest.mark.parametrize("subset", [[0, 11], [3, 4, 5], [10, 2, 7]])
def test_any_part_of_the_agents_draws_what_it_draws_among_all(own: OwnGP, domain: Domain, subset: list[int]) -> None:
    ids = torch.tensor(subset)
    everyone = maximizers(own, domain, torch.arange(12), 12)
    assert torch.equal(maximizers(own, domain, ids, 12), everyone[ids])


@CASES
def test_draws_do_not_depend_on_the_blocks(own: OwnGP, domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = maximizers(own, domain, torch.arange(7), 7)
    monkeypatch.setattr("dpfbo.gp.batches._BLOCK", 3)  # two agents a block
    assert torch.equal(maximizers(own, domain, torch.arange(7), 7), everyone)


@CASES
def test_maximizers_lie_in_the_domain_and_change_with_the_round(own: OwnGP, domain: Domain) -> None:
    first, second = (maximizers(own, domain, torch.arange(12), 12, round) for round in (4, 5))
    assert int((first != second).any(1).sum()) > 8
    assert len(first.unique(dim=0)) > 6, "agents draw the same function"
    for points in (first, second):
        assert torch.all(points >= 0) and torch.all(points <= 1)
        if isinstance(domain, Grid):
            assert all((domain.unit_points == point).all(1).any() for point in points)


@pytest.mark.parametrize("kind", ["se", "matern52", "warped"])
def test_the_search_in_a_box_reaches_the_maximum(kind: str) -> None:
    """On a dense grid no function has a larger value, but for one agent of 12 whose peak no start found."""
    n = 12
    x, y, hyper = data(KINDS[kind], n)
    function = draw(hyper, x, y).function(40)
    u = uniforms(n, 500 + 20, 2, seed=9)
    best = gpytorch_draws.maximizers_in_box(function, Acquisition(500, 20, 100), u)
    axis = torch.linspace(0, 1, 101, dtype=torch.float64)
    dense = function(torch.cartesian_prod(axis, axis).expand(n, -1, -1)).amax(1)
    assert int((function(best[:, None])[:, 0] < dense - 1e-6).sum()) <= 1


def test_slopes_are_those_of_finite_differences() -> None:
    x, y, hyper = data(KINDS["warped"], 5)
    function, u = draw(hyper, x, y).function(40), 0.1 + 0.8 * uniforms(5, 2, seed=9)
    value, gradient = function.slopes(u)
    assert torch.allclose(value, function(u[:, None])[:, 0])
    for axis in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = 1e-6
        up, down = (function((u + s)[:, None])[:, 0] for s in (step, -step))
        assert torch.allclose(gradient[:, axis], (up - down) / 2e-6, rtol=1e-5, atol=1e-6)


def test_a_singular_posterior_is_drawn_from_its_positive_eigenvalues() -> None:
    """A covariance that rounding made indefinite by more than the jitter, beside one that is not."""
    A = normals(2, 6, 6, seed=10)
    C = A @ A.mT
    values, vectors = torch.linalg.eigh(C[1])
    values[0] = -1e-6
    C[1] = (vectors * values) @ vectors.T
    R = gpytorch_draws._root(C, torch.ones(2, dtype=torch.float64))
    assert torch.allclose(R @ R.mT, C, rtol=0, atol=3e-6)
    assert torch.equal(R[0], R[0].tril())


def test_observations_that_cannot_be_are_one_sentence() -> None:
    """Twelve points within 1e-6 under a variance of e^40 and no noise."""
    raw = torch.tensor([[-100.0, 40.0, 0.0]], dtype=torch.float64).expand(2, -1)
    x = 0.5 + 1e-6 * uniforms(2, 12, 2)
    posterior = Posterior(KernelParameters(KINDS["se"], raw), x, normals(2, 12))
    with pytest.raises(FactorisationError, match="Gram matrices are not positive definite"):
        posterior.moments(POINTS.expand(2, -1, -1))


def test_other_methods_do_not_draw_from_other_kernels() -> None:
    x, y, hyper = data(KINDS["matern52"], 2)
    with pytest.raises(ValueError, match="method must be gpytorch for kernel=matern52, got 'rff'"):
        OwnDraw("rff").maximizers(torch.arange(2), x, y, hyper, SQUARE, Acquisition(), Streams(3), 1)
    with pytest.raises(ValueError, match=r"method must be gpytorch for own_gp\.kernel=matern52, got 'rff'"):
        OwnDraw("rff").check_against(SQUARE, KINDS["matern52"])


@pytest.mark.parametrize("domain", [SQUARE, line(9)], ids=["box", "grid"])
def test_all_random_numbers_are_of_the_round(domain: Domain) -> None:
    """Candidates, starts, features, weights and noise."""
    streams, D = RecordedStreams(3), domain.dimension
    hyper = parameters(KINDS["se"], 2)
    for t in (1, 2, 3):
        given = replace(draw(hyper, uniforms(2, 4, D), normals(2, 4), round=t), streams=streams)
        given.maximizers(domain, Acquisition(20, 2), 10)
        assert streams.asked and {round for _, round in streams.asked} == {t}
        streams.asked.clear()
