"""A study without a trusted server: the same proposals as in one process, and a ledger at every site."""

import hashlib
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch

import dpfbo
from dpfbo.checks import SettingError
from dpfbo.formats.journal import Journal, StateError
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.protocol import wire
from dpfbo.secure.messages import SumError
from dpfbo.secure.parties import NOT_READY, SecureCoordinator, SecureSite
from dpfbo.secure.roster import Roster, SiteKey

SPACE = {"x": dpfbo.Float(0, 1), "k": dpfbo.Integer(1, 5)}


def study_of(n=5, rng="seeded", **others):
    settings = {"epsilon": 4.0, "delta": 1e-3, "rounds": 3, "n_init": 3, "trust": "nobody", "max_dropouts": 1}
    return dpfbo.create_study(SPACE, n_agents=n, rng=rng, **{**settings, **others})


def value(n, x):
    return -((x["x"] - 0.3 - 0.02 * n) ** 2) - 0.1 * x["k"]


class Parties:
    def __init__(self, study, folder=None, attempts=1):
        self.study, self.folder, self.attempts = study, folder, attempts
        self.keys = [SiteKey.new() for _ in range(study.n_agents)]
        self.roster = Roster(tuple(key.public for key in self.keys))
        self.server = SecureCoordinator(study, self.roster, folder and folder / "server")
        self.sites = [self.site(n) for n in range(study.n_agents)]

    def site(self, n):
        folder = self.folder and self.folder / f"site{n}"
        return SecureSite(self.study, self.roster, self.keys[n], folder, attempts=self.attempts)

    def evaluate(self, sites=None):
        for site in self.sites if sites is None else sites:
            for _ in range(self.study.n_init):
                x = site.agent.ask()
                site.agent.tell(x, value(site.number, x))

    def phase(self, absent=()):
        for n, request in self.server.requests().items():
            if n not in absent:
                self.server.receive(n, self.sites[n].respond(request))
        if not self.server.finished:
            self.server.close_step()

    def finish(self, absent=()):
        while not self.server.finished:
            self.phase(absent)


def test_the_release_and_the_proposals_are_those_of_one_process():
    parties = Parties(study_of())
    parties.evaluate()
    parties.finish()
    study = parties.study
    agents = [dpfbo.Agent(study, n) for n in range(5)]
    for n, agent in enumerate(agents):
        for _ in range(study.n_init):
            x = agent.ask()
            agent.tell(x, value(n, x))
    M = study.agents.message_size
    messages = torch.stack([wire.read_message(agent.unmasked_message(), study.digest, M)[2] for agent in agents])
    ledger = Ledger()
    sent, record, _ = study.server(ledger).round(0, messages)
    data = wire.broadcast(study.digest, 0, sent)
    assert parties.server.broadcast == data
    assert [c.digest for c in parties.server.ledger.charges] == [c.digest for c in ledger.charges]
    assert parties.server.epsilon == record.epsilon == parties.sites[0].epsilon
    for site, agent in zip(parties.sites, agents, strict=True):
        agent.receive(data)
        for _ in range(study.rounds):
            x = agent.ask()
            assert site.agent.ask() == x
            agent.tell(x, value(site.number, x))
            site.agent.tell(x, value(site.number, x))


def test_a_simulation_in_one_process_runs_like_any_study():
    study = study_of()
    problem = dpfbo.problems.Branin(n_agents=5)
    simulated = dpfbo.create_study(
        problem.domain, n_agents=5, epsilon=4.0, delta=1e-3, rounds=3, rng="seeded", trust="nobody", colluders=2
    )
    result = dpfbo.run_study(simulated, problem)
    assert result.epsilon == pytest.approx(4.0, abs=1e-3)
    assert study.digest != simulated.digest
    with pytest.raises(SettingError, match="rng must be 'seeded' where one process has all messages"):
        study_of(rng="os").server(Ledger())


def test_a_site_that_stays_away_is_left_out_and_still_gets_the_broadcast(tmp_path):
    parties = Parties(study_of(), tmp_path)
    parties.evaluate(parties.sites[:4])
    assert parties.sites[4].respond(parties.server.requests()[4]) == NOT_READY
    parties.finish()
    parties.sites[4].respond(parties.server.broadcast)
    assert [len(site.ledger.charges) for site in parties.sites] == [1, 1, 1, 1, 0]
    noise, full = parties.server.ledger.charges[0].sigma, dpfbo.Ledger()
    study_of().server(full).round(0, torch.zeros(5, parties.study.agents.message_size))
    assert noise == pytest.approx(full.charges[0].sigma * (4 / 5) ** 0.5)  # one share of the noise is missing


def test_all_goes_on_after_every_process_was_restarted(tmp_path):
    study = study_of(rng="os", epsilon=1.0)
    parties = Parties(study, tmp_path)
    parties.evaluate()
    while not parties.server.finished:
        parties.phase()
        parties.server.close()
        parties.server = SecureCoordinator(study, parties.roster, tmp_path / "server")
        for n, site in enumerate(parties.sites):
            site.close()
            parties.sites[n] = parties.site(n)
    assert [len(site.ledger.charges) for site in parties.sites] == [1] * 5
    assert parties.server.phase == "over"
    broadcast = parties.server.broadcast
    parties.server.close()
    assert SecureCoordinator(study, parties.roster, tmp_path / "server").broadcast == broadcast


def test_a_server_killed_before_it_noted_its_release_makes_the_same(tmp_path):
    study = study_of(rng="os", epsilon=1.0)
    parties = Parties(study, tmp_path)
    parties.evaluate()
    parties.finish()
    first = parties.server.broadcast
    parties.server.close()
    journal = tmp_path / "server" / "secure-server.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"sent"' not in line and '"received"' not in line))
    again = SecureCoordinator(study, parties.roster, tmp_path / "server")
    assert again.broadcast == first
    assert len(again.ledger.charges) == 1


def test_a_site_charges_each_attempt_and_finds_a_ledger_that_lost_one(tmp_path):
    study = study_of(rng="os", epsilon=1.0)
    parties = Parties(study, tmp_path, attempts=2)
    parties.evaluate()
    for _ in range(3):
        parties.phase()
    parties.server.begin_again()
    parties.finish()
    site = parties.sites[0]
    assert len(site.ledger.charges) == 2
    assert site.epsilon > 1.3
    assert parties.server.epsilon == pytest.approx(1.0, abs=1e-3)
    site.close()
    ledger = tmp_path / "site0" / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="lacks a charge of this site"):
        parties.site(0)


def test_a_study_whose_server_is_trusted_has_no_secure_sum():
    parties = Parties(study_of())
    trusted = dpfbo.create_study(SPACE, n_agents=5, delta=1e-3, rng="seeded")
    with pytest.raises(SettingError, match="trust must be 'nobody' for a secure sum"):
        SecureSite(trusted, parties.roster, parties.keys[0])
    with pytest.raises(SettingError, match="folder must be given where releases are real"):
        SecureSite(study_of(rng="os"), parties.roster, parties.keys[0])
    with pytest.raises(SettingError, match="roster must have the keys of all 6 sites, got 5"):
        SecureCoordinator(study_of(n=6), parties.roster)
    with pytest.raises(SumError, match="the message must be of study"):
        parties.sites[0].agent.close()
        Parties(study_of(n_init=4)).sites[0]._sum.respond(parties.server.requests()[0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trust": "server"}, "max_dropouts must be 0 with trust='server', got 1"),
        ({"trust": "no"}, "trust must be one of 'server', 'nobody', got 'no'"),
        ({"max_dropouts": 3}, "max_dropouts with colluders=0 must stay below half of the other sites of 5, got 3"),
        ({"algorithm": "dp_fts_de"}, "nobody could keep secret who was sampled, got 0.35"),
    ],
)
def test_what_a_secure_sum_cannot_do_is_refused_in_one_sentence(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        study_of(**settings)


def test_epsilon_is_given_for_every_view():
    alone, colluding = study_of(max_dropouts=0), study_of(colluders=2)
    assert alone.views["server"] == pytest.approx(4.0, abs=1e-3) == alone.views["outsider"]
    assert alone.views["site"] > 4.5  # a site knows its own share of the noise
    assert "for the server alone; 4.60 for another site" in alone.promise
    assert colluding.views["site"] == colluding.views["server"] > colluding.views["outsider"]
    assert "for the server with up to 2 sites" in colluding.promise


def test_agents_of_such_a_study_do_not_hand_out_their_messages():
    parties = Parties(study_of())
    with pytest.raises(StateError, match="messages of a study without a trusted server must be masked"):
        dpfbo.Agent(parties.study, 0).message()


class Killed(BaseException):
    """The process is gone."""


def test_parties_killed_at_any_write_lose_nothing_and_mask_one_vector(tmp_path, monkeypatch):
    """Two hundred kills, before or after a write of a journal, a file or a ledger, of sites and server."""
    study, random, kills = study_of(), np.random.default_rng(0), [0]

    def dying(call):
        def wrapped(*arguments, **others):
            fate = random.random() if armed[0] else 1.0
            if fate < 0.1:
                raise Killed
            result = call(*arguments, **others)
            if fate < 0.2:
                raise Killed
            return result

        return wrapped

    armed = [False]
    for owner, name in ((Journal, "append"), (Journal, "keep"), (Ledger, "charge")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))

    def kept_alive(begin, act, *arguments):
        """The answer of a party that is started anew whenever it is killed."""
        while True:
            party = None
            try:
                armed[0] = True
                party = begin()
                return act(party, *arguments)
            except Killed:
                kills[0] += 1
            finally:
                armed[0] = False
                if party is not None:
                    party.close()

    broadcasts, run = set(), 0
    while kills[0] < 200:
        run += 1
        parties = Parties(study, tmp_path / str(run))
        parties.evaluate()
        for party in (parties.server, *parties.sites):
            party.close()
        begin_server = partial(SecureCoordinator, study, parties.roster, tmp_path / str(run) / "server")
        left = {n: set() for n in range(5)}
        while not kept_alive(begin_server, lambda server: server.finished):
            for n, request in kept_alive(begin_server, lambda server: server.requests()).items():
                answer = kept_alive(partial(parties.site, n), SecureSite.respond, request)
                if b'"step":"masked"' in answer:
                    left[n].add(hashlib.sha256(answer).hexdigest())
                kept_alive(begin_server, SecureCoordinator.receive, n, answer)
            before = kept_alive(begin_server, lambda server: server.phase)
            with suppress(StateError):  # it was closed, and killed before it said so
                if before not in ("over", "broadcast"):
                    kept_alive(begin_server, lambda server: server.phase == before and server.close_step())  # noqa: B023
        for n, digests in left.items():
            assert len(digests) == 1, "one key masks one vector"
            charged = [charge.digest for charge in Ledger(tmp_path / str(run) / f"site{n}" / "ledger.jsonl").charges]
            assert digests == set(charged)
            assert len(charged) == 1
        server = begin_server()
        broadcasts.add(server.broadcast)
        assert len(server.ledger.charges) == 1
        server.close()
    assert len(broadcasts) == 1  # the seed determines noise and values; nothing was lost
    assert run > 1
