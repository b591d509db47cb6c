"""A site's own view: its objective, where it stands, and its result."""

import hashlib

import pytest

from dpfbo.formats.journal import StateError
from runners.deploy.site_folder import DONE, WAITS, SiteFolder
from tests.helpers.objectives import tuned
from tests.runners.deploy.deployments import InProcess, call, configurations, deployed, evaluated, played

N = 2


def test_status_and_result_of_a_site(tmp_path):
    project, sites = deployed(tmp_path, N)
    assert call("status", sites[0])["phase"] == "evaluates"
    none = call("result", sites[0])
    assert (none["configuration"], none["epsilon"], none["ledger"]) == (None, 0.0, [])
    assert evaluated(sites[0]) == WAITS
    waiting = call("status", sites[0])
    assert (waiting["phase"], waiting["evaluations"], waiting["planned"]) == (WAITS, 3, 5)
    assert call("result", sites[0])["ledger"] == []
    played(project, sites, InProcess(sites))
    assert call("status", sites[0])["phase"] == DONE
    result, asked = call("result", sites[0]), configurations(sites[0])
    best = max(asked, key=lambda x: tuned(0, x))
    assert (result["configuration"], result["value"]) == (best, tuned(0, best))
    assert result["epsilon"] == pytest.approx(2.0, abs=0.01) and result["delta"] == 1e-3
    sent = {"message": "message-00000.bin", "broadcast": "broadcast-00000.bin"}
    digests = {k: hashlib.sha256((sites[0] / "agent" / name).read_bytes()).hexdigest() for k, name in sent.items()}
    assert result["ledger"] == [{"round": 0, **digests}]


def test_a_message_is_in_the_sites_ledger_before_the_server_has_it(tmp_path):
    project, sites = deployed(tmp_path, N)
    evaluated(sites[0])
    InProcess(sites).send(0, b"message 0\n")
    result = call("result", sites[0])
    assert result["epsilon"] == pytest.approx(2.0, abs=0.01) and result["ledger"][0]["broadcast"] is None


def test_the_server_shows_who_is_in_which_phase_and_nothing_else(tmp_path):
    project, _ = deployed(tmp_path, N, roster=[0])
    shown = {
        "study": project.shared.study.digest, "finished": False, "not in the roster": [1], "awaited": [],
        "connected": [],
    }  # fmt: skip
    assert call("status", project.folder) == call("result", project.folder) == shown


def test_smaller_values_may_be_better(tmp_path):
    project, sites = deployed(tmp_path, N, "--minimize")
    site = SiteFolder.read(sites[0])
    while site.evaluate_next(lambda x: -tuned(0, x)) not in (WAITS, DONE):
        pass
    best = max(configurations(sites[0]), key=lambda x: tuned(0, x))
    assert call("result", sites[0])["configuration"] == best
    assert "smaller is better" in (sites[0] / "objective.py").read_text()


def test_a_failed_evaluation_goes_on_and_an_exception_stops_and_is_repeated(tmp_path, capsys):
    _, sites = deployed(tmp_path, N)
    site = SiteFolder.read(sites[0])
    (sites[0] / "beside.py").write_text("answers = [None, 'odd', 0.25]\n")
    (sites[0] / "objective.py").write_text(
        "import beside\ndef evaluate(x):\n    print('said')\n    return beside.answers.pop(0)\n"
    )
    evaluate = site.objective()
    site.evaluate_next(evaluate)
    with pytest.raises(StateError, match=r"objective.py raised ValueError: could not convert string to float: 'odd'"):
        site.evaluate_next(evaluate)
    site.evaluate_next(evaluate)
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("said") == 3
    assert call("status", sites[0])["evaluations"] == 2
    assert call("result", sites[0])["value"] == 0.25


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("1 +", "cannot be loaded: SyntaxError"),
        ("import nowhere", "No module named 'nowhere'"),
        ("x = 1", "must define"),
    ],
)
def test_an_objective_that_is_none_is_named(tmp_path, content, sentence):
    _, sites = deployed(tmp_path, N)
    (sites[0] / "objective.py").write_text(content)
    with pytest.raises(StateError, match=sentence):
        SiteFolder.read(sites[0]).objective()


def test_a_site_runs_once(tmp_path):
    _, sites = deployed(tmp_path, N)
    site = SiteFolder.read(sites[0])
    with site.running(), pytest.raises(StateError, match="another process runs the site"):
        site.running()
    with site.running():
        pass
