"""The suites: what they measure and write, at small sizes; never a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.bench import botorch_loop
from runners.bench.bench import Bench
from runners.bench.command import SUITES
from runners.bench.federated_run import PHASES
from runners.bench.measured_process import BenchError, Reply, TooLarge
from runners.bench.suites import accounting, actors, growth, outsourced, trials
from tests.helpers.bench import RATES

Report = Callable[..., tuple[int, dict[str, Any]]]


def by_name(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {m["what"]: m for m in told["measurements"]}


def nothing(done: int, total: int) -> None:
    """A run's progress that nobody looks at."""


# overhead


TINY = ["overhead", "--problem", "synthetic", "--rounds", "3", "--plain-rounds", "2"]


def test_overhead_has_all_phases(report: Report, small: None) -> None:
    threads = torch.get_num_threads()
    code, told = report(*TINY, "--seed", "3")
    assert code == 0
    assert torch.get_num_threads() == threads
    assert told["suite"] == "overhead"
    assert {k: told["settings"][k] for k in ("seed", "threads", "rounds")} == {"seed": 3, "threads": 1, "rounds": 3}
    assert [(m["what"], m["size"]["T"], m["more"]["own draw"]) for m in told["measurements"]] == [
        ("dpfbo", 3, "rff"),
        ("plain loop", 2, "rff"),
        ("dpfbo as configured", 3, "exact"),
    ]
    for m in told["measurements"]:
        assert {*PHASES, "other"} <= set(m["phases"])
        assert m["panel"] == "synthetic" and m["size"]["N"] == 6
        assert m["phases"]["fit"]["median"] == 0  # the hyper-parameters are given
        parts = sum(s["median"] for phase, s in m["phases"].items() if phase != "objective")
        assert m["time"]["median"] == pytest.approx(parts)
        assert m["peak_mb"] >= m["start_mb"] > 0
    ours, plain, configured = told["measurements"]
    assert set(ours["floors"]) == {"message", "server", "own_draw", "acquisition", "other"}
    assert configured["floors"]["own_draw"]["work"] != ours["floors"]["own_draw"]["work"]
    assert plain["floors"] == {}
    assert ours["ratio_to_floor"]["all"] == pytest.approx(
        ours["time"]["median"] / sum(floor["time"] for floor in ours["floors"].values())
    )


def test_gpytorch_and_the_prior_are_timed_where_asked(report: Report, small: None) -> None:
    code, told = report(*TINY, "--gpytorch-rounds", "1", "--prior")
    assert code == 0
    found = by_name(told)
    assert list(found)[3:] == ["dpfbo with GPyTorch", "ts", "dp_prior"]
    library, alone, prior = list(found.values())[3:]
    assert library["more"]["own draw"] == "gpytorch" and library["size"]["T"] == 1 and library["floors"] == {}
    assert alone["phases"]["server"]["median"] == 0 < prior["phases"]["server"]["median"]
    assert prior["phases"]["gate"]["median"] > 0 and "gate" not in alone["phases"]
    assert {"gate", "server", "message"} <= set(prior["floors"])
    assert {"server", "message"}.isdisjoint(alone["floors"])


# synthetic, landmine


def test_a_whole_run_beside_its_peers(report: Report, small: None) -> None:
    code, told = report("synthetic", "--rounds", "3", "--plain-rounds", "2", "--peer-rounds", "2")
    assert code == 0
    names = ["dpfbo", "plain loop", "dpfbo, 2 rounds", "GPyTorch in dpfbo, 2 rounds", "BoTorch, 2 rounds"]
    assert list(by_name(told)) == names
    botorch = told["measurements"][-1]
    timed = {phase for phase, spread in botorch["phases"].items() if spread["median"] > 0}
    assert timed == {"own_draw", "other"}
    assert any("BoTorch" in note for note in told["notes"])


def test_a_missing_botorch_is_told(
    monkeypatch: pytest.MonkeyPatch, small: None, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise BenchError(botorch_loop.MISSING)

    monkeypatch.setattr(botorch_loop, "check_installed", missing)
    assert report("synthetic", "--rounds", "2") == (1, {})
    assert SUITES["landmine"].quick  # has the option below
    code, told = report("synthetic", "--rounds", "1", "--peer-rounds", "1", "--without-botorch")
    assert code == 0 and len(told["measurements"]) == 4


@pytest.mark.parametrize("problem", ["branin", "synthetic"])
def test_botorch_finds_the_best_of_functions_that_are_known(problem: str) -> None:
    """With many observations of a smooth function the maximum of every draw is near that of the function."""
    bench = Bench(None, "", seconds=1)  # type: ignore[arg-type]
    task = bench.task(problem, "ts", "problem.n_agents=2", rounds=2)
    experiment = task.compose()
    x = torch.quasirandom.SobolEngine(experiment.problem.domain.dimension).draw(60, dtype=torch.float64)
    best = torch.full_like(x[0], 0.6)
    y = -((x - best) ** 2).sum(1)
    hyper = torch.tensor([0.3, 1.0, 1e-5], dtype=torch.float64)
    if problem == "branin":
        found = botorch_loop._argmax_in_box(x, y, hyper, experiment.agents.acquisition)[None]
    else:
        inputs = (x.expand(2, -1, -1), y.expand(2, -1), hyper.expand(2, -1))
        found = botorch_loop._argmax_on_grid(*inputs, experiment.agents.domain)  # type: ignore[arg-type]
    assert (found - best).abs().max() < 0.05


def test_botorch_fits_what_is_due() -> None:
    """A fit raises the likelihood's noise to that of the data, and lowers it where there is none."""
    own = Bench(None, "").task("branin", "ts", rounds=2).compose().agents.own_gp  # type: ignore[arg-type]
    x = torch.rand(25, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = 0.3 * torch.randn(25, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    clear, noisy = (botorch_loop._fitted(x, torch.sin(6 * x[:, 0]) + e, own)[2] for e in (0 * noise, noise))
    assert clear < 1e-3 < 0.02 < noisy < 0.3


# agents, features, gpu


def test_agents_has_a_point_for_each_size(report: Report, small: None) -> None:
    code, told = report("agents", "--agents", "8", "4", "--rounds", "2", "--features", "20")
    assert code == 0
    assert [(m["what"], m["size"]["N"], m["size"]["T"], m["size"]["M"]) for m in told["measurements"]] == [
        (algorithm, N, 2, 20) for algorithm in ("dp_fts_de", "dp_prior") for N in (4, 8)
    ]
    assert [panel["axis"] for panel in told["panels"]] == ["N"]
    for m in told["measurements"]:
        assert m["more"]["memory before it and records, MB"] > m["start_mb"]


def test_features_has_two_series(report: Report, small: None) -> None:
    sizes = ("--features", "10", "20", "--horizons", "1", "3", "--rounds", "2", "--fixed-features", "10")
    code, told = report("features", "--agents", "4", "--algorithms", "dp_fts_de", *sizes)
    assert code == 0
    assert [(m["panel"], m["size"]["M"], m["size"]["T"]) for m in told["measurements"]] == [
        ("features", 10, 2), ("features", 20, 2), ("rounds", 10, 1), ("rounds", 10, 3),
    ]  # fmt: skip
    assert [panel["axis"] for panel in told["panels"]] == ["M", "T"]


def test_sizes_that_take_too_long_or_too_much_memory_are_left_out(
    report: Report, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Bench.run

    def limited(self: Bench, task: Any, *more: Any) -> Any:
        if "problem.n_agents=8" in task.overrides and task.algorithm == "dp_prior":
            raise TooLarge("can't allocate memory")
        return run(self, task, *more)

    monkeypatch.setattr(Bench, "run", limited)
    code, told = report("agents", "--agents", "4", "8", "5000000000", "--rounds", "1", "--limit", "30")
    assert code == 0
    assert [(m["what"], m["size"]["N"]) for m in told["measurements"]] == [
        ("dp_fts_de", 4), ("dp_fts_de", 8), ("dp_prior", 4),
    ]  # fmt: skip
    late, large = (note for note in told["notes"] if "left out" in note)
    assert late.startswith("dp_fts_de, N = 5000000000 is left out: about") and "--limit is 30 s" in late
    assert large.startswith("dp_prior, N = 8 is left out, and all larger sizes: not enough memory")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_is_refused_without_a_device(report: Report, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert report("gpu") == (1, {})
    assert not (tmp_path / "bench").exists()
    with pytest.raises(BenchError, match="needs a CUDA device"):
        growth.check_cuda()


# accounting, outsourced, ray, sweep


def test_accounting_has_equal_and_different_rounds_and_a_ledger(report: Report, in_process: None) -> None:
    few = ("--accountants", "moments", "gdp", "fixed_size", "--rounds", "2", "4", "--charges", "3", "6")
    code, told = report("accounting", *few)
    assert code == 0
    expected = [
        (panel, name, T)
        for panel in ("equal", "different")
        for name in ("moments", "gdp", "fixed_size")
        for T in (2, 4)
    ]
    found = [(m["panel"], m["what"], m["size"].get("T", m["size"].get("charges"))) for m in told["measurements"]]
    assert found == [*expected, ("ledger", "ledger", 3), ("ledger", "ledger", 6)]
    assert all(set(m["phases"]) == {"curve", "last epsilon"} for m in told["measurements"] if m["panel"] != "ledger")
    floors = {(m["panel"], m["what"]): m["floors"]["curve"] for m in told["measurements"] if m["floors"]}
    assert set(floors) == {("equal", "moments"), ("different", "moments"), ("ledger", "ledger")}
    assert floors["ledger", "ledger"]["time"] == pytest.approx(6 / RATES.appends)
    assert floors["different", "moments"]["work"]["exp"] == 4 * floors["equal", "moments"]["work"]["exp"]


def test_repeats_of_accounting_do_not_meet_what_was_kept() -> None:
    events = [accounting._events("moments", "equal", 3, shift) for shift in (0.0, 5e-4, 1e-3)]
    assert len({event for schedule in events for event in schedule}) == 3
    assert len(set(accounting._events("moments", "different", 50, 0.0))) == 50


def test_outsourced_compares_with_refits(report: Report, in_process: None) -> None:
    code, told = report("outsourced", "--rows", "200", "--columns", "3", "--rounds", "5")
    assert code == 0
    found = by_name(told)
    assert list(found) == ["incremental", "refitted in every step"]
    assert all(m["size"] == {"n": 200, "r": 3, "T": 5} for m in found.values())
    work = found["incremental"]["floors"]["run"]["work"]
    assert work["exp"] == 6 * 200
    assert work["flops"] == sum(200 * (2 * 3 + 2 * t + 8) for t in range(6))


def test_incremental_and_refitted_posteriors_agree() -> None:
    reply = outsourced.run(nothing, 100, 3, 6, 1, 1.0, 0, refit=True)
    assert 0 < reply["difference"] < 1e-10


def test_ray_is_beside_one_process(report: Report, in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process is real, and stands for the actors too."""
    ask = Bench.ask

    def here(self: Bench, title: str, function: str, **asked: Any) -> Reply:
        asked["overrides"] = [o for o in asked["overrides"] if not o.startswith("executor")]
        reply = ask(self, title, function, **asked)
        reply.result["runs"][0]["memory_mb"] = 300.0 if "actors" in title else None
        return reply

    monkeypatch.setattr(Bench, "ask", here)
    code, told = report("ray", "--agents", "4", "--rounds", "2")
    assert code == 0
    one, two, tree = told["measurements"]
    assert [m["what"] for m in (one, two, tree)] == ["one process", "2 actors", "2 actors, tree"]
    assert one["time"]["repeats"] == 2  # rounds
    assert "memory of an actor, MB" not in one["more"] and two["more"]["memory of an actor, MB"] == 300
    more = two["time"]["median"] - one["time"]["median"]
    assert two["more"]["more than one process, ms"] == pytest.approx(more)


def test_actors_are_asked_for() -> None:
    assert actors.SUITE.repeats == 3 and "executor.aggregation=tree" in actors._TREE


def test_trials_are_beside_the_runs_alone(report: Report, in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs alone are real; the programs around them take so many seconds more."""
    seconds = {trials.ALONE: (0.1, 0.0), trials.RUN: (0.4, 2.0), trials.SWEEP: (0.2, 9.0)}

    def told_seconds(self: Bench, title: str, function: str, **asked: Any) -> Reply:
        each, start = seconds[asked["by"]]
        return Reply({"total": start + each * asked["trials"], "cpu": 0.5}, 300.0, 400.0)

    monkeypatch.setattr(Bench, "ask", told_seconds)
    code, told = report("sweep", "--trials", "5", "2")
    assert code == 0
    assert [(m["what"], m["size"]["trials"]) for m in told["measurements"]] == [
        (by, n) for n in (2, 5) for by in (trials.ALONE, trials.RUN, trials.SWEEP)
    ]
    sweep = told["measurements"][-1]
    assert sweep["more"]["ms a trial"] == pytest.approx(200) and sweep["more"]["start-up, s"] == pytest.approx(9)
    assert sweep["floors"]["trials"]["time"] == pytest.approx(0.5)
    assert sweep["ratio_to_floor"]["all"] == pytest.approx(10.0 / 0.5)


def test_the_runs_alone_are_made(tmp_path: Path) -> None:
    made: list[int] = []
    trials.run(lambda done, total: made.append(done), trials.ALONE, 2, str(tmp_path))
    assert made == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_one_number_of_trials_is_refused(report: Report, in_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("sweep", "--trials", "3", "3") == (1, {})


def test_quick_arguments_are_arguments(tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`all --quick` hands every suite its own."""
    from runners.bench import command

    ran: list[str] = []

    def run(name: str, args: Any) -> int:
        ran.append(name)
        if name == "gpu":
            raise BenchError("no GPU")
        assert args.seed == 4 and args.out == tmp_path / "bench"
        return int(name == "ray")

    monkeypatch.setattr(command, "_run", run)
    assert command.main(["all", "--quick", "--seed", "4", f"results_dir={tmp_path}"]) == 1
    assert ran == list(SUITES)


def test_json_is_what_was_printed(report: Report, small: None, tmp_path: Path) -> None:
    code, told = report(*TINY)
    assert json.loads((tmp_path / "bench" / "overhead.json").read_text()) == told
    assert sorted(path.name for path in (tmp_path / "bench").iterdir()) == ["overhead.json", "overhead.png"]
