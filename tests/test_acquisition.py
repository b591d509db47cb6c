"""Maximisation of feature functions: exact on grids, near the global maximum on boxes."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from dpfbo.acquisition import Acquisition, FeatureFunction
from dpfbo.domain import Box, Grid
from dpfbo.features import RandomFeatures
from dpfbo.regions import Regions


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
    """The value that refinement climbs is the one of the region where the point ends."""
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
