"""The audit of the private prior: the whole broadcast, the agents' end of the message path, and the planted faults."""

import math
from dataclasses import fields, replace
from functools import cache

import pytest
import torch

from dpfbo.audit.server import two_world
from dpfbo.audit.server.examine import CHECKS
from dpfbo.audit.server.message_path import CHANGES
from dpfbo.audit.server.post_processing import HeldRelease
from dpfbo.audit.server.repeated_rounds import RepeatedRounds
from dpfbo.audit.server.target import seeded
from dpfbo.federated.broadcast import RegionVectors, SharedPrior
from dpfbo.federated.messages import clip
from dpfbo.federated.prior_server import PriorServer
from dpfbo.privacy.ledger import Ledger
from tests.planted import prior
from tests.planted.faults import two_worlds

OF_THE_PRIOR = ("post-processing", "public design", "own data")
# each fault, the checks that find it, and none of the others that are about the private prior
FOUND_BY = {
    "statistics unclipped": {"moved", "own data"},
    "scalar unclipped": {"moved", "own data"},
    "noise of the mean": {"moved", "own data"},
    "design from data": {"public design", "post-processing"},
    "centred together": {"own data"},
    "own statistics in public": {"post-processing"},
    "evidence from raw sums": {"post-processing"},
    "inference from raw sums": {"post-processing"},
    "second release free": {"charged", "post-processing"},
}


@cache
def planted():
    return {name: target for name, _, target in prior.planted()}


def result(check, target):
    with torch.inference_mode():  # as in `examine`
        return CHECKS[check](RepeatedRounds(target))


def test_each_fault_has_its_checks():
    assert FOUND_BY.keys() == planted().keys()


@pytest.mark.parametrize("name", FOUND_BY)
def test_the_checks_that_find_a_fault(name):
    target, looked_at = planted()[name], FOUND_BY[name] | {"moved", "charged", *OF_THE_PRIOR}
    failed = {check for check in looked_at if not result(check, target).holds}
    assert failed == FOUND_BY[name]


@pytest.mark.parametrize("check", ["moved", "charged", *OF_THE_PRIOR])
def test_the_sound_server_passes(check):
    found = result(check, prior.sound())
    assert found.holds and found.words
    assert check not in ("moved", "own data") or found.measured == pytest.approx(found.allowed, rel=1e-9)


def test_a_target_without_agents_is_audited_from_the_server_alone():
    target = replace(prior.sound(), agents=None)
    assert all(result(check, target).holds for check in OF_THE_PRIOR)
    assert not result("post-processing", prior.sound(kind=prior.RawScalar)).holds


def test_agents_that_choose_by_data_are_found_whatever_the_server_believes():
    sound, greedy = prior.sound(), prior.sound(shard=prior.GreedyShard)
    assert "first queries" in result("public design", greedy).words
    assert result("public design", greedy).holds is False
    believes = replace(prior.with_reported_design(greedy), agents=sound.agents)
    assert "server's design" in result("public design", believes).words


def test_sums_over_other_points_are_found_behind_a_public_design():
    """The server's design is public, and its sums are not of it."""

    class OtherSums(PriorServer):
        @property
        def sums(self):
            public = super().sums
            return replace(public, A=public.A + 1e-12)

    found = result("public design", prior.sound(kind=OtherSums))
    assert not found.holds and "sums" in found.words
    assert not result("post-processing", prior.sound(kind=OtherSums)).holds


@pytest.mark.parametrize("field", [f.name for f in fields(SharedPrior) if f.name != "values"])
def test_no_field_of_the_broadcast_may_follow_the_messages(field):
    """One bit of one field that depends on the sum is found."""

    class Leaks(PriorServer):
        def round(self, t, messages, late=None):
            broadcast, record, private = super().round(t, messages, late)
            old = getattr(broadcast, field)
            new = torch.nextafter(old, old + 1) if private.signal > 0 else old
            return replace(broadcast, **{field: new}), record, private

    found = result("post-processing", prior.sound(kind=Leaks))
    assert not found.holds and f"`{field}`" in found.words


def test_a_broadcast_of_another_kind_or_with_other_numbers_is_found():
    class Bare(PriorServer):
        def round(self, t, messages, late=None):
            broadcast, record, private = super().round(t, messages, late)
            return RegionVectors(broadcast.values), record, private

    class Shifted(PriorServer):
        def round(self, t, messages, late=None):
            broadcast, record, private = super().round(t, messages, late)
            return replace(broadcast, values=broadcast.values + 1), record, private

    assert not result("post-processing", prior.sound(kind=Bare)).holds
    assert "other numbers" in result("post-processing", prior.sound(kind=Shifted)).words
    assert not result("charged", prior.sound(kind=Shifted)).holds


def test_replays_without_inference_that_release_something_else_are_found():
    class Listens(PriorServer):
        def round(self, t, messages, late=None):
            broadcast, record, private = super().round(t, messages, late)
            return replace(broadcast, values=broadcast.values + (broadcast.gain != 0).any()), record, private

    assert "inference is left out" in result("post-processing", prior.sound(kind=Listens)).words


def test_a_held_release_is_the_same_whatever_is_sent():
    target = prior.sound()
    values = torch.linspace(-1, 1, target.shape[2], dtype=torch.float64)[None]
    held = target.with_mechanism(replace(target.mechanism, noise=HeldRelease(target.mechanism.noise, values)))
    for size in (0.0, 1.0, 1e6):
        messages = torch.full((prior.N, target.shape[2]), size, dtype=torch.float64)
        broadcast, ledger = held.whole_round(seeded(size), 0, messages)
        assert torch.equal(broadcast.values, values)
        assert ledger.charges[0].sigma == target.run_round(seeded(1), 0, messages)[1].charges[0].sigma


def test_the_audited_round_is_that_of_the_real_server():
    target = prior.sound()
    messages = target.agents.first_turn().messages
    real = replace(target.server, server=replace(target.summing, entropy=seeded("real"), ledger=Ledger()))
    expected, _, _ = real.round(0, messages)
    whole, ledger = target.whole_round(seeded("real"), 0, messages)
    assert all(torch.equal(getattr(whole, f.name), getattr(expected, f.name)) for f in fields(SharedPrior))
    short, same = target.run_round(seeded("real"), 0, messages)
    assert torch.equal(short, expected.values) and same.charges == ledger.charges == real.server.ledger.charges
    assert target.summing.ledger.charges == []


@pytest.mark.parametrize("name", CHANGES)
def test_one_agents_data_move_one_bounded_joint_vector(name):
    """Vector and scalar together have norm at most C, or are not finite and count as nothing."""
    side, C = prior.sound().agents, prior.S
    usual, turn = side.first_turn(), side.first_turn(5, CHANGES[name])
    assert torch.equal(turn.record.u, usual.record.u)
    others = torch.arange(prior.N) != 5
    assert torch.equal(turn.messages[others], usual.messages[others])
    assert not torch.equal(turn.messages[5], usual.messages[5])
    if torch.isfinite(turn.messages[5]).all():
        assert clip(turn.messages[5:6], C)[0].norm() <= C * (1 + 1e-12)
    target = prior.sound()
    silent = turn.messages.clone()
    silent[5] = 0.0
    moved = target.run_round(seeded(0), 0, turn.messages)[0] - target.run_round(seeded(0), 0, silent)[0]
    assert moved.norm() <= C / prior.N * (1 + 1e-9)


def test_some_observations_are_clipped_and_some_are_not():
    """The worlds reach both sides of the clip norm, else the checks would say nothing about clipping."""
    side = prior.sound().agents
    norms = {name: float(side.first_turn(5, change).messages[5].norm()) for name, change in CHANGES.items()}
    assert any(n > prior.S for n in norms.values()) and any(0 < n <= prior.S for n in norms.values())
    assert any(math.isnan(n) or math.isinf(n) for n in norms.values())


def test_bound_on_the_real_release_reaches_a_stated_part_of_the_claim():
    """At the claim 2.32 (z = 1, delta 0.01) with 2000 trials: 0.55 of it, and 0.73 by the fit, on average.

    Over six seeds the standard deviations are 0.10 and 0.09; the limits, 0.3 and 0.5, are 2.5 of them lower.
    """
    target = prior.sound()
    found = two_worlds(target, 2000, two_world.Canary.of(target, "random"))
    assert 0.3 * found.claim.epsilon < found.epsilon < found.claim.epsilon
    assert 0.5 * found.claim.epsilon < found.fit_epsilon < found.claim.epsilon
    assert found.holds


def test_real_agents_with_and_without_one_agents_data():
    """The two worlds are real statistics of all agents, one of whom observes huge values in the one and is silent."""
    target = prior.sound()
    loud = target.agents.first_turn(3, CHANGES["plus and minus 1000"]).messages
    silent = loud.clone()
    silent[3] = 0.0
    found = two_worlds(target, 1000, two_world.Canary(3, silent, loud, False))
    assert found.holds
    assert 0.4 * found.claim.epsilon < found.fit_epsilon < found.claim.epsilon


@pytest.mark.parametrize(
    "name", ["statistics unclipped", "scalar unclipped", "noise of the mean", "second release free"]
)
def test_the_bound_finds_large_faults_by_itself(name):
    target = planted()[name]
    assert not two_worlds(target, 500).holds
