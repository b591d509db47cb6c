"""The command line of a study: sites and a server in folders, with JSON and files between them, killed at any time."""

import contextlib
import io
import itertools
import json
import os
import random
import signal
import sys
import time

import pytest
import torch

import dpfbo
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.custom import Custom
from runners import study
from tests.helpers.objectives import tuned

SPACE = """
rate: {type: float, lower: 1e-4, upper: 1, log: true}
depth: {type: integer, lower: 1, upper: 12}
kind: {type: categorical, choices: [a, b, c]}
"""
N, N_INIT, T = 2, 3, 3


def call(*arguments):
    """The answer of a call in this process."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert study.main([str(a) for a in arguments]) == 0
    return json.loads(text.getvalue())


def described(folder, *options):
    (folder / "space.yaml").write_text(SPACE)
    few = ["--agents", N, "--n-init", N_INIT, "--rounds", T, "--delta", "1e-3", "--epsilon", 2]
    return call("new", folder / "study.json", "--space", folder / "space.yaml", *few, *options)


def simulated(algorithm):
    space = dpfbo.Space({
        "rate": dpfbo.Float(1e-4, 1, log=True), "depth": dpfbo.Integer(1, 12),
        "kind": dpfbo.Categorical(["a", "b", "c"]),
    })  # fmt: skip
    made = dpfbo.create_study(
        space, n_agents=N, algorithm=algorithm, epsilon=2.0, delta=1e-3, rounds=T, n_init=N_INIT, rng="seeded"
    )
    result = dpfbo.run_study(made, Custom(tuned, n_agents=N, space=space))
    x = torch.cat([r.x for r in result.result.rounds], 1)
    return [[space.configuration(point) for point in agent] for agent in x], result


def played(folder, do):
    """All calls of a study in their order, by `do`; returns the configurations by site."""
    found = [[] for _ in range(N)]
    do("host", folder / "server", folder / "study.json")
    for n in range(N):
        do("join", folder / f"site{n}", folder / "study.json", "--agent", n)

    def evaluate(n):
        asked = do("ask", folder / f"site{n}")
        x = asked["configuration"]
        do("tell", folder / f"site{n}", json.dumps({**asked, "value": tuned(n, x)}))
        found[n].append(x)

    for n in range(N):
        for _ in range(N_INIT):
            evaluate(n)
    for t in range(T):
        if not do("status", folder / "server")["finished"]:
            for n in range(N):
                do("message", folder / f"site{n}", folder / "m.bin", "--round", t)
                do("collect", folder / "server", n, folder / "m.bin")
            do("release", folder / "server", folder / "b.bin", "--round", t)
            for n in range(N):
                do("receive", folder / f"site{n}", folder / "b.bin")
        for n in range(N):
            evaluate(n)
    return found


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
    dice, kills = random.Random(1), []

    def do(*arguments):
        for attempt in itertools.count():
            answer = tmp_path / "answer.json"
            answer.unlink(missing_ok=True)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    text = json.dumps(call(*arguments))
                    answer.with_suffix(".part").write_text(text)
                    answer.with_suffix(".part").rename(answer)
                    code = 0
                finally:
                    os._exit(code)
            if attempt == 0 or dice.random() < 0.5:
                time.sleep(dice.random() * 0.05)
                os.kill(child, signal.SIGKILL)  # within the call, or after its end
                kills.append(arguments[0])
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                if not answer.exists() or dice.random() < 0.5:  # killed after the answer, or before it was seen
                    continue
            else:
                assert os.waitstatus_to_exitcode(status) == 0, arguments
            return json.loads(answer.read_text())

    expected, result = simulated("dp_fts_de")
    assert played(tmp_path, do) == expected
    assert len(kills) >= 50
    charges = Ledger(tmp_path / "server" / "ledger.jsonl").charges
    assert [(c.round, c.digest) for c in charges] == [(c.round, c.digest) for c in result.ledger.charges]


def test_results_are_read_from_standard_input_and_failures_are_told(tmp_path, monkeypatch):
    described(tmp_path)
    call("join", tmp_path / "s", tmp_path / "study.json", "--agent", 1, "--minimize")
    for i in range(N_INIT):
        x = call("ask", tmp_path / "s")["configuration"]
        assert call("ask", tmp_path / "s") == {"configuration": x, "round": 0, "asked_before": True}
        result = {"configuration": x, "failed": True} if i == 0 else {"configuration": x, "value": float(i)}
        (tmp_path / "in").write_text(json.dumps(result))
        with open(tmp_path / "in") as text:
            monkeypatch.setattr(sys, "stdin", text)
            status = call("tell", tmp_path / "s")
    assert status["message_due"] and status["pending"] == []
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
        (["join", "s", "study.json", "--agent", "2"], "agent must be one of 0, 1, got 2"),
        (["tell", "site", "{}"], "a result must read"),
        (["tell", "site", "what"], "a result must read"),
        (["message", "site", "m.bin"], "the message of round 0 needs the values of 3 more public points"),
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
    assert not (tmp_path / "x.json").exists() and not (tmp_path / "s" / "site.json").exists()
