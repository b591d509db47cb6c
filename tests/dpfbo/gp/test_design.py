"""Initial points of all agents: public, the same whoever asks, and where they should be."""

import pytest
import torch

from dpfbo.gp.design import Design
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Grid
from dpfbo.space.regions import Regions

LINE = Grid(torch.linspace(0, 1, 40, dtype=torch.float64)[:, None], (0.0,), (1.0,))
SQUARE = Box((0.0, -5.0), (2.0, 10.0))
KINDS = ["uniform", "sobol"]


def design(kind, domain=SQUARE, n_init=5, P=1, seed=0):
    return Design(domain, Regions(P, domain.dimension), Streams(seed), n_init, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("domain", [LINE, SQUARE], ids=["grid", "box"])
def test_points_do_not_depend_on_who_asks(kind, domain):
    d = design(kind, domain)
    whole = d.points(torch.arange(20))
    assert whole.shape == (20, 5, domain.dimension)
    for ids in ([0], [19], [7, 3], [4, 4], [18, 0, 11], list(range(6, 15))):
        assert torch.equal(d.points(torch.tensor(ids)), whole[ids])
    assert d.points(torch.arange(0)).shape == (0, 5, domain.dimension)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("domain", [LINE, SQUARE], ids=["grid", "box"])
def test_points_lie_in_the_domain(kind, domain):
    points = design(kind, domain).points(torch.arange(50))
    assert (points >= 0).all() and (points <= 1).all()
    if domain is LINE:
        assert torch.isin(points, LINE.unit_points).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind):
    points = design(kind).points(torch.arange(9))
    assert torch.equal(design(kind).points(torch.arange(9)), points)
    assert not torch.equal(design(kind, seed=1).points(torch.arange(9)), points)


def test_uniform_points_lie_in_the_agents_own_region():
    d = design("uniform", P=4)
    points = d.points(torch.arange(12))
    assert (d.regions.region_of(points) == (torch.arange(12) % 4)[:, None]).all()


@pytest.mark.parametrize("N", [5, 16, 50])
def test_a_sobol_design_is_a_shifted_sobol_sequence_over_all_agents(N):
    points = design("sobol", n_init=4).points(torch.arange(N)).reshape(-1, 2)
    sequence = torch.quasirandom.SobolEngine(2).draw(4 * N, dtype=torch.float64)
    gap = (points - sequence) % 1
    assert torch.allclose(gap, gap[:1].expand_as(gap), atol=1e-9)
    assert (gap[0] > 0.01).all()


def test_sobol_points_are_spread_more_evenly():
    """Each of 64 equal intervals holds one of 64 points; of independent ones every third is empty."""
    filled = {}
    for kind in KINDS:
        x = design(kind, n_init=4).points(torch.arange(16))[..., 0].flatten()
        filled[kind] = len((x * 64).floor().unique())
    assert filled["sobol"] >= 63  # the shift may put two of them across an edge
    assert filled["uniform"] < 50


def test_a_bad_setting_is_one_sentence():
    with pytest.raises(ValueError, match=r"^design must be one of 'uniform', 'sobol', got 'grid'"):
        design("grid")
    with pytest.raises(ValueError, match=r"^n_init must be an integer of at least 1, got 0"):
        design("sobol", n_init=0)
