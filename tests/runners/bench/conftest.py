"""Measurements in the test's own process: a fresh one takes seconds to import torch, and has tests of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.bench import command, measured_process, plots
from runners.bench.bench import Bench
from runners.bench.federated_run import RunTask
from runners.bench.measured_process import Reply, answer, reply_of
from tests.helpers.bench import FACTS

SMALL = ("problem.n_agents=6", "problem.grid_size=40", "n_init=3")


def inside(
    function: str,
    arguments: Mapping[str, Any],
    threads: int = 1,
    memory_gb: float | None = None,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Reply:
    """As `measured`, without a process of its own; all goes through JSON as there."""
    lines: list[dict[str, Any]] = []
    request = {"function": function, "arguments": arguments, "threads": threads, "memory_gb": None}
    answer(json.loads(json.dumps(request)), lambda line: lines.append(json.loads(json.dumps(line))))
    for line in lines[:-1]:
        on_step(*line["step"])
    return reply_of(lines[-1])


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_process, "measured", inside)
    monkeypatch.setattr(command, "_facts", lambda *args: FACTS)
    monkeypatch.setattr(plots, "png", lambda found: b"a picture")  # test_plots draws


@pytest.fixture
def small(in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in this process, of problems with six agents, without a run to warm up."""
    task = Bench.task

    def smaller(self: Bench, problem: str, algorithm: str, *overrides: str, **more: Any) -> RunTask:
        return task(self, problem, algorithm, *SMALL, *overrides, **{"warm_up": False, **more})

    monkeypatch.setattr(Bench, "task", smaller)


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs a command line, and returns its exit code and the JSON that it printed."""

    def run(*argv: str) -> tuple[int, dict[str, Any]]:
        code = command.main([*argv, "--repeats", "1", "--json", "--out", str(tmp_path / "bench")])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else {}

    return run
