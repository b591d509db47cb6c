"""Blocks of agents and threads change no number; only the agents that a server chooses make a message."""

from dataclasses import fields, replace

import pytest
import torch

from dpfbo.federated import federation
from dpfbo.federated.broadcast import RegionVectors
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.population import shard as shard_module
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.branin import Branin
from dpfbo.problems.synthetic import Synthetic
from dpfbo.space.domain import Grid
from tests.dpfbo.recorded_streams import RecordedStreams
from tests.helpers.federated_world import T, prior_server_for, prior_world, server_for, world

N, M, P = 12, 30, 2
MECHANISM = SubsampledGaussian(0.5, 0.3, 5.0)


def problem_on(domain):
    return Branin(n_agents=N) if domain == "box" else Synthetic(n_agents=N, grid_size=60, lengthscale=0.1)


def rounds_of(problem, agents, broadcasts, **how):
    shard = Shard(problem, agents, torch.arange(N), **how)
    turns = [shard.step(t, broadcast, send=True) for t, broadcast in enumerate([None, *broadcasts])]
    return [getattr(turn.record, f.name) for turn in turns for f in fields(turn.record)[1:]], [
        t.messages for t in turns
    ]


def vectors(n):
    normals = torch.randn(n, P, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return [RegionVectors(values) for values in normals]


@pytest.mark.parametrize("how", [{"block": 1}, {"block": 5}, {"block": 7, "threads": 3}, {"threads": 2}])
@pytest.mark.parametrize(("domain", "method"), [("grid", "exact"), ("grid", "rff"), ("box", "rff")])
def test_blocks_and_threads_change_no_number(domain, method, how):
    problem, agents, _ = world(problem_on(domain), P, method=method, M=M)
    whole, part = (rounds_of(problem, agents, vectors(4), **given) for given in ({}, how))
    for a, b in zip(whole[0] + whole[1], part[0] + part[1], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("how", [{"block": 1}, {"block": 5, "threads": 2}])
@pytest.mark.parametrize("domain", ["grid", "box"])
def test_blocks_change_no_number_of_agents_with_a_shared_prior(domain, how):
    problem, agents = prior_world(problem_on(domain))
    server = prior_server_for(problem, agents, SubsampledGaussian(1.0, 0.3, 1.0))
    prior, _, _ = server.round(0, Shard(problem, agents, torch.arange(N)).step(0, None, send=True).messages)
    whole, part = (rounds_of(problem, agents, [prior] * 4, **given) for given in ({}, how))
    for a, b in zip(whole[0], part[0], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("block", [None, 5])
def test_only_chosen_agents_make_a_message(block, monkeypatch):
    problem, agents, _ = world(problem_on("grid"), P, M=M)
    made, rows, weights = [], torch.tensor([1, 2, 7, 11]), torch.rand(P, 4, dtype=torch.float64)
    whole = Shard(problem, agents, torch.arange(N)).step(0, None, send=True).messages
    expected = MECHANISM.add_up(whole, rows, weights, M)
    original = Agents.messages

    def counted(self, state, t):
        made.extend(state.ids.tolist())
        return original(self, state, t)

    monkeypatch.setattr(Agents, "messages", counted)
    shard = Shard(problem, agents, torch.arange(N), block=block)
    assert shard.step(0, None, send=False).messages is None and not made
    found = shard.add_up(0, rows, weights, MECHANISM)
    assert set(made) == set(rows.tolist())
    assert torch.equal(found.total, expected.total) and found.n_clipped == expected.n_clipped
    nobody = shard.add_up(0, rows[:0], weights[:, :0], MECHANISM)
    assert torch.equal(nobody.total, torch.zeros(P, M, dtype=torch.float64))
    monkeypatch.setattr(shard_module, "_SUMMED", 3)
    parts = shard.add_up(0, rows, weights, MECHANISM)
    assert torch.allclose(parts.total, expected.total, rtol=1e-12) and parts.n_clipped == expected.n_clipped
    with pytest.raises(ValueError, match="no messages of round 1"):
        shard.add_up(1, rows, weights, MECHANISM)


@pytest.mark.parametrize("domain", ["grid", "box"])
def test_a_run_that_adds_up_where_the_agents_are_is_the_same_run(domain):
    def run(sums):
        problem, agents, _ = world(problem_on(domain), P, M=M)
        server = server_for(problem, agents, MECHANISM, Ledger())
        return federation.run(federation.LocalPopulation.of(problem, agents, sums), server, T), server.ledger

    (whole, charged), (summed, charged_too) = run(False), run(True)
    assert [c.digest for c in charged.charges] == [c.digest for c in charged_too.charges] and len(charged.charges) == T
    assert whole.server == summed.server and whole.diagnostics == summed.diagnostics
    assert all(torch.equal(a.x, b.x) for a, b in zip(whole.rounds, summed.rounds, strict=True))


@pytest.mark.parametrize(("domain", "method"), [("grid", "exact"), ("grid", "rff"), ("box", "rff"), ("box", "prior")])
def test_all_random_numbers_of_a_round_are_of_that_round(domain, method):
    """No draw, shift, coin or noise of an agent repeats in a later round."""
    streams, problem = RecordedStreams(0), problem_on(domain)
    if method == "prior":
        _, agents = prior_world(problem, n_init=3)
        server = prior_server_for(problem, agents, SubsampledGaussian(1.0, 0.3, 1.0))
        prior = server.infer(torch.zeros(1, agents.message_size, dtype=torch.float64), 0.5)
        broadcasts = [prior] * 3
    else:
        _, agents, _ = world(problem, P, follow="inverse_sqrt", method=method, M=M)
        broadcasts = vectors(3)
    shard = Shard(problem, replace(agents, streams=streams), torch.arange(N))
    for t, broadcast in enumerate([None, *broadcasts]):
        streams.asked.clear()
        shard.step(t, broadcast, send=True)
        assert ("observation", t) in streams.asked
        assert {round for _, round in streams.asked} == {t}


@pytest.mark.parametrize("known", [True, False])
def test_the_best_so_far_is_the_best_noiseless_value(known):
    """The observations are nearly all noise; where nothing else is known, y itself counts."""
    problem = Branin(n_agents=N, noise_variance=100.0)
    if not known:
        problem = WithoutTrueValues(n_agents=N, noise_variance=100.0)
    _, agents, _ = world(problem, P, M=M)
    shard = Shard(problem, agents, torch.arange(N))
    records = [shard.step(t, broadcast, send=False).record for t, broadcast in enumerate([None, *vectors(2)])]
    x, y, best, regret = (torch.cat([getattr(r, name) for r in records], 1) for name in ("x", "y", "best", "metric"))
    value = Branin.true_value(problem, torch.arange(N), x, y)
    assert (y - value).abs().amax(1).min() > 5
    assert torch.equal(best, (value if known else y).cummax(1).values)
    assert torch.equal(regret, problem.reference[:, None] - best)


class WithoutTrueValues(Branin):
    """Branin whose noiseless values nobody knows."""

    def true_value(self, agents, x, y):
        return y

    def evaluate(self, agents, x, streams, round):
        noise = 10 * streams.normal("observation", agents, round, x.shape[1])
        return Branin.true_value(self, agents, x, noise) + noise


def test_an_agent_keeps_its_observations_alone():
    """(n_init + T) (D + 1) numbers of 8 bytes, and 4 bytes a point on a grid."""
    for domain, each in (("grid", 8 * 2 + 4), ("box", 8 * 3)):
        problem, agents, _ = world(problem_on(domain), P, M=M)
        million = torch.arange(10**6, device="meta")  # shapes without memory
        state = agents.initial_state(million)
        kept = [x for x in (state.all_x, state.all_y, state.all_index) if x is not None]
        assert sum(x.nbytes for x in kept) == len(million) * (agents.n_init + T) * each
        assert {x.device.type for x in (*kept, state.hyper.noise)} == {"meta"}


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_the_rows_of_points_of_a_grid(dimension):
    generator = torch.Generator().manual_seed(2)
    points = torch.randint(0, 6, (40, dimension), generator=generator).double() / 6  # in no order, some twice
    grid = Grid(points, (0.0,) * dimension, (1.0,) * dimension)
    rows = torch.randint(0, 40, (5, 7), generator=generator)
    found = grid.index_of(grid.unit_points[rows])
    assert torch.equal(grid.unit_points[found], grid.unit_points[rows])
    assert all((grid.unit_points[:row] != grid.unit_points[row]).any(1).all() for row in found.flatten())
    with pytest.raises(ValueError, match="not on the grid"):
        grid.index_of(torch.full((1, dimension), 0.05, dtype=torch.float64))
