"""Runs that are logged from their files say what they would have said live."""

import pytest

from runners.recorded_run import run_configuration
from runners.wandb import command, summary_run
from runners.wandb.backfill import log_experiment, log_run
from runners.wandb.finished_runs import RunOnDisk, finished_runs
from tests.helpers.compose import compose
from tests.helpers.wandb_records import config_of, of_kind, own_wandb, rows, summary_of, wandb_folder  # noqa: F401

pytest.importorskip("wandb")

SMALL = [
    "problem=branin", "problem.n_agents=6", "rounds=4", "n_init=3", "algorithm.M=10", "progress=false",
    "privacy.accountants=[rdp]", "privacy.accountant=rdp",
]  # fmt: skip
DISABLED = "tracker.wandb.mode=disabled"


def without_seconds(row):
    return {key: value for key, value in row.items() if not key.startswith(("seconds/", "progress/"))}


def known(folder):
    """The record of a run in W&B, without what differs from one execution to the next."""
    (run,) = of_kind(folder, "run")
    config = {key: value for key, value in config_of(folder).items() if key not in ("tracker", "results_dir")}
    summary = {
        key: value
        for key, value in summary_of(folder).items()
        if not key.startswith(("seconds/", "progress/", "_")) and "artifact_path" not in key
    }
    history = [without_seconds(row) for row in rows(folder)]
    facts = (run.display_name, run.run_group, list(run.tags))
    return facts, config, summary, [row for row in history if "round" in row], len(history)


@pytest.mark.parametrize(
    "more",
    [
        ["algorithm=dp_fts_de"],
        ["algorithm=dp_fts_de", "privacy.rng=os"],
        ["algorithm=fts_original"],
        ["algorithm=dp_prior", "algorithm.M=24", "privacy.q=1"],
    ],
    ids=["simulation", "real", "exchange", "prior"],
)
def test_a_backfilled_run_is_the_run_as_it_was_logged_live(tmp_path, more):
    _, folder = run_configuration(compose(*SMALL, *more, f"results_dir={tmp_path}"))
    live = known(folder)
    assert len(live[3]) == 5
    log_run(RunOnDisk(folder), "offline")
    again = known(folder)
    assert again[0] == live[0]
    assert again[1] == live[1]
    assert again[2].keys() == live[2].keys()
    assert again[3] == [pytest.approx(row) for row in live[3]]
    assert again[4:] == live[4:]
    for key, value in live[2].items():
        assert again[2][key] == (pytest.approx(value) if isinstance(value, dict | float) else value), key
    assert len(list(folder.parents[1].glob("wandb/offline-run-*"))) == 1, "it replaces the record that was not uploaded"


def test_a_summary_that_is_not_accepted_is_a_failure(tmp_path, capsys, monkeypatch):
    run_configuration(compose(*SMALL, "algorithm=ts", DISABLED, f"results_dir={tmp_path}"))
    with monkeypatch.context() as refusing:
        refusing.setattr(summary_run, "_log", lambda *arguments: [][0])
        assert command.main(["backfill", "single", f"results_dir={tmp_path}"]) == 1
    assert "single: 1 run logged, summary not accepted by W&B" in capsys.readouterr().out
    assert command.main(["backfill", "single", f"results_dir={tmp_path}"]) == 0
    assert "single: 0 runs logged, 1 logged before, summary logged" in capsys.readouterr().out


def test_the_command_logs_what_is_missing_once(tmp_path, capsys):
    for seed in (0, 1):
        run_configuration(compose(*SMALL, "algorithm=ts", DISABLED, f"seed={seed}", f"results_dir={tmp_path}"))
    assert len(finished_runs(tmp_path / "single")) == 2
    assert command.main(["backfill", "single", f"results_dir={tmp_path}"]) == 0
    assert "single: 2 runs logged, summary logged" in capsys.readouterr().out
    kept = sorted(path.name for path in (tmp_path / "single" / "wandb").glob("offline-run-*"))
    assert len(kept) == 3
    assert command.main(["backfill", "single", f"results_dir={tmp_path}"]) == 0
    assert "single: 0 runs logged, 2 logged before, summary as before" in capsys.readouterr().out
    assert kept == sorted(path.name for path in (tmp_path / "single" / "wandb").glob("offline-run-*"))
    assert command.main(["backfill", "--again", f"results_dir={tmp_path}"]) == 0
    assert "2 runs logged" in capsys.readouterr().out
    assert len(list((tmp_path / "single" / "wandb").glob("offline-run-*"))) == 3


def test_damaged_and_busy_runs_are_left_out(tmp_path, caplog):
    folders = []
    for seed in (0, 1, 2):
        cfg = compose(*SMALL, "algorithm=ts", DISABLED, f"seed={seed}", f"results_dir={tmp_path}", "rounds=1")
        folders.append(run_configuration(cfg)[1])
    (folders[0] / "rounds.parquet").write_bytes(b"PAR1")
    from dpfbo.formats.run_folder import RunFolder

    with RunFolder(folders[1]).opened():
        result = log_experiment(tmp_path / "single", "offline")
    assert (result.logged, result.skipped) == (1, 2)
    assert sum("is not logged" in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["empty"], "no finished run of 'empty' in "),
        ([], "no finished run in "),
        (["nothing"], "EXPERIMENT must be the name of a folder in "),
        (["a/b"], "EXPERIMENT must be the name of a folder in "),
    ],
)
def test_an_experiment_without_runs_is_refused(tmp_path, capsys, words, says):
    (tmp_path / "empty").mkdir()
    try:
        code = command.main(["backfill", *words, f"results_dir={tmp_path}"])
    except SystemExit as stop:
        code = stop.code
    assert code and says in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
