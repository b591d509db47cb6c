"""Sweeps whose nodes, or whose trials' processes, are killed while they run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.helpers import lost_nodes
from tests.helpers.killed_runs import MARK, processes
from tests.soak.outcome import Outcome

_TRAINABLE = "ray::ImplicitFunc"  # title of a trial's process
_A_KILL = 2  # seeds of each of the two settings for a kill


def nodes(folder: Path, kills: int, seed: int) -> Outcome:
    """A sweep on nodes that are killed and replaced."""
    begin = time.monotonic()
    swept = lost_nodes.sweep(folder / "results", max(2, _A_KILL * kills), kills, seed)
    outcome = _judged(folder, "nodes of a sweep", swept.code, swept.report, swept.kills)
    outcome.seconds = time.monotonic() - begin
    return outcome


def trials(folder: Path, kills: int, seed: int) -> Outcome:
    """A sweep on this machine, of which processes of trials are killed while they hold their run's folder."""
    begin, dice, mark, killed = time.monotonic(), random.Random(f"trials {seed}"), uuid.uuid4().hex, 0
    seeds = max(2, _A_KILL * kills)
    arguments = [*lost_nodes.RUN, "privacy.rng=seeded,os", f"seeds=0..{seeds - 1}", "sweep.max_retries=20"]
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "runners.sweep", *arguments, f"results_dir={folder / 'results'}", "--json"],
            stdout=out, stderr=err, env=environment,
        )  # fmt: skip
        try:
            while process.poll() is None:
                time.sleep(dice.uniform(0.2, 1.0))
                running = [pid for pid, title in processes(mark).items() if title.startswith(_TRAINABLE)]
                if killed < kills and running and list(folder.rglob(".lock")):
                    with suppress(ProcessLookupError):
                        os.kill(dice.choice(running), signal.SIGKILL)
                        killed += 1
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        text, said = out.read(), err.read()
    outcome = _judged(folder, "trials of a sweep", process.returncode, json.loads(text or '{"trials": []}'), killed)
    outcome.tracebacks = said.count("Traceback (most recent call last)")
    outcome.seconds = time.monotonic() - begin
    return outcome


def _judged(folder: Path, kind: str, code: int, report: dict, kills: int) -> Outcome:
    """Every trial must be done, and the seeded one of seed 0 must be the same to the bit as one alone."""
    trials = report["trials"]
    done = sum(trial["state"] == "done" for trial in trials)
    found = [f for path in sorted(folder.rglob("summary.json")) for f in lost_nodes.faults(path.parent)]
    outcome = Outcome(kind, kills, records=code == 0 and done == len(trials) > 0, ledger=not found, runs=len(trials))
    outcome.notes = [f"{done} of {len(trials)} trials done, exit code {code}", *found]
    outcome.under = len(found)
    ours = _seeded(folder)
    if ours is None:
        outcome.records = False
    else:
        alone = lost_nodes.undisturbed(folder / "alone", 0)
        outcome.records &= all((ours / n).read_bytes() == (alone / n).read_bytes() for n in lost_nodes.RECORDS)
    return outcome


def _seeded(folder: Path) -> Path | None:
    for path in sorted(folder.rglob("0/summary.json")):
        if json.loads(path.read_bytes())["rng"] == "seeded":
            return path.parent
    return None
