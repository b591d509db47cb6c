"""Trials that a scheduler of Tune stops early, and the numbers that Tune gets."""

import json
import math
from numbers import Number

import pytest

from runners import status
from runners.sweep import command
from runners.sweep.attempt import Report
from runners.sweep.plan import plan
from runners.sweep.trials import TrialState, forget_failure, record_stop, state
from tests.helpers.compose import with_seed

TINY = [
    "problem=branin", "problem.n_agents=4", "rounds=8", "algorithm.M=10", "acquisition.n_candidates=20",
    "acquisition.n_starts=1", "tracker.wandb.mode=disabled", "privacy.accountants=[moments,rdp,fixed_size,gdp]",
    "privacy.accountant=rdp", "experiment_name=mine", "algorithm=ts,random_server,fts,dp_fts_de", "seeds=0,1",
]  # fmt: skip
ASHA = [
    "sweep.scheduler=asha", "sweep.scheduler_options.grace_period=2", "sweep.scheduler_options.reduction_factor=2"
]  # fmt: skip


@pytest.mark.parametrize(
    "reported",
    [TrialState("running", 3, 0.5, 1.5), TrialState("failed", error="x"), TrialState("done", 4, 0.5, math.inf)],
)
def test_tune_gets_few_numbers_and_the_listener_all(reported):
    told = Report(reported, [("kind", "text")]).for_tune()
    numbers = {key: value for key, value in told.items() if isinstance(value, Number)}
    assert numbers.keys() == {"round", "mean", "epsilon"}  # Tune keeps statistics of each
    assert told["round"] == (reported.round or 0)
    assert told["mean"] == reported.mean or (math.isnan(told["mean"]) and reported.mean is None)
    assert Report.of(told).state == reported


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_trials_are_compared_with_those_of_their_seed(scheduler):
    """Seed 1 is harder for all settings, and its best trial still goes on."""
    from types import SimpleNamespace

    from runners.sweep.tune import _scheduler, _SeedBySeed

    given = ["sweep.scheduler_options.grace_period=1", "sweep.scheduler_options.min_samples_required=2"]
    sweep = plan([*TINY, *ASHA, *given, f"sweep.scheduler={scheduler}"])
    judge = _SeedBySeed(lambda: _scheduler(sweep.options.early_stopping, sweep.settings))
    trials = [SimpleNamespace(config={"trial": (s, seed)}, trial_id=f"{s} {seed}") for seed in (0, 1) for s in range(4)]
    trials = [type("Stub", (), vars(t))() for t in trials]  # hashable, as Tune's are
    stopped, controller = set(), SimpleNamespace(get_live_trials=lambda: trials)
    for trial in trials:
        judge.on_trial_add(controller, trial)
    for round in (0, 1, 2, 3):
        for trial in trials:
            setting, seed = trial.config["trial"]
            result = {"round": round, "mean": setting + 100 * seed + 1 / (1 + round), "told": "x" * 1000}
            if trial.trial_id not in stopped and judge.on_trial_result(controller, trial, result) == "STOP":
                stopped.add(trial.trial_id)
    assert {"3 0", "3 1"} <= stopped and not {"0 0", "0 1"} & stopped
    failed = Report(TrialState("failed", error="x")).for_tune()
    judge.on_trial_result(controller, trials[0], failed)
    judge.on_trial_complete(controller, trials[0], failed)
    assert judge.on_trial_result(controller, trials[1], {"round": 5, "mean": 0.1}) != "STOP"


def test_state_of_a_stopped_trial(tmp_path):
    setting = plan([*TINY, f"results_dir={tmp_path}"]).settings[0]
    folder = setting.trial(0).folder(setting.folder)
    folder.path.mkdir(parents=True)
    record_stop(folder, "asha", TrialState("running", 4, 0.25, 1.0))
    assert state(folder) == TrialState("interrupted", 4, 0.25, stopped_by="asha")
    with folder.opened():
        assert state(folder).phase == "running"
    forget_failure(folder)
    assert state(folder) == TrialState("waiting")


@pytest.mark.slow
def test_stopped_trials_go_on_without_the_scheduler(tmp_path, monkeypatch, capfd):
    import ray

    line = [*TINY, f"results_dir={tmp_path}", "sweep.max_concurrent=2"]
    experiment = tmp_path / "mine"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert command.main([*line, *ASHA, "sweep.tensorboard=true", "--json"]) == 0
        report = json.loads(capfd.readouterr().out)
        early = [trial for trial in report["trials"] if trial["stopped_by"] == "asha"]
        done = [trial for trial in report["trials"] if trial["state"] == "done"]
        assert early and done and len(early) + len(done) == 8
        assert all(trial["state"] == "interrupted" and 2 <= trial["round"] < 8 for trial in early)
        assert len(list(experiment.glob("tensorboard/*/*/events*"))) == 8
        assert status.main(["mine", f"results_dir={tmp_path}"]) == 0
        assert f"mine: {len(done)} of 8 done, {len(early)} stopped early" in capfd.readouterr().out
        before = sorted(experiment.rglob("*"))
        assert command.main([*line, *ASHA]) == 0
        assert f"{len(early)} were stopped early and are skipped" in capfd.readouterr().err
        assert sorted(experiment.rglob("*")) == before
        assert command.main(line) == 0
        assert "8 of 8 done" in capfd.readouterr().out
    finally:
        ray.shutdown()
    assert not list(experiment.rglob("stopped.json"))
    from runners.recorded_run import run_configuration

    (setting,) = [s for s in plan(line).settings if s.name == early[0]["setting"]]
    cfg = with_seed(setting, early[0]["seed"])
    cfg.results_dir = str(tmp_path / "alone")
    _, alone = run_configuration(cfg)
    ours = setting.trial(early[0]["seed"]).folder(experiment).path
    assert (ours / "rounds.parquet").read_bytes() == (alone / "rounds.parquet").read_bytes()
    assert (ours / "ledger.jsonl").read_bytes() == (alone / "ledger.jsonl").read_bytes()
