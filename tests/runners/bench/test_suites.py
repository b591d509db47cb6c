"""The suites: what they measure, print and write, at small sizes; never a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.bench import machine, other_runs, report
from runners.bench.command import main
from runners.bench.fresh_process import Timed
from runners.bench.suites import SUITES, BenchCase, Suite

PHASES = {"objective", "message", "server", "acquisition", "own_draw"}


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    monkeypatch.setattr(machine, "measured_rates", known_rates)


def known_rates(folder: Path, threads: int) -> dict[str, float]:
    return dict.fromkeys(machine.KINDS, 1e9)


def measured(tmp_path: Path, *argv: str) -> dict[str, Any]:
    """What a command writes about its measurements, by the name of the series and the size."""
    assert main([*argv, "--repeats", "1", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / f"{argv[0]}.json").read_text())
    return {(m["what"], *m["size"].values()): m for m in written["measurements"]}


def test_overhead_has_all_phases(tmp_path, capsys):
    found = measured(tmp_path, "overhead", "--rounds", "2", "--plain-rounds", "2", "--prior")
    names = ["dpfbo", "dpfbo, rff draws", "plain loop, rff draws", "ts", "local", "dp_prior"]
    assert [(what, N, T) for what, N, T, _ in found] == [(name, 200, 2) for name in names]
    ours, rff, plain, alone, local, prior = found.values()
    for m in (ours, rff, plain):
        assert m["phases"].keys() >= PHASES - {"acquisition"}
        low, high = m["quartiles"]
        assert low == m["time"] == high > 0 and m["cpu"] > 0
    assert set(ours["floors"]) == {"message", "server", "own_draw", "acquisition", "other"}
    assert ours["floors"]["own_draw"] < rff["floors"]["own_draw"]
    assert ours["ratio"] == pytest.approx(ours["time"] / sum(ours["floors"].values()))
    assert ours["peak_mb"] > ours["least_mb"] > 0
    assert plain["floors"] == {} and plain["ratio"] is None
    assert "server" not in alone["phases"] and "server" not in local["phases"] and "server" in prior["phases"]
    assert set(local["floors"]) == {"acquisition", "other"} and local["ratio"] > 0
    out = " ".join(capsys.readouterr().out.split())
    assert "milliseconds per agent and round" in out and "time / floor" in out and "N = 200, T = 2, M = 50" in out


def test_agents_has_a_point_for_each_size_and_a_picture(tmp_path):
    found = measured(tmp_path, "agents", "--agents", "4", "8", "--rounds", "1", "2", "--features", "20")
    sizes = [(a, N, T, 20) for a in ("dp_fts_de", "dp_prior") for T in (1, 2) for N in (4, 8)]
    assert list(found) == sizes
    assert (tmp_path / "agents.png").read_bytes().startswith(b"\x89PNG")


def test_accounting_has_equal_and_different_rounds_and_a_ledger(tmp_path):
    names = ["--accountants", "moments", "gdp", "fixed_size"]
    found = measured(tmp_path, "accounting", *names, "--rounds", "2", "4", "--charges", "3")
    assert len(found) == 13
    equal, different = (found[f"moments, {kind}", 4]["floor"] for kind in ("equal rounds", "all rounds different"))
    assert different == pytest.approx(4 * equal) and found["gdp, equal rounds", 4]["floor"] is None
    assert found["a ledger's charges, each on disk", 3]["floor"] == pytest.approx(3e-9)


def test_outsourced_compares_with_refits(tmp_path):
    found = measured(tmp_path, "outsourced", "--rows", "200", "--columns", "3", "--rounds", "5")
    assert list(found) == [(what, 200, 3, 5) for what in ("incremental", "refitted in every step")]
    flops = sum(200 * (2 * 3 + 2 * t + 8) for t in range(6))
    numbers = sum(200 * (t + 3 + 1) for t in range(6))
    assert found["incremental", 200, 3, 5]["floor"] == pytest.approx(1e3 * max(flops + 6 * 200, 8 * numbers) / 1e9)


def ends_well():
    return lambda: ({}, lambda rates: {})


def fails():
    raise ValueError("rounds must be\nsomething else")


def test_a_measurement_that_fails_leaves_the_others(tmp_path, monkeypatch, capsys):
    cases = [BenchCase("bad", {"N": 1}, fails, {}), BenchCase("good", {"N": 1}, ends_well, {})]
    monkeypatch.setitem(SUITES, "agents", Suite("", "s", lambda args: iter(cases)))
    assert main(["agents", "--out", str(tmp_path)]) == 1
    assert "error: bad, {'N': 1}: rounds must be something else\n" in capsys.readouterr().err
    (only,) = json.loads((tmp_path / "agents.json").read_text())["measurements"]
    assert only["what"] == "good" and only["floor"] is None
    assert not (tmp_path / "agents.png").exists()


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        ([], 2, "SUITE"),
        (["overhed"], 2, "invalid choice: 'overhed'"),
        (["overhead", "--rounds", "0"], 2, "--rounds: must be an integer of at least 1, got '0'"),
        (["agents", "--algorithms", "magic"], 2, "invalid choice: 'magic'"),
        (["agents", "--agents", "4", "--features", "1000001", "--algorithms", "dp_prior"], 1, "algorithm.M"),
        (["overhead", "--problem", "landmine"], 1, 'run "python -m runners.fetch landmine"'),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(argv, code, told, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFBO_DATA", str(tmp_path))
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            main(argv)
    else:
        assert main([*argv, "--out", str(tmp_path / "new")]) == code
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and err.count("\n") == 1 and told in err
    assert not (tmp_path / "new").exists()


def test_help_names_every_suite(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert all(suite.purpose in out for suite in SUITES.values())


def test_the_machine_measures_itself(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(machine, "_SECONDS", 0.01)
    rates = machine.measured_rates(tmp_path, torch.get_num_threads())
    assert rates.keys() == set(machine.KINDS) and min(rates.values()) > 0


def test_numbers_are_medians_without_the_objective():
    runs = [{"total": t, "cpu": 2.0, "objective": 1.0, "fit": 0.5} for t in (3.0, 5.0, 2.0)]
    case = BenchCase("a", {"N": 10}, ends_well, {}, units=10.0, records_mb=5.0)
    found = report.entry(case, Timed(runs, {"fit": 0.25}, 100.0, 200.0, 300.0))
    assert (found["time"], found["quartiles"], found["repeats"]) == (20.0, [15.0, 30.0], 3)
    assert (found["cpu"], found["floor"], found["ratio"], found["least_mb"]) == (20.0, 2.5, 8.0, 105.0)
    assert found["phases"] == {"objective": 10.0, "fit": 5.0}
    text = report.tables([found])
    assert "15–30" in text and "5 (2)" in text and "on the GPU, MB" in text


def test_repeats_of_accounting_do_not_meet_what_was_kept(monkeypatch):
    seen = []
    book = type("Book", (), {"curve": lambda self, schedule, delta: seen.append(schedule)})()
    monkeypatch.setattr(other_runs, "accountant_named", lambda name: book)
    for different, calls in ((False, 2), (True, 8)):
        run = other_runs.accountant("moments", different, 200)
        for _ in range(calls):
            run()
    _, first, second, _, *others = seen
    assert len(set(first)) == len(set(second)) == 1 and set(first) != set(second)
    assert len(set().union(*others)) == 8 * 200
