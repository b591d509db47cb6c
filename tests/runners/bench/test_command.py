"""The benchmark command: its reports and refusals, not its times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.bench import command
from runners.bench.command import PHASES, Timing, main

TINY = ["overhead", "--problem", "synthetic", "--rounds", "3", "--plain-rounds", "2"]


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_json_has_all_phases(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    code, told = report(capsys, *TINY, "--seed", "3")
    assert code == 0
    assert torch.get_num_threads() == threads
    assert {k: told[k] for k in ("suite", "seed", "threads")} == {"suite": "overhead", "seed": 3, "threads": 1}
    assert list(told["problems"]) == ["synthetic"]
    synthetic = told["problems"]["synthetic"]
    assert synthetic["published_overhead"] is None
    assert [(r["what"], r["own_draw"], r["n_agents"], r["rounds"]) for r in synthetic["runs"]] == [
        ("dpfbo", "rff", 200, 3),
        ("plain loop", "rff", 200, 2),
        ("dpfbo", "exact", 200, 3),
    ]
    for run in synthetic["runs"]:
        assert {*PHASES, "other"} <= set(run["phases"])
        assert run["phases"]["fit"] == 0  # the hyper-parameters are given
        assert min(run["phases"][p] for p in ("objective", "message", "server", "acquisition", "own_draw")) > 0
        assert run["phases"]["other"] >= 0
        parts = sum(ms for phase, ms in run["phases"].items() if phase != "objective")
        assert run["overhead"] == pytest.approx(parts)
    ours, plain = synthetic["runs"][:2]
    ratio = synthetic["plain_over_dpfbo"]
    assert ratio["overhead"] == pytest.approx(plain["overhead"] / ours["overhead"])
    assert ratio["message"] == pytest.approx(plain["phases"]["message"] / ours["phases"]["message"])
    assert ratio["fit"] is None


def test_gpytorch_is_timed_where_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    composed = command.compose
    small = ["problem.n_agents=8", "problem.grid_size=40"]
    monkeypatch.setattr(command, "compose", lambda *args, **more: composed(*args[:3], *small, *args[3:], **more))
    code, told = report(capsys, *TINY, "--gpytorch-rounds", "2")
    assert code == 0
    *others, last = told["problems"]["synthetic"]["runs"]
    assert [run["own_draw"] for run in others] == ["rff", "rff", "exact"]
    assert (last["what"], last["own_draw"], last["n_agents"], last["rounds"]) == ("dpfbo", "gpytorch", 8, 2)
    assert last["phases"]["own_draw"] > 0


def test_the_prior_is_timed_beside_agents_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = command.compose
    small = ["problem.n_agents=8", "problem.grid_size=40", "n_init=3"]
    monkeypatch.setattr(command, "compose", lambda *args, **more: composed(*args[:3], *small, *args[3:], **more))
    code, told = report(capsys, *TINY, "--prior")
    assert code == 0
    *_, alone, prior = told["problems"]["synthetic"]["runs"]
    assert (alone["what"], prior["what"], prior["rounds"]) == ("ts", "dp_prior", 3)
    assert alone["phases"]["server"] == 0 < prior["phases"]["server"]
    assert prior["phases"]["gate"] > 0 and "gate" not in alone["phases"]
    assert main([*TINY, "--prior"]) == 0
    assert "gate" in capsys.readouterr().out


def test_table_states_what_was_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    phases = dict.fromkeys(PHASES, 0.5) | {"other": 0.25}
    runs = [Timing("dpfbo", 29, 60, "rff", phases, 2.75), Timing("plain loop", 29, 9, "rff", phases, 11.0)]
    monkeypatch.setattr(command, "measure_overhead", lambda *args: runs)
    assert main(["overhead", "--problem", "landmine", "--seed", "5", "--threads", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "29 agents, dpfbo rounds 0 to 60, plain loop rounds 0 to 9, seed 5" in out
    assert "published reference, not measured here: 81 ms" in out
    assert "threads: 1" in out
    assert "everything but the objective" in out and "4.0" in out
    assert "over all rounds its times would be larger" in out


def test_missing_data_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DPFBO_DATA", str(tmp_path))
    code = main(["overhead", "--problem", "both", "--rounds", "1", "--json"])
    out, err = capsys.readouterr()
    assert code == 1
    assert list(json.loads(out)["problems"]) == ["synthetic"]
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and 'run "python -m runners.fetch landmine"' in errors[0]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "SUITE"),
        (["overhed"], "invalid choice: 'overhed'"),
        (["overhead", "--rounds", "0"], "--rounds: must be an integer of at least 1, got '0'"),
        (["overhead", "--plain-rounds", "x"], "--plain-rounds: must be an integer of at least 1, got 'x'"),
        (["overhead", "--seed", "-1"], "--seed: must be an integer of at least 0, got '-1'"),
        (["overhead", "--problem", "moon"], "invalid choice: 'moon'"),
        (["overhead", "--threads", "0"], "--threads: must be an integer of at least 1, got '0'"),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert not out
    assert err.startswith("error: ") and err.count("\n") == 1 and told in err


def test_other_errors_are_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: object) -> list[Timing]:
        raise ValueError("rounds must be\nsomething else")

    monkeypatch.setattr(command, "measure_overhead", fails)
    assert main(["overhead"]) == 1
    assert capsys.readouterr().err == "error: rounds must be something else\n"


def test_help_names_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in command.SUITES)
