"""The audit finds every planted fault, finds nothing in the real server, and its bounds have teeth."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpfbo.audit import bounds
from dpfbo.audit.server.examine import CHECKS, examine
from dpfbo.audit.server.target import Target, seeded
from dpfbo.audit.server.two_world import replay
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.federated.schedule import PowerSchedule
from dpfbo.federated.server import Server
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.privacy.accounting import default_delta
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.noise import DiscreteGaussian
from dpfbo.rng import Streams
from dpfbo.space.regions import Regions
from tests.planted import faults, secure
from tests.planted.__main__ import main as print_table

PAGE = Path(__file__).parents[3] / "docs" / "results" / "planted-faults.md"
# large faults that the bound must find without the checks
BY_THE_BOUND = [
    "noise halved",
    "no clipping",
    "q halved",
    "scaled after clipping",
    "clip by entry",
    "noise in one region",
]


def audited(mechanism, trials, seed=0, **changes):
    target = replace(faults.sound(mechanism), **changes)
    made = replay(target, trials, seed)
    return made, made.verdict


def wide(mechanism, N=29, rounds=1, delta=None):
    """A server with uniform weights and one region."""
    accountant = Pld()
    server = Server(
        N, N, Regions(1, 2), Uniform(), mechanism, seeded("wide"), Ledger(), EpsilonCurve(accountant, [], 0.1)
    )
    return Target(server, rounds, accountant, delta or default_delta(N))


def shown():
    """The table of docs/results/planted-faults.md: by server or fault, the cells of the checks."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
    return {cells[0].partition(":")[0]: cells[1 : len(CHECKS) + 1] for cells in lines if len(cells) > len(CHECKS)}


def finders(name):
    """The checks that find a fault, as the page shows them."""
    return [check for check, cell in zip(CHECKS, shown()[name], strict=True) if cell == "x"]


@pytest.mark.parametrize("name", list(faults.sound_ones()))
def test_no_check_finds_anything_in_a_sound_server(name):
    assert faults.found_by(faults.sound_ones()[name]) == set()
    assert finders(name) == []


@pytest.mark.parametrize("name", list(faults.planted()))
def test_every_planted_fault_is_found_by_the_first_check_that_the_page_shows(name):
    fault = faults.planted()[name]
    (finding,) = examine(fault.target, names=finders(name)[:1])
    assert not finding.holds and finding.words, f"{finding.check} does not find {fault.words!r}"


def test_every_check_finds_some_fault():
    assert {check for name in faults.planted() for check in finders(name)} == set(CHECKS)


@pytest.mark.slow
def test_the_page_shows_what_the_checks_find():
    """The table equals the results of all checks on every sound server and every planted fault."""
    for name, target in faults.sound_ones().items():
        assert faults.found_by(target) == set(finders(name)), name
    for name, fault in faults.planted().items():
        assert faults.found_by(fault.target) == set(finders(name)), name
        assert f"| {name}: {fault.words} |" in PAGE.read_text()


def test_the_table_fails_if_a_fault_is_not_found(capsys, monkeypatch):
    ignored = {"budget ignored": faults.planted()["budget ignored"]}
    monkeypatch.setattr(faults, "sound_ones", lambda: {"sound": faults.sound()})
    monkeypatch.setattr(faults, "planted", lambda: ignored)
    monkeypatch.setattr(secure, "sound_ones", dict)
    monkeypatch.setattr(faults, "planted_in_sites", dict)
    assert print_table(["--trials", "0"]) == 0
    assert "| budget ignored: broadcasts go on beyond the budget |  |  |" in capsys.readouterr().out
    monkeypatch.setattr(faults, "planted", lambda: {"none": faults.Fault("nothing is wrong", faults.sound())})
    assert print_table(["--trials", "0"]) == 1
    assert "not found: none: nothing is wrong" in capsys.readouterr().err


@pytest.mark.parametrize("name", BY_THE_BOUND)
def test_the_bound_finds_faults_by_itself(name):
    assert not replay(faults.planted()[name].target, 400).verdict.holds


def test_the_bound_finds_nothing_in_the_sound_server_of_the_faults():
    made, found = audited(None, 500, delta=faults.DELTA)
    assert found.holds and not made.varying


def test_bound_reaches_half_of_the_true_epsilon():
    """The setting is z = 1, q = 1, one round, 29 agents, at two deltas."""
    target = wide(SubsampledGaussian(1.0, 1.0, 2.0))
    made = replay(target, 8000)
    for delta in (default_delta(29), 1e-3):
        claim = bounds.Claim.of(made.verdict.claim.events, target.accountant, delta)
        found = bounds.verdict(made.verdict.without, made.verdict.with_message, claim)
        assert 0.5 * claim.epsilon < found.epsilon < claim.epsilon


SHIPPED = {
    "paper nominal": SubsampledGaussian(0.5, 0.7, 2.0),
    "paper effective": SubsampledGaussian(0.5, 0.7, 2.0, charge="effective"),
    "paper effective normalised": SubsampledGaussian(0.5, 0.7, 2.0, normalize=True, charge="effective"),
    "tight nominal": SubsampledGaussian(0.5, 0.7, 2.0, "tight"),
    "tight effective all": SubsampledGaussian(1.0, 0.7, 2.0, "tight", charge="effective"),
    "tight normalised all": SubsampledGaussian(1.0, 0.7, 2.0, "tight", normalize=True),
    "tight schedule": SubsampledGaussian(0.5, 0.7, 2.0, "tight", schedule=PowerSchedule(0.5)),
    "paper fixed size": SubsampledGaussian(0.5, 1.5, 2.0, sampling="fixed_size", charge="effective"),
    "tight fixed size normalised": SubsampledGaussian(0.5, 1.5, 2.0, "tight", "fixed_size", True),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_bound_stays_below_the_claim_of_what_is_shipped(name):
    """Two rounds, with concentrated and then uniform weights; five seeds."""
    accountant = FixedSize() if "fixed size" in name else Pld()
    for seed in range(5):
        made, found = audited(SHIPPED[name], 100, seed, accountant=accountant, delta=0.065)
        assert found.holds, (found.epsilon, found.claim.epsilon, found.broken)
        assert not made.varying
        assert found.epsilon <= found.claim.epsilon
        assert made.opposite == ("fixed size" in name)


@pytest.mark.parametrize("name", ["paper effective normalised", "tight schedule", "paper fixed size"])
def test_checks_find_nothing_in_what_is_shipped(name):
    accountant = FixedSize() if "fixed size" in name else Pld()
    target = replace(faults.sound(SHIPPED[name]), accountant=accountant)
    assert [f.words for f in examine(target) if not f.holds] == []


def test_discrete_noise_is_audited_with_its_own_randomness():
    """No seed repeats discrete noise, so it is small enough (mu = 7) that 40 runs of the two worlds never overlap."""
    pytest.importorskip("opendp")
    target = faults.sound(SubsampledGaussian(1.0, 0.2, 2.0, "tight", noise=DiscreteGaussian()))
    assert not target.seedable and target.repeatable.seedable
    made = replay(target, 40)
    found = made.verdict
    assert 1 < found.epsilon < found.claim.epsilon
    assert [f.words for f in examine(target) if not f.holds] == []


def test_fixed_size_charged_at_twice_the_multiplier_is_found():
    """Two opposite messages halve the multiplier of the event; a server that charges the full one is found."""
    target = replace(faults.sound(SubsampledGaussian(1.0, 1.0, 2.0, "tight", "fixed_size")), accountant=FixedSize())
    made = replay(target, 600)
    assert made.holds
    assert made.verdict.claim.events == (round_event(1.0, 1.0, (faults.N, faults.N)),) * faults.ROUNDS
    wrong = bounds.Claim.of([round_event(1.0, 2.0, (faults.N, faults.N))] * faults.ROUNDS, FixedSize(), 1e-2)
    assert not bounds.verdict(made.verdict.without, made.verdict.with_message, wrong).holds


def test_claim_comes_from_the_ledger_and_not_from_the_settings():
    target = faults.planted()["q halved"].target
    made = replay(target, 20)
    assert [e.sampling_probability for e in made.verdict.claim.events] == [faults.Q / 2] * faults.ROUNDS
    sound = faults.sound()
    assert made.verdict.claim.epsilon < replay(sound, 20).verdict.claim.epsilon


def test_replay_is_reproducible_and_its_worlds_share_no_randomness():
    target = faults.sound(SubsampledGaussian(1.0, 1.0, 2.0, "tight"))
    first, again = (replay(target, 200, seed=3).verdict for _ in range(2))
    assert (first.without == again.without).all() and (first.with_message == again.with_message).all()
    other = replay(target, 200, seed=4).verdict
    assert not set(first.without) & set(other.without)
    shift = first.with_message - first.without  # constant under equal noise
    assert shift.std() > 0.5


def test_server_of_the_target_is_the_real_one():
    """A replay gives the server's own releases, bit for bit, and does not change the server."""
    target = replace(faults.sound(), server=replace(faults.sound().server, dropout=Dropout(0.3, Streams(1))))
    messages = torch.ones(faults.N, faults.M, dtype=torch.float64)
    values, ledger = target.run(seeded(1), messages)
    real = replace(target.server, entropy=seeded(1), ledger=Ledger())
    assert all(torch.equal(v, real.round(t, messages)[0].values) for t, v in enumerate(values))
    assert ledger.charges == real.ledger.charges
    assert target.server.ledger.charges == []


def test_an_agent_that_is_never_chosen_is_said_not_to_have_been_seen(monkeypatch):
    monkeypatch.setattr("dpfbo.audit.server.rounds._MOST_DRAWS", 20)
    (finding,) = examine(faults.sound(SubsampledGaussian(1e-6, 1.0, 2.0, "tight")), names=["moved"])
    assert finding.holds and finding.words == "no agent was ever in S_t"


def test_looser_accountants_are_audited_as_well():
    made, found = audited(None, 400, accountant=Moments(), delta=1e-2)
    assert found.holds and found.claim.epsilon > audited(None, 20)[1].claim.epsilon


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: replace(t, server=replace(t.server, mechanism=WeightedAverage())), "needs a server with a private"),
        (lambda t: replace(t, rounds=0), "rounds of the audit must be an integer of at least 1, got 0"),
        (lambda t: replace(t, delta=0.0), r"delta must lie in \(0, 1\), got 0"),
        (lambda t: t.with_mechanism(SubsampledGaussian(0.5, 0.0, 2.0)), "no finite epsilon is claimed"),
        (lambda t: replay(t, 5), "trials must be an integer of at least 20, got 5"),
    ],
)
def test_bad_input_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make(faults.sound())
