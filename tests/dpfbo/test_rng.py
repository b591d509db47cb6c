"""Named streams: a number belongs to (seed, purpose, agent, round) and to nothing else."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfbo.rng import Streams, box_muller

STREAMS = Streams(7)
KINDS = ("uniform", "normal")
AGENTS, SIZE = 300, 400  # sizes of the statistical tests
IDS = st.lists(st.integers(0, 400), min_size=1, max_size=12, unique=True)


def draw(kind: str, ids: list[int], size: int, round: int = 3, streams: Streams = STREAMS) -> torch.Tensor:
    return getattr(streams, kind)("test", torch.tensor(ids), round, size)


@pytest.mark.parametrize("kind", KINDS)
@given(ids=IDS, size=st.integers(1, 70))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_an_agent_draws_the_same_numbers_in_every_batch(kind: str, ids: list[int], size: int) -> None:
    batch = draw(kind, ids, size)
    assert batch.shape == (len(ids), size) and batch.dtype == torch.float64
    everyone = draw(kind, list(range(401)), size)
    assert torch.equal(batch, everyone[ids]), "differs from the batch of all agents"
    for row, n in enumerate(ids):
        assert torch.equal(batch[row], draw(kind, [n], size)[0]), f"agent {n} alone draws other numbers"


@pytest.mark.parametrize("kind", KINDS)
def test_batch_order_repetition_and_later_agents_shift_nothing(kind: str) -> None:
    few = draw(kind, list(range(10)), 33)
    assert torch.equal(draw(kind, list(range(1000)), 33)[:10], few)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draw(kind, order.tolist(), 33), few[order])
    assert torch.equal(draw(kind, [4, 4, 9, 4], 33), few[[4, 4, 9, 4]])


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_is_free_of_side_effects(kind: str) -> None:
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first = draw(kind, [0, 5], 9)
    STREAMS.generator("other").random(3)
    assert torch.equal(draw(kind, [0, 5], 9), first)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_nothing_asked_nothing_drawn() -> None:
    assert STREAMS.uniform("test", torch.tensor([], dtype=torch.long), 0, 5).shape == (0, 5)
    assert STREAMS.normal("test", torch.arange(3), 0, 0).shape == (3, 0)


def test_every_other_name_gives_other_numbers() -> None:
    """All 40 combinations of seed, purpose, agent and round, 64 numbers each: not one number in common."""
    seen = [
        Streams(seed).uniform(purpose, torch.tensor([agent]), round, 64)[0]
        for seed in (0, 1)
        for purpose in ("a", "b", "a/1", "1", "a/1/2")
        for agent in (0, 1)
        for round in (1, 12)
    ]
    assert len(torch.cat(seen).unique()) == 40 * 64


def test_generators_have_names_too() -> None:
    def numbers(seed: int, purpose: str, round: int) -> list[float]:
        return Streams(seed).generator(purpose, round).random(8).tolist()

    same = numbers(0, "a", 1)
    assert numbers(0, "a", 1) == same
    others = [numbers(1, "a", 1), numbers(0, "b", 1), numbers(0, "a", 2)]
    assert not any(set(same) & set(other) for other in others)


def test_uniforms_have_the_law_of_uniforms() -> None:
    u = draw("uniform", list(range(AGENTS)), SIZE).flatten()
    assert u.min() >= 0 and u.max() < 1
    n = len(u)
    assert abs(u.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / n)
    assert abs(u.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / n)  # Var (u - 1/2)^2 = 1/180
    assert stats.kstest(u.numpy(), "uniform").statistic < 1.95 / math.sqrt(n)  # p = .001


def test_normals_have_the_law_of_normals() -> None:
    z = draw("normal", list(range(AGENTS)), SIZE).flatten()
    n = len(z)
    assert torch.isfinite(z).all()
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / n)
    assert stats.kstest(z.numpy(), "norm").statistic < 1.95 / math.sqrt(n)


def test_box_muller_is_finite_at_both_ends_of_the_unit_interval() -> None:
    """Box-Muller at u = 0 and at the largest double below 1: sqrt(-2 log 2^-53) = 8.57."""
    last = 1 - 2.0**-53
    ends = torch.tensor([[0.0, 0.0], [last, 0.0], [last, last], [0.0, last]], dtype=torch.float64)
    z = box_muller(ends)
    assert torch.isfinite(z).all()
    assert z[0].tolist() == [0, 0]
    assert z[1, 0] == pytest.approx(math.sqrt(2 * 53 * math.log(2)), rel=1e-12)


def largest_correlation(rows: torch.Tensor) -> float:
    """Largest |correlation| between two rows, in standard errors 1 / sqrt(size)."""
    R = torch.corrcoef(rows) - torch.eye(len(rows), dtype=rows.dtype)
    return float(R.abs().max()) * math.sqrt(rows.shape[1])


def test_agents_are_uncorrelated() -> None:
    """300 agents are 44850 pairs: the largest of so many standard normals stays below 5.5 (p = .002)."""
    z = draw("normal", list(range(AGENTS)), SIZE)
    assert largest_correlation(z) < 5.5
    assert largest_correlation(z.abs()) < 5.7  # a little heavier in the tails


@pytest.mark.parametrize("name", ["round", "seed", "purpose"])
def test_rounds_seeds_and_purposes_are_uncorrelated(name: str) -> None:
    agents = torch.arange(100)
    rows = []
    for k in range(60):
        streams = Streams(k if name == "seed" else 0)
        purpose, round = (f"p{k}" if name == "purpose" else "p"), (k if name == "round" else 0)
        rows.append(streams.normal(purpose, agents, round, 20).flatten())
    assert largest_correlation(torch.stack(rows)) < 5  # 1770 pairs, p = .001


def test_numbers_of_one_agent_are_uncorrelated() -> None:
    """Columns: the two halves of Box-Muller come from the same uniforms, also in their squares."""
    z = draw("normal", list(range(4000)), 40)
    assert largest_correlation(z.T) < 5  # 780 pairs, p = .0004
    assert largest_correlation(z.T.abs()) < 5


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0", None, math.nan])
def test_a_seed_is_a_non_negative_integer(seed: object) -> None:
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got"):
        Streams(seed)  # type: ignore[arg-type]


def test_large_and_numpy_seeds_work() -> None:
    big = Streams(2**200 + 1).uniform("a", torch.arange(2), 0, 4)
    assert not torch.equal(big, Streams(1).uniform("a", torch.arange(2), 0, 4))
    assert torch.equal(
        Streams(np.int64(3)).uniform("a", torch.arange(2), 0, 4), Streams(3).uniform("a", torch.arange(2), 0, 4)
    )
