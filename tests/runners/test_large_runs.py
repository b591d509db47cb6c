"""Runs whose rounds do not stay in memory leave the records of those whose rounds do."""

import functools
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dpfbo import round_log, run_summary, tables
from dpfbo.checkpoint import Checkpoint
from dpfbo.records import RoundRecord
from runners import recorded_run
from runners.compose.composition import Composition
from runners.record.terminal import print_summary
from runners.recorded_run import record_run, run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import (
    BRANIN,
    QUIET,
    SYNTHETIC,
    differences,
    folder_of,
    interrupted,
    records,
    undisturbed,
)

T = 5
PROBLEMS = {"synthetic": SYNTHETIC, "branin": BRANIN}


def settings(problem, *more):
    return [*PROBLEMS[problem], f"rounds={T}", *more]


@functools.cache
def expected(problem, *more):
    """The records of the run with all rounds in memory, made once."""
    with tempfile.TemporaryDirectory() as folder:
        return undisturbed(Path(folder), *settings(problem, *more))


@pytest.fixture
def large(monkeypatch):
    """Any run is a large one: none but the last round stays in memory. Gives the rounds that were read back."""
    for problem in PROBLEMS:
        expected(problem)
    monkeypatch.setattr(round_log, "MOST_BYTES", 0)
    read, record = [], Checkpoint.record
    monkeypatch.setattr(Checkpoint, "record", lambda self, t: read.append(t) or record(self, t))
    return read


def configured(tmp_path, problem="branin", *more):
    return compose(*settings(problem, *more), *QUIET, f"results_dir={tmp_path}")


@pytest.mark.parametrize("problem", ["synthetic", "branin"])
def test_records_are_the_same(large, tmp_path, problem):
    _, path = run_configuration(configured(tmp_path, problem))
    assert differences(records(path), expected(problem)) == []
    assert large == 2 * list(range(T))  # for the best of each agent, and for rounds.parquet


def test_row_groups_hold_the_same_rows(large, monkeypatch, tmp_path):
    few = functools.partial(tables.row_groups, rows=7)
    monkeypatch.setattr(recorded_run.tables, "row_groups", few)
    summary, path = run_configuration(configured(tmp_path))
    found = records(path)
    assert [name for name in differences(found, expected("branin")) if name != "rounds.parquet"] == []
    with tempfile.NamedTemporaryFile() as other, pq.ParquetFile(path / "rounds.parquet") as file:
        Path(other.name).write_bytes(expected("branin")["rounds.parquet"])
        assert file.metadata.num_row_groups == -(-file.metadata.num_rows // 7) > 5
        assert file.read().equals(pq.read_table(other.name))
    assert len(summary["best"]) == 6


@pytest.mark.parametrize("after", [0, 3, T])
def test_interrupted_and_resumed(large, tmp_path, after):
    cfg = configured(tmp_path)
    interrupted(cfg, after)
    seen = []
    _, path = run_configuration(cfg, lambda done: seen.append(done.agents.round))
    assert seen == list(range(T + 1))
    assert differences(records(path), expected("branin")) == []


def test_a_finished_run_goes_on(large, tmp_path):
    def single(rounds):
        cfg = compose(*PROBLEMS["branin"], f"rounds={rounds}", *QUIET, f"results_dir={tmp_path}")
        return record_run(Composition.of(cfg), single=True)[1]

    first = single(2)
    assert single(T) == first
    assert (first / "rounds.parquet").read_bytes() == expected("branin")["rounds.parquet"]
    assert (first / "server.parquet").read_bytes() == expected("branin")["server.parquet"]


def test_few_rounds_are_in_memory_at_a_time(large, monkeypatch, tmp_path):
    """Neither while it runs, nor when it is resumed, nor at its end."""
    alive, most, init = set(), [0], RoundRecord.__init__

    def born(self, *given, **named):
        init(self, *given, **named)
        alive.add(id(self))
        most[0] = max(most[0], len(alive))

    monkeypatch.setattr(RoundRecord, "__init__", born)
    monkeypatch.setattr(RoundRecord, "__del__", lambda self: alive.discard(id(self)), raising=False)
    monkeypatch.setattr(recorded_run.tables, "row_groups", functools.partial(tables.row_groups, rows=7))
    cfg = configured(tmp_path, "synthetic", "rounds=30")
    interrupted(cfg, 20)
    assert 1 < most[0] <= FEW
    most[0] = 0
    run_configuration(cfg)
    assert 1 < most[0] <= FEW


FEW = 6  # records: of the shard, of the log, of the step, of the loop, and of the file that is read


def test_a_round_that_is_lost_while_the_run_goes_on_is_one_sentence(large, tmp_path):
    cfg = configured(tmp_path)

    def lose(done):
        if done.agents.round == 3:
            (folder_of(cfg) / "checkpoint" / "round-00001.npz").write_bytes(b"")

    with pytest.raises(OSError, match="round-00001.npz was there before and cannot be read any more"):
        run_configuration(cfg, lose)
    assert not (folder_of(cfg) / "summary.json").exists()


def test_a_summary_of_many_agents_tells_quantiles(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run_summary, "MANY_AGENTS", 5)
    summary, path = run_configuration(configured(tmp_path))
    last = pq.read_table(path / "rounds.parquet").to_pandas().query(f"round == {T}")["regret"]
    assert list(summary["final"]["quantiles"]) == ["5", "25", "50", "75", "95"]
    for percent, value in summary["final"]["quantiles"].items():
        assert value == pytest.approx(last.quantile(int(percent) / 100))
    print_summary(summary, path)
    said = " ".join(capsys.readouterr().out.split())
    assert f"quantiles of the agents at the end: 5 % {summary['final']['quantiles']['5']:.4g}, 25 % " in said
    found = records(path)
    assert "quantiles" not in expected("branin")["summary"]["final"]
    del found["summary"]["final"]["quantiles"]
    assert differences(found, expected("branin")) == []
