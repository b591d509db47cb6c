"""The benchmark command: its tables, files and refusals, not its times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.bench import command, plots
from runners.bench.command import SUITES, main
from runners.bench.measurement import Findings, Spread
from runners.bench.suites.suite import Suite
from tests.helpers.bench import FACTS, FINDINGS, ONE

TINY = ["overhead", "--problem", "synthetic", "--rounds", "2", "--plain-rounds", "1", "--repeats", "2"]


def test_table_states_what_was_run(small: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*TINY, f"results_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    told = " ".join(out.split())
    assert "a processor, 2 cores, 16 GB, torch 2.13, Python 3.11, 1 thread(s)" in told
    assert "products 40 GFlop/s" in told and "copy 10 GB/s" in told
    assert "milliseconds per agent and round, median (its ratio to the floor)" in told
    assert "synthetic: 6 agents, dpfbo rounds 0 to 2, plain loop rounds 0 to 1" in told
    assert "over all rounds its times would be larger" in told
    for label in ("everything but", "quartiles", "floor", "peak memory, MB", "own draw", "plain loop"):
        assert label in told
    path = tmp_path / "bench" / "overhead.json"
    assert str(path) in out.replace("\n", "")
    assert max(map(len, out.splitlines()[3:-4])) <= 160
    assert main(["show", str(path)]) == 0
    assert "everything but" in capsys.readouterr().out
    assert Findings.from_json(path.read_text()).machine["processor"] == "a processor"


def test_pictures_and_data_are_whole_or_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(found: Findings) -> bytes:
        raise ValueError("no picture")

    found = Findings(**{**FINDINGS.__dict__, "machine": {}})
    monkeypatch.setattr(plots, "png", lambda found: b"a picture")
    assert [path.name for path in command.write(found, tmp_path)] == ["agents.json", "agents.png"]
    assert Findings.from_json((tmp_path / "agents.json").read_text()) == found
    for path in tmp_path.iterdir():
        path.unlink()
    monkeypatch.setattr(plots, "png", fails)
    with pytest.raises(ValueError, match="no picture"):
        command.write(found, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_data_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, small: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from runners.bench.bench import Bench

    smaller = Bench.task

    def task(self: Any, problem: str, algorithm: str, *overrides: str, **more: Any) -> Any:
        made = smaller(self, problem, algorithm, *overrides, **more)
        kept = made.overrides if problem == "synthetic" else overrides
        return type(made)(**{**made.__dict__, "overrides": tuple(kept)})

    monkeypatch.setattr(Bench, "task", task)
    monkeypatch.setenv("DPFBO_DATA", str(tmp_path))
    code = main(["overhead", "--problem", "both", "--rounds", "1", "--repeats", "1", "--out", str(tmp_path / "b")])
    out, err = capsys.readouterr()
    assert code == 1
    assert "synthetic: 6 agents" in out and "landmine:" not in out
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and 'run "python -m runners.fetch landmine"' in errors[0]
    assert main(["landmine", "--out", str(tmp_path / "c")]) == 1
    assert "runners.fetch landmine" in capsys.readouterr().err
    assert list((tmp_path / "c").iterdir()) == []


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
        (["agents", "--agents", "1"], "--agents: must be an integer of at least 2, got '1'"),
        (["agents", "--algorithms", "magic"], "invalid choice: 'magic'"),
        (["accounting", "--accountants", "guess"], "invalid choice: 'guess'"),
        (["features", "--quick"], "unrecognized arguments: --quick"),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert not out
    assert err.startswith("error: ") and err.count("\n") == 1 and told in err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["agents", "--agents", "4", "--features", "3", "--algorithms", "dp_prior"], "multiple of 2"),
        (["show", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_cannot_be_measured_is_told_in_one_sentence(
    argv: list[str], told: str, in_process: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = argv if argv[0] == "show" else [*argv, "--out", str(tmp_path)]
    assert main(given) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and told in err
    assert list(tmp_path.iterdir()) == []


def test_other_errors_are_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, in_process: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(*args: object) -> Findings:
        raise ValueError("rounds must be\nsomething else")

    monkeypatch.setitem(SUITES, "overhead", Suite("", lambda parser: None, fails))
    assert main(["overhead", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: rounds must be something else\n"


@pytest.mark.parametrize(("cpu", "told"), [(3.0, 0), (1.2, 1)])
def test_a_busy_machine_is_told(cpu: float, told: int) -> None:
    slow = replace(ONE, cpu=Spread(cpu, cpu, cpu, 1), phases={})
    notes = command._on_a_busy_machine(replace(FINDINGS, measurements=[slow]))
    assert len(notes) == told and all("worked for 40% of the time" in note for note in notes)


def test_help_names_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert set(SUITES) <= set(out.split()) and all(suite.purpose in " ".join(out.split()) for suite in SUITES.values())
    assert {"overhead", "synthetic", "landmine", "agents", "features", "accounting", "outsourced", "ray", "gpu"} | {
        "sweep"
    } == set(SUITES)


def test_the_machine_measures_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from runners.bench import machine

    monkeypatch.setattr(machine, "_SECONDS", 0.01)
    told = machine.measure(lambda done, total: None)
    facts = machine.MachineFacts.from_dict(told)
    assert facts.cores >= 1 and facts.device == "cpu" and facts.processor
    assert min(facts.rates.__dict__.values()) > 0
    assert len(FACTS.words()) == 2
