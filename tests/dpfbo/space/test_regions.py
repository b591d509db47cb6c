"""Sub-regions: equal boxes that hold every point exactly once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfbo.space.domain import Box, Grid
from dpfbo.space.regions import Regions

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)
LAYOUTS = st.builds(Regions, st.integers(1, 64), st.integers(1, 4))
UNIT = st.floats(0, 1, exclude_max=True)


def uniforms(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit_grid(points: torch.Tensor) -> Grid:
    return Grid(points, (0.0,) * points.shape[1], (1.0,) * points.shape[1])


def holding(regions: Regions, point: torch.Tensor) -> list[int]:
    """The regions whose half-open boxes hold a point (the last one closed), from the lower corners alone."""
    lower, _ = regions.bounds(torch.arange(regions.P))
    held = []
    for r in range(regions.P):
        inside = True
        for axis in range(regions.dimension):
            above = lower[:, axis][lower[:, axis] > lower[r, axis]]
            inside &= bool(point[axis] >= lower[r, axis]) and (len(above) == 0 or bool(point[axis] < above.min()))
        if inside:
            held.append(r)
    return held


@given(regions=LAYOUTS, data=st.data())
@EXAMPLES
def test_every_point_lies_in_exactly_one_region(regions: Regions, data: st.DataObject) -> None:
    point = torch.tensor([data.draw(st.floats(0, 1)) for _ in range(regions.dimension)], dtype=torch.float64)
    assert holding(regions, point) == [int(regions.region_of(point))]


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_corners_belong_to_their_own_region(dimension: int) -> None:
    """bounds() and region_of() must agree to the last bit: a start kept in its region may sit on either corner."""
    wrong = []
    for P in range(1, 101):
        regions, r = Regions(P, dimension), torch.arange(P)
        lower, upper = regions.bounds(r)
        if not (torch.equal(regions.region_of(lower), r) and torch.equal(regions.region_of(upper), r)):
            wrong.append(P)
    assert wrong == []


@given(regions=LAYOUTS)
@EXAMPLES
def test_regions_are_disjoint_equal_and_cover_the_cube(regions: Regions) -> None:
    assert math.prod(regions.parts) == regions.P
    lower, upper = regions.bounds(torch.arange(regions.P))
    assert lower.shape == upper.shape == (regions.P, regions.dimension)
    assert torch.all(lower >= 0) and torch.all(upper <= 1) and torch.all(lower < upper)
    volume = (upper - lower).prod(1)
    assert torch.allclose(volume, torch.full_like(volume, 1 / regions.P), rtol=1e-6, atol=0)  # closed inside the open
    for a in range(regions.P):  # two boxes are apart on at least one axis
        apart = ((lower[a] >= upper) | (upper[a] <= lower)).any(1)
        assert apart.sum() == regions.P - 1


@given(regions=LAYOUTS, shape=st.lists(st.integers(1, 3), max_size=3))
@EXAMPLES
def test_shapes_of_a_batch(regions: Regions, shape: list[int]) -> None:
    u = uniforms(*shape, regions.dimension)
    region = regions.region_of(u)
    assert list(region.shape) == shape and region.dtype == torch.long
    assert region.min() >= 0 and region.max() < regions.P
    lower, upper = regions.bounds(region)
    assert lower.shape == upper.shape == u.shape
    assert torch.all(lower <= u) and torch.all(u <= upper + 1e-8)


@pytest.mark.parametrize(
    ("P", "dimension", "parts"),
    [
        (1, 1, (1,)), (1, 3, (1, 1, 1)), (2, 1, (2,)), (5, 1, (5,)), (12, 1, (12,)),
        (2, 2, (2, 1)), (4, 2, (2, 2)), (4, 3, (2, 2, 1)), (8, 3, (2, 2, 2)), (6, 2, (3, 2)), (9, 2, (3, 3)),
        (16, 2, (4, 4)), (7, 2, (7, 1)),
    ],
)  # fmt: skip
def test_published_layouts(P: int, dimension: int, parts: tuple[int, ...]) -> None:
    assert Regions(P, dimension).parts == parts


def test_four_regions_of_a_square_are_its_quarters() -> None:
    regions = Regions(4, 2)
    points = torch.tensor([[0.1, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9]], dtype=torch.float64)
    assert regions.region_of(points).tolist() == [0, 1, 2, 3]
    borders = torch.tensor([[0.5, 0.5], [0.0, 0.5], [0.5, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert regions.region_of(borders.double()).tolist() == [3, 1, 2, 3, 1, 2]
    lower, upper = regions.bounds(torch.tensor([1]))
    assert lower.tolist() == [[0.0, 0.5]] and upper[0, 1] == 1 and 0.5 - 1e-8 < upper[0, 0] < 0.5


def test_the_third_axis_is_whole_for_four_regions_of_a_cube() -> None:
    regions = Regions(4, 3)
    u = uniforms(1000, 3)
    assert torch.equal(regions.region_of(u), Regions(4, 2).region_of(u[:, :2]))


@pytest.mark.parametrize(("P", "dimension"), [(4, 2), (4, 3), (6, 2), (3, 1)])
def test_uniform_points_fall_in_every_region_equally_often(P: int, dimension: int) -> None:
    n = 20_000
    count = torch.bincount(Regions(P, dimension).region_of(uniforms(n, dimension)), minlength=P)
    assert torch.all((count - n / P).abs() < 4 * math.sqrt(n / P * (1 - 1 / P)))


def test_agents_are_assigned_in_turn() -> None:
    assert Regions(4, 2).assign(torch.tensor([0, 1, 2, 3, 4, 5, 28])).tolist() == [0, 1, 2, 3, 0, 1, 0]


@given(regions=LAYOUTS, agents=st.lists(st.integers(0, 500), min_size=1, max_size=6), data=st.data())
@EXAMPLES
def test_initial_points_of_a_box_lie_in_the_region(regions: Regions, agents: list[int], data: st.DataObject) -> None:
    D = regions.dimension
    u = data.draw(st.lists(UNIT, min_size=3 * D, max_size=3 * D))
    u = torch.tensor(u, dtype=torch.float64).view(1, 3, D).expand(len(agents), -1, -1)
    region = regions.assign(torch.tensor(agents))
    points = regions.uniform_points(region, u, Box((-5.0,) * D, (10.0,) * D))
    assert points.shape == (len(agents), 3, D)
    lower, upper = regions.bounds(region)
    assert torch.all(points >= lower[:, None]) and torch.all(points <= upper[:, None])
    inner = points.clamp(1e-9, 1) + 1e-12  # off the lower face, whose own test is above
    assert torch.equal(regions.region_of(inner.clamp(max=1)), region[:, None].expand(-1, 3))


@given(P=st.integers(1, 8), D=st.integers(1, 2), size=st.integers(200, 400), data=st.data())
@EXAMPLES
def test_initial_points_of_a_grid_are_grid_points_of_the_region(P: int, D: int, size: int, data: st.DataObject) -> None:
    regions = Regions(P, D)
    grid = Grid(-5 + 15 * uniforms(size, D), (-5.0,) * D, (10.0,) * D)
    regions.check_against(grid, n_agents=P)
    region = regions.assign(torch.arange(2 * P))
    u = torch.tensor(data.draw(st.lists(UNIT, min_size=5, max_size=5)), dtype=torch.float64)
    points = regions.uniform_points(region, u[None, :, None].expand(2 * P, -1, D), grid)
    assert points.shape == (2 * P, 5, D)
    assert torch.equal(regions.region_of(points), region[:, None].expand(-1, 5))
    for point in points.view(-1, D):
        assert (grid.unit_points == point).all(1).any()


def test_initial_points_of_a_box_are_uniform_in_the_region() -> None:
    regions, n = Regions(4, 2), 8000
    points = regions.uniform_points(torch.tensor([1]), uniforms(1, n, 2), Box((0.0, 0.0), (1.0, 1.0)))[0]
    for axis, low in enumerate((0.0, 0.5)):
        scaled = 2 * (points[:, axis] - low)
        assert stats.kstest(scaled.numpy(), "uniform").statistic < 1.95 / math.sqrt(n)  # p = .001
    assert abs(float(torch.corrcoef(points.T)[0, 1])) < 4 / math.sqrt(n)


def test_initial_points_of_a_grid_take_every_point_equally_often() -> None:
    """Regions of 3 and 7 grid points: the smaller one does not borrow from the larger."""
    x = torch.tensor([0.9, 0.05, 0.6, 0.1, 0.7, 0.55, 0.2, 0.95, 0.8, 1.0], dtype=torch.float64)[:, None]
    regions, n = Regions(2, 1), 7000
    for region, members in ((0, {0.05, 0.1, 0.2}), (1, {0.9, 0.6, 0.7, 0.55, 0.95, 0.8, 1.0})):
        points = regions.uniform_points(torch.tensor([region]), uniforms(1, n, 1), unit_grid(x))
        values, count = points.unique(return_counts=True)
        assert set(values.tolist()) == members
        p = 1 / len(members)
        assert torch.all((count - n * p).abs() < 4 * math.sqrt(n * p * (1 - p)))


@pytest.mark.parametrize("P", [0, -1, 1.5, 4.0, True, "4", None])
def test_a_number_of_regions_is_a_positive_integer(P: object) -> None:
    with pytest.raises(ValueError, match=r"P must be an integer of at least 1, got"):
        Regions(P, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("dimension", [0, -2, 1.0])
def test_a_dimension_is_a_positive_integer(dimension: object) -> None:
    with pytest.raises(ValueError, match="dimension must be an integer of at least 1, got"):
        Regions(2, dimension)  # type: ignore[arg-type]


@pytest.mark.parametrize("domain", [Box((0.0,), (1.0,)), unit_grid(torch.linspace(0, 1, 50)[:, None].double())])
def test_every_region_needs_an_agent(domain: Box | Grid) -> None:
    Regions(4, 1).check_against(domain, n_agents=4)
    with pytest.raises(ValueError, match="must be at most the number of agents 3, got 4"):
        Regions(4, 1).check_against(domain, n_agents=3)


@pytest.mark.parametrize("points", [[0.0, 0.3, 0.6], [0.0, 0.1, 0.2, 0.3, 0.3, 0.3], [0.26, 0.51, 0.76, 1.0]])
def test_every_region_needs_a_grid_point(points: list[float]) -> None:
    grid = unit_grid(torch.tensor(points, dtype=torch.float64)[:, None])
    with pytest.raises(ValueError, match="leaves a region without a grid point, got 4"):
        Regions(4, 1).check_against(grid, n_agents=100)
