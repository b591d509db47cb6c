"""A finished run is finished: shown again, continued with more rounds on its ledger, repeated only on request."""

import json
import logging

import pytest

from runners import best, status
from runners.compose.composition import Composition
from runners.record import finished
from runners.record.run_folder import ResultsError, RunFolder
from runners.recorded_run import record_run
from tests.helpers import objectives
from tests.helpers.compose import compose
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
    return record_run(Composition(compose(*overrides, *QUIET, f"results_dir={folder}")), on_round, single=True)


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


def test_fewer_rounds_than_a_longer_run_has_made_are_refused(tmp_path):
    _, folder = single(tmp_path, *SMALL, "rounds=3")

    def stop(done):
        if done.agents.round == 6:
            raise Stop

    with pytest.raises(Stop):
        single(tmp_path, *SMALL, "rounds=8", on_round=stop)
    with pytest.raises(ResultsError, match="holds 6 rounds, more than rounds=3: give their number"):
        single(tmp_path, *SMALL, "rounds=3")


def test_calibrated_noise_of_fewer_rounds_is_not_continued_but_named(tmp_path, caplog):
    _, folder = single(tmp_path, *SMALL, "rounds=3", "privacy.epsilon=2")
    with caplog.at_level(logging.WARNING):
        _, other = single(tmp_path, *SMALL, "rounds=5", "privacy.epsilon=2")
    assert other != folder and f"{folder} has 3 rounds" in caplog.text and "this run starts anew" in caplog.text
    z = finished.lineage_of(RunFolder(folder)).z
    assert f"privacy.z={z!r}" in caplog.text
    _, same = single(tmp_path, *SMALL, "rounds=4", f"privacy.z={z!r}")
    assert same == folder


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


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_again_keeps_the_records_and_the_ledger(tmp_path, monkeypatch, capsys, rng):
    settings = [*SMALL, f"privacy.rng={rng}", f"results_dir={tmp_path}"]
    call(monkeypatch, *settings)
    (folder,) = (tmp_path / "single").glob("*/0")
    first, paid = contents(folder), charged(folder)
    for k in (1, 2):
        assert call(monkeypatch, *settings, "--again") == 0
        earlier = folder / "earlier" / str(k)
        assert (earlier / "summary.json").exists() and not (earlier / "ledger.jsonl").exists()
        assert charged(folder)[: len(paid)] == paid
        assert len(charged(folder)) == len(paid) * (1 if rng == "seeded" else k + 1)
    assert (folder / "earlier" / "1" / "rounds.parquet").read_bytes() == first["rounds.parquet"]
    assert (contents(folder) == first) == (rng == "seeded")
    assert best.main([str(tmp_path), "--format", "json"]) == 0
    capsys.readouterr()
    best.main([str(tmp_path), "--format", "json"])
    assert {row["run"] for row in json.loads(capsys.readouterr().out)} == {str(folder)}, "no earlier records"


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
        cut = finished.lineage_of(RunFolder(folder)) is None
        if cut:  # no run is known to go on from, a new one begins
            _, other = single(tmp_path, *SMALL, "rounds=4", "seed=0")
            assert other != folder
            for path in sorted(other.rglob("*"), reverse=True):
                path.unlink()
            other.rmdir()
        else:
            with pytest.raises(ResultsError, match="rounds.zip"):
                single(tmp_path, *SMALL, "rounds=4")
        assert finished.summary_of(RunFolder(folder))["rounds"] == 3


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
    _, unnamed = record_run(Composition(compose(*SMALL, *QUIET, f"results_dir={tmp_path}")))
    assert "-" not in unnamed.parent.name
    assert single(tmp_path, *SMALL)[1] == unnamed
