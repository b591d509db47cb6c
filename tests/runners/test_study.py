"""The command line of a study: sites and a server in folders, with JSON and files between them, killed at any time."""

import json
import sys

import pytest

from dpfbo.privacy.ledger import Ledger
from runners import study
from tests.helpers.objectives import tuned
from tests.helpers.studies import N_INIT, SPACE, Killer, call, described, played, simulated


@pytest.mark.parametrize("algorithm", ["dp_prior", "dp_fts_de"])
def test_a_study_by_files_is_the_simulation(tmp_path, algorithm):
    says = described(tmp_path, "--algorithm", algorithm, "--rng", "seeded")
    promise = "at delta 0.001, relation zero-out, user level, by pld; simulation: a known seed voids it"
    assert says["privacy"].endswith(promise)
    expected, result = simulated(algorithm)
    assert played(tmp_path, call) == expected
    server = call("status", tmp_path / "server")
    assert (server["epsilon"], server["charges"]) == (result.epsilon, len(result.ledger.charges))
    for n, best in enumerate(result.best()):
        assert call("best", tmp_path / f"site{n}") == {"configuration": best.configuration, "value": best.value}


def test_real_noise_is_charged_once_and_is_never_the_same(tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        described(folder)
        played(folder, call)
    charges = [Ledger(folder / "server" / "ledger.jsonl").charges for folder in folders]
    assert [len(c) for c in charges] == [1, 1]
    assert charges[0][0].digest != charges[1][0].digest


def test_processes_killed_at_any_time_give_the_same_study_and_charge_once(tmp_path):
    """Every call is a process; each is killed at a random moment, and the call is given again."""
    described(tmp_path, "--algorithm", "dp_fts_de", "--rng", "seeded")
    killer = Killer(tmp_path, seed=1)
    expected, result = simulated("dp_fts_de")
    assert played(tmp_path, killer) == expected
    assert sum(killer.kills.values()) >= 12 and killer.kills.keys() == {"server", "site0", "site1"}
    charges = Ledger(tmp_path / "server" / "ledger.jsonl").charges
    assert [(c.round, c.digest) for c in charges] == [(c.round, c.digest) for c in result.ledger.charges]


def test_everybody_is_told_what_is_promised(tmp_path):
    new = described(tmp_path)
    told = [
        new, call("host", tmp_path / "server", tmp_path / "study.json"),
        call("join", tmp_path / "s", tmp_path / "study.json", "--agent", 0), call("status", tmp_path / "s"),
        call("status", tmp_path / "server"),
    ]  # fmt: skip
    assert len({answer["privacy"] for answer in told}) == 1
    for words in ("epsilon 2.00 at delta 0.001", "zero-out", "user level"):
        assert words in new["privacy"]


def test_results_are_read_from_standard_input_and_failures_are_told(tmp_path, monkeypatch):
    described(tmp_path)
    call("join", tmp_path / "s", tmp_path / "study.json", "--agent", 1, "--minimize")
    for i in range(N_INIT):
        x = call("ask", tmp_path / "s")["configuration"]
        again = {"number": i, "configuration": x, "round": 0, "asked_before": True}
        assert call("ask", tmp_path / "s") == again
        result = {"configuration": x, "failed": True} if i == 0 else {**again, "value": float(i)}
        (tmp_path / "in").write_text(json.dumps(result))
        with open(tmp_path / "in") as text:
            monkeypatch.setattr(sys, "stdin", text)
            status = call("tell", tmp_path / "s")
    assert status["message_due"] and status["pending"] == {}
    assert call("best", tmp_path / "s")["value"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status", "nowhere"], "nowhere is no folder of a site or a server"),
        (["ask", "nowhere"], "nowhere is no site's folder: python -m runners.study join makes one"),
        (["new", "x.json", "--space", "absent.yaml", "--agents", "2"], "absent.yaml"),
        (["new", "study.json", "--space", "space.yaml", "--agents", "2"], "study.json exists already"),
        (
            ["new", "x.json", "--space", "space.yaml", "--agents", "0"],
            "n_agents must be an integer of at least 1",
        ),
        (["new", "x.json", "--space", "space.yaml", "--agents", "2", "--epsilon", "-1"], "epsilon must be a finite"),
        (["join", "s", "space.yaml", "--agent", "0"], "space.yaml is no description of a study"),
        (["join", "s", "study.json", "--agent", "2"], "agent must be at most 1, got 2"),
        (["tell", "site", "{}"], "a result must read"),
        (["tell", "site", "what"], "a result must read"),
        (["message", "site", "m.bin"], "the message of round 0 needs the values of 3 more points"),
        (["receive", "site", "space.yaml"], "the bytes must begin with DPFBO001"),
        (["best", "site"], "no value was told yet"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    described(tmp_path)
    call("join", "site", "study.json", "--agent", 0)
    capsys.readouterr()
    assert study.main(arguments) == 1
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "x.json").exists() and not (tmp_path / "s" / "party.json").exists()


def test_a_study_without_a_trusted_server_by_files(tmp_path):
    """Every call is a process of its own; one site stays away."""
    study, roster = tmp_path / "study.json", tmp_path / "roster.json"
    (tmp_path / "space.yaml").write_text(SPACE)
    few = ["--agents", 4, "--n-init", 3, "--rounds", 2, "--delta", "1e-3", "--epsilon", 2]
    call("new", study, "--space", tmp_path / "space.yaml", *few, "--trust", "nobody", "--max-dropouts", 1)
    public = [call("key", tmp_path / f"{n}.key")["public"] for n in range(4)]
    assert len(call("roster", roster, *public)["sites"]) == 4
    sites, server = [tmp_path / f"site{n}" for n in range(4)], tmp_path / "server"
    for n, site in enumerate(sites):
        call("join", site, study, "--roster", roster, "--key", tmp_path / f"{n}.key")
    call("host", server, study, "--roster", roster)
    for n, site in enumerate(sites[:3]):
        for _ in range(3):
            x = call("ask", site)["configuration"]
            call("tell", site, json.dumps({"configuration": x, "value": tuned(n, x)}))
    while not (state := call("status", server))["finished"]:
        for n in call("requests", server, tmp_path / "requests")["sites"]:
            answer = call("respond", sites[n], tmp_path / "requests" / f"{n}.bin", tmp_path / f"answer{n}.bin")
            assert answer["ready"] or n == 3
            call("collect", server, n, tmp_path / f"answer{n}.bin")
        if not call("status", server)["finished"]:
            call("next", server)
    assert state["epsilon"] == pytest.approx(2.0, abs=0.01)
    for n, site in enumerate(sites):
        assert call("status", site)["charges"] == (0 if n == 3 else 1)
    assert call("ask", sites[0])["round"] == 1
    assert call("best", sites[0])["value"] is not None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["message", "secret", "m.bin"], "messages of a study without a trusted server must be masked"),
        (["release", "server", "b.bin"], "this command is for a study with one"),
        (["respond", "site", "study.json", "a.bin"], "this command is for a study without a trusted server"),
        (["join", "s", "study.json", "--agent", "0", "--roster", "roster.json"], "join takes --agent, or without"),
        (
            ["join", "s", "nobody.json", "--agent", "0"],
            "a study without a trusted server, and no other, needs --roster",
        ),
        (["host", "h", "nobody.json"], "a study without a trusted server, and no other, needs --roster"),
        (["key", "0.key"], "exists already: a site keeps its key"),
        (["roster", "other.json", "12"], "roster must have 64 hexadecimal digits for site 0"),
    ],
)
def test_mistakes_about_trust_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    few = ["--agents", 2, "--n-init", 3, "--rounds", 2, "--delta", "1e-3"]
    call("new", "study.json", "--space", "space.yaml", *few)
    call("new", "nobody.json", "--space", "space.yaml", *few, "--trust", "nobody")
    public = [call("key", f"{n}.key")["public"] for n in range(2)]
    call("roster", "roster.json", *public)
    call("join", "site", "study.json", "--agent", 0)
    call("join", "secret", "nobody.json", "--roster", "roster.json", "--key", "0.key")
    call("host", "server", "nobody.json", "--roster", "roster.json")
    capsys.readouterr()
    assert study.main(arguments) == 1
    assert sentence in capsys.readouterr().err
