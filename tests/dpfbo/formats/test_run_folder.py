"""A run's folder: whole files, one run at a time, and a ledger that is never lost."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfbo.formats.run_folder import Progress, ResultsError, RunFolder

TABLE = pa.table({"a": [1, 2]})


def test_written_files_read_back(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b" / "0")
    with folder.opened():
        folder.write("seed: 0\n", [TABLE], TABLE, {"final": 1.5})
    names = {f.name for f in folder.path.iterdir()}
    assert names == {"config.yaml", "rounds.parquet", "server.parquet", "ledger.jsonl", "summary.json"}
    assert json.loads((folder.path / "summary.json").read_text()) == {"final": 1.5}
    assert pq.read_table(folder.path / "rounds.parquet").equals(TABLE)


def test_a_file_that_cannot_be_written_leaves_the_folder_unfinished(tmp_path):
    folder = RunFolder(tmp_path / "0")
    with folder.opened():
        folder.write("seed: 0\n", [TABLE], TABLE, {"final": 1.0})
        with pytest.raises(ValueError, match="not JSON compliant"):
            folder.write("seed: 0\n", [TABLE], TABLE, {"final": float("nan")})
    names = {f.name for f in folder.path.iterdir()}
    assert "summary.json" not in names
    assert not [n for n in names if n.startswith(".")]


def test_failing_before_anything_was_written_leaves_no_folder(tmp_path):
    folder = RunFolder(tmp_path / "results" / "single" / "abc" / "0")
    with pytest.raises(RuntimeError), folder.opened():
        raise RuntimeError("stop")
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "results"])


def test_a_ledger_outlives_a_failure(tmp_path):
    folder = RunFolder(tmp_path / "0")
    with pytest.raises(RuntimeError), folder.opened():
        folder.ledger_path.write_text("{}\n")
        raise RuntimeError("stop")
    assert folder.ledger_path.read_text() == "{}\n"


def test_two_runs_cannot_share_a_folder(tmp_path):
    folder = RunFolder(tmp_path / "0")
    with (
        folder.opened(),
        pytest.raises(ResultsError, match="another run is writing"),
        RunFolder(tmp_path / "0").opened(),
    ):
        pass


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "results").write_text("not a folder")
    with pytest.raises(ResultsError, match="cannot be written"), RunFolder(tmp_path / "results" / "0").opened():
        pass


def test_a_lock_file_that_was_removed_locks_nothing(tmp_path):
    """A process that locked an unlinked file must lock the new one, so that two never share the folder."""
    first, second = RunFolder(tmp_path / "0"), RunFolder(tmp_path / "0")
    with first.opened():
        (tmp_path / "0" / ".lock").rename(tmp_path / "gone")  # a waiting process has the unlinked file
        with second.opened(), pytest.raises(ResultsError, match="another run"), RunFolder(tmp_path / "0").opened():
            pass


@pytest.mark.parametrize(("rng", "mode"), [("os", 0o600), ("seeded", 0o644)])
def test_the_progress_of_a_real_release_is_its_owners_alone(tmp_path, rng, mode):
    folder = RunFolder(tmp_path)
    progress = Progress(1, 4, 0.5, 0.25, {"rng": rng}, {"round": [0, 1], "mean": [0.7, 0.5], "epsilon": [0.0, 0.25]})
    folder.note_progress(progress)
    assert (tmp_path / "progress.json").stat().st_mode & 0o777 == mode
    assert folder.progress() == progress
