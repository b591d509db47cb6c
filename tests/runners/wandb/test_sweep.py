"""A sweep in W&B: its runs, those it copied, and its summary, offline and on a stand-in for the server."""

import json
import logging
from contextlib import nullcontext

import pytest
from rich.console import Console

from analysis import claims
from dpfbo.formats.run_folder import RunFolder
from runners.recorded_run import run_configuration
from runners.sweep import command, shared_runs
from runners.wandb import command as wandb_command
from runners.wandb import summary_run
from runners.wandb.backfill import log_experiment, log_sweep
from runners.wandb.finished_runs import finished_runs, settings_table
from tests.helpers.compose import compose, with_seed
from tests.helpers.wandb_records import of_kind, own_wandb, records_in, values  # noqa: F401

pytest.importorskip("wandb")

TINY = [
    "problem.n_agents=4", "rounds=2", "algorithm.M=10", "privacy.accountants=[moments,rdp]", "privacy.accountant=rdp",
    "progress=false", "seeds=0,1",
]  # fmt: skip
SWEEP = ["problem=synthetic", "problem.grid_size=30", "algorithm=ts,dp_fts_de", "experiment_name=mine", *TINY]


@pytest.fixture
def here(monkeypatch):
    """Run trials in this process, one after another."""
    from runners.sweep import attempt, tune

    def run_trials(todo, options, table):
        for setting, trial in todo:
            table.update(trial, attempt.attempt(with_seed(setting, trial.seed), lambda *_: None))
        return []

    monkeypatch.setattr(tune, "run_trials", run_trials)
    monkeypatch.setattr(tune, "cluster", lambda options: nullcontext())


def sent_table(run, name):
    (found,) = [json.loads(content) for path, content in run.files.items() if path.startswith(f"media/table/{name}_")]
    return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]


def test_an_online_sweep_is_all_on_the_server(here, server, tmp_path):
    line = [*SWEEP, f"results_dir={tmp_path}", "tracker.wandb.mode=online"]
    assert command.main(line) == 0
    trials = [run for run in server.runs.values() if run.facts.get("jobType") == "trial"]
    (summary,) = [run for run in server.runs.values() if run.facts.get("jobType") == "summary"]
    on_disk = finished_runs(tmp_path / "mine")
    assert len(trials) == len(on_disk) == 4
    assert {run.facts["groupName"] for run in server.runs.values()} == {"mine"}
    assert all(run.exit_code == 0 for run in server.runs.values())

    by_label = {}
    for run in trials:
        by_label.setdefault(run.config["label"], []).append(run)
        assert [row["round"] for row in run.history if "round" in row] == [0, 1, 2]
        private = run.config["method"] == "dp_fts_de"
        assert (run.config["privacy"]["q"] is not None) == private
    assert {label: len(runs) for label, runs in by_label.items()} == dict.fromkeys(by_label, 2) and len(by_label) == 2
    assert {run.config["setting"] for run in trials} == {run.summary["setting"] for run in on_disk}

    rows = {row["label"]: row for row in sent_table(summary, "settings")}
    assert rows.keys() == by_label.keys()
    for label, runs in by_label.items():
        final = [run.summary["final_regret"] for run in runs]
        assert rows[label]["final"] == pytest.approx(sum(final) / 2)
        assert rows[label]["final_se_over_seeds"] == pytest.approx(abs(final[0] - final[1]) / 2)
        assert rows[label]["seeds"] == "0, 1" and rows[label]["epsilon_rdp"] is not None

    before = {name: len(run.posts) for name, run in server.runs.items()}
    assert command.main(line) == 0  # all is done: nothing is logged again
    assert {name: len(run.posts) for name, run in server.runs.items()} == before
    assert command.main([*line[:-3], "seeds=0..2", *line[-2:]]) == 0
    assert sent_seeds(server) == "0, 1, 2", "the same summary run says more"


def sent_seeds(server):
    (summary,) = [run for run in server.runs.values() if run.facts.get("jobType") == "summary"]
    assert summary.config["seeds"] == [0, 1, 2]
    newest = [
        json.loads(content) for path, content in summary.files.items() if path.startswith("media/table/settings_")
    ]
    return newest[-1]["data"][0][newest[-1]["columns"].index("seeds")]


def test_copied_trials_are_logged_in_their_own_group(here, own_wandb, tmp_path):  # noqa: F811
    line = ["experiment=fig2c,fig2d", *TINY[:-1], "seeds=0", f"results_dir={tmp_path}"]
    assert command.main(line) == 0
    for name in ("fig2c", "fig2d"):
        runs = finished_runs(tmp_path / name)
        assert len(runs) == 5
        groups = [of_kind(run.folder, "run")[0].run_group for run in runs]
        assert groups == [name] * 5
        assert len(list((tmp_path / name / "wandb").glob("offline-run-*"))) == 6


def test_the_summary_has_the_claims_that_analysis_judged(here, own_wandb, tmp_path, capsys):  # noqa: F811
    line = ["experiment=fig2c", *TINY[:-1], "seeds=0", f"results_dir={tmp_path}", "tracker.wandb.mode=disabled"]
    assert command.main(line) == 0
    assert not (tmp_path / "fig2c" / "wandb").exists()
    assert claims.main(["fig2c", f"results_dir={tmp_path}", "--keep"]) == 0
    kept = json.loads((tmp_path / "fig2c" / "claims.json").read_text())["findings"]
    assert log_experiment(tmp_path / "fig2c", "offline", only=[]).summary
    (sent,) = (tmp_path / "fig2c" / "wandb").glob("offline-run-*-sweep*/files/media/table/claims_*.json")
    found = json.loads(sent.read_text())
    column = found["columns"].index("verdict")
    assert [row[column] for row in found["data"]] == [claim["verdict"] for claim in kept] != []
    assert not log_experiment(tmp_path / "fig2c", "offline", only=[]).summary, "it did not change"


def test_real_releases_have_no_metric_in_the_table(here, own_wandb, tmp_path):  # noqa: F811
    line = ["problem=branin", "algorithm=dp_fts_de", "privacy.rng=os", "experiment_name=mine", *TINY]
    assert command.main([*line, f"results_dir={tmp_path}"]) == 0
    (row,) = settings_table(finished_runs(tmp_path / "mine"))
    assert row["final"] is None and row["final_se_over_seeds"] is None and row["epsilon_rdp"] > 0
    assert list((tmp_path / "mine" / "wandb").glob("*-sweep*"))


def made(folder, *more):
    line = ["problem=synthetic", "problem.grid_size=30", *TINY[:-1], "tracker.wandb.mode=disabled", *more]
    run_configuration(compose(*line, "experiment_name=mine", f"results_dir={folder}"))


@pytest.mark.parametrize(
    ("shows", "shown"),
    [
        (["all", "all"], True),
        (["all", "auto"], False),
        (["auto", "all"], False),
        (["all", "released"], False),
    ],
)
def test_metrics_of_real_data_are_shown_only_if_every_run_may_show_them(tmp_path, shows, shown):
    for seed, show in enumerate(shows):
        made(tmp_path, "algorithm=ts", "privacy.rng=os", f"seed={seed}", f"tracker.wandb.show={show}")
    (row,) = settings_table(finished_runs(tmp_path / "mine"))
    assert (row["final"] is None) is not shown


@pytest.mark.parametrize("name", ["summary.json", "config.yaml"])
def test_files_that_disagree_about_what_is_real_show_nothing(tmp_path, name):
    made(tmp_path, "algorithm=ts")
    (run,) = finished_runs(tmp_path / "mine")
    assert run.shown
    (run,) = finished_runs(tmp_path / "mine")
    path = run.folder / name
    path.write_text(path.read_text().replace("seeded", "os"))
    assert not run.shown


def test_claims_about_real_data_stay_here(here, own_wandb, tmp_path, monkeypatch):  # noqa: F811
    logged = []
    monkeypatch.setattr(summary_run, "_log", lambda *arguments: logged.append(arguments[5]))
    made(tmp_path, "algorithm=ts")
    (tmp_path / "mine" / "claims.json").write_text(json.dumps({"findings": [{"id": "a", "ours": 0.5}]}))
    (tmp_path / "mine" / "wandb").mkdir()
    assert summary_run.log_summary(tmp_path / "mine", finished_runs(tmp_path / "mine"), {"mode": "offline"})
    made(tmp_path, "algorithm=fts", "privacy.rng=os")
    assert summary_run.log_summary(tmp_path / "mine", finished_runs(tmp_path / "mine"), {"mode": "offline"})
    assert [len(claims) for claims in logged] == [1, 0]


@pytest.mark.parametrize(("name", "content"), [("config.yaml", "a: ["), ("summary.json", "{}"), ("config.yaml", "3")])
def test_a_damaged_run_ends_no_sweep(own_wandb, tmp_path, caplog, name, content):  # noqa: F811
    for seed in range(2):
        made(tmp_path, "algorithm=ts", f"seed={seed}")
    broken = finished_runs(tmp_path / "mine")[0]
    (broken.folder / name).write_text(content)
    logged = log_experiment(tmp_path / "mine", "offline")
    assert (logged.skipped, logged.logged) == (1, 1)
    assert str(broken.folder) in caplog.text


def test_runs_that_w_and_b_has_stay_if_new_ones_cannot_be_made(own_wandb, tmp_path, monkeypatch, caplog):  # noqa: F811
    for seed in range(3):
        made(tmp_path, "algorithm=ts", f"seed={seed}")
    assert log_experiment(tmp_path / "mine", "offline").logged == 3
    before = sorted(tmp_path.rglob("offline-run-*"))
    notes = [path.read_bytes() for path in sorted(tmp_path.rglob("wandb.json"))]
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    caplog.clear()
    found = log_experiment(tmp_path / "mine", "online", again=True)
    assert (found.logged, found.failed) == (0, 3)
    assert sorted(tmp_path.rglob("offline-run-*")) == before and len(before) == 4
    assert [path.read_bytes() for path in sorted(tmp_path.rglob("wandb.json"))] == notes
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 2  # of the first run, and that the others are not tried


def test_copies_for_other_experiments_are_logged_from_their_files(own_wandb, tmp_path):  # noqa: F811
    """The copies have W&B runs of their own."""
    kinds = ["problem=synthetic", "problem.grid_size=30", "algorithm=dp_fts_de", "tracker.wandb.mode=offline"]
    cfg = compose(*TINY[:-2], *kinds, "seed=1", "experiment_name=one", f"results_dir={tmp_path}")
    _, source = run_configuration(cfg)
    target = tmp_path / "two" / source.parent.name / "1"
    shared_runs.copy(source, RunFolder(target))
    log_sweep(tmp_path / "two", [target], {"mode": "offline", "project": "dpfbo", "entity": None}, Console())
    for path in (source, target):
        (run,) = of_kind(path, "run")
        assert run.run_group == path.parents[1].name
    summary = json.loads((target / "summary.json").read_text())
    assert summary == {**json.loads((source / "summary.json").read_text()), "experiment": "two"}


def test_an_online_sweep_uploads_records_and_figures_and_says_when_it_ends_if_asked(here, server, tmp_path):
    line = [*SWEEP, f"results_dir={tmp_path}", "tracker.wandb.mode=online"]
    line += ["tracker.wandb.artifacts=true", "tracker.wandb.alerts=true"]
    (tmp_path / "mine" / "figures").mkdir(parents=True)
    (tmp_path / "mine" / "figures" / "curves.png").write_bytes(b"a figure")
    assert command.main(line) == 0
    kinds = [artifact["artifactTypeName"] for artifact in server.artifacts]
    assert kinds.count("records") == 4 and kinds.count("report") == 1
    contents = list(server.sent_files.values())
    for run in finished_runs(tmp_path / "mine"):
        for name in ("config.yaml", "summary.json", "rounds.parquet", "server.parquet"):
            assert (run.folder / name).read_bytes() in contents, name
    assert b"a figure" in contents
    (alert,) = server.alerts
    assert (alert["title"], alert["text"]) == ("mine: the sweep ended", "4 of 4 done")
    assert command.main(line) == 0
    assert len(server.alerts) == 1 and len(server.artifacts) == len(kinds), "nothing has changed"


def test_a_sweep_without_a_finished_trial_says_so(own_wandb, tmp_path):  # noqa: F811
    settings = {"mode": "offline", "project": "dpfbo", "entity": None, "alerts": True}
    log_sweep(tmp_path / "mine", [], settings, Console(), "0 of 2 done, 2 failed")
    (run,) = (tmp_path / "mine" / "wandb").glob("offline-run-*-sweep*")
    (alert,) = [r.alert for r in records_in(run) if r.WhichOneof("record_type") == "alert"]
    assert alert.text == "0 of 2 done, 2 failed"
    log_sweep(tmp_path / "other", [], {**settings, "alerts": False}, Console(), "0 of 2 done, 2 failed")
    assert not (tmp_path / "other").exists()


def test_records_of_real_data_are_refused_before_anything_is_logged(own_wandb, tmp_path, capsys):  # noqa: F811
    made(tmp_path, "algorithm=ts")
    made(tmp_path, "algorithm=ts", "privacy.rng=os", "seed=1")
    assert wandb_command.main(["backfill", "mine", "--artifacts", f"results_dir={tmp_path}"]) == 1
    assert "--artifacts uploads records with values that are not released" in capsys.readouterr().err
    assert not (tmp_path / "mine" / "wandb").exists()
    for show in ("released", "auto"):
        refused = ["tracker.wandb.artifacts=true", f"tracker.wandb.show={show}", "privacy.rng=os"]
        assert command.main([*SWEEP, *refused, f"results_dir={tmp_path / show}"]) == 1
        assert f"it needs tracker.wandb.show=all, got '{show}' with privacy.rng=os" in capsys.readouterr().err
        assert not (tmp_path / show).exists()
