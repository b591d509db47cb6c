"""A few damaged run folders; `python -m tests.hostile.damage` tries all of them with all commands."""

import random

import pytest

from tests.hostile import damage


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return damage.folders(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("command", "file", "kind"),
    [
        ("tables", "summary.json", "a FIFO"), ("tables", "config.yaml", "a FIFO"), ("tables", "summary.json", "deep"),
        ("tables", "server.parquet", "garbage"), ("best", "rounds.parquet", "a FIFO"), ("best", "config.yaml", "NULs"),
        ("backfill", "rounds.parquet", "a FIFO"), ("backfill", "config.yaml", "a FIFO"),
        ("tables", "config.yaml", "deep"), ("backfill", "config.yaml", "deep"),
        ("ledger", "ledger.jsonl", "a FIFO"), ("ledger --verify", "server.parquet", "truncated"),
        ("ledger --verify", "summary.json", "a FIFO"), ("status", "summary.json", "a FIFO"),
        ("board", "summary.json", "a FIFO"), ("board", "config.yaml", "deep"), ("run", "ledger.jsonl", "CRLF"),
        ("run", "summary.json", "deep"), ("certificate", "server.parquet", "a FIFO"),
        ("theory", "rounds.parquet", "a FIFO"),
        ("ledger --verify", "server.parquet", "a FIFO"), ("status", "../../sweep.json", "deep"),
        ("sweep --dry-run", "../../sweep.json", "a FIFO"), ("sweep --dry-run", "summary.json", "a FIFO"),
        ("ledger --verify", "summary.json", "deep"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_read_or_refused_in_a_sentence(made, tmp_path, command, file, kind):
    results = made["finished"].parents[2]
    run = tmp_path / "copy" / made["finished"].relative_to(results)
    damage.shutil.copytree(results, tmp_path / "copy")
    damage.damage(run / file, kind, random.Random(0))
    end, said = damage.outcome(damage.commands(tmp_path / "copy", run)[command])
    assert end in ("fine", "sentence"), said
    assert end == "fine" or said.count("\n") == 0, said
