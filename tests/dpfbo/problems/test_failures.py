"""Failed evaluations: they stop a run, or count as the agent's worst value so far."""

import itertools
import logging
import math
import os
import re
import sys
import time

import pyarrow.parquet as pq
import pytest
import torch

import dpfbo
from dpfbo import Custom, SettingError
from dpfbo.federated.population.shard import Shard
from dpfbo.gp import Acquisition
from dpfbo.problems.custom import EvaluationError
from runners.compose.composition import Composition
from runners.recorded_run import record_run
from tests.helpers.compose import compose
from tests.helpers.objectives import sometimes, tuned

SPACE = {
    "rate": {"type": "float", "lower": 1e-4, "upper": 1, "log": True},
    "depth": {"type": "integer", "lower": 1, "upper": 12},
    "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
}
FEW = Acquisition(n_candidates=30, n_starts=1)


def found(f, **settings):
    return dpfbo.optimize(f, SPACE, n_agents=6, algorithm="ts", rounds=4, n_init=3, acquisition=FEW, **settings)


def test_failed_evaluations_count_as_the_worst_value_so_far(caplog):
    with caplog.at_level(logging.WARNING, logger="dpfbo.problems"):
        frame = found(sometimes, on_failure="penalty").to_pandas()
    failed = frame["x.depth"] % 2 == 1
    assert failed.any() and not failed.all()
    assert (
        sum("raised RuntimeError: sensor off: it counts as the worst" in r.message for r in caplog.records)
        == failed.sum()
    )
    assert frame["y"].isna().equals(failed)
    for agent, own in frame.groupby("agent"):
        values = [
            -math.inf if y != y else tuned(agent, {"rate": x["x.rate"], "depth": x["x.depth"], "kind": x["x.kind"]})
            for y, (_, x) in zip(own["y"], own.iterrows(), strict=True)
        ]
        best = [b if b > -math.inf else math.nan for b in itertools.accumulate(values, max)]
        assert own["best"].tolist() == pytest.approx(best, nan_ok=True)


def test_models_see_a_failure_as_the_worst_value_and_never_as_the_best():
    """A positive loss: until an agent has a value its failures stand at 0, which must not stay."""

    def loss(agent, x):
        if agent and x["rate"] < 0.5:
            raise RuntimeError("no value")
        return 5 + x["rate"]

    space = {"rate": dpfbo.Float(0, 1)}
    study = dpfbo.create_study(space, n_agents=3, algorithm="ts", rounds=5, n_init=1, rng="seeded", acquisition=FEW)
    problem = Custom(loss, n_agents=3, space=space, on_failure="penalty", maximize=False)
    shard = Shard(problem, study.agents, torch.arange(3))
    records = [shard.step(t, None, send=False).record for t in range(6)]
    raw = torch.cat([r.y for r in records], 1)
    seen = shard._blocks[0].state.y[:3]
    assert raw[1:].isnan().any() and not raw[0].isnan().any()
    for n in range(3):
        known = raw[n][~raw[n].isnan()]
        if len(known):
            assert seen[n].max() == known.max() and seen[n].min() == known.min(), "no stand-in above or below"
    again = Shard(problem, study.agents, torch.arange(3))
    again.restore(records)
    assert again._blocks[0].state.y.equal(shard._blocks[0].state.y)
    result = dpfbo.run_study(study, problem)
    for best in result.best():
        assert best.value >= 5 and best.value == loss(0, best.configuration)


def test_a_run_whose_evaluations_all_fail_ends_like_any_other():
    result = found(lambda agent, x: 1 / 0, on_failure="penalty")
    frame = result.to_pandas()
    assert frame["y"].isna().all() and frame["best"].isna().all() and len(frame) == 6 * 7
    assert result.best() == [] and all(map(math.isnan, result.curve))


def test_a_call_is_repeated_before_it_counts_as_failed():
    calls = []

    def flaky(agent, x):
        calls.append(agent)
        return float("nan") if len(calls) % 3 else 1.0

    problem = Custom(flaky, (0,), (1,), 1, on_failure="penalty", retries=1)
    x = torch.full((1, 3, 1), 0.5, dtype=torch.float64)
    y = problem.evaluate(torch.arange(1), x, dpfbo.Streams(0), 0)
    assert len(calls) == 5 and y.isnan().tolist() == [[True, False, True]]
    with pytest.raises(EvaluationError, match="must return a finite number, got nan"):
        Custom(flaky, (0,), (1,), 1, retries=1).evaluate(torch.arange(1), x, dpfbo.Streams(0), 0)


def test_a_run_keeps_the_tracebacks_and_resumes_alike(tmp_path):
    space = (
        "problem.space={rate: {type: float, lower: 1e-4, upper: 1, log: true}, "
        "depth: {type: integer, lower: 1, upper: 12}, kind: {type: categorical, choices: [a, b, c]}}"
    )
    settings = ["problem=custom", "problem.function=tests.helpers.objectives:sometimes", space, "problem.n_agents=6"]
    settings += ["problem.on_failure=penalty", "rounds=4", "n_init=3", "algorithm=ts", "tracker.wandb.mode=disabled"]
    settings += ["acquisition.n_candidates=30", "acquisition.n_starts=1", f"results_dir={tmp_path}"]
    _, folder = record_run(Composition.of(compose(*settings)))
    ours = found(sometimes, on_failure="penalty").to_pandas()
    assert pq.read_table(folder / "rounds.parquet").to_pandas().equals(ours)
    log = (folder / "failures.log").read_text()
    assert log.count("Traceback (most recent call last)") == (ours["x.depth"] % 2).sum()
    assert 'raise RuntimeError("sensor off")' in log
    assert (folder / "failures.log").stat().st_mode & 0o077 == 0


def test_a_run_that_stops_keeps_the_traceback(tmp_path):
    broken = ["problem=custom", "problem.function=tests.helpers.objectives:broken", "problem.n_agents=2"]
    broken += ["problem.lower=[0]", "problem.upper=[1]", "tracker.wandb.mode=disabled", f"results_dir={tmp_path}"]
    cfg = compose(*broken)
    with pytest.raises(EvaluationError, match="raised RuntimeError: sensor off"):
        record_run(Composition.of(cfg))
    (log,) = tmp_path.rglob("failures.log")
    assert 'raise RuntimeError("sensor off")' in log.read_text()


# --- processes


def evaluated(function, k=4, n_agents=3, **settings):
    problem = Custom(function, (0.0,), (1.0,), n_agents, **settings)
    x = (torch.arange(n_agents * k, dtype=torch.float64) / (n_agents * k) + 1e-9).reshape(n_agents, k, 1)
    return problem.evaluate(torch.arange(n_agents), x, dpfbo.Streams(0), 0)


def test_processes_give_the_values_of_one():
    shift = 0.25  # the function is one that no other process can import

    def local(agent, x):
        return agent + float(x[0]) - shift

    assert evaluated(local, n_jobs=2).equal(evaluated(local))


FAILURES = {
    1: "took longer than timeout=1 seconds",
    2: r"ended its process \(exit code 7\)",
    3: "raised SystemExit: 3",
    4: "raised RuntimeError: sensor off",
    5: "must return a number, got",
    6: "must return a finite number, got nan",
}


def moody(agent, x):
    """A function that fails at the last point of agents 1 to 6, of each in another way."""
    if round(x[0] * 28) % 4 == 3:
        match agent:
            case 1:
                time.sleep(60)
            case 2:
                os._exit(7)
            case 3:
                sys.exit(3)
            case 4:
                raise RuntimeError("sensor off")
            case 5:
                return "high"
            case 6:
                return math.nan
    return 1.0


def test_a_call_that_fails_in_a_process_is_one_failed_evaluation(caplog):
    with caplog.at_level(logging.WARNING, logger="dpfbo.problems"):
        y = evaluated(moody, n_agents=7, on_failure="penalty", n_jobs=2, timeout=1.0)
    assert y.isnan().sum(1).tolist() == [0, 1, 1, 1, 1, 1, 1] and (y == 1).sum() == 22
    for agent, sentence in FAILURES.items():
        (record,) = [r for r in caplog.records if f"agent {agent}," in r.getMessage()]
        assert re.search(f"{sentence}.*: it counts as the worst value so far", record.getMessage())
        assert ("Traceback" in record.traceback) == (agent in (3, 4))


@pytest.mark.parametrize("agent", [1, 4])
def test_a_call_that_fails_in_a_process_stops_the_run(agent):
    def only_one(other, x):
        return moody(agent, x) if other == 0 else 1.0  # its fourth point is the fourth of all

    with pytest.raises(EvaluationError, match=FAILURES[agent]):
        evaluated(only_one, n_agents=7, n_jobs=2, timeout=1.0)


def test_failed_calls_are_repeated_in_processes(tmp_path):
    def third_time(agent, x):
        with open(tmp_path / str(agent), "a") as calls:
            calls.write("+")
        return len((tmp_path / str(agent)).read_text()) if len((tmp_path / str(agent)).read_text()) > 2 else math.nan

    y = evaluated(third_time, k=1, on_failure="penalty", retries=2, n_jobs=2)
    assert y.tolist() == [[3.0]] * 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_jobs": 0}, "n_jobs must be an integer of at least 1, got 0"),
        ({"timeout": 0}, "timeout must be a finite number above 0, got 0"),
        ({"on_failure": "skip"}, "on_failure must be one of 'stop', 'penalty', got 'skip'"),
        ({"retries": -1}, "retries must be"),
    ],
)
def test_other_policies_are_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        Custom(tuned, space=SPACE, **settings)


class Odd:
    """A result that cannot be read or shown."""

    def __float__(self):
        raise KeyError("lost")

    def __repr__(self):
        raise KeyError("lost")


@pytest.mark.parametrize("more", [{}, {"n_jobs": 2}])
def test_a_result_that_cannot_be_read_is_a_failed_evaluation(more):
    y = evaluated(lambda agent, x: Odd() if agent else 1.0, n_agents=2, on_failure="penalty", **more)
    assert y[1].isnan().all() and (y[0] == 1).all()
    with pytest.raises(EvaluationError, match="must return a number, got a value of type Odd$"):
        evaluated(lambda agent, x: Odd(), n_agents=1)


def test_an_objective_may_change_the_configuration_that_it_gets():
    calls = []

    def greedy(agent, x):
        calls.append(x.pop("x"))
        if len(calls) == 1:
            raise RuntimeError("sensor off")
        return calls[-1]

    result = dpfbo.optimize(greedy, {"x": dpfbo.Float(0, 1)}, 1, "ts", rounds=1, n_init=1, retries=1)
    assert calls[0] == calls[1] and result.to_pandas()["y"].tolist() == calls[1:]
