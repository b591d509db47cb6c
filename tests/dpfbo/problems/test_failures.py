"""Failed evaluations: they stop a run, or count as the agent's worst value so far."""

import logging

import pyarrow.parquet as pq
import pytest
import torch

import dpfbo
from dpfbo import Acquisition, Custom, SettingError
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
    for agent, own in frame.groupby("agent"):
        values = {}
        for t, batch in own.groupby("round"):
            good = batch[batch["x.depth"] % 2 == 0]
            for row, x in good.iterrows():
                values[row] = tuned(agent, {"rate": x["x.rate"], "depth": x["x.depth"], "kind": x["x.kind"]})
                assert x["y"] == pytest.approx(values[row])
            worst = min(values.values(), default=0.0)
            assert (batch["y"].drop(good.index) == worst).all(), (agent, t)


def test_a_run_whose_evaluations_all_fail_ends_like_any_other():
    frame = found(lambda agent, x: 1 / 0, on_failure="penalty").to_pandas()
    assert (frame["y"] == 0).all() and len(frame) == 6 * 7


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
    _, folder = record_run(Composition(compose(*settings)))
    ours = found(sometimes, on_failure="penalty").to_pandas()
    assert pq.read_table(folder / "rounds.parquet").to_pandas().equals(ours)
    log = (folder / "failures.log").read_text()
    assert log.count("Traceback (most recent call last)") == (ours["x.depth"] % 2).sum()
    assert 'raise RuntimeError("sensor off")' in log


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"on_failure": "skip"}, "on_failure must be one of stop, penalty, got 'skip'"),
        ({"retries": -1}, "retries must be"),
    ],
)
def test_other_policies_are_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        Custom(tuned, space=SPACE, **settings)
