"""Small runs on Ray, in processes that serve one run after another."""

import os
from collections import defaultdict

import pandas as pd

from runners.executor.ray.supervision import Actor
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import QUIET

PRIVATE = ["privacy.q=0.6", "privacy.z=0.3"]  # most agents are chosen, and the noise is small
GRID = [*PRIVATE, "problem.n_agents=6", "problem.grid_size=60", "problem.lengthscale=0.1", "algorithm.M=20"]
BOX = [*PRIVATE, "problem=branin", "problem.n_agents=6", "acquisition.n_candidates=100", "algorithm.M=20"]
SHORT = ["rounds=6", "n_init=4"]  # the own GPs are refitted after the first round


def run(folder, *overrides):
    """(summary, folder) of an experiment."""
    return run_configuration(compose(*SHORT, *QUIET, *overrides, f"results_dir={folder}"))


def records(folder):
    """The records of a run, to the bit."""
    return [(folder / name).read_bytes() for name in ("rounds.parquet", "server.parquet", "ledger.jsonl")]


def same(folder, other):
    """True where two runs have the same records, to the bit."""
    return all(a == b for a, b in zip(records(folder), records(other), strict=True))


class Reused:
    """Processes of actors, used by one run after another, because a start takes longer than a small run.

    Every run still builds its agents and its server anew, from its own settings, in those processes.
    """

    def __init__(self, monkeypatch):
        self.parked = defaultdict(list)  # by class and share of a GPU
        monkeypatch.setattr(Actor, "create", lambda actor: self.create(actor))
        monkeypatch.setattr(Actor, "kill", lambda actor: self.park(actor))

    def create(self, actor):
        gpus = actor.options.get("num_gpus", 0)
        free = self.parked[actor.cls, gpus]
        new = actor.cls.options(num_cpus=0, num_gpus=gpus)
        actor.handle = free.pop() if free else new.remote(*actor.arguments)
        actor.handle.__ray_call__.remote(_anew, *actor.arguments)

    def park(self, actor):
        if actor.handle is not None and actor.death is None:
            self.parked[actor.cls, actor.options.get("num_gpus", 0)].append(actor.handle)
        actor.handle = actor.death = None


def _anew(actor, *arguments):
    lock = vars(actor).get("_lock")
    vars(actor).clear()
    if lock is not None:
        os.close(lock)
    actor.__init__(*arguments)


def frames(folder):
    return pd.read_parquet(folder / "rounds.parquet"), pd.read_parquet(folder / "server.parquet")
