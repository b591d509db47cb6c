"""The suite `ray` of runners.bench: the cost of actors, beside the same run in one process."""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from runners.compose.composition import build
from runners.compose.configuration import composed
from runners.executor.place import deployed
from runners.record.run_folder import RunFolder

_TREE = "executor.aggregation=tree"
TARGET_MS = 15.0  # milliseconds a round of 29 agents in 2 actors may take beyond one process


@dataclass(frozen=True)
class Cost:
    """One run. start_s: seconds until the agents are ready; round_ms: median; memory_mb: the largest actor's."""

    what: str
    start_s: float
    round_ms: float
    memory_mb: float | None


def measure(n_agents: int, actors: int, rounds: int, repeats: int) -> list[Cost]:
    """The synthetic problem in one process, in `actors` actors, and there with tree aggregation: the fastest runs."""
    per_actor = -(-n_agents // actors)
    ray = ["executor=ray", "executor.address=local", f"executor.agents_per_actor={per_actor}"]
    runs = {"one process": ["executor=local"], f"{actors} actors": ray, f"{actors} actors, tree": [*ray, _TREE]}
    base = ["problem=synthetic", f"problem.n_agents={n_agents}", f"rounds={rounds}"]
    configs = {what: composed([*base, *overrides]) for what, overrides in runs.items()}
    costs = []
    for what, cfg in configs.items():
        tried = [_cost(what, cfg) for _ in range(repeats)]
        costs.append(min(tried, key=lambda cost: cost.round_ms))
    return costs


def _cost(what: str, cfg: DictConfig) -> Cost:
    experiment, marks = build(cfg), []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with deployed(experiment, RunFolder(Path(folder)), experiment.result()) as deployment:
            start = time.perf_counter() - begin
            deployment.run(lambda _: marks.append(time.perf_counter()))
            memory = deployment.placed().get("memory_per_actor")
    rounds = [1e3 * (after - before) for before, after in pairwise(marks)]
    return Cost(what, start, median(rounds), None if memory is None else memory / 1e6)


def run(args: argparse.Namespace) -> int:
    """Run the suite `ray`; exit code 0."""
    costs = measure(args.agents, args.actors, args.rounds, args.repeats)
    if args.json:
        print(json.dumps(_as_json(args, costs), indent=2))
        return 0
    table = Table(title=f"synthetic · dp_fts_de · {args.agents} agents · {args.rounds} rounds", title_justify="left")
    for column in ("", "start-up, s", "median round, ms", "more than one process, ms", "memory of an actor, MB"):
        table.add_column(column, justify="left" if not column else "right")
    for cost in costs:
        more = "" if cost is costs[0] else f"{cost.round_ms - costs[0].round_ms:.1f}"
        memory = "" if cost.memory_mb is None else f"{cost.memory_mb:.0f}"
        table.add_row(cost.what, f"{cost.start_s:.2f}", f"{cost.round_ms:.1f}", more, memory)
    console = Console()
    console.print(table)
    console.print(f"best of {args.repeats} runs; target: at most {TARGET_MS:g} ms more in a round", highlight=False)
    return 0


def _as_json(args: argparse.Namespace, costs: list[Cost]) -> dict[str, Any]:
    head = {"suite": "ray", "agents": args.agents, "actors": args.actors, "rounds": args.rounds}
    return {**head, "target_ms": TARGET_MS, "runs": [asdict(cost) for cost in costs]}
