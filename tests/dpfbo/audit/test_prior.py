"""The audit of the private prior: the whole broadcast, the agents' end of the message path, and the planted faults."""

import re
from dataclasses import fields, replace
from functools import cache

import pytest
import torch

from dpfbo.audit.server.examine import examine
from dpfbo.audit.server.message_path import CHANGES
from dpfbo.audit.server.post_processing import HeldRelease
from dpfbo.audit.server.target import seeded
from dpfbo.audit.server.two_world import replay
from dpfbo.federated.broadcast import RegionVectors, SharedPrior
from dpfbo.federated.prior_server import PriorServer
from dpfbo.privacy.ledger import Ledger
from tests.planted import prior

ALL_EQUAL = ("the same everywhere", "NaN")  # where all evaluations fail, each counts as 0
OF_THE_PRIOR = ("post-processing", "public design", "own data")
# each fault, the checks that find it, and none of the others that are about the private prior
FOUND_BY = {
    "messages unclipped": {"moved"},
    "messages without a bound": {"moved", "own data"},
    "noise of the mean": {"moved", "own data"},
    "design from data": {"public design", "post-processing"},
    "ranked together": {"own data"},
    "own statistics in public": {"post-processing"},
    "evidence from raw sums": {"post-processing"},
    "inference from raw sums": {"post-processing"},
    "designs of senders": {"post-processing"},
    "features from messages": {"post-processing"},
    "second release free": {"charged", "post-processing"},
}


@cache
def planted():
    return {name: target for name, _, target in prior.planted()}


def result(check, target):
    return examine(target, names=[check])[0]


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
    if check in ("moved", "own data"):
        assert re.search(r"the release moves by (\S+), claim \1$", found.words)


def test_a_target_without_agents_is_audited_from_the_server_alone():
    target = replace(prior.sound(), agents=None)
    assert all(result(check, target).holds for check in OF_THE_PRIOR)
    assert not result("post-processing", prior.sound(kind=prior.RawEvidence)).holds


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
            return replace(broadcast, values=broadcast.values + (broadcast.mean != 0).any()), record, private

    assert "inference is left out" in result("post-processing", prior.sound(kind=Listens)).words


def test_a_held_release_is_the_same_whatever_is_sent():
    target = prior.sound()
    values = torch.linspace(-1, 1, target.shape[2], dtype=torch.float64)[None]
    held = target.with_mechanism(replace(target.mechanism, noise=HeldRelease(values)))
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
def test_one_agents_data_move_one_vector_of_norm_one(name):
    """A message has norm 1, or 0 if all observations are equal, or is not finite and counts as nothing."""
    side = prior.sound().agents
    usual, turn = side.first_turn(), side.first_turn(5, CHANGES[name])
    assert torch.equal(turn.record.u, usual.record.u)
    others = torch.arange(prior.N) != 5
    assert torch.equal(turn.messages[others], usual.messages[others])
    assert not torch.equal(turn.messages[5], usual.messages[5])
    if torch.isfinite(turn.messages[5]).all():
        expected = 0.0 if name in ALL_EQUAL else 1.0
        assert turn.messages[5].norm().item() == pytest.approx(expected, rel=1e-11)
    target = prior.sound()
    silent = turn.messages.clone()
    silent[5] = 0.0
    moved = target.run_round(seeded(0), 0, turn.messages)[0] - target.run_round(seeded(0), 0, silent)[0]
    assert moved.norm() <= 1 / prior.N * (1 + 1e-9)


def test_bound_on_the_real_release_reaches_a_stated_part_of_the_claim():
    """At the claim 2.32 (z = 1, delta 0.01) with 2000 trials: 0.55 of it on average.

    Over six seeds the standard deviation is 0.10; the limit, 0.3, is 2.5 of them lower.
    """
    target = prior.sound()
    found = replay(target, 2000).verdict
    assert 0.3 * found.claim.epsilon < found.epsilon < found.claim.epsilon
    assert found.holds


@pytest.mark.parametrize(
    "name", ["messages unclipped", "messages without a bound", "noise of the mean", "second release free"]
)
def test_the_bound_finds_large_faults_by_itself(name):
    assert not replay(planted()[name], 500).holds
