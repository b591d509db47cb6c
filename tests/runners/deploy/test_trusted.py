"""The protocol with a trusted server: the simulation's queries and ledger, whatever happens to bytes and processes."""

import pytest

from dpfbo.formats.journal import StateError
from dpfbo.protocol.wire import WireError
from runners.deploy.exchange import Exchange, Pace
from runners.deploy.site_folder import SiteFolder
from runners.deploy.trusted import TrustedServer, TrustedSite
from tests.runners.deploy.deployments import InProcess, charged, configurations, deployed, evaluated, played, simulated

N = 3


def party(site):
    return TrustedSite(SiteFolder.read(site).opened)


def server_of(project, min_sites=1):
    return TrustedServer(project.shared.study, project.server, min_sites)


@pytest.mark.parametrize("algorithm", ["dp_prior", "dp_fts_de"])
def test_a_deployment_is_the_simulation(tmp_path, algorithm):
    project, sites = deployed(tmp_path, N, "--algorithm", algorithm)
    charges = played(project, sites, InProcess(sites))
    found, expected = simulated(project.shared.study, range(N))
    assert [configurations(site) for site in sites] == found
    assert charges == expected and len(charges) == project.shared.study.broadcasts


@pytest.mark.parametrize("algorithm", ["dp_prior", "dp_fts_de"])
def test_a_site_that_stays_away_is_left_out_after_the_timeout(tmp_path, algorithm):
    project, sites = deployed(tmp_path, N, "--algorithm", algorithm)
    times = iter(range(10**6))
    pace = Pace(again=0.0, step_timeout=20.0)
    charges = played(project, sites, InProcess(sites, away={1}), 2, lambda: float(next(times)), pace)
    found, expected = simulated(project.shared.study, [0, 2])
    assert [configurations(sites[n]) for n in (0, 2)] == [found[n] for n in (0, 2)]
    assert charges == expected


def test_too_few_sites_release_nothing(tmp_path):
    project, sites = deployed(tmp_path, N)
    server = server_of(project, min_sites=2)
    evaluated(sites[0])
    server.receive(0, party(sites[0]).respond(server.requests()[0]))
    with pytest.raises(StateError, match=r"^1 of 3 sites have sent their message of round 0, and at least 2 must"):
        server.close_step()
    assert sorted(server.requests()) == [1, 2] and not server.finished
    server.close()
    assert not charged(project)


def test_a_site_is_not_ready_before_its_values_are_there_and_answers_the_same_bytes_ever_after(tmp_path):
    project, sites = deployed(tmp_path, N)
    server = server_of(project)
    request = server.requests()[0]
    assert party(sites[0]).respond(request) == b"not ready"
    server.receive(0, b"not ready")
    assert 0 in server.requests()
    evaluated(sites[0])
    data = party(sites[0]).respond(request)
    assert party(sites[0]).respond(request) == data != b"not ready"
    for _ in range(2):
        server.receive(0, data)
    assert sorted(server.requests()) == [1, 2]
    with pytest.raises(StateError, match="the message is of agent 0, and agent 1 of 0..2 sent it"):
        server.receive(1, data)
    server.close()


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"message x\n", b"message 0", b"message 0\nmore", b"broadcast 0\nx"]
)
def test_a_site_refuses_other_requests(tmp_path, data):
    _, sites = deployed(tmp_path, N)
    with pytest.raises(WireError):
        party(sites[0]).respond(data)


def test_a_server_refuses_damaged_answers_and_waits_for_the_right_one(tmp_path):
    project, sites = deployed(tmp_path, N)
    seen = set()

    def spoil(site, data):
        """Each answer is cut off, changed, and of another site before it comes whole."""
        k = sum(key[0] == site for key in seen)
        seen.add((site, data, k))
        return [data[:-1], data[:40] + b"\xff" + data[41:], b"", data][min(k, 3)]

    charges = played(project, sites, InProcess(sites, spoil=spoil))
    found, expected = simulated(project.shared.study, range(N))
    assert [configurations(site) for site in sites] == found and charges == expected


def test_a_receipt_of_a_broadcast_that_was_not_sent_is_refused(tmp_path):
    project, _ = deployed(tmp_path, N)
    server = server_of(project)
    with pytest.raises(StateError, match="site 2 has received the broadcast of round 0, which was not sent"):
        server.receive(2, b"received 0")
    for data in (b"received ", b"received x", b"received 12345678"):
        with pytest.raises(WireError, match="received must be followed by the number of a round"):
            server.receive(2, data)
    server.close()


def test_both_sides_continue_in_new_processes_after_every_call(tmp_path):
    project, sites = deployed(tmp_path, N, "--algorithm", "dp_fts_de")
    for _ in range(200):
        server = server_of(project)  # a new one for each turn, and a new party for each answer
        post = InProcess(sites)
        finished = Exchange(server, post, Pace(again=0.0)).turn()
        server.close()
        for site in sites:
            evaluated(site)
        if finished:
            break
    found, expected = simulated(project.shared.study, range(N))
    assert [configurations(site) for site in sites] == found
    assert charged(project) == expected
    server = server_of(project)
    assert server.finished and server.requests() == {}
    server.close()


def test_a_late_message_is_refused_and_the_site_still_gets_the_broadcast(tmp_path):
    project, sites = deployed(tmp_path, N)
    server = server_of(project)
    for site in sites:
        evaluated(site)
    request = server.requests()[2]
    for n in (0, 1):
        server.receive(n, party(sites[n]).respond(request))
    late = party(sites[2]).respond(request)
    server.close_step()
    with pytest.raises(StateError, match="it counts as lost"):
        server.receive(2, late)
    assert sorted(server.requests()) == [0, 1, 2]
    for n, data in server.requests().items():
        server.receive(n, party(sites[n]).respond(data))
    assert server.finished and all(evaluated(site) == "done" for site in sites)
    server.close()


def test_the_last_step_can_be_closed_too(tmp_path):
    project, sites = deployed(tmp_path, N)
    server = server_of(project)
    for n, site in enumerate(sites):
        evaluated(site)
        server.receive(n, party(site).respond(server.requests()[n]))
    assert not server.finished
    server.close_step()
    server.close_step()
    assert server.finished and server.requests() == {}
    server.close()
    assert server_of(project).finished
