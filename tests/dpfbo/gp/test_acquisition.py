"""Maximisation of feature functions: exact on grids, near the global maximum on boxes."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from dpfbo.gp.acquisition import Acquisition, FeatureFunction
from dpfbo.gp.features import RandomFeatures
from dpfbo.space.domain import Box, Grid
from dpfbo.space.regions import Regions


def generator(seed):
    return torch.Generator().manual_seed(seed)


def function(B=5, P=1, D=2, M=40, length=0.3, seed=0, shared_features=False, shared_weights=False):
    g = generator(seed)
    F = 1 if shared_features else B
    S = torch.randn(F, M, D, dtype=torch.float64, generator=g) / length
    b = 2 * torch.pi * torch.rand(F, M, dtype=torch.float64, generator=g)
    w = torch.randn(1 if shared_weights else B, P, M, dtype=torch.float64, generator=g)
    return FeatureFunction(RandomFeatures(S, b), w, Regions(P, D), torch.full((B,), length, dtype=torch.float64))


def plain_value(f, row, x):
    """One function at one point, written out."""
    S = f.features.frequencies[row % len(f.features.frequencies)]
    b = f.features.phases[row % len(f.features.phases)]
    w = f.weights[row % len(f.weights), int(f.regions.region_of(x))]
    c = torch.cos(S @ x + b)
    return float(c @ w / c.norm())


@pytest.mark.parametrize("P", [1, 4])
@pytest.mark.parametrize("shared_features", [False, True])
@pytest.mark.parametrize("shared_weights", [False, True])
@pytest.mark.parametrize("shared_points", [False, True])
@pytest.mark.parametrize("k", [3, 9999])  # 9999 points x 40 features: one row a block, and blocks of one row
def test_values_on_every_path(P, shared_features, shared_weights, shared_points, k):
    B = 5
    f = function(B, P, shared_features=shared_features, shared_weights=shared_weights)
    u = torch.rand(1 if shared_points else B, k, 2, dtype=torch.float64, generator=generator(1))
    values = f(u)
    rows = 1 if shared_features and shared_weights and shared_points else B
    assert values.shape == (rows, k)
    for row in range(rows):
        for j in (0, k // 2, k - 1):
            assert float(values[row, j]) == pytest.approx(plain_value(f, row, u[row % len(u), j]), abs=1e-12)


@pytest.mark.parametrize("shared_features", [False, True])
@pytest.mark.parametrize("D", [1, 2, 5])
def test_derivatives_against_autograd(shared_features, D):
    f = function(3, 2, D, shared_features=shared_features, length=0.5)
    u = torch.rand(6, D, dtype=torch.float64, generator=generator(2))
    rows, region = torch.tensor([0, 1, 2, 2, 1, 0]), f.regions.region_of(u)
    value, gradient, hessian = f.derivatives(u, region, rows)
    for i in range(6):

        def alone(x, i=i):
            return f.derivatives(x[None], region[i : i + 1], rows[i : i + 1])[0][0]

        assert float(value[i]) == pytest.approx(plain_value(f, int(rows[i]), u[i]))
        assert torch.allclose(torch.autograd.functional.jacobian(alone, u[i]), gradient[i], atol=1e-10)
        assert torch.allclose(torch.autograd.functional.hessian(alone, u[i]), hessian[i], atol=1e-9)


@pytest.mark.parametrize("P", [1, 4])
@pytest.mark.parametrize("shared_features", [False, True])
def test_grid_is_searched_exactly(P, shared_features):
    points = torch.rand(70, 2, dtype=torch.float64, generator=generator(3))
    f = function(6, P, shared_features=shared_features)
    best = Acquisition().maximize(f, Grid(points, (0.0, 0.0), (1.0, 1.0)), torch.empty(6, 0))
    for row in range(6):
        values = [plain_value(f, row, x) for x in points]
        assert torch.equal(best[row], points[int(np.argmax(values))])


@pytest.mark.parametrize("P", [1, 2, 4])
def test_box_reaches_the_maximum_of_smooth_functions(P):
    f = function(8, P, length=0.4)
    box, acquisition = Box((0.0, 0.0), (1.0, 1.0)), Acquisition()
    u = torch.rand(8, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(4))
    x = acquisition.maximize(f, box, u)
    assert ((x >= 0) & (x <= 1)).all()
    axis = torch.linspace(0, 1, 201, dtype=torch.float64)
    dense = f(torch.cartesian_prod(axis, axis)[None]).max(1).values
    assert (f(x[:, None])[:, 0] >= dense - 1e-9).all()


def test_a_start_stays_in_its_region():
    """Refinement climbs the function of the region in which its point ends."""
    f = function(10, 4, length=0.4, seed=5)
    box, acquisition = Box((0.0, 0.0), (1.0, 1.0)), Acquisition(1, 20)
    u = torch.rand(10, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(6))
    x = acquisition.maximize(f, box, u)
    starts = u.view(10, -1, 2)
    assert (f(x[:, None])[:, 0] >= f(starts).max(1).values).all()


def test_as_good_as_twenty_runs_of_lbfgsb_on_rough_functions():
    """Over 40 rough functions: better or equal within 1e-6 more often than worse, and not worse on average by 2 SE."""
    f = function(40, length=0.1, M=60, seed=7)
    box, acquisition = Box((0.0, 0.0), (1.0, 1.0)), Acquisition(300, 20)
    u = torch.rand(40, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(8))
    ours = f(acquisition.maximize(f, box, u)[:, None])[:, 0]
    points, zero = u.view(40, -1, 2), torch.zeros(1, dtype=torch.long)
    theirs = f(points[:, :300]).max(1).values
    for row in range(40):

        def negative(x, row=row):
            value, gradient, _ = f.derivatives(torch.from_numpy(x)[None], zero, torch.tensor([row]))
            return -float(value), -gradient[0].numpy()

        for start in points[row, 300:].numpy():
            found = scipy_minimize(negative, start, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * 2)
            theirs[row] = max(float(theirs[row]), -found.fun)
    difference = ours - theirs
    assert int((difference > 1e-6).sum()) >= int((difference < -1e-6).sum())
    assert float(difference.mean()) > -2 * float(difference.std()) / 40**0.5


def test_batch_does_not_matter():
    f, box, acquisition = function(9, 2, length=0.2), Box((0.0, 0.0), (1.0, 1.0)), Acquisition(200, 8)
    u = torch.rand(9, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(9))
    whole = acquisition.maximize(f, box, u)
    for rows in (torch.tensor([3]), torch.tensor([0, 8]), torch.arange(4)):
        part = dataclasses.replace(f, features=f.features.select(rows), weights=f.weights[rows], length=f.length[rows])
        assert torch.allclose(acquisition.maximize(part, box, u[rows]), whole[rows], atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "says"), [((0,), "n_candidates"), ((10, -1), "n_starts"), ((10, 1, -1), "iterations")]
)
def test_refusals(settings, says):
    with pytest.raises(ValueError, match=says):
        Acquisition(*settings)


@pytest.mark.parametrize("P", [1, 4])
@pytest.mark.parametrize("shared_features", [False, True])
@pytest.mark.parametrize("shared_weights", [False, True])
def test_every_kind_of_sharing_finds_the_same_maxima(P, shared_features, shared_weights):
    """A shared map or function, and the same written out for each row: the same points, on a grid and in a box."""
    B = 4
    f = function(B, P, shared_features=shared_features, shared_weights=shared_weights)
    written_out = dataclasses.replace(
        f,
        features=RandomFeatures(
            f.features.frequencies.expand(B, -1, -1).clone(), f.features.phases.expand(B, -1).clone()
        ),
        weights=f.weights.expand(B, -1, -1).clone(),
    )
    grid = Grid(torch.rand(70, 2, dtype=torch.float64, generator=generator(3)), (0.0, 0.0), (1.0, 1.0))
    acquisition = Acquisition(200, 8)
    on_grid = acquisition.maximize(f, grid, torch.empty(B, 0))
    assert on_grid.shape == (B, 2)
    assert torch.equal(on_grid, acquisition.maximize(written_out, grid, torch.empty(B, 0)))
    box = Box((0.0, 0.0), (1.0, 1.0))
    u = torch.rand(B, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(4))
    in_box = acquisition.maximize(f, box, u)
    assert torch.allclose(in_box, acquisition.maximize(written_out, box, u), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shared_features", [False, True])
@pytest.mark.parametrize("shared_weights", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 4, 9, 10, 11])
def test_blocks_of_any_size_give_the_same_values(monkeypatch, shared_features, shared_weights, rows):
    """Blocks of three rows: batches that leave a last block of one row, of two, and none."""
    f = function(rows, 4, shared_features=shared_features, shared_weights=shared_weights)
    u = torch.rand(rows, 5, 2, dtype=torch.float64, generator=generator(1))
    whole, shared = f(u), f(u[:1])
    monkeypatch.setattr("dpfbo.gp.acquisition._BLOCK", 3 * 5 * 40)
    assert torch.allclose(f(u), whole, rtol=0, atol=1e-13)
    assert torch.allclose(f(u[:1]), shared, rtol=0, atol=1e-13)
    monkeypatch.setattr("dpfbo.gp.acquisition._BLOCK", 1)
    assert torch.allclose(f(u), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("P", [1, 2, 4, 6])
@pytest.mark.parametrize("shared_features", [False, True])
def test_smooth_functions_against_a_dense_grid(P, shared_features):
    """400 x 400 points with their own regions' weights: nowhere better than the maximiser by more than 1e-9."""
    f = function(5, P, length=0.5, seed=11, shared_features=shared_features)
    box, acquisition = Box((0.0, 0.0), (1.0, 1.0)), Acquisition()
    u = torch.rand(5, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(12))
    reached = f(acquisition.maximize(f, box, u)[:, None])[:, 0]
    axis = torch.linspace(0, 1, 400, dtype=torch.float64)
    dense = f(torch.cartesian_prod(axis, axis)[None]).max(1).values
    assert (reached >= dense - 1e-9).all()


def test_a_slope_towards_a_border_ends_at_the_border_of_the_better_region():
    """One cosine that rises along axis 0, twice as much in region 0: its supremum lies on the border at 1/2."""
    frequencies = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    features = RandomFeatures(frequencies, torch.tensor([[-torch.pi / 2, 0.0]], dtype=torch.float64))  # sin and cos
    weights = torch.tensor([[[2.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)  # 2 sin x below 1/2, sin x above
    f = FeatureFunction(features, weights, Regions(2, 2), torch.ones(1, dtype=torch.float64))
    box, acquisition = Box((0.0, 0.0), (1.0, 1.0)), Acquisition(50, 5)
    u = torch.rand(1, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(1))
    x = acquisition.maximize(f, box, u)[0]
    assert 0.5 - 1e-6 < float(x[0]) < 0.5
    assert int(f.regions.region_of(x)) == 0
    assert float(f(x[None, None])) == pytest.approx(2 * np.sin(0.5), abs=1e-6)


@pytest.mark.parametrize("D", [1, 2, 3])
@pytest.mark.parametrize(("n_candidates", "n_starts", "iterations"), [(30, 0, 0), (30, 4, 0), (1, 4, 0), (30, 0, 20)])
def test_the_result_is_never_worse_than_any_point_it_began_from(D, n_candidates, n_starts, iterations):
    """Without starts and refinement too: then it is the best of the points themselves (in 24 bits)."""
    f = function(20, 2, D, length=0.2, seed=D)
    box, acquisition = Box((0.0,) * D, (1.0,) * D), Acquisition(n_candidates, n_starts, iterations)
    u = torch.rand(20, acquisition.uniforms_needed(box), dtype=torch.float64, generator=generator(5))
    x = acquisition.maximize(f, box, u)
    points = u.view(20, -1, D)
    reached, best = f(x[:, None])[:, 0], f(points).max(1).values
    assert (reached >= best - 1e-4).all()
    if iterations == 0:
        assert (points == x[:, None]).all(2).any(1).all()
    else:
        assert (reached > best + 1e-3).any()


def test_derivatives_against_finite_differences():
    f, h = function(4, 4, 2, length=0.4), 1e-5
    u = 0.1 + 0.3 * torch.rand(8, 2, dtype=torch.float64, generator=generator(2))  # inside region 0
    rows, region = torch.arange(8) % 4, torch.zeros(8, dtype=torch.long)
    _, gradient, hessian = f.derivatives(u, region, rows)
    for axis in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = h
        up, down = (f.derivatives(u + s, region, rows) for s in (step, -step))
        assert torch.allclose(gradient[:, axis], (up[0] - down[0]) / (2 * h), rtol=0, atol=1e-6)
        assert torch.allclose(hessian[:, axis], (up[1] - down[1]) / (2 * h), rtol=0, atol=1e-4)
