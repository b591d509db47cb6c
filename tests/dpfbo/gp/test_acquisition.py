"""Maximisation of feature functions: exact on grids, near the global maximum on boxes."""

import dataclasses

import numpy as np
import pytest
import torch

from dpfbo.gp import acquisition, optimize
from dpfbo.gp.acquisition import Acquisition, BoxCandidates
from dpfbo.gp.compiled.loading import library
from dpfbo.gp.features import FeatureFunction, RandomFeatures, derivatives
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Grid
from dpfbo.space.regions import Regions


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True, params=["compiled", "tensors"])
def path(request, monkeypatch):
    """The code that searches a box."""
    monkeypatch.setenv("DPFBO_COMPILED", str(int(request.param == "compiled")))
    if request.param == "compiled" and library() is None:
        pytest.skip("there is no C compiler")
    return request.param


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
    problems = f.around(u + 0.01, region, rows)
    value, gradient, hessian = derivatives(u, *problems)
    for i in range(6):

        def alone(x, i=i):
            return derivatives(x[None], *(part[i : i + 1] for part in problems))[0][0]

        assert float(value[i]) == pytest.approx(plain_value(f, int(rows[i]), u[i]))
        assert torch.allclose(torch.autograd.functional.jacobian(alone, u[i]), gradient[i], atol=1e-10)
        assert torch.allclose(torch.autograd.functional.hessian(alone, u[i]), hessian[i], atol=1e-9)


@pytest.mark.parametrize("P", [1, 4])
@pytest.mark.parametrize("shared_features", [False, True])
def test_grid_is_searched_exactly(P, shared_features):
    points = torch.rand(70, 2, dtype=torch.float64, generator=generator(3))
    f = function(6, P, shared_features=shared_features)
    best = Acquisition().maximize(f, Grid(points, (0.0, 0.0), (1.0, 1.0)), torch.empty(0))
    for row in range(6):
        values = [plain_value(f, row, x) for x in points]
        assert torch.equal(best[row], points[int(np.argmax(values))])


@pytest.mark.parametrize("P", [1, 2, 4])
def test_box_reaches_the_maximum_of_smooth_functions(P):
    f = function(8, P, length=0.4)
    box = Box((0.0, 0.0), (1.0, 1.0))
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(4))
    x = Acquisition().maximize(f, box, shift)
    assert ((x >= 0) & (x <= 1)).all()
    axis = torch.linspace(0, 1, 201, dtype=torch.float64)
    dense = f(torch.cartesian_prod(axis, axis)[None]).max(1).values
    assert (f(x[:, None])[:, 0] >= dense - 1e-9).all()


def test_a_start_stays_in_its_region():
    """Refinement climbs the function of the region in which its point ends."""
    f = function(10, 4, length=0.4, seed=5)
    box = Box((0.0, 0.0), (1.0, 1.0))
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(6))
    x = Acquisition(20, 20).maximize(f, box, shift)
    candidates = BoxCandidates.of(box, 20, shift).points[None]
    assert (f(x[:, None])[:, 0] >= f(candidates).max(1).values).all()


def by_uniform_starts(f, seed):
    """The best of 1000 uniform points, and of ascents with line searches from it and from 20 others, B."""
    B, D = len(f), f.regions.dimension
    u = torch.rand(B, 1020, D, dtype=torch.float64, generator=generator(seed))
    best = u[torch.arange(B), f(u[:, :1000]).argmax(1)]
    x0 = torch.cat([best[:, None], u[:, 1000:]], 1).flatten(0, 1)
    owner = torch.arange(B).repeat_interleave(21)
    problems = f.around(x0, torch.zeros_like(owner), owner)

    def negative(x, rows):
        return tuple(-part for part in derivatives(x, *(p[rows] for p in problems)))

    stopping, zero = optimize.Stopping(1e-8, 1e-10, 30), torch.zeros_like(x0)
    _, value = optimize.minimize(negative, x0, zero, zero + 1, f.length[owner], stopping, owner)
    return -value.view(B, 21).amin(1)


def test_as_good_as_ascents_from_uniform_starts():
    """On 40 functions in 2 to 6 dimensions, smooth and rough, two searches are level.

    One is not worse on average by 2 standard errors, nor more often worse than better; on the smooth ones of the plane
    both find the maximum.
    """
    lost = []
    for D in range(2, 7):
        for k, length in enumerate((0.1, 0.2, 0.4, 0.8)):
            f = function(4, D=D, M=100, length=length, seed=100 * D + k)
            shift = torch.rand(D, dtype=torch.float64, generator=generator(D + 10 * k))
            ours = f(Acquisition().maximize(f, Box((0.0,) * D, (1.0,) * D), shift)[:, None])[:, 0]
            lost.append(by_uniform_starts(f, seed=D + k) - ours)
            assert D > 2 or length < 0.4 or (lost[-1] < 1e-8).all()
    lost = torch.cat(lost)
    assert float(lost.mean()) < 2 * float(lost.std()) / len(lost) ** 0.5
    assert int((lost > 1e-6).sum()) <= int((lost < -1e-6).sum())


@pytest.mark.parametrize("P", [1, 2])
def test_starts_out_of_reach_end_nowhere_better(monkeypatch, path, P):
    """300 functions in 2 and 3 dimensions: with all starts at most one in a hundred ends higher, none lower."""
    climbing, ascend = [], acquisition._ascend
    monkeypatch.setattr(acquisition, "_ascend", lambda f, x, *rest: (climbing.append(len(x)), ascend(f, x, *rest))[1])
    gained = []
    for D in (2, 3):
        for k, length in enumerate((0.1, 0.3, 0.8)):
            f = function(50, P, D=D, M=100, length=length, seed=10 * D + k).normalised()
            shift = torch.rand(D, dtype=torch.float64, generator=generator(D + 10 * k))
            box = Box((0.0,) * D, (1.0,) * D)
            few = f(Acquisition().maximize(f, box, shift)[:, None])
            with monkeypatch.context() as patch:
                patch.setattr(acquisition, "_GAIN", torch.inf)
                gained.append(f(Acquisition().maximize(f, box, shift)[:, None]) - few)
    if path == "tensors":
        assert climbing[2] < 0.5 * climbing[3]  # in the plane, at length-scale .3
    gained = torch.cat(gained)
    assert float(gained.min()) > -1e-9 and int((gained > 1e-6).sum()) <= 3


def test_batch_does_not_matter():
    f, box, search = function(9, 2, length=0.2), Box((0.0, 0.0), (1.0, 1.0)), Acquisition(200, 8)
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(9))
    whole = search.maximize(f, box, shift)
    for rows in (torch.tensor([3, 3]), torch.tensor([0, 8]), torch.arange(4)):  # an agent alone is there twice
        part = dataclasses.replace(f, features=f.features.select(rows), weights=f.weights[rows], length=f.length[rows])
        assert torch.equal(search.maximize(part, box, shift), whole[rows])


@pytest.mark.parametrize("shared_features", [False, True])
def test_blocks_of_agents_do_not_matter(monkeypatch, shared_features):
    f, box = function(9, 2, length=0.2, shared_features=shared_features), Box((0.0, 0.0), (1.0, 1.0))
    shift = torch.rand(2, dtype=torch.float64, generator=generator(9))
    whole = Acquisition(200, 8).maximize(f, box, shift)
    monkeypatch.setattr("dpfbo.gp.acquisition._AGENTS", 4)  # the last block has one agent
    assert torch.equal(Acquisition(200, 8).maximize(f, box, shift), whole)


@pytest.mark.parametrize("size", [1, 2, 30, 64, 1000])
@pytest.mark.parametrize("D", [1, 2, 3, 7])
def test_candidates_fill_the_box(D, size):
    shift = torch.rand(D, dtype=torch.float64, generator=generator(1))
    points = BoxCandidates.of(Box((0.0,) * D, (1.0,) * D), size, shift).points
    assert size <= len(points) < 2 * size
    assert ((points >= 0) & (points < 1)).all() and len(points.unique(dim=0)) == len(points)
    if size == 1000:
        assert ((points.mean(0) - 0.5).abs() < 0.05).all()
        assert ((points.std(0) - 12**-0.5).abs() < 0.05).all()


@pytest.mark.parametrize("D", [1, 2, 5])
def test_starts_are_the_best_of_their_cells(D):
    """The best first; 64 cells of the unmoved box with 16 candidates each, of which none gives two starts."""
    box = Box((0.0,) * D, (1.0,) * D)
    candidates = BoxCandidates.of(box, 1024, torch.zeros(D, dtype=torch.float64))
    values = torch.rand(3, 1024, generator=generator(2))
    starts = candidates.starts(values, 21)
    reached = values.gather(1, starts)
    assert starts.shape == (3, 21) and torch.equal(starts[:, 0], values.argmax(1))
    assert (reached.diff(dim=1) <= 0).all()
    halves = [(range((D + 1) // 2), 64 if D == 1 else 8), (range((D + 1) // 2, D), 8)]
    cell = torch.zeros(1024, dtype=torch.long)
    for axes, parts in halves:
        if len(axes):
            cell = cell * parts + Regions(parts, len(axes)).region_of(candidates.points[:, list(axes)])
    best = torch.stack([values[:, cell == c].amax(1) for c in range(64)], 1)
    assert (torch.bincount(cell) == 16).all()
    assert torch.equal(reached, best.sort(dim=1, descending=True).values[:, :21])
    assert torch.equal(candidates.starts(values, 100), candidates.starts(values, 64))


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
    search = Acquisition(200, 8)
    on_grid = search.maximize(f, grid, torch.empty(0))
    rows = 1 if shared_features and shared_weights else B
    assert on_grid.shape == (rows, 2)
    assert torch.equal(on_grid.expand(B, -1), search.maximize(written_out, grid, torch.empty(0)))
    box = Box((0.0, 0.0), (1.0, 1.0))
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(4))
    in_box = search.maximize(f, box, shift)
    assert torch.allclose(in_box.expand(B, -1), search.maximize(written_out, box, shift), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shared_features", [False, True])
@pytest.mark.parametrize("shared_weights", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 4, 9, 10, 11])
def test_blocks_of_any_size_give_the_same_values(monkeypatch, shared_features, shared_weights, rows):
    """Blocks of three rows: batches that leave a last block of one row, of two, and none."""
    f = function(rows, 4, shared_features=shared_features, shared_weights=shared_weights)
    u = torch.rand(rows, 5, 2, dtype=torch.float64, generator=generator(1))
    whole, shared = f(u), f(u[:1])
    monkeypatch.setattr("dpfbo.gp.features._BLOCK", 3 * 5 * 40)
    assert torch.allclose(f(u), whole, rtol=0, atol=1e-13)
    assert torch.allclose(f(u[:1]), shared, rtol=0, atol=1e-13)
    monkeypatch.setattr("dpfbo.gp.features._BLOCK", 1)
    assert torch.allclose(f(u), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("P", [1, 2, 4, 6])
@pytest.mark.parametrize("shared_features", [False, True])
def test_smooth_functions_against_a_dense_grid(P, shared_features):
    """400 x 400 points with their own regions' weights: nowhere better than the maximiser by more than 1e-9."""
    f = function(5, P, length=0.5, seed=11, shared_features=shared_features)
    box = Box((0.0, 0.0), (1.0, 1.0))
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(12))
    reached = f(Acquisition().maximize(f, box, shift)[:, None])[:, 0]
    axis = torch.linspace(0, 1, 400, dtype=torch.float64)
    dense = f(torch.cartesian_prod(axis, axis)[None]).max(1).values
    assert (reached >= dense - 1e-9).all()


def test_a_slope_towards_a_border_ends_at_the_border_of_the_better_region():
    """One cosine that rises along axis 0, twice as much in region 0: its supremum lies on the border at 1/2."""
    frequencies = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    features = RandomFeatures(frequencies, torch.tensor([[-torch.pi / 2, 0.0]], dtype=torch.float64))  # sin and cos
    weights = torch.tensor([[[2.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)  # 2 sin x below 1/2, sin x above
    f = FeatureFunction(features, weights, Regions(2, 2), torch.ones(1, dtype=torch.float64))
    box, search = Box((0.0, 0.0), (1.0, 1.0)), Acquisition(50, 5)
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(1))
    x = search.maximize(f, box, shift)[0]
    assert 0.5 - 1e-6 < float(x[0]) < 0.5
    assert int(f.regions.region_of(x)) == 0
    assert float(f(x[None, None])) == pytest.approx(2 * np.sin(0.5), abs=1e-6)


@pytest.mark.parametrize("D", [1, 2, 3])
@pytest.mark.parametrize(("n_candidates", "n_starts", "iterations"), [(30, 0, 0), (30, 4, 0), (1, 4, 0), (30, 0, 20)])
def test_the_result_is_never_worse_than_any_point_it_began_from(D, n_candidates, n_starts, iterations):
    """Without starts and refinement too: then it is the best of the points themselves (in 24 bits)."""
    f = function(20, 2, D, length=0.2, seed=D)
    box, search = Box((0.0,) * D, (1.0,) * D), Acquisition(n_candidates, n_starts, iterations)
    shift = torch.rand(box.dimension, dtype=torch.float64, generator=generator(5))
    x = search.maximize(f, box, shift)
    points = BoxCandidates.of(box, n_candidates, shift).points
    reached, best = f(x[:, None])[:, 0], f(points[None]).max(1).values
    assert (reached >= best - 1e-4).all()
    if iterations == 0:
        assert (points == x[:, None]).all(2).any(1).all()
    else:
        assert (reached > best + 1e-3).any()


def test_derivatives_against_finite_differences():
    f, h = function(4, 4, 2, length=0.4), 1e-5
    u = 0.1 + 0.3 * torch.rand(8, 2, dtype=torch.float64, generator=generator(2))  # inside region 0
    rows, region = torch.arange(8) % 4, torch.zeros(8, dtype=torch.long)
    problems = f.around(u, region, rows)
    _, gradient, hessian = derivatives(u, *problems)
    for axis in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = h
        up, down = (derivatives(u + s, *problems) for s in (step, -step))
        assert torch.allclose(gradient[:, axis], (up[0] - down[0]) / (2 * h), rtol=0, atol=1e-6)
        assert torch.allclose(hessian[:, axis], (up[1] - down[1]) / (2 * h), rtol=0, atol=1e-4)


def test_the_shift_is_new_in_every_round_and_on_every_axis():
    """And for every purpose and seed; a grid has none."""
    cpu, box = torch.device("cpu"), Box((0.0,) * 3, (1.0,) * 3)
    shifts = torch.stack([
        Acquisition().shift(box, Streams(seed), purpose, t, cpu)
        for seed in (0, 1) for purpose in ("acquisition", "own_draw/starts") for t in range(6)
    ])  # fmt: skip
    assert shifts.shape == (24, 3) and len(shifts.unique()) == shifts.numel()
    assert ((shifts >= 0) & (shifts < 1)).all()
    grid = Grid(torch.tensor([[0.0], [1.0]], dtype=torch.float64), (0.0,), (1.0,))
    assert Acquisition().shift(grid, Streams(0), "acquisition", 1, cpu).shape == (0,)
