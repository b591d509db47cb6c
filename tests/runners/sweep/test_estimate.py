"""What `--estimate` and the first line of a sweep say, and that an estimate leaves no files."""

import json
import shutil

import pytest

from runners.recorded_run import run_configuration
from runners.sweep import command, durations, estimate, execution
from runners.sweep.plan import plan
from runners.sweep.shared_runs import plan_all
from runners.sweep.trials import states_of
from tests.helpers.compose import with_seed

TINY = [
    "problem.n_agents=4", "rounds=4", "algorithm.M=10", "privacy.accountants=[moments,rdp,fixed_size,gdp]",
    "privacy.accountant=rdp", "tracker.wandb.mode=disabled",
]  # fmt: skip
MINE = ["problem=branin", "experiment_name=mine", *TINY]


def finish(line, seconds, n=1):
    """Run the first trials of a sweep in this process, and let their summaries say that they took some seconds."""
    for setting, trial in plan(line).trials[:n]:
        _, folder = run_configuration(with_seed(setting, trial.seed))
        summary = json.loads((folder / "summary.json").read_text())
        summary["seconds"]["total"] = seconds - durations.OVERHEAD
        (folder / "summary.json").write_text(json.dumps(summary))


def estimated(line, capsys):
    """The rows of `--estimate`."""
    assert command.main([*line, "--estimate", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def no_probe(monkeypatch):
    monkeypatch.setattr(estimate, "_probe", lambda setting: pytest.fail("nothing needs a probe"))


@pytest.fixture
def probes(monkeypatch):
    """Probes say two seconds and 100 bytes a round; the value lists their settings."""
    asked = []

    def probe(setting):
        asked.append(setting)
        return durations.TrialCost(2.0, 100.0)

    monkeypatch.setattr(estimate, "_probe", probe)
    return asked


def test_finished_trials_of_the_setting_say_how_long_the_others_take(tmp_path, capsys, no_probe):
    line = [*MINE, "algorithm=ts", "seeds=0..4", f"results_dir={tmp_path}"]
    finish(line, seconds=3600.0, n=2)
    (row,) = estimated(line, capsys)
    assert (row["to_run"], row["finished"], row["unknown"], row["source"]) == (3, 2, 0, "finished trials")
    assert row["seconds_per_trial"] == pytest.approx(3600.0) and row["core_hours"] == pytest.approx(3.0)
    size = sum(file.stat().st_size for file in (tmp_path / "mine").rglob("*/0/*"))
    assert row["bytes"] == pytest.approx(3 * size, rel=0.05)


def test_finished_trials_of_the_problem_and_algorithm_count_by_the_round(tmp_path, capsys, probes):
    finish([*MINE, "algorithm=fts", "rounds=2", f"results_dir={tmp_path}", "experiment_name=old"], seconds=10.0)
    rows = estimated([*MINE, "algorithm=fts", "rounds=8", f"results_dir={tmp_path}"], capsys)
    assert rows[0]["seconds_per_trial"] == pytest.approx(40.0) and rows[0]["source"] == "finished trials"
    assert not probes
    # another algorithm, or the same problem with other settings, is another matter
    others = [["algorithm=ts"], ["algorithm=fts", "problem.n_agents=5"]]
    for other in others:
        rows = estimated([*MINE, *other, f"results_dir={tmp_path}"], capsys)
        assert rows[0]["source"] == "probe"
    assert len(probes) == 2


def test_one_probe_for_each_problem_and_algorithm_and_nothing_is_written(tmp_path, capsys, probes):
    line = [*MINE, "algorithm=ts,dp_fts", "privacy.z=1,2", "seeds=0..1", f"results_dir={tmp_path / 'r'}"]
    (row,) = estimated(line, capsys)
    assert [setting.cfg.algorithm.name for setting in probes] == ["ts", "dp_fts"]
    assert row["to_run"] == 6 and row["finished"] == 0
    assert row["seconds_per_trial"] == pytest.approx(2.0 * 4 + durations.OVERHEAD)
    assert row["bytes"] == pytest.approx(6 * 4 * 100)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("algorithm", ["ts", "dp_fts_de", "dp_prior"])
def test_a_probe_runs_the_first_rounds_and_leaves_no_files(algorithm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(estimate, "_PROBE_SECONDS", 0.0)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "t").mkdir()
    line = [*MINE, f"algorithm={algorithm}", "rounds=1000", f"results_dir={tmp_path / 'r'}"]
    (row,) = estimated(line, capsys)
    assert 0 < row["seconds_per_trial"] < 1000 and row["bytes"] > 1000  # a thousand rounds, of which it ran a few
    assert [path.name for path in tmp_path.rglob("*")] == ["t"]


def test_a_probe_makes_no_real_releases(tmp_path, capsys, no_probe):
    line = [*MINE, "algorithm=dp_fts", "privacy.rng=os", f"results_dir={tmp_path}"]
    (row,) = estimated(line, capsys)
    assert (row["to_run"], row["unknown"], row["core_hours"]) == (1, 1, 0.0)


def test_a_trial_that_experiments_share_counts_once(tmp_path, capsys, probes):
    line = ["experiment=fig2c,fig2d", *TINY, "seeds=0,1", f"results_dir={tmp_path}"]
    assert [row["to_run"] for row in estimated(line, capsys)] == [10, 4]
    finish(["experiment=fig2c", *line[1:]], seconds=5.0, n=5)
    assert [(row["to_run"], row["finished"]) for row in estimated(line, capsys)] == [(5, 5), (4, 0)]
    assert command.main([*line, "--estimate"]) == 0
    assert "9 trials to run: about" in " ".join(capsys.readouterr().out.split())


def test_the_expected_end_counts_trials_that_run_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4))

    def wall(*more):
        line = [*MINE, "algorithm=ts", "seeds=0..8", f"results_dir={tmp_path}", *more]
        finish(line, seconds=100.0)
        sweeps = plan_all(line)
        states = [states_of(sweep.folder, (trial for _, trial in sweep.trials)) for sweep in sweeps]
        (found,) = estimate.estimates(sweeps, states, estimate.Costs(sweeps, None))
        shutil.rmtree(tmp_path / "mine")
        return found.wall_seconds - estimate._START

    assert wall() == pytest.approx(200.0)
    assert wall("sweep.max_concurrent=1") == pytest.approx(800.0)
    assert wall("sweep.cpus_per_trial=2") == pytest.approx(400.0)
    assert wall("seeds=0,1") == pytest.approx(100.0)
    assert wall("launcher=slurm", "launcher.nodes=1", "launcher.cpus_per_task=8") == pytest.approx(100.0)


def test_the_start_of_a_sweep_says_what_finished_trials_tell(tmp_path, monkeypatch, capsys, no_probe):
    monkeypatch.setattr(execution, "_run", lambda sweep, others, ray, console: (execution._states(sweep), []))
    line = [*MINE, "algorithm=ts", "seeds=0..3", f"results_dir={tmp_path}"]
    command.main(line)
    assert "4 trials to run, of unknown length: --estimate probes them\n" in capsys.readouterr().err
    finish(line, seconds=1800.0, n=2)
    command.main(line)
    assert "2 trials to run: about 1 core hours, until " in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["{", '{"seconds": 3}', '{"seconds": {"total": "x"}, "rounds": 1}'])
def test_a_damaged_summary_is_no_finished_trial(damage, tmp_path):
    (tmp_path / "mine" / "abc" / "0").mkdir(parents=True)
    (tmp_path / "mine" / "abc" / "0" / "summary.json").write_text(damage)
    config = {"problem": {}, "algorithm": {"name": "ts"}}
    assert durations.FinishedTrials(tmp_path.glob("*/*/")).cost("abc", "branin", config, 3) is None


def test_the_gpus_of_a_trials_actors_count(tmp_path, capsys, probes):
    line = [*MINE, "algorithm=ts", "seeds=0", "executor=ray", "executor.num_gpus=0.25", f"results_dir={tmp_path}"]
    by_actors = [estimated([*line, f"executor.agents_per_actor={n}"], capsys)[0] for n in (10**6, "auto")]
    hours = by_actors[0]["seconds_per_trial"] / 3600
    assert [row["gpu_hours"] for row in by_actors] == [pytest.approx(0.25 * hours)] * 2  # no GPU: one actor's share
