"""The protocol without a trusted server: the simulation's queries and ledger, at each site a ledger of its own."""

import pytest

from dpfbo.checks import SettingError
from dpfbo.formats.journal import StateError
from runners.deploy.exchange import Exchange, Pace
from runners.deploy.parties import server_party, site_party
from runners.deploy.secure import MaskingServer
from runners.deploy.site_folder import SiteFolder
from tests.runners.deploy.deployments import (
    InProcess,
    call,
    configurations,
    deployed,
    evaluated,
    played,
    simulated_sum,
)

N = 5
NOBODY = ("--trust", "nobody", "--max-dropouts", 1)


def test_a_deployment_is_the_simulation(tmp_path):
    project, sites = deployed(tmp_path, N, *NOBODY)
    charges = played(project, sites, InProcess(sites))
    found, expected = simulated_sum(project.shared.study, range(N))
    assert [configurations(site) for site in sites] == found
    assert charges == expected
    for site in sites:
        result = call("result", site)
        assert result["epsilon"] == pytest.approx(2.0, abs=0.01)
        assert [entry["z"] for entry in result["ledger"]] == [project.shared.study.mechanism.noise_multiplier]
        assert "for the server alone" in result["privacy"]
    assert "nobody need trust it" in (project.folder / "README.md").read_text()


def test_a_site_that_stays_away_is_left_out_after_the_timeout(tmp_path):
    project, sites = deployed(tmp_path, N, *NOBODY)
    times = iter(range(10**6))
    pace = Pace(again=0.0, step_timeout=20.0)
    charges = played(project, sites, InProcess(sites, away={1}), clock=lambda: float(next(times)), pace=pace)
    present = [0, 2, 3, 4]
    found, expected = simulated_sum(project.shared.study, present)
    assert [configurations(sites[n]) for n in present] == [found[n] for n in present]
    assert charges == expected


def test_both_sides_continue_in_new_processes_after_every_call(tmp_path):
    project, sites = deployed(tmp_path, N, *NOBODY)
    for _ in range(100):
        server = server_party(project, None)
        finished = Exchange(server, InProcess(sites), Pace(again=0.0)).turn()
        server.close()
        for site in sites:
            evaluated(site)
        if finished:
            break
    found, _ = simulated_sum(project.shared.study, range(N))
    assert [configurations(site) for site in sites] == found


def test_damaged_answers_are_refused_and_asked_for_again(tmp_path):
    project, sites = deployed(tmp_path, N, *NOBODY)
    seen = {}

    def spoil(site, data):
        seen[site, data] = k = seen.get((site, data), -1) + 1
        return [data[:-1], data[:80] + b"\xff" + data[81:], data][min(k, 2)] if len(data) > 80 else data

    charges = played(project, sites, InProcess(sites, spoil=spoil))
    assert charges == simulated_sum(project.shared.study, range(N))[1]


def test_another_attempt_needs_the_sites_consent_and_costs_them_epsilon(tmp_path):
    project, sites = deployed(tmp_path, N, *NOBODY)
    for site in sites:
        evaluated(site)
    parties = [site_party(SiteFolder.read(site)) for site in sites]
    server = MaskingServer(project.shared.study, project.shared.roster, project.server, None)
    while b'"step":"survivors"' not in next(iter(server.requests().values())):
        for n, request in server.requests().items():
            server.receive(n, parties[n].respond(request))
    with pytest.raises(StateError, match="0 of 5 sites have answered step survivors and the sum needs 3"):
        server.close_step()
    server.begin_again()
    with pytest.raises(StateError, match="the server asks for attempt 2, and this site allows 1"):
        parties[0].respond(server.requests()[0])
    server.close()
    for site in sites:
        (site / "attempts.json").write_text("2")
    played(project, sites, InProcess(sites))
    spent = [call("result", site)["epsilon"] for site in sites]
    assert all(epsilon > 2.5 for epsilon in spent)


def test_what_does_not_fit_is_refused(tmp_path):
    project, sites = deployed(tmp_path, N, *NOBODY, roster=range(4))
    with pytest.raises(StateError, match=r"the roster must have all 5 sites, got none for \[4\]"):
        server_party(project, None)
    with pytest.raises(SettingError, match="min_sites must be left out without a trusted server"):
        server_party(project, 3)
    (sites[0] / "attempts.json").write_text("0")
    with pytest.raises(StateError, match="attempts.json must have a number of at least 1, got 0"):
        SiteFolder.read(sites[0]).attempts  # noqa: B018
    assert not (project.server / "ledger.jsonl").exists()
