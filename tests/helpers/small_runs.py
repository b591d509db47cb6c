"""Small runs, their interruption, and a comparison of their records to the bit."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dpfbo.privacy.ledger import Ledger
from runners import run
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose, setting_hash

QUIET = ["tracker.wandb.mode=disabled", "progress=false"]
FAST = ["privacy.accountant=rdp", "privacy.accountants=[rdp,fixed_size,gdp]"]
COMMON = ["problem.n_agents=6", "n_init=4", "algorithm.M=20", *FAST]
SYNTHETIC = ["problem=synthetic", "problem.grid_size=50", *COMMON]
BRANIN = ["problem=branin", "acquisition.n_candidates=40", "acquisition.n_starts=3", *COMMON]  # refits every 5 queries
FILES = {"config.yaml", "rounds.parquet", "server.parquet", "ledger.jsonl", "summary.json"}
_OF_THIS_EXECUTION = ("seconds", "executor", "commit", "environment")  # keys that a resumed run changes
Records = dict[str, Any]


def records(folder: Path) -> Records:
    """The records of a finished run, to the bit, without the place and the time of its execution."""
    others = {"rounds.zip", "lineage.json", "failures.log"}  # for a longer run, and of an objective that raised
    names = {f.name for f in folder.iterdir()} - others
    assert names == FILES, f"a finished run leaves its records and nothing else, not {sorted(names ^ FILES)}"
    summary = json.loads((folder / "summary.json").read_bytes())
    for key in _OF_THIS_EXECUTION:
        summary.pop(key, None)
    as_bytes = {name: (folder / name).read_bytes() for name in ("rounds.parquet", "server.parquet", "ledger.jsonl")}
    return {**as_bytes, "summary": summary}


def undisturbed(folder: Path, *settings: str) -> Records:
    """The records of an uninterrupted run in this process."""
    _, path = run_configuration(compose(*settings, *QUIET, f"results_dir={folder}"))
    return records(path)


def differences(got: Records, expected: Records) -> list[str]:
    """The names of the records that differ in a bit."""
    assert got.keys() == expected.keys()
    return [name for name in expected if got[name] != expected[name]]


def charged(folder: Path) -> list[tuple[int, str]]:
    """(round, digest) of all charges, in order."""
    return [(c.round, c.digest) for c in Ledger(folder / "ledger.jsonl").charges]


SMALL = ["problem.n_agents=8", "problem.grid_size=50", "rounds=6", "n_init=3", "algorithm.M=20"]


def call(monkeypatch, *overrides):
    """Run the command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["runners.run", *QUIET, *overrides])
    try:
        run.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


class Stop(Exception):
    """An end of a run from outside."""


def interrupted(cfg, after, error=Stop):
    """Stop the run right after a round was kept; returns the rounds of the calls to on_round."""
    seen = []

    def stop(done):
        seen.append(done.agents.round)
        if done.agents.round == after:
            raise error

    with pytest.raises(error):
        run_configuration(cfg, stop)
    return seen


def folder_of(cfg):
    """The folder of the run, whose name has the hash of its setting at the end, after a label or alone."""
    name = setting_hash(cfg)
    found = list((Path(cfg.results_dir) / "single").glob(f"*{name}"))
    return (found[0] if found else Path(cfg.results_dir) / "single" / name) / "0"
