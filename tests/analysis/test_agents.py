"""The spread over the agents of a run, and its rounds from the files of a run that goes on."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import agents
from analysis.drawing import by_agent
from analysis.rounds import RunFiles
from dpfbo.formats.run_folder import RunFolder
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import BRANIN, QUIET, SYNTHETIC, folder_of, interrupted

T = 4
PROBLEMS = {
    "synthetic": SYNTHETIC,
    "branin": BRANIN,
}  # their points in natural units are, and are not, of the unit cube


@pytest.fixture(scope="module", params=PROBLEMS)
def folders(request, tmp_path_factory):
    """(a finished run, the same run after round 2)."""
    made = []
    for name in ("finished", "going"):
        results = tmp_path_factory.mktemp(name)
        cfg = compose(*PROBLEMS[request.param], f"rounds={T}", *QUIET, f"results_dir={results}")
        if name == "finished":
            made.append(run_configuration(cfg)[1])
        else:
            interrupted(cfg, 2)
            made.append(folder_of(cfg))
    return made


def test_a_run_that_goes_on_has_the_metric_of_its_rounds(folders):
    whole, part = ([*RunFiles.of(folder).metric_by_round()] for folder in folders)
    assert len(part) == 3 and len(whole) == T + 1 and part[0].shape == (6,)
    assert [metric.tolist() for metric in part] == [metric.tolist() for metric in whole[:3]]
    assert [RunFiles.of(folder).finished for folder in folders] == [True, False]


def test_rounds_are_whole_however_the_rows_are_cut(folders, tmp_path):
    table = pq.read_table(folders[0] / "rounds.parquet")
    expected = list(RunFiles.of(folders[0]).metric_by_round())
    frame = table.to_pandas()
    for t, metric in enumerate(expected):
        own = frame[frame["round"] == t].groupby("agent")["regret"].last()
        assert metric.tolist() == own.tolist()
    for rows in (1, 3, 7):
        run = tmp_path / str(rows)
        run.mkdir()
        pq.write_table(table, run / "rounds.parquet", row_group_size=rows)
        (run / "summary.json").write_text("{}")
        found = list(RunFiles.of(run).metric_by_round())
        assert [metric.tolist() for metric in found] == [metric.tolist() for metric in expected]


def test_quantiles_are_of_agents_with_a_value(tmp_path):
    regret = [[np.nan, 3.0, 1.0, 2.0], [np.nan, 2.0, 1.0, 2.0]]
    table = pa.table(
        {"agent": [0, 1, 2, 3] * 2, "round": [0] * 4 + [1] * 4, "best": [np.nan] * 8, "regret": np.concatenate(regret)}
    )
    pq.write_table(table, tmp_path / "rounds.parquet")
    (tmp_path / "summary.json").write_text(json.dumps({"metric": "simple_regret"}))
    found = by_agent.table(RunFiles.of(tmp_path))
    assert found["agents"].tolist() == [3, 3] and found["mean"].tolist() == [2.0, 5 / 3]
    assert found["q50"].tolist() == [2.0, 2.0] and found["q25"].tolist() == [1.5, 1.5]


def test_table_and_picture(folders, tmp_path, capsys):
    assert agents.main([*map(str, folders)]) == 0
    out = capsys.readouterr().out
    assert f"{folders[0]}: " in out and f"{folders[1]}, not finished: " in out and "simple_regret" in out
    summary = json.loads((folders[0] / "summary.json").read_text())
    for folder, said in zip(
        folders, ("One run of 6 agents by ", f"It is not finished: rounds 0 to 2 of {T}."), strict=True
    ):
        place = tmp_path / said[:3]
        assert agents.main([str(folder), "--out", str(place)]) == 0
        name = f"single_{folder.parent.name}_0_agents"
        assert {path.name for path in place.iterdir()} == {f"{name}.{kind}" for kind in ("png", "pdf", "csv", "md")}
        mean = pd.read_csv(place / f"{name}.csv")["mean"].to_numpy()
        assert mean == pytest.approx(summary["curve"]["mean"][: len(mean)], rel=1e-5)
        assert said in (place / f"{name}.md").read_text()


@pytest.mark.parametrize("content", [None, b"", b"half of a file", bytes(500)])
def test_a_round_that_is_not_whole_ends_the_run_so_far(folders, tmp_path, content):
    going = tmp_path / "0"
    (going / "checkpoint").mkdir(parents=True)
    for path in (folders[1] / "checkpoint").iterdir():
        (going / "checkpoint" / path.name).write_bytes(path.read_bytes())
    last = going / "checkpoint" / "round-00002.npz"
    last.unlink() if content is None else last.write_bytes(content)
    assert len(list(RunFiles.of(going).metric_by_round())) == 2


def test_mistakes_are_one_sentence(tmp_path, capsys):
    RunFolder(tmp_path / "0").path.mkdir()
    assert agents.main([str(tmp_path / "0")]) == 1
    assert capsys.readouterr().err == f"error: there is no run with a finished round in {tmp_path / '0'}\n"
    (tmp_path / "0" / "summary.json").write_text("{}")
    (tmp_path / "0" / "rounds.parquet").write_bytes(b"PAR1")
    assert agents.main([str(tmp_path / "0")]) == 1
    error = capsys.readouterr().err
    assert "rounds.parquet cannot be read" in error and error.count("\n") == 1
