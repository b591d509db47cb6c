"""A run goes on with the data, the code and the ledger that it began with, and with no others."""

import json
import shutil

import numpy as np
import pytest

from dpfbo.checkpoint import Checkpoint
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.privacy.mechanism_code import code_digests
from runners import recorded_run
from runners.privacy import command
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import QUIET, SYNTHETIC, call, folder_of, interrupted, records

SETTINGS = (*SYNTHETIC, "rounds=4", *QUIET)
OTHER = {**code_digests(), "federated/mechanism.py": "0" * 16}


def configured(tmp_path, *more):
    return compose(*SETTINGS, *more, f"results_dir={tmp_path}")


def with_data(monkeypatch, fingerprint):
    monkeypatch.setattr(recorded_run, "data_fingerprint", lambda problem: fingerprint)


def test_the_ledger_says_of_which_run_it_is(tmp_path):
    _, folder = run_configuration(configured(tmp_path, "seed=3"))
    covers = Ledger(folder / "ledger.jsonl").covers
    assert (covers.seed, covers.data, covers.relation) == (3, "generated", "zero-out")
    _, other = run_configuration(configured(tmp_path, "seed=3", "privacy.q=0.4"))
    assert Ledger(other / "ledger.jsonl").covers.setting != covers.setting


def test_the_ledger_of_real_releases_holds_no_digest_of_the_data_and_no_seed(tmp_path, monkeypatch):
    with_data(monkeypatch, "sha256:" + "5" * 64)
    cfg = configured(tmp_path, "privacy.rng=os")
    interrupted(cfg, 1)
    covers = Ledger(folder_of(cfg) / "ledger.jsonl").covers
    assert covers.data is None and covers.seed is None
    (first, *_) = sorted((folder_of(cfg) / "checkpoint").glob("round-*.npz"))
    meta = json.loads(np.load(first)["meta"].item())
    assert meta["origin"]["data"] == "sha256:" + "5" * 64 and first.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_other_data_are_refused(monkeypatch, capsys, tmp_path, rng):
    with_data(monkeypatch, "sha256:" + "1" * 64)
    cfg = configured(tmp_path, f"privacy.rng={rng}")
    interrupted(cfg, 1)
    before = (folder_of(cfg) / "ledger.jsonl").read_bytes()
    with_data(monkeypatch, "sha256:" + "2" * 64)
    assert call(monkeypatch, *SETTINGS, f"privacy.rng={rng}", f"results_dir={tmp_path}") == 1
    said = capsys.readouterr().err
    assert "other data" in said and "in another folder; the epsilons" in said and said.strip().count("\n") == 0
    assert (folder_of(cfg) / "ledger.jsonl").read_bytes() == before
    with_data(monkeypatch, None)  # nothing is known of them
    assert run_configuration(cfg)[0]["rounds"] == 4


def test_other_code_is_refused_unless_a_simulation_goes_on_with_any(monkeypatch, tmp_path):
    cfg = configured(tmp_path)
    _, whole = run_configuration(compose(*SETTINGS, f"results_dir={tmp_path / 'whole'}"))
    interrupted(cfg, 1)
    monkeypatch.setattr(recorded_run, "code_digests", lambda: OTHER)
    with pytest.raises(CheckpointError, match=r"other code of the mechanism \(federated/mechanism.py\): finish the"):
        run_configuration(cfg)
    _, folder = run_configuration(configured(tmp_path, "resume=any_code"))
    assert records(folder)["ledger.jsonl"] == records(whole)["ledger.jsonl"]
    assert run_configuration(cfg)[0]["rounds"] == 4, "a finished run stays readable"


def test_real_releases_never_go_on_with_other_code(monkeypatch, tmp_path):
    cfg = configured(tmp_path, "privacy.rng=os")
    interrupted(cfg, 1)
    monkeypatch.setattr(recorded_run, "code_digests", lambda: OTHER)
    with pytest.raises(CheckpointError, match="other code"):
        run_configuration(cfg)
    with pytest.raises(ValueError, match="resume=any_code is for simulations"):
        run_configuration(configured(tmp_path, "privacy.rng=os", "resume=any_code"))


@pytest.mark.parametrize(("other", "says"), [("seed=1", "another seed"), ("privacy.q=0.4", "another setting")])
def test_the_ledger_of_another_run_is_refused(tmp_path, other, says):
    _, foreign = run_configuration(configured(tmp_path / "other", other))
    cfg = configured(tmp_path)
    folder_of(cfg).mkdir(parents=True)
    shutil.copy(foreign / "ledger.jsonl", folder_of(cfg))
    before = (foreign / "ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match=f"is of another run, with {says}"):
        run_configuration(cfg)
    assert (folder_of(cfg) / "ledger.jsonl").read_bytes() == before


def test_the_first_round_of_each_process_says_the_origin(tmp_path):
    cfg = configured(tmp_path)
    interrupted(cfg, 1)
    interrupted(cfg, 2)
    origins = [kept.origin for kept in map(Checkpoint(folder_of(cfg) / "checkpoint")._read, range(3))]
    assert [o.data for o in origins] == ["generated", None, "generated"]


def test_a_repaired_ledger_that_lost_its_first_line_goes_on(tmp_path, capsys):
    cfg = configured(tmp_path)
    interrupted(cfg, 1)
    path = folder_of(cfg) / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1', 1))
    with pytest.raises(LedgerError, match="line 1 does not follow"):
        run_configuration(cfg)
    assert command.main(["ledger", str(path), "--repair"]) == 0
    assert "the line that names its run was modified and is left out" in capsys.readouterr().out
    run_configuration(cfg)
    assert Ledger(path).covers is None and len(Ledger(path).charges) == 4
