"""The best configuration of every agent: in the table and summary of a run, and by a command of its own."""

import csv
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runners import best
from runners.compose.composition import Composition
from runners.record.best_found import best_found
from runners.record.terminal import print_summary
from runners.recorded_run import record_run
from tests.helpers.compose import compose

SPACE = (
    "problem.space={rate: {type: float, lower: 1e-4, upper: 1, log: true}, "
    "depth: {type: integer, lower: 1, upper: 12}, kind: {type: categorical, choices: [a, b, c]}}"
)
FAST = ["rounds=2", "n_init=2", "acquisition.n_candidates=20", "acquisition.n_starts=1", "tracker.wandb.mode=disabled"]
CUSTOM = ["problem=custom", "problem.function=tests.helpers.objectives:tuned", SPACE, "problem.n_agents=5", *FAST]


def run(folder, *overrides):
    return record_run(Composition.of(compose(*overrides, f"results_dir={folder}")))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(summary, folder) of a run whose parameters have names."""
    return run(tmp_path_factory.mktemp("best"), *CUSTOM, "algorithm=ts")


def expected(folder, smallest=False):
    """By agent, the row of its best observation."""
    frame = pq.read_table(folder / "rounds.parquet").to_pandas()
    groups = frame.groupby("agent")
    return {agent: own.loc[own["y"].idxmin() if smallest else own["y"].idxmax()] for agent, own in groups}


def check(rows, folder):
    for agent, row in expected(folder).items():
        found = rows[agent]
        assert int(found["agent"]) == agent
        assert float(found["value"]) == row["y"]
        assert float(found["rate"]) == row["x.rate"]
        assert (int(found["depth"]), found["kind"]) == (row["x.depth"], row["x.kind"])


def test_the_summary_lists_them(done):
    summary, folder = done
    check(json.loads((folder / "summary.json").read_text())["best"], folder)
    assert "best" in summary["simulation_only"]


def test_the_table_of_a_run_shows_some_and_says_where_the_others_are(done, capsys):
    print_summary(*done)
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("best of agent") == 3
    assert f"best of the other 2 agents: python -m runners.best {done[1]}" in text
    assert "rate=" in text and "kind=" in text


@pytest.mark.parametrize("kind", ["csv", "json", "yaml"])
def test_they_are_exported(done, tmp_path, capsys, kind):
    file = tmp_path / f"best.{kind}"
    assert best.main([str(done[1]), "--output", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    text = file.read_text()
    reader = {"csv": lambda text: list(csv.DictReader(text.splitlines())), "json": json.loads, "yaml": yaml.safe_load}
    check(reader[kind](text), done[1])


def test_they_are_shown(done, capsys):
    assert best.main([str(done[1].parent.parent)]) == 0
    text = capsys.readouterr().out
    for word in ("agent", "value", "rate", "depth", "kind"):
        assert word in text


def test_without_names_and_for_small_values(tmp_path):
    plain = ["problem=custom", "problem.function=tests.helpers.objectives:sphere", "problem.n_agents=3", *FAST]
    plain += ["problem.lower=[0,0]", "problem.upper=[1,1]", "problem.maximize=false", "algorithm=ts"]
    summary, folder = run(tmp_path, *plain)
    for agent, row in expected(folder, smallest=True).items():
        one = summary["best"][agent]
        assert one["value"] == row["y"]  # as the function returned it
        assert [one["x1"], one["x2"]] == row["x"].tolist()


def test_real_data_and_many_agents_are_not_listed(tmp_path):
    real = [*CUSTOM, "algorithm=dp_prior", "privacy.epsilon=1", "privacy.rng=os"]
    summary, folder = run(tmp_path, *real)
    assert summary["best"] is None
    many, _ = run(tmp_path, "problem.n_agents=101", "rounds=1", "algorithm=ts", "tracker.wandb.mode=disabled")
    assert many["best"] is None
    assert best.main([str(folder)]) == 0  # on the machine that holds the files


def test_of_many_agents_the_terminal_shows_few(done, monkeypatch, capsys):
    monkeypatch.setattr(best, "MOST_SHOWN", 4)
    monkeypatch.setattr(best, "FEW", 2)
    assert best.main([str(done[1])]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the first 2 of 5 agents; --output FILE.csv has all" in out


@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_the_first_of_equal_values_in_any_row_groups(rows):
    nan = float("nan")
    table = pa.table(
        {
            "agent": [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
            "round": [0] * 4 + [1] * 4 + [2] * 4,
            "region": [0] * 12,
            "x": [[float(i), -float(i)] for i in range(12)],
            "y": [1.0, nan, nan, -float("inf"), 3.0, 2.0, nan, nan, 3.0, 1.0, nan, nan],
        }
    )
    parts = [table.slice(k, rows) for k in range(0, 12, rows)]
    assert best_found(parts).to_pylist() == [
        {"agent": 0, "round": 1, "value": 3.0, "x1": 4.0, "x2": -4.0},
        {"agent": 1, "round": 1, "value": 2.0, "x1": 5.0, "x2": -5.0},
        {"agent": 3, "round": 0, "value": -float("inf"), "x1": 3.0, "x2": -3.0},
    ]
    assert [row["value"] for row in best_found(parts, maximize=False).to_pylist()] == [1.0, 1.0, -float("inf")]
    nothing = table.set_column(4, "y", pa.array([nan] * 12))
    assert best_found([nothing]).to_pylist() == []


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (["absent"], "there is no finished run in absent", 1),
        (["x", "--output", "best.txt"], "--output must end in .csv, .json or .yaml, got best.txt", 2),
        ([], "the following arguments are required: FOLDER", 2),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch, tmp_path, capsys, arguments, sentence, code):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        sys.exit(best.main(arguments))
    assert stop.value.code == code
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
