"""A finished run is finished: shown again, continued with more rounds on its ledger, repeated only on request."""

import json
import logging
import zipfile

import pytest

from dpfbo.formats.run_folder import ResultsError, RunFolder
from dpfbo.privacy.ledger import LedgerError
from runners import best, status
from runners.compose.composition import Composition
from runners.identity import finished
from runners.recorded_run import record_run
from runners.sweep.trials import Trial
from tests.helpers import objectives
from tests.helpers.compose import compose, setting_hash
from tests.helpers.data_files import write_mini_landmine
from tests.helpers.small_runs import QUIET, SMALL, Stop, call, charged

RECORDS = ("rounds.parquet", "server.parquet", "ledger.jsonl")
KINDS = {
    "dp_fts_de": SMALL,
    "sampled by the system": [*SMALL, "privacy.rng=os"],
    "no server": [*SMALL, "algorithm=ts"],
    "prior": [*SMALL, "algorithm=dp_prior", "privacy.epsilon=1"],
    "broadcasts that end": [*SMALL, "algorithm.broadcasts=3"],
    "blind server": [*SMALL, "algorithm=random_server"],
    "hyper-parameters": [
        "problem=branin", "problem.n_agents=4", "n_init=2", "algorithm.M=20", "algorithm.own_gp.every=3",
        "acquisition.n_candidates=40", "acquisition.n_starts=3",
    ],
    "outsourced": ["algorithm=gaussian_gp_ucb", "problem=grid_gp", "problem.side_points=10"],
}  # fmt: skip


def single(folder, *overrides, on_round=lambda done: None):
    return record_run(Composition.of(compose(*overrides, *QUIET, f"results_dir={folder}")), on_round, single=True)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in RECORDS}


@pytest.mark.parametrize("kind", KINDS)
def test_more_rounds_go_on_in_the_same_folder_on_the_same_ledger(tmp_path, kind):
    settings = KINDS[kind]
    _, folder = single(tmp_path, *settings, "rounds=5")
    before, first = charged(folder), contents(folder)["rounds.parquet"]
    seen = []
    summary, longer = single(tmp_path, *settings, "rounds=8", on_round=lambda done: seen.append(done.agents.round))
    assert longer == folder and summary["rounds"] == 8 and seen == list(range(9))
    assert charged(folder)[: len(before)] == before
    if kind == "sampled by the system":
        assert [t for t, _ in charged(folder)] == list(range(8)) and summary["n_charges"] == 8
    else:
        _, whole = single(tmp_path / "whole", *settings, "rounds=8")
        assert contents(folder) == contents(whole)
    assert contents(folder)["rounds.parquet"] != first
    assert single(tmp_path, *settings, "rounds=8") == (summary, folder)


def test_observations_of_the_last_round_are_not_made_again(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(objectives, "sphere", lambda agent, x: calls.append(agent) or -float((x**2).sum()))
    custom = ["problem=custom", "problem.function=tests.helpers.objectives:sphere", "problem.lower=[-1]"]
    custom += ["problem.upper=[1]", "problem.n_agents=4", "n_init=3", "algorithm.M=20"]
    single(tmp_path, *custom, "rounds=2")
    assert len(calls) == 4 * (3 + 2)
    single(tmp_path, *custom, "rounds=4")
    assert len(calls) == 4 * (3 + 4)


@pytest.mark.parametrize("rng", ["seeded", "os"])
@pytest.mark.parametrize("after", [4, 5, 7])
def test_interrupted_while_it_goes_on(tmp_path, rng, after):
    settings = [*SMALL, f"privacy.rng={rng}"]
    _, folder = single(tmp_path, *settings, "rounds=5")
    before = charged(folder)

    def stop(done):
        if done.agents.round == after:
            raise Stop

    with pytest.raises(Stop):
        single(tmp_path, *settings, "rounds=8", on_round=stop)
    with pytest.raises(Stop):
        single(tmp_path, *settings, "rounds=8", on_round=stop)
    summary, again = single(tmp_path, *settings, "rounds=8")
    assert again == folder and summary["n_charges"] == 8
    assert charged(folder)[:5] == before and [t for t, _ in charged(folder)] == list(range(8))
    if rng == "seeded":
        _, whole = single(tmp_path / "whole", *settings, "rounds=8")
        assert contents(folder) == contents(whole)


def kill(folder, after, *settings):
    def stop(done):
        if done.agents.round == after:
            raise Stop

    with pytest.raises(Stop):
        single(folder, *settings, on_round=stop)


def test_a_shorter_run_is_shown_while_a_longer_one_goes_on(tmp_path):
    first, folder = single(tmp_path, *SMALL, "rounds=3")
    kill(tmp_path, 6, *SMALL, "rounds=8")
    assert single(tmp_path, *SMALL, "rounds=3") == (json.loads(json.dumps(first)), folder)
    with pytest.raises(ResultsError, match="a run of more rounds that was interrupted: rounds=8 continues it"):
        single(tmp_path, *SMALL, "rounds=4")
    summary, same = single(tmp_path, *SMALL, "rounds=8")
    assert same == folder and summary["n_charges"] == 8 and not (folder / "summary.before.json").exists()


@pytest.mark.parametrize("rounds", [4, 7])
def test_fewer_rounds_than_a_longer_run_are_its_own(tmp_path, rounds):
    """Also where they were never run alone: under real noise they would be released a second time."""
    settings = [*SMALL, "privacy.rng=os"]
    _, folder = single(tmp_path, *settings, "rounds=5")
    summary, _ = single(tmp_path, *settings, "rounds=8")
    assert single(tmp_path, *settings, f"rounds={rounds}") == (json.loads(json.dumps(summary)), folder)
    assert len(list(tmp_path.rglob("ledger.jsonl"))) == 1


@pytest.mark.parametrize("after", [0, 3])
def test_a_repetition_of_a_continued_run_that_was_interrupted_stays_on_its_ledger(tmp_path, after):
    settings = [*SMALL, "privacy.rng=os"]
    single(tmp_path, *settings, "rounds=3")
    _, folder = single(tmp_path, *settings, "rounds=5")
    kill(tmp_path, after, *settings, "rounds=5", "again=true")
    summary, same = single(tmp_path, *settings, "rounds=5", "again=true")
    assert same == folder and summary["n_charges"] == 10
    assert len(list(tmp_path.rglob("ledger.jsonl"))) == 1 and (folder / "earlier" / "1" / "summary.json").exists()


def die(*_):
    raise Stop


def test_a_run_that_dies_before_its_rounds_are_kept_loses_no_broadcast(tmp_path, monkeypatch):
    single(tmp_path, *SMALL, "rounds=3")
    with monkeypatch.context() as broken:
        broken.setattr(finished, "keep_rounds", die)
        with pytest.raises(Stop):
            single(tmp_path, *SMALL, "rounds=5")
    _, folder = single(tmp_path, *SMALL, "rounds=8")
    _, whole = single(tmp_path / "whole", *SMALL, "rounds=8")
    assert contents(folder) == contents(whole)


def test_a_ledger_of_an_earlier_repetition_must_be_there(tmp_path):
    settings = [*SMALL, "privacy.rng=os", "rounds=3"]
    _, folder = single(tmp_path, *settings)
    kill(tmp_path, 0, *settings, "again=true")
    (folder / "ledger.jsonl").unlink()
    with pytest.raises((ResultsError, LedgerError), match="restore the ledger"):
        single(tmp_path, *settings)


@pytest.mark.parametrize("step", ["link", "rename"])
def test_records_half_put_aside_are_lost_nowhere(tmp_path, monkeypatch, step):
    _, folder = single(tmp_path, *SMALL)
    first = contents(folder)
    with monkeypatch.context() as broken:
        if step == "link":
            broken.setattr(finished.os, "link", die)
        else:
            broken.setattr(finished.Path, step, die)
        with pytest.raises(Stop):
            single(tmp_path, *SMALL, "again=true")
    assert finished.summary_of(RunFolder(folder)) is not None and contents(folder) == first
    single(tmp_path, *SMALL, "again=true")
    earlier = folder / "earlier" / "1"
    assert contents(earlier) == first == contents(folder)
    assert {"config.yaml", "summary.json"} <= {path.name for path in earlier.iterdir()}


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_noise_for_another_number_of_rounds_is_another_run(tmp_path, caplog, rng):
    settings = [*SMALL, "privacy.epsilon=2", f"privacy.rng={rng}"]
    _, folder = single(tmp_path, *settings, "rounds=3")
    if rng == "os":
        with pytest.raises(ResultsError, match="a separate run would add to its releases"):
            single(tmp_path, *settings, "rounds=5")
        return
    with caplog.at_level(logging.WARNING):
        _, other = single(tmp_path, *settings, "rounds=5")
    assert other != folder and f"{folder} is a run of this setting with noise for another number" in caplog.text
    assert "starts anew in a folder of its own" in caplog.text
    assert single(tmp_path, *settings, "rounds=3")[1] == folder


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_a_trial_of_a_sweep_is_the_run_that_was_made_by_itself(tmp_path, rng):
    settings = [*SMALL, f"privacy.rng={rng}"]
    cfg = compose(*settings, "rounds=3", *QUIET, f"results_dir={tmp_path}")
    summary, folder = single(tmp_path, *settings, "rounds=3")
    assert record_run(Composition.of(cfg)) == (json.loads(json.dumps(summary)), folder)
    trial = Trial("x", (), setting_hash(cfg), 0, 3, None)
    assert trial.folder(tmp_path / "single").path == folder
    single(tmp_path, *settings, "rounds=5")
    if rng == "os":
        with pytest.raises(ResultsError, match="is this run with other rounds"):
            record_run(Composition.of(cfg))
    else:
        assert trial.folder(tmp_path / "single").path == record_run(Composition.of(cfg))[1] != folder


def test_what_is_kept_is_for_its_owner_alone(tmp_path):
    settings = [*SMALL, "privacy.rng=os"]
    _, folder = single(tmp_path, *settings, "rounds=3")
    assert (folder / "rounds.zip").stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(folder / "rounds.zip") as archive:
        assert all(name.startswith("round-") for name in archive.namelist())
    kill(tmp_path, 4, *settings, "rounds=6")
    assert all(p.stat().st_mode & 0o077 == 0 for p in (folder / "checkpoint").iterdir())


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_the_same_command_shows_the_finished_run(tmp_path, monkeypatch, capsys, rng):
    settings = [*SMALL, f"privacy.rng={rng}", f"results_dir={tmp_path}"]
    assert call(monkeypatch, *settings) == 0
    (folder,) = (tmp_path / "single").glob("*/0")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    capsys.readouterr()
    assert call(monkeypatch, *settings, "progress=true") == 0
    out, err = capsys.readouterr()
    assert "finished before, with 6 rounds: nothing is run, and nothing is released" in err and "--again" in err
    assert "epsilon" in out and "results" in out
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()} == before


def test_a_finished_run_is_shown_without_its_data(tmp_path, monkeypatch, capsys):
    data = write_mini_landmine(tmp_path, n_fields=4)
    settings = ["problem=landmine", "problem.n_agents=4", "problem.n_jobs=1", f"data_dir={data}", "algorithm=ts"]
    settings += ["rounds=1", "n_init=2", "acquisition.n_candidates=20", f"results_dir={tmp_path / 'results'}"]
    assert call(monkeypatch, *settings) == 0
    (data / "landmine" / "LandmineData.mat").unlink()
    capsys.readouterr()
    assert call(monkeypatch, *settings) == 0 and "finished before" in capsys.readouterr().err
    assert call(monkeypatch, *settings, "seed=1") == 1 and "runners.fetch landmine" in capsys.readouterr().err


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_again_keeps_the_records_and_the_ledger(tmp_path, monkeypatch, rng):
    settings = [*SMALL, f"privacy.rng={rng}", f"results_dir={tmp_path}"]
    call(monkeypatch, *settings)
    (folder,) = (tmp_path / "single").glob("*/0")
    first, paid = contents(folder), charged(folder)
    for k in (1, 2):
        assert call(monkeypatch, *settings, "--again") == 0
        earlier = folder / "earlier" / str(k)
        assert (earlier / "summary.json").exists() and (earlier / "ledger.jsonl").exists() == (rng == "seeded")
        assert charged(folder)[: len(paid)] == paid
        assert len(charged(folder)) == len(paid) * (1 if rng == "seeded" else k + 1)
    assert (folder / "earlier" / "1" / "rounds.parquet").read_bytes() == first["rounds.parquet"]
    assert (contents(folder) == first) == (rng == "seeded")
    assert best.main([str(tmp_path), "--output", str(tmp_path / "best.json")]) == 0
    found = json.loads((tmp_path / "best.json").read_text())
    assert {row["run"] for row in found} == {str(folder)}, "no earlier records"


def test_a_longer_run_from_the_start_keeps_the_records_of_the_shorter_one(tmp_path):
    _, folder = single(tmp_path, *SMALL, "rounds=3", "privacy.rng=os")
    first = contents(folder)
    summary, same = single(tmp_path, *SMALL, "rounds=5", "privacy.rng=os", "resume=false")
    assert same == folder and summary["n_charges"] == 8
    assert (folder / "earlier" / "1" / "rounds.parquet").read_bytes() == first["rounds.parquet"]


def test_again_refuses_a_ledger_that_was_cut(tmp_path):
    summary, folder = single(tmp_path, *SMALL)
    (folder / "ledger.jsonl").write_text("")
    with pytest.raises(ResultsError, match="restore the ledger"):
        single(tmp_path, *SMALL, "again=true")
    assert finished.summary_of(RunFolder(folder)) == json.loads(json.dumps(summary))


def test_a_damaged_rounds_file_is_one_sentence_and_the_run_stays_finished(tmp_path):
    _, folder = single(tmp_path, *SMALL, "rounds=3")
    whole = (folder / "rounds.zip").read_bytes()
    for content in (whole[: len(whole) // 2], b"", whole.replace(b"round-00001.npz", b"../und-00001.npz")):
        (folder / "rounds.zip").write_bytes(content)
        with pytest.raises(ResultsError, match="rounds.zip .*: the run cannot be continued; --again runs all"):
            single(tmp_path, *SMALL, "rounds=4")
        assert finished.summary_of(RunFolder(folder))["rounds"] == 3
    with zipfile.ZipFile(folder / "rounds.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("round-00000.npz", bytes(2**20))
    with pytest.raises(ResultsError, match="rounds.zip holds 'round-00000.npz' compressed, as no run writes it: the"):
        single(tmp_path, *SMALL, "rounds=4")
    (folder / "lineage.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"lineage.json cannot be read"):
        single(tmp_path, *SMALL, "rounds=4")


def test_folders_and_status_have_a_label_for_people(tmp_path, capsys):
    names = {
        "synthetic-dp_fts_de-P2-eps2-": ["privacy.epsilon=2"],
        "synthetic-dp_fts-q0.5-z3-": ["algorithm=dp_fts", "privacy.q=.5", "privacy.z=3"],
        "synthetic-ts-": ["algorithm=ts"],
    }
    for name, settings in names.items():
        _, folder = single(tmp_path, *SMALL, "rounds=1", *settings)
        assert folder.parent.name.startswith(name) and len(folder.parent.name) == len(name) + 12
    assert status.main([f"results_dir={tmp_path}", "--json"]) == 0
    labels = [trial["label"] for trial in json.loads(capsys.readouterr().out)[0]["trials"]]
    assert sorted(label.rpartition(" ")[0] for label in labels) == sorted(
        ["synthetic, dp_fts_de, P=2, eps=2", "synthetic, dp_fts, q=0.5, z=3", "synthetic, ts"]
    )


def test_a_folder_of_an_earlier_version_is_found_again(tmp_path):
    """Earlier versions, and sweeps, name it by the hash alone."""
    _, unnamed = record_run(Composition.of(compose(*SMALL, *QUIET, f"results_dir={tmp_path}")))
    assert "-" not in unnamed.parent.name
    assert single(tmp_path, *SMALL)[1] == unnamed


def test_half_written_files_of_a_killed_run_go_when_it_goes_on(tmp_path):
    kill(tmp_path, 2, *SMALL, "rounds=3")
    (folder,) = {path.parent for path in tmp_path.rglob("ledger.jsonl")}
    left = [folder / f".{name}.x941v5im" for name in ("rounds.parquet", "lineage.json", "config.yaml")]
    for path in left:
        path.write_bytes(b"half")
    (folder / ".mine").touch()
    single(tmp_path, *SMALL, "rounds=3")
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".mine"]
