"""`Acquisition.maximize_improvement`: exact on grids, close to a dense search in boxes, and valid in mixed spaces."""

import pytest
import torch

from dpfbo.gp import acquisition
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.averaged_gp import AveragedGP, ImprovementSurface, KnownMean, Places
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.rng import Streams
from dpfbo.space.axes import Categorical, Float, Integer
from dpfbo.space.domain import Box, Grid, embedded
from dpfbo.space.mixed import MixedBox

B, T = 12, 5
GP = AveragedGP((0.1, 0.2, 0.4, 0.8))
SEARCH = Acquisition(1000, 20)
LINE, SQUARE = Box((0.0,), (1.0,)), Box((0.0, 0.0), (1.0, 1.0))
MIXED = MixedBox((Float(0, 1), Categorical(range(3)), Integer(1, 5), Float(0, 1)))


def uniforms(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def surface_on(domain, shared=False, seed=0, n=B):
    """The improvements of n agents with T observations of their own each, and the points they observed."""
    features = NystromFeatures.of(domain, 20, GP.lengthscales)
    u = uniforms(n, T, domain.dimension, seed=seed)
    if isinstance(domain, Grid):
        u = domain.unit_points[torch.randint(0, len(domain.points), (n, T), generator=torch.Generator().manual_seed(1))]
    elif isinstance(domain, MixedBox):
        u = domain.snap(u)
    covariance = torch.eye(20, dtype=torch.float64) / 20
    weights = torch.zeros(4, dtype=torch.float64)
    known = KnownMean(normals(20, seed=2) / 2, covariance, torch.tensor(0.5).double(), weights) if shared else None

    def locate(u):
        return Places(embedded(domain, u), features(u) if shared else None)

    return ImprovementSurface(GP.fit(locate(u), normals(n, T, seed=seed + 3), known), locate), u


def maximised(surface, domain, search=SEARCH, **how):
    return search.maximize_improvement(surface, domain, search.shift(domain, Streams(0), "shift", 1, CPU), **how)


CPU = torch.device("cpu")
SHARED = pytest.mark.parametrize("shared", [False, True])


class TestGrids:
    def grid(self, G, D=2):
        return Grid(uniforms(G, D, seed=5), (0.0,) * D, (1.0,) * D)

    @SHARED
    def test_a_grid_is_searched_exactly(self, shared):
        grid = self.grid(200)
        surface, _ = surface_on(grid, shared)
        values = surface(grid.unit_points[None])
        assert torch.equal(maximised(surface, grid), grid.unit_points[values.argmax(1)])

    @SHARED
    def test_known_points_are_left_out(self, shared):
        """The best 7 of each agent: the eighth is found."""
        grid = self.grid(200)
        surface, _ = surface_on(grid, shared)
        order = surface(grid.unit_points[None]).argsort(1, descending=True)
        known = order[:, :7].flip(1).int()
        assert torch.equal(maximised(surface, grid, known=known), grid.unit_points[order[:, 7]])

    def test_where_all_points_are_known_the_best_is_found(self):
        grid = self.grid(6)
        surface, _ = surface_on(grid)
        every = torch.arange(6).expand(B, -1)
        assert torch.equal(maximised(surface, grid, known=every), maximised(surface, grid))
        all_but_one = every[:, torch.arange(6) != 2]
        assert torch.equal(maximised(surface, grid, known=all_but_one), grid.unit_points[2].expand(B, -1))

    @SHARED
    def test_a_large_grid_is_searched_near_its_best_points(self, shared):
        """3000 points: the best or nearly so, and none that is known."""
        grid = self.grid(3000)
        surface, _ = surface_on(grid, shared)
        values = surface(grid.unit_points[None])
        known = values.argsort(1, descending=True)[:, :3]
        found = grid.index_of(maximised(surface, grid, known=known)).long()
        assert not (found[:, None] == known).any()
        best = values.scatter(1, known, -torch.inf).amax(1)
        gap = best - values.gather(1, found[:, None])[:, 0]
        assert (gap >= 0).all() and gap.max() < 0.1 and gap.median() < 0.01

    @pytest.mark.parametrize("G", [513, 2000])
    @pytest.mark.parametrize("D", [1, 3])
    def test_every_point_of_a_large_grid_is_near_one_that_stands_for_it(self, G, D):
        """Each row is in one list, that of the nearest of the chosen rows."""
        grid = self.grid(G, D)
        chosen, members = grid.screening
        assert len(chosen) <= G / 3
        assert torch.equal(members.unique(), torch.arange(G))
        owner = torch.cdist(grid.unit_points, grid.unit_points[chosen]).argmin(1)
        for c, rows in enumerate(members):
            others = rows[rows != chosen[c]]
            assert (owner[others] == c).all() and len(others.unique()) == len(others)
        assert self.grid(512).screening is None


class TestBoxes:
    @SHARED
    @pytest.mark.parametrize("domain", [LINE, SQUARE], ids=["line", "square"])
    def test_a_box_reaches_the_maximum_of_a_dense_search(self, domain, shared):
        """Within 1e-3 of the best of 20 000 points on a line, 40 000 in a square: 19 agents of 20, and all in 0.5."""
        side = 20_000 if domain is LINE else 200
        axis = torch.linspace(0, 1, side, dtype=torch.float64)
        dense = axis[:, None] if domain is LINE else torch.cartesian_prod(axis, axis)
        gaps = []
        for seed in range(4):
            surface, _ = surface_on(domain, shared, seed)
            best = torch.cat([surface(part[None]) for part in dense.split(4000)], 1).amax(1)
            found = maximised(surface, domain)
            assert found.shape == (B, domain.dimension) and ((found >= 0) & (found <= 1)).all()
            gaps.append(best - surface(found[:, None])[:, 0])
        gap = torch.cat(gaps)
        assert gap.quantile(0.95) < 1e-3 and gap.max() < 0.5

    @SHARED
    def test_more_axes_are_better_than_candidates(self, shared):
        """Six axes: for every agent better than the best of 20 000 uniform points."""
        domain = Box((0.0,) * 6, (1.0,) * 6)
        surface, _ = surface_on(domain, shared)
        best = torch.cat([surface(part[None]) for part in uniforms(20_000, 6, seed=9).split(4000)], 1).amax(1)
        gain = surface(maximised(surface, domain)[:, None])[:, 0] - best
        assert gain.min() > -0.05 and gain.mean() > 0.05

    @SHARED
    def test_an_agents_query_does_not_depend_on_the_others(self, shared, monkeypatch):
        """To the bit, alone or in blocks of any size."""
        surface, _ = surface_on(SQUARE, shared)
        whole = maximised(surface, SQUARE)
        for rows in ([0, 1], [7, 3, 5], [11, 11]):
            assert torch.equal(maximised(surface.select(torch.tensor(rows)), SQUARE), whole[rows])
        monkeypatch.setattr(acquisition, "_SURFACE", 5 * surface.n_models * SEARCH.n_candidates)
        assert torch.equal(maximised(surface, SQUARE), whole)

    def test_without_steps_the_best_candidate_is_returned(self):
        surface, _ = surface_on(SQUARE)
        search = Acquisition(1000, 20, 0)
        candidates = acquisition.BoxCandidates.of(SQUARE, 1000, search.shift(SQUARE, Streams(0), "shift", 1, CPU))
        best = surface(candidates.points[None]).argmax(1)
        assert torch.equal(maximised(surface, SQUARE, search), candidates.points[best])


class TestMixed:
    @SHARED
    def test_results_are_values_of_the_parameters(self, shared):
        surface, _ = surface_on(MIXED, shared)
        found = maximised(surface, MIXED)
        assert torch.equal(MIXED.snap(found), found)
        assert ((found >= 0) & (found <= 1)).all()

    @SHARED
    def test_they_are_as_good_as_a_dense_search(self, shared):
        """Of 30 000 points: within 0.02 for nine agents in ten, and 0.3 for all."""
        surface, _ = surface_on(MIXED, shared, n=20)
        dense = MIXED.snap(uniforms(30_000, 4, seed=9))
        best = torch.cat([surface(part[None]) for part in dense.split(3000)], 1).amax(1)
        gap = best - surface(maximised(surface, MIXED)[:, None])[:, 0]
        assert gap.quantile(0.9) < 0.02 and gap.max() < 0.3

    def test_discrete_axes_alone(self):
        """All values of a space of 15 points are found exactly by coordinate-wise search from the best candidates."""
        domain = MixedBox((Categorical(range(3)), Integer(1, 5)))
        surface, _ = surface_on(domain)
        found = maximised(surface, domain)
        every = domain.snap(torch.cartesian_prod(*2 * [torch.linspace(0, 1, 60, dtype=torch.float64)]))
        best = surface(every[None]).amax(1)
        assert torch.allclose(surface(found[:, None])[:, 0], best)
