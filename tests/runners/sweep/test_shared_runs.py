"""Several experiments in one sweep, and the scales of an experiment."""

import json
import sys
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pandas as pd
import pytest
from omegaconf import OmegaConf

from dpfbo.formats.run_folder import Progress, ResultsError, RunFolder
from dpfbo.problems.readers.data_files import MissingData
from runners import status
from runners.compose.conf_folder import CONF
from runners.compose.sweep_line import SweepError
from runners.recorded_run import run_configuration
from runners.sweep import command, results_folder, shared_runs
from runners.sweep.plan import plan
from runners.sweep.shared_runs import copy_shared, each_once, plan_all, sharing
from runners.sweep.trials import TrialState, known_trials, state
from tests.helpers.compose import compose, with_seed

TINY = [
    "problem.n_agents=4", "rounds=2", "algorithm.M=10", "privacy.accountants=[moments,rdp,fixed_size,gdp]",
    "privacy.accountant=rdp", "tracker.wandb.mode=disabled",
]  # fmt: skip
BOTH = ["experiment=fig2c,fig2d", *TINY, "seeds=0,1"]


@pytest.fixture
def here(monkeypatch):
    """Run trials in this process, one after another; the value lists the label and seed of each."""
    from runners.sweep import attempt, tune

    ran = []

    def run_trials(todo, options, table):
        for setting, trial in todo:
            ran.append((trial.label, trial.seed))
            table.update(trial, attempt.attempt(with_seed(setting, trial.seed), lambda *_: None))
        return []

    monkeypatch.setattr(tune, "run_trials", run_trials)
    monkeypatch.setattr(tune, "cluster", lambda options: nullcontext())
    return ran


def test_an_experiment_that_stands_for_others_is_all_of_them(monkeypatch):
    """Nothing is planned here: the experiments of `few` need data."""
    parts = compose("experiment=few").sweep.experiments
    assert all((CONF / "experiment" / f"{part}.yaml").is_file() for part in parts) and len(set(parts)) == 6
    planned = []

    def record(arguments, say):
        planned.append(arguments)
        options = SimpleNamespace(alone=False)
        return SimpleNamespace(experiment=arguments[0], folder=arguments[0], settings=[], options=options)

    monkeypatch.setattr(shared_runs, "plan", record)
    monkeypatch.setattr(shared_runs, "_check_shareable", lambda sweeps: None)
    assert len(plan_all(["experiment=few", "scale=paper"])) == 6
    assert planned == [[f"experiment={part}", "scale=paper"] for part in parts]
    with pytest.raises(SweepError, match="must be different names"):
        plan_all(["experiment=few,few_school"])
    with pytest.raises(SweepError, match="experiment_name cannot be given"):
        plan_all(["experiment=few", "experiment_name=mine"])


def test_paper_is_every_figure_and_table_of_both_papers(monkeypatch):
    parts = compose("experiment=paper").sweep.experiments
    known = {file.stem for file in (CONF / "experiment").glob("*.yaml")}
    assert set(parts) == {n for n in known if n.startswith(("fig", "po_"))} | {"control", "cost"}
    assert len(parts) == len(set(parts))
    given = shared_runs.command_lines(["experiment=paper", "scale=paper"])
    assert given == [[f"experiment={part}", "sweep.report=true", "scale=paper"] for part in parts]


def test_an_experiment_that_measures_time_comes_last_and_shares_no_trial(monkeypatch):
    def planned(arguments, say):
        return plan([*arguments, f"sweep.alone={str('fig2c' in arguments[0]).lower()}"])

    monkeypatch.setattr(shared_runs, "plan", planned)
    sweeps = plan_all(["experiment=fig2c,fig2d,fig2b", *TINY, "seeds=0"])
    assert [sweep.experiment for sweep in sweeps] == ["fig2d", "fig2b", "fig2c"]
    shared, alone = sweeps[:2], sweeps[2]
    assert sharing(alone, sweeps) == [] and sharing(shared[0], sweeps) == [shared[1]]
    states = [dict.fromkeys((t.key for _, t in sweep.trials), TrialState("waiting")) for sweep in sweeps]
    counts = Counter(once.sweep.experiment for once in each_once(sweeps, states))
    assert counts["fig2c"] == len(alone.trials)
    assert counts["fig2d"] + counts["fig2b"] == len({t.key for sweep in shared for _, t in sweep.trials})
    # a trial that is finished where it is not measured is still to be measured
    states[0] = dict.fromkeys(states[0], TrialState("done"))
    done = [once for once in each_once(sweeps, states) if once.state.phase == "done"]
    assert all(once.sweep is not alone for once in done) and len(done) == len(states[0])


def test_missing_data_are_told_together_and_may_be_left_out(tmp_path, caplog):
    line = ["experiment=fig12b,fig2c,fig3_activity,fig11", *TINY, f"data_dir={tmp_path}"]
    with pytest.raises(MissingData) as refusal:
        plan_all(line)
    said = str(refusal.value)
    assert said.startswith("the data of fig12b, fig3_activity, fig11 are missing: ")
    assert f'"python -m runners.fetch landmine har data_dir={tmp_path}"' in said
    assert "sweep.skip_missing=true" in said
    (sweep,) = plan_all([*line, "sweep.skip_missing=true"])
    assert sweep.experiment == "fig2c"
    assert "left out, since their data are missing: fig12b, fig3_activity, fig11" in caplog.text
    with pytest.raises(MissingData, match="the data of fig12b, fig11 are missing"):
        plan_all(["experiment=fig12b,fig11", *line[1:], "sweep.skip_missing=true"])


def test_results_are_written_into_one_folder(here, tmp_path, capfd):
    line = ["experiment=fig2c,fig10_activity,demo", *TINY, "seeds=0", f"results_dir={tmp_path}", "sweep.report=true"]
    line += ["sweep.skip_missing=true", f"data_dir={tmp_path}", "privacy.accountants=[pld,rdp]"]
    assert command.main(line) == 0
    folder = tmp_path / "fig2c+fig10_activity+demo"
    assert str(folder) in capfd.readouterr().err.splitlines()[-1]
    assert {path.name for path in folder.iterdir()} == {
        "figures",
        "tables.txt",
        "claims.md",
        "claims.csv",
        "report.html",
    }
    assert {path.name.partition("_")[0] for path in (folder / "figures").iterdir()} == {"fig2c", "demo"}
    tables = (folder / "tables.txt").read_text()
    assert "fig2c" in tables and "demo" in tables
    assert "fig2c" in (folder / "claims.csv").read_text()
    assert [path.name for path in status.experiments(tmp_path)] == ["demo", "fig2c"]  # the folder is none of these


def test_results_that_cannot_be_written_are_a_failure(here, tmp_path, monkeypatch, capsys):
    ran = []

    def run(line, **options):
        ran.append(line[2])
        return SimpleNamespace(returncode=int(line[2] == "analysis.claims"), stdout="")

    monkeypatch.setattr(results_folder.subprocess, "run", run)
    assert command.main(["experiment=fig2c", *TINY, "seeds=0", f"results_dir={tmp_path}", "sweep.report=true"]) == 1
    assert ran == ["analysis.figures", "analysis.tables", "analysis.claims", "analysis.report"]
    assert "incomplete, because of the errors above: claims" in capsys.readouterr().err


def test_what_experiments_share_runs_once(here, tmp_path, capsys):
    line = [*BOTH, f"results_dir={tmp_path}"]
    sweeps = plan_all(line)
    keys = [{trial.key for _, trial in sweep.trials} for sweep in sweeps]
    assert len(keys[0] & keys[1]) == 6  # ts, the control, and z = 1 at q = .25: two seeds each
    assert command.main(line) == 0
    assert len(here) == len(keys[0] | keys[1]) == 14
    out = capsys.readouterr().out
    assert out.count("10 of 10 done") == 2
    for sweep in sweeps:
        assert {trial.key for trial in known_trials(sweep.folder)} == {trial.key for _, trial in sweep.trials}
        for _, trial in sweep.trials:
            folder = trial.folder(sweep.folder)
            summary = json.loads((folder.path / "summary.json").read_text())
            assert state(folder).phase == "done"
            assert (
                summary["experiment"] == OmegaConf.load(folder.path / "config.yaml").experiment_name == sweep.experiment
            )
    setting, seed = sorted(keys[0] & keys[1])[0]
    tables = [pd.read_parquet(sweep.folder / setting / str(seed) / "rounds.parquet") for sweep in sweeps]
    pd.testing.assert_frame_equal(*tables)

    here.clear()
    (sweeps[1].folder / setting / str(seed) / "summary.json").unlink()  # as if interrupted before it was copied
    assert command.main(line) == 0
    assert here == []
    assert state(known_trials(sweeps[1].folder)[0].folder(sweeps[1].folder)).phase == "done"
    assert (sweeps[1].folder / setting / str(seed) / "summary.json").exists()


def test_a_copy_replaces_a_begun_run_and_leaves_a_busy_folder_alone(here, tmp_path, capsys):
    line = [*BOTH, "seeds=0", f"results_dir={tmp_path}"]
    first, second = plan_all(line)
    begun, busy = (next(t for s, t in second.trials if s.label.startswith(name)) for name in ("ts", "random_server"))
    folder = begun.folder(second.folder)
    folder.path.mkdir(parents=True)
    folder.note_progress(Progress(0, 2, 0.5, 0.0, {}, {}))
    assert command.main(["experiment=fig2c", *line[1:], "progress=false"]) == 0
    with busy.folder(second.folder).opened():
        copy_shared(second, [first])
    phases = {trial.key: state(trial.folder(second.folder)).phase for _, trial in second.trials}
    assert phases[begun.key] == "done" and phases[busy.key] == "waiting"
    assert list(phases.values()).count("done") == 2  # ts, whose begun run is replaced, and z = 1
    copy_shared(second, [first])
    assert state(busy.folder(second.folder)).phase == "done"


def test_as_json_a_list(tmp_path, capsys):
    assert command.main([*BOTH, f"results_dir={tmp_path}", "--dry-run", "--json"]) == 0
    assert [report["experiment"] for report in json.loads(capsys.readouterr().out)] == ["fig2c", "fig2d"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["experiment=fig2c,fig2d", "experiment_name=mine"], "experiment_name cannot be given to several experiments"),
        (["experiment=fig2c,fig2c"], "experiments must be different names between commas, got 'fig2c,fig2c'"),
        (["experiment=fig2c,"], "experiments must be different names between commas, got 'fig2c,'"),
        (["experiment=fig2c,fig99"], "unknown experiment 'fig99'"),
        (["experiment=fig2c,fig2d", "privacy.rng=os"], "privacy.rng=seeded, got 'os' in fig2c"),
        (["experiment=fig2c,cost"], "python -m runners.fetch landmine"),
        (["experiment=fig2c", "scale=large"], "scale must be one of 'quick', 'paper', got 'large'"),
        (["experiment=demo", "scale=paper"], "scale=paper needs an experiment that has sweep.scales"),
        (["experiment=fig2c", "sweep.scales={quick: 3}"], "sweep.scales must have seeds"),
    ],
)
def test_refused(overrides, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "runners.sweep.tune", None)
    more = [] if any("demo" in o or "sweep" in o for o in overrides) else TINY
    assert command.main([*overrides, *more, f"results_dir={tmp_path / 'r'}", f"data_dir={tmp_path}"]) != 0
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert says in error
    assert not (tmp_path / "r").exists()


def test_scales_have_seeds_and_perhaps_more_settings():
    scales = "sweep.scales={quick: {seeds: 0..1}, paper: {seeds: 0..3, also: ['algorithm=fts']}}"
    given = [*TINY, scales, "sweep.settings=['algorithm=ts']"]
    quick, paper = plan(given), plan([*given, "scale=paper"])
    assert ([s.label for s in quick.settings], quick.seeds) == (["ts"], (0, 1))
    assert ([s.label for s in paper.settings], paper.seeds) == (["ts", "fts"], (0, 1, 2, 3))
    assert quick.settings[0].name == paper.settings[0].name
    assert plan([*given, "scale=paper", "seeds=7"]).seeds == (7,)


def test_a_real_run_is_not_copied(tmp_path):
    cfg = compose("algorithm=ts", *TINY, "privacy.rng=os", "experiment_name=one", f"results_dir={tmp_path}")
    _, source = run_configuration(cfg)
    target = RunFolder(tmp_path / "two" / source.parent.name / "0")
    with pytest.raises(ResultsError, match="is a real run: its releases happened once"):
        shared_runs.copy(source, target)
    assert not (tmp_path / "two").exists()
    private = ("rounds.parquet", "summary.json")
    assert all((source / name).stat().st_mode & 0o077 == 0 for name in private)
