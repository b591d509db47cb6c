"""A recorded run is repeated to the byte, and every changed record is found."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from runners import replay
from runners.record.environment import environment
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import BRANIN, QUIET, SYNTHETIC

WORLDS = {
    "synthetic": [*SYNTHETIC, "algorithm=dp_fts_de", "privacy.q=0.5", "privacy.z=1", "rounds=3"],
    "branin": [*BRANIN, "algorithm=dp_prior", "privacy.epsilon=2", "privacy.delta=1e-3", "rounds=2", "algorithm.M=16"],
    "outsourced": ["problem=grid_gp", "problem.side_points=20", "algorithm=po_gp_ucb", "rounds=3"],
}


def ran(folder, *settings):
    """The folder of a finished run."""
    return run_configuration(compose(*settings, *QUIET, f"results_dir={folder}"))[1]


@pytest.fixture
def folder(tmp_path):
    return ran(tmp_path, *WORLDS["synthetic"])


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_is_repeated_to_the_byte_and_left_as_it_was(tmp_path, capsys, world):
    folder = ran(tmp_path, *WORLDS[world])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert replay.main(folder) == 0
    assert "are the same to the byte" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_run_that_was_lengthened_is_repeated_whole(tmp_path):
    for rounds in (2, 4):
        command = [sys.executable, "-m", "runners.run", *WORLDS["synthetic"], f"rounds={rounds}", *QUIET]
        subprocess.run([*command, f"results_dir={tmp_path}"], check=True)
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_bytes())["rounds"] == 4
    assert replay.main(summary.parent) == 0


def test_changed_records_are_found(folder, capsys):
    rounds = pq.read_table(folder / "rounds.parquet")
    y = rounds["y"].to_pylist()
    y[3] += 1e-12
    place = rounds.schema.get_field_index("y")
    pq.write_table(rounds.set_column(place, rounds.schema.field("y"), [y]), folder / "rounds.parquet")
    ledger = (folder / "ledger.jsonl").read_text()
    (folder / "ledger.jsonl").write_text(ledger.replace('"z": 1.0', '"z": 1.5', 1))
    assert replay.main(folder) == 1
    said = capsys.readouterr().out
    assert "rounds.parquet differs in 1 of" in said and "first in row 3: y " in said
    assert "ledger.jsonl differs in 4 of 4 rows, first in row 0: " in said and "server.parquet" not in said


def test_another_environment_is_told(folder, capsys):
    summary = json.loads((folder / "summary.json").read_bytes())
    assert summary["environment"] == environment()
    assert list(replay.changed_environment(summary)) == []
    summary["environment"]["packages"]["torch"] = "2.6.0"
    summary["environment"]["threads"] = 7
    told = set(replay.changed_environment(summary))
    assert told == {
        f"torch 2.6.0, here {environment()['packages']['torch']}", f"threads 7, here {environment()['threads']}"
    }  # fmt: skip
    summary["environment"] = {**environment(), "compiled": not environment()["compiled"]}
    (told,) = replay.changed_environment(summary)
    assert told == f"compiled {not environment()['compiled']}, here {environment()['compiled']}"
    del summary["environment"]
    assert next(replay.changed_environment(summary)) == "an environment that summary.json does not have"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "summary.json").unlink(), "holds no finished run: summary.json is missing"),
        (lambda f: (f / "config.yaml").unlink(), "holds no finished run: config.yaml is missing"),
        (lambda f: (f / "config.yaml").write_text("a: [1"), "cannot be read"),
        (lambda f: (f / "config.yaml").write_text("- 1"), "cannot be read"),
        (lambda f: (f / "summary.json").write_text("[1]"), "cannot be read"),
        (lambda f: (f / "summary.json").write_text("[" * 100_000), "cannot be read"),
    ],
)
def test_what_cannot_be_repeated_is_refused(folder, capsys, change, says):
    change(folder)
    assert replay.main(folder) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error


def test_a_configuration_that_names_other_code_is_not_run(folder, capsys):
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("dpfbo.problems.synthetic.Synthetic", "subprocess.run"))
    assert replay.main(folder) == 1
    assert "'subprocess.run' is neither of dpfbo or gpytorch" in capsys.readouterr().err


def test_noise_of_the_system_cannot_be_repeated(tmp_path, capsys):
    folder = ran(tmp_path, *WORLDS["synthetic"], "privacy.rng=os")
    assert replay.main(folder) == 1
    assert "its noise came from the system and is not kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--replay"], ["--replay", "a", "b"], ["rounds=3", "--replay", "a"], ["--replay=a", "b"]]
)
def test_replay_stands_alone(words):
    process = subprocess.run([sys.executable, "-m", "runners.run", *words], capture_output=True, text=True)
    assert process.returncode == 2 and "--replay FOLDER takes no settings" in process.stderr
    assert "Traceback" not in process.stderr
