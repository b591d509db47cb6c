"""The loop: laws that hold for whole runs."""

import dataclasses
import math

import pytest
import torch

from dpfbo import tables
from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated.broadcast import Points, RegionVectors
from dpfbo.federated.controls import RandomServer, SobolServer
from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.population.agents import Source
from dpfbo.formats.record_tables import ROUNDS_SCHEMA, SERVER_SCHEMA
from dpfbo.gp.own_gp import OwnGP
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import Budget, BudgetSpent, EpsilonCurve
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.problems.branin import Branin
from dpfbo.problems.synthetic import Synthetic
from dpfbo.records import Shown
from dpfbo.rng import Streams
from tests.helpers.federated_world import T, prior_server_for, prior_world, server_for, world


def run(mechanism=None, kind="aggregate", ledger=None, **settings):
    if kind == "none":
        settings["follow"] = "never"
    problem, agents, streams = world(**settings)
    mechanism = mechanism or SubsampledGaussian(0.5, 1.0, 2.0)
    server = {
        "none": lambda: None,
        "aggregate": lambda: server_for(problem, agents, mechanism, ledger),
        "peer": lambda: PeerExchange(problem.n_agents, streams),
        "random": lambda: RandomServer(problem.n_agents, problem.domain, streams),
        "sobol": lambda: SobolServer(problem.n_agents, problem.domain, streams, T),
    }[kind]()
    return federation.run(federation.LocalPopulation.of(problem, agents), server, T)


def queries(result):
    return torch.cat([r.x.flatten(0, 1) for r in result.rounds])


@pytest.mark.parametrize("problem", ["grid", "box"])
def test_same_seed_same_run_other_seed_other_run(problem):
    make = {"grid": lambda: None, "box": lambda: Branin(n_agents=6)}[problem]
    first, again, other = run(problem=make()), run(problem=make()), run(problem=make(), seed=1)
    assert torch.equal(queries(first), queries(again))
    assert not torch.equal(queries(first), queries(other))


@pytest.mark.parametrize("kind", ["none", "aggregate", "peer", "random", "sobol"])
@pytest.mark.parametrize("problem", [None, "branin"])
def test_whole_family_runs(kind, problem):
    result = run(kind=kind, problem=Branin(n_agents=6) if problem else None)
    assert len(result.rounds) == T + 1
    assert len(result.server) == (T if kind == "aggregate" else 0)
    for record in result.rounds:
        assert torch.isfinite(record.y).all()
    best = torch.stack([r.best[:, -1] for r in result.rounds])
    assert (best.diff(dim=0) >= 0).all()
    sources = {int(s) for r in result.rounds[1:] for s in r.source.unique()}
    assert (Source.server in sources) == (kind != "none")


def test_first_query_always_follows_the_server():
    assert (run().rounds[1].source == Source.server).all()


def test_follow_rate_is_one_over_sqrt_t():
    result = run(kind="random", problem=Synthetic(n_agents=2000, grid_size=30, lengthscale=0.1), P=1)
    for t in (4, 8):
        rate = float((result.rounds[t].source == Source.server).double().mean())
        p = 1 / math.sqrt(t)
        assert abs(rate - p) < 4 * math.sqrt(p * (1 - p) / 2000)


def test_initial_points_lie_in_the_agents_own_region():
    first = run(problem=Branin(n_agents=9), P=4).rounds[0]
    assert (first.region == (torch.arange(9) % 4)[:, None]).all()


def test_one_broadcast_a_round_and_none_after_the_last_query():
    ledger = Ledger()
    run(ledger=ledger)
    assert [c.round for c in ledger.charges] == list(range(T))


@pytest.mark.parametrize("problem", [None, "branin"])
def test_run_with_all_messages_clipped_does_not_depend_on_S(problem):
    make = (lambda: Branin(n_agents=6)) if problem else (lambda: None)
    small = run(SubsampledGaussian(0.5, 1.0, 2.0**-6), problem=make())
    large = run(SubsampledGaussian(0.5, 1.0, 2.0**-3), problem=make())
    for result in (small, large):
        assert sum(d.n_clipped for d in result.diagnostics) == sum(d.n_chosen for d in result.diagnostics) > 0
    assert torch.equal(queries(small), queries(large))
    tenth = run(SubsampledGaussian(0.5, 1.0, 0.1), problem=make())
    assert torch.allclose(queries(tenth), queries(large), atol=1e-5)


def test_unclipped_S_does_matter():
    small, large = run(SubsampledGaussian(0.5, 1.0, 0.1)), run(SubsampledGaussian(0.5, 1.0, 1e3))
    assert not torch.equal(queries(small), queries(large))


def test_no_noise_and_no_clipping_is_the_weighted_average():
    private, plain = run(SubsampledGaussian(1.0, 0.0, 1e9)), run(WeightedAverage())
    assert torch.allclose(queries(private), queries(plain))


def test_empty_subset_goes_the_same_way():
    result = run(SubsampledGaussian(1e-9, 1.0, 2.0))
    assert all(d.n_chosen == 0 and d.signal == 0 and d.noise > 0 for d in result.diagnostics)
    assert len(result.server) == T


@pytest.mark.parametrize("bad", ["nan", "inf", "shape", "none"])
def test_unusable_messages_are_zero_vectors(bad):
    problem, agents, _ = world()
    messages = torch.randn(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    zeroed = messages.clone()
    zeroed[3] = 0
    hostile = {
        "nan": lambda m: torch.full((30,), math.nan, dtype=m.dtype), "inf": lambda m: m * math.inf,
        "shape": lambda m: m[:7], "none": lambda m: None,
    }[bad]  # fmt: skip
    sent = [hostile(m) if n == 3 else m for n, m in enumerate(messages)]
    mechanism = SubsampledGaussian(1.0, 1.0, 2.0)
    expected, _, _ = server_for(problem, agents, mechanism).round(0, zeroed)
    broadcast, _, private = server_for(problem, agents, mechanism).round(0, sent)
    assert torch.equal(broadcast.values, expected.values)
    assert private.n_rejected == 1


def test_all_messages_lost_still_releases_noise():
    problem, agents, _ = world()
    broadcast, _, private = server_for(problem, agents, SubsampledGaussian(1.0, 1.0, 2.0)).round(0, None)
    assert private.n_rejected == 12
    assert private.signal == 0
    assert torch.isfinite(broadcast.values).all()


def test_charged_before_released():
    problem, agents, _ = world()
    seen = []

    class Watching(Ledger):
        def charge(self, entry):
            seen.append(entry)
            raise OSError("disk full")

    server = server_for(problem, agents, SubsampledGaussian(0.5, 1.0, 2.0), Watching())
    with pytest.raises(OSError, match="disk full"):
        server.round(0, torch.zeros(12, 30, dtype=torch.float64))
    assert len(seen) == 1


def test_repeating_a_seeded_run_is_not_charged_again_and_fresh_noise_is():
    ledger = Ledger()
    run(ledger=ledger)
    run(ledger=ledger)
    assert len(ledger.charges) == T
    problem, agents, streams = world()
    server = server_for(problem, agents, SubsampledGaussian(0.5, 1.0, 2.0), ledger, SystemEntropy())
    federation.run(federation.LocalPopulation.of(problem, agents), server, T)
    assert len(ledger.charges) == 2 * T
    events = ledger.events()
    assert server.epsilon.after(events) == pytest.approx(Pld().curve(events, 1e-2)[-1])


def after_an_earlier_run(rng, when_spent=None, prior=False):
    """(server on a ledger with three rounds of an earlier run, its event), with a budget of three and a half rounds."""
    problem, agents = prior_world() if prior else world()[:2]
    made = (prior_server_for if prior else server_for)(problem, agents, SubsampledGaussian(1.0, 2.0, 3.0, "tight"))
    server = made.server if prior else made
    for t in range(3):
        server.round(t, None)
    event = server.ledger.events()[0]
    budget = None
    if when_spent is not None:
        epsilons = Pld().curve([event] * 4, 1e-2)
        limit = (epsilons[2] + epsilons[3]) / 2
        budget = Budget(limit, EpsilonCurve(Pld(), [event] * T, 1e-2), when_spent)
    entropy = SystemEntropy() if rng == "os" else server.entropy
    server = dataclasses.replace(server, entropy=entropy, budget=budget)
    return (dataclasses.replace(made, server=server) if prior else server), event


@pytest.mark.parametrize("prior", [False, True], ids=["sum", "prior"])
@pytest.mark.parametrize(("rng", "counts"), [("seeded", 1), ("os", 4)])
def test_with_fresh_noise_later_rounds_of_earlier_runs_count(rng, counts, prior):
    """A seeded run repeats the later rounds of an earlier one; fresh noise adds to them."""
    server, event = after_an_earlier_run(rng, prior=prior)
    _, record, _ = server.round(0, None)
    assert record.epsilon == pytest.approx(Pld().curve([event] * counts, 1e-2)[-1])


def test_with_fresh_noise_later_rounds_of_earlier_runs_count_against_the_budget():
    server, _ = after_an_earlier_run("seeded", "refuse")
    assert server.round(0, None)[0] is not None
    server, _ = after_an_earlier_run("os", "refuse")
    with pytest.raises(BudgetSpent, match="the broadcast of round 0 would exceed .*; broadcasts charged so far: 3"):
        server.round(0, None)
    server, _ = after_an_earlier_run("os", "stop")
    assert server.round(0, None) == (None, None, None) and len(server.ledger.charges) == 3


def test_epsilon_of_the_records_is_the_accountants():
    result = run(SubsampledGaussian(0.5, 1.0, 2.0))
    expected = Pld().curve([SubsampledGaussian(0.5, 1.0, 2.0).dp_event(torch.ones(1, 12), 0)] * T, 1e-2)
    assert [r.epsilon for r in result.server] == pytest.approx(expected)


def test_shards_of_agents_query_what_the_whole_does():
    """Invariant 1: an agent's queries do not depend on the shard that computes them."""
    problem, agents, _ = world(Branin(n_agents=6), own_gp=OwnGP())
    clock = PhaseClock()

    def two_rounds(ids):
        state = agents.initial_state(ids)
        query = agents.initial_query(state)
        out = [query.u]
        for t in (1, 2, 3):
            x = problem.domain.to_natural(query.u)
            state.append(query.u, problem.evaluate(ids, x, agents.streams, t - 1))
            agents.fit_hyperparameters(state, clock)
            weights = torch.linspace(-1, 1, 2 * 30, dtype=torch.float64).view(2, 30) / t
            query = agents.query(state, RegionVectors(weights), t, clock)
            out.append(query.u)
        return torch.cat(out, 1), agents.messages(state, 3)

    whole, message = two_rounds(torch.arange(6))
    for ids in (torch.tensor([4]), torch.tensor([1, 5]), torch.tensor([0, 2, 3])):
        part, part_message = two_rounds(ids)
        assert torch.allclose(part, whole[ids], atol=1e-6)
        assert torch.allclose(part_message, message[ids], atol=1e-4)


def test_repeated_query_on_a_box_is_replaced():
    problem, agents, streams = world(Branin(n_agents=6), P=1)

    class Stubborn:
        uses_messages = False

        def round(self, t, messages):
            return Points(torch.full((6, 2), 0.25, dtype=torch.float64)), None, None

    agents = dataclasses.replace(agents, follow="always")
    result = federation.run(federation.LocalPopulation.of(problem, agents), Stubborn(), T)
    assert (result.rounds[1].source == Source.server).all()
    for record in result.rounds[2:]:
        assert (record.source == Source.random).all()
    assert len(queries(result).unique(dim=0)) == 6 * 5 + 1 + 6 * (T - 1)


def test_records_tables():
    result = run()
    table = next(tables.row_groups(result.rounds, torch.arange(12), Shown()))
    frame = table.to_pandas()
    assert table.schema.equals(ROUNDS_SCHEMA)
    assert len(frame) == 12 * (5 + T)
    sizes = frame.groupby(["round", "agent"]).size()
    assert (sizes.loc[0] == 5).all()
    assert (sizes.loc[1:] == 1).all()
    last = frame[frame["round"] == T]
    assert last["regret"].to_numpy() == pytest.approx(result.rounds[-1].metric[:, 0].numpy())
    assert set(frame["source"]) <= {s.name for s in Source}
    assert frame["x"].map(len).eq(1).all()
    server = tables.server_table(result.server, result.diagnostics)
    assert server.schema.equals(SERVER_SCHEMA)
    assert server.num_rows == T
    tags = {f.metadata[b"visibility"] for f in [*ROUNDS_SCHEMA, *SERVER_SCHEMA]}
    assert tags == {b"released", b"simulation-only"}


def test_peer_never_follows_itself():
    streams = Streams(0)
    values = torch.arange(5, dtype=torch.float64)[:, None].expand(5, 3).contiguous()
    picks = torch.stack([PeerExchange(5, streams).round(t, values)[0].values[:, 0] for t in range(400)])
    assert not (picks == torch.arange(5)).any()
    counts = torch.stack([(picks == n).sum(0) for n in range(5)])
    others = counts[~torch.eye(5, dtype=torch.bool)].double()
    assert (others - 100).abs().max() < 4.5 * math.sqrt(400 * 0.25 * 0.75)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"follow": "sometimes"}, "follow"),
        ({"method": "exact", "problem": Branin(n_agents=4)}, "one-dimensional grid"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        world(**settings)


def test_without_a_server_everybody_asks_its_own_posterior():
    problem, agents, streams = world()
    result = federation.run(federation.LocalPopulation.of(problem, agents), None, T)
    assert all((record.source == Source.own).all() for record in result.rounds[1:])


def test_same_seeded_noise_on_other_numbers_is_refused():
    """Otherwise the difference of the two broadcasts would be that of the sums, without noise."""
    problem, agents, _ = world()
    messages = torch.randn(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ledger, mechanism = Ledger(), SubsampledGaussian(1.0, 1.0, 2.0)
    server_for(problem, agents, mechanism, ledger).round(0, messages)
    with pytest.raises(LedgerError, match="another broadcast of round 0 with the same seeded noise"):
        server_for(problem, agents, mechanism, ledger).round(0, 2 * messages.flip(0))
    assert len(ledger.charges) == 1
    server_for(problem, agents, mechanism, ledger, SystemEntropy()).round(0, messages)
    assert len(ledger.charges) == 2


def test_a_second_run_on_a_ledger_composes_its_curve_once():
    class Counting(Pld):
        computed = 0

        def curve(self, events, delta):
            Counting.computed += 1
            return super().curve(events, delta)

    event = SubsampledGaussian(0.5, 1.0, 2.0).dp_event(torch.ones(1, 12), 0)
    curve = EpsilonCurve(Counting(), [event] * 4, 1e-2)
    spent = [curve.after([event] * k) for k in range(1, 9)]
    assert Counting.computed == 2
    assert spent == pytest.approx(Pld().curve([event] * 8, 1e-2))
    unlike = [SubsampledGaussian(0.5, z, 2.0).dp_event(torch.ones(1, 12), 0) for z in (1.0, 1.5, 2.0, 3.0)]
    curve, Counting.computed = EpsilonCurve(Counting(), unlike, 1e-2), 0
    spent = [curve.after([*unlike, *unlike[:k]]) for k in range(1, 5)]
    assert Counting.computed == 1
    assert spent == pytest.approx(Pld().curve([*unlike, *unlike], 1e-2)[4:])
