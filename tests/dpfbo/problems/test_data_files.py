"""The search for data files, and the message when one is missing."""

from __future__ import annotations

import pickle
import shlex
from pathlib import Path

import pytest

from dpfbo.problems.readers.data_files import MissingData, data_file, data_root


@pytest.fixture(autouse=True)
def working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def _write(folder: Path) -> Path:
    path = folder / "set" / "file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(folder.name.encode())
    return path


def test_the_argument_wins_over_the_variable_and_the_variable_over_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given, variable, default = (_write(tmp_path / name) for name in ("given", "variable", "data"))
    assert data_file(None, "set/file.bin", "set") == default
    monkeypatch.setenv("DPFBO_DATA", str(tmp_path / "variable"))
    assert data_file(None, "set/file.bin", "set") == variable
    assert data_file(tmp_path / "given", "set/file.bin", "set") == given
    assert data_file("given", "set/file.bin", "set") == given


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPFBO_DATA", "")
    assert data_root() == tmp_path / "data"


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root("~/sets") == tmp_path / "home" / "sets"


def test_a_missing_file_is_one_sentence_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        data_file(None, "landmine/LandmineData.mat", "landmine")
    assert str(caught.value) == (
        f"data file {tmp_path}/data/landmine/LandmineData.mat is missing: "
        'run "python -m runners.fetch landmine", '
        "or point data_dir (or DPFBO_DATA) at the folder that holds it"
    )
    assert isinstance(caught.value, FileNotFoundError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_command_fetches_into_the_folder_that_was_looked_in(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other sets"
    with pytest.raises(MissingData) as caught:
        data_file(elsewhere, "set/file.bin", "set")
    command = str(caught.value).split('"')[1]
    assert shlex.split(command)[-1] == f"data_dir={elsewhere}"


def test_a_folder_is_not_a_data_file(tmp_path: Path) -> None:
    (tmp_path / "data" / "set" / "file.bin").mkdir(parents=True)
    with pytest.raises(MissingData):
        data_file(None, "set/file.bin", "set")
