"""The compiled search for the largest expected improvement on a grid, against tensor operations."""

import pytest
import torch

from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.averaged_gp import AveragedGP, ImprovementSurface, KnownMean, Places
from dpfbo.gp.compiled.loading import library
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.space.domain import Grid

pytestmark = pytest.mark.skipif(library() is None, reason="no compiler")
M = 20


def line(n):
    return Grid(torch.linspace(0, 1, n, dtype=torch.float64)[:, None], (0.0,), (1.0,))


def plane(n):
    points = torch.quasirandom.SobolEngine(2).draw(n, dtype=torch.float64)
    return Grid(points, (0.0, 0.0), (1.0, 1.0))


def known_mean(gp, seed=0):
    g = torch.Generator().manual_seed(seed)
    root = 0.1 * torch.randn(M, M, generator=g, dtype=torch.float64)
    mean = torch.randn(M, generator=g, dtype=torch.float64)
    return KnownMean(mean, root @ root.T, torch.tensor(0.4, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))


def observed(grid, n, t, seed=1):
    g = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(len(grid.points), generator=g)[:t] for _ in range(n)]).int()
    x = grid.unit_points[index.long()]
    return index, x, torch.sin(7 * x.sum(2)) + 0.1 * torch.randn(n, t, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("with_mean", [False, True])
@pytest.mark.parametrize(("make", "points"), [(line, 300), (line, 1000), (plane, 600), (plane, 65)])
@pytest.mark.parametrize("t", [1, 3, 9, 20])
def test_rows_are_those_of_tensor_operations(make, points, t, with_mean):
    if with_mean and t == 1:
        pytest.skip("all uses of a mean explain one point alike, and which of them count is arbitrary")
    grid, gp = make(points), AveragedGP()
    features = NystromFeatures.of(grid, M, gp.lengthscales)
    psi = features(grid.unit_points[None])[0]
    known = known_mean(gp) if with_mean else None
    index, x, y = observed(grid, 12, t)
    rows, shared = gp.maximizers_on_grid(grid, index, y, known, psi)
    fitted = gp.fit(Places(x, features(x) if with_mean else None), y, known)
    surface = ImprovementSurface(fitted, lambda u: Places(u, features(u) if with_mean else None))
    found = Acquisition().maximize_improvement(surface, grid, torch.zeros(0), index)
    torch.testing.assert_close(shared, fitted.shared, atol=1e-8, rtol=1e-6)
    done = rows >= 0
    assert done.sum() >= 10
    at = fitted.log_expected_improvement(surface.locate(torch.stack([grid.unit_points[rows.clamp(min=0)], found], 1)))
    assert (at[done, 0] - at[done, 1]).abs().max() < 1e-3  # the same row, or one as good
    assert not (index == rows[:, None]).any()


def test_an_agent_does_not_depend_on_the_others():
    grid, gp = line(1000), AveragedGP()
    index, _, y = observed(grid, 7, 8)
    rows, shared = gp.maximizers_on_grid(grid, index, y)
    for k in range(7):
        alone = gp.maximizers_on_grid(grid, index[k : k + 1], y[k : k + 1])
        assert alone[0][0] == rows[k] and alone[1][0] == shared[k]


def test_no_row_where_no_improvement_is_expected():
    """All but one point of a grid are known: tensor operations, which work with logarithms, have to find the last."""
    grid, gp = line(16), AveragedGP()
    index = torch.arange(16)[None].int()
    rows, _ = gp.maximizers_on_grid(grid, index, torch.arange(16.0, dtype=torch.float64)[None])
    assert rows.tolist() == [-1]


def test_rows_outside_the_grid_are_refused():
    with pytest.raises(ValueError, match="index must hold rows of the table, 0 to 15"):
        AveragedGP().maximizers_on_grid(line(16), torch.tensor([[16]]).int(), torch.zeros(1, 1, dtype=torch.float64))


def test_large_grids_have_no_tables():
    x = torch.zeros(1, 1).int()
    assert AveragedGP().maximizers_on_grid(line(2049), x, torch.zeros(1, 1, dtype=torch.float64)) is None


@pytest.mark.parametrize("grid", [line(1000), plane(700), plane(513)])
def test_screening_covers_the_grid(grid):
    rows, members = grid.screening
    assert len(rows) < len(grid.points) / 3
    assert sorted(set(members.flatten().tolist())) == list(range(len(grid.points)))
    near = torch.cdist(grid.unit_points[members].flatten(0, 1), grid.unit_points[rows]).argmin(1)
    assert torch.equal(near.view_as(members)[:, 0], torch.arange(len(rows)))
    assert line(512).screening is None


def test_a_sobol_design_on_a_grid_takes_the_nearest_points():
    from dpfbo.gp.design import Design
    from dpfbo.rng import Streams
    from dpfbo.space.domain import Box
    from dpfbo.space.regions import Regions

    grid, ids = plane(256), torch.arange(6)
    on_grid = Design(grid, Regions(1, 2), Streams(0), 3, "sobol").points(ids)
    in_box = Design(Box((0.0, 0.0), (1.0, 1.0)), Regions(1, 2), Streams(0), 3, "sobol").points(ids)
    nearest = torch.cdist(in_box, grid.unit_points.expand(6, -1, -1)).amin(2)
    torch.testing.assert_close((on_grid - in_box).norm(dim=2), nearest)
