"""A sweep on several Ray nodes of this machine, of which some go away while it runs."""

import json
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import ray
from ray.cluster_utils import Cluster

from dpfbo.privacy.ledger import Ledger
from runners.compose.composition import build
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import FAST, QUIET

N_AGENTS, N_INIT, ROUNDS = 3, 2, 5
RUN = [
    "problem=custom", "problem.function=tests.helpers.objectives:slow", "problem.lower=[0,0]", "problem.upper=[1,1]",
    f"problem.n_agents={N_AGENTS}", f"n_init={N_INIT}", f"rounds={ROUNDS}", "algorithm.M=10",
    "acquisition.n_candidates=20", "acquisition.n_starts=1", "algorithm=dp_fts", "experiment_name=lost", *QUIET, *FAST,
]  # fmt: skip
RECORDS = ("rounds.parquet", "server.parquet", "ledger.jsonl")


@dataclass
class Swept:
    """The result of a sweep: its exit code, what it printed as JSON, kills of nodes, and the faults of its records."""

    code: int
    report: dict
    kills: int
    faults: list[str] = field(default_factory=list)

    @property
    def preemptions(self) -> int:
        return sum(trial["preemptions"] for trial in self.report["trials"])


@contextmanager
def nodes(workers: int):
    """A head without CPUs for trials, and nodes of one CPU."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(workers):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def sweep(folder: Path, seeds: int, kills: int, seed: int) -> Swept:
    """Sweep over seeded and real noise with so many seeds each, and kill nodes, each replaced by a new one."""
    dice, killed = random.Random(seed), 0
    with nodes(2) as cluster:
        arguments = [*RUN, "privacy.rng=seeded,os", f"seeds=0..{seeds - 1}", "sweep.max_retries=20"]
        place = [f"results_dir={folder}", f"sweep.address='{cluster.address}'", "--json"]
        with open(folder.with_suffix(".json"), "w+") as out, open(folder.with_suffix(".err"), "w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "runners.sweep", *arguments, *place], stdout=out, stderr=err
            )
            try:
                while process.poll() is None:
                    time.sleep(dice.uniform(0.5, 3.0))
                    if killed < kills and list(folder.rglob(".lock")):  # a trial runs
                        cluster.remove_node(dice.choice(list(cluster.worker_nodes)), allow_graceful=False)
                        killed += 1
                        cluster.add_node(num_cpus=1)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            swept = Swept(process.returncode, json.load(out), killed)
    swept.faults = [fault for path in sorted(folder.rglob("summary.json")) for fault in faults(path.parent)]
    return swept


def faults(folder: Path) -> list[str]:
    """Sentences about what is wrong with the records of a run."""
    summary = json.loads((folder / "summary.json").read_bytes())
    rounds = pd.read_parquet(folder / "rounds.parquet")
    experiment = build(compose(*RUN, f"privacy.rng={summary['rng']}", f"seed={folder.name}"))
    events, found = Ledger(folder / "ledger.jsonl").events(), []
    if len(rounds) != N_AGENTS * (N_INIT + ROUNDS):
        found.append(f"{folder}: {len(rounds)} rows")
    if summary["epsilon"]["rdp"] < experiment.plan.epsilon(events) - 1e-12 or len(events) < ROUNDS:
        found.append(f"{folder}: epsilon {summary['epsilon']['rdp']} of {len(events)} charges")
    return found


def undisturbed(folder: Path, seed: int) -> Path:
    """The folder of the seeded trial with this seed, run by itself."""
    cfg = compose(*RUN, "privacy.rng=seeded", f"seed={seed}", f"results_dir={folder}")
    return run_configuration(cfg)[1]
