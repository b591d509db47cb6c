"""make soak: SIGKILLs at random moments; prints a table, with exit code 1 if any record differs."""

import argparse
import io
import itertools
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import torch

from dpfbo.privacy.ledger import Ledger
from tests.helpers import lost_nodes, studies
from tests.helpers.killed_runs import (
    RAY,
    RAY_OF_ITS_OWN,
    RUN,
    Outcome,
    actor_kills,
    driver_moments,
    kill_actors,
    kill_drivers,
    ray_session,
)
from tests.helpers.small_runs import undisturbed
from tests.hostile import fuzz

MOST = 5  # kills in one run
TREE = "executor.aggregation=tree"
OS = "privacy.rng=os"


def worlds(folder: Path, kills: int, seed: int) -> Iterator[Outcome]:
    """`kills` each of agent actors, server actors, drivers on Ray and local drivers; then with other settings."""

    def fresh() -> Path:
        return Path(tempfile.mkdtemp(dir=folder))

    def each(kind: str, world: Callable[[int, int], Outcome]) -> Iterator[Outcome]:
        for i in range(0, kills, MOST):
            n = min(MOST, kills - i)
            try:
                outcome = world(seed + i, n)
            except Exception as error:
                outcome = Outcome(kind, notes=[f"{type(error).__name__}: {error}"])
            outcome.kind = kind
            if outcome.kills < n:
                outcome.records = False
                outcome.notes.append(f"{n} kills were planned")
            yield outcome

    def mixed(seed: int, n: int) -> list:
        return [*actor_kills("agent", n - n // 2, seed + 1), *actor_kills("server", n // 2, seed + 1)]

    def drivers(finish: bool, start: float, *settings: str) -> Callable[[int, int], Outcome]:
        known = expected if OS not in settings else None
        return lambda s, n: kill_drivers(
            "", driver_moments(n, s, start, finish), fresh(), known, *settings, patient=True
        )

    expected = undisturbed(fresh(), *RUN)
    with ray_session() as mark:
        for kind in ("agent", "server"):
            yield from each(
                f"{kind} actor",
                lambda s, n, kind=kind: kill_actors("", actor_kills(kind, n, s), fresh(), mark, expected),
            )
        yield from each("actors, rng=os", lambda s, n: kill_actors("", mixed(s, n), fresh(), mark, None, OS))
        tree = undisturbed(fresh(), *RUN, *RAY, TREE)
        yield from each("actors, tree", lambda s, n: kill_actors("", mixed(s, n), fresh(), mark, tree, TREE))
    yield from each("driver on Ray", drivers(True, 15.0, *RAY_OF_ITS_OWN))
    yield from each("local driver", drivers(True, 5.0))
    yield from each("local driver, rng=os", drivers(False, 5.0, OS))
    for algorithm in ("dp_fts_de", "dp_prior"):
        yield killed_study(fresh(), algorithm, MOST * kills, seed)
    yield lost_nodes_of_a_sweep(fresh(), kills, seed)


def lost_nodes_of_a_sweep(folder: Path, kills: int, seed: int) -> Outcome:
    """A sweep of ten trials a kill, on nodes that are killed and replaced."""
    begin, swept = time.monotonic(), lost_nodes.sweep(folder / "results", 5 * kills, kills, seed)
    done = sum(trial["state"] == "done" for trial in swept.report["trials"])
    outcome = Outcome("nodes of a sweep", records=swept.code == 0 and done == 10 * kills, ledger=not swept.faults)
    outcome.kills, outcome.seconds = swept.kills, time.monotonic() - begin
    outcome.records &= swept.kills == kills
    outcome.notes += [f"{done} trials done, {swept.preemptions} preemptions", *swept.faults]
    return outcome


def killed_study(folder: Path, algorithm: str, kills: int, seed: int) -> Outcome:
    """Studies of two sites and a server by files, until each of the three was killed so often."""
    outcome, begin, killed = Outcome(f"study, {algorithm}", records=True, ledger=True), time.monotonic(), Counter()
    expected, result = studies.simulated(algorithm)
    for i in itertools.count():
        here = folder / str(i)
        here.mkdir()
        studies.described(here, "--algorithm", algorithm, "--rng", "seeded")
        killer = studies.Killer(here, seed + i)
        outcome.records &= studies.played(here, killer) == expected
        paid = [(c.round, c.digest) for c in Ledger(here / "server" / "ledger.jsonl").charges]
        outcome.ledger &= paid == [(c.round, c.digest) for c in result.ledger.charges]
        killed += killer.kills
        if min(killed[name] for name in ("server", "site0", "site1")) >= kills:
            break
    outcome.kills, outcome.seconds = killed.total(), time.monotonic() - begin
    outcome.notes.append(", ".join(f"{name} {n}" for name, n in sorted(killed.items())))
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each kind (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (default 0)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.ERROR)
    table, passed = sys.stdout, True
    header = f"{'killed':<22} {'kills':>5}  {'identical records':<18} {'ledger complete':<16} {'seconds':>7}  notes"
    print(header, file=table, flush=True)
    # Ray reports each death on standard output
    with tempfile.TemporaryDirectory(prefix="soak") as folder, redirect_stdout(io.StringIO()):
        for outcome in worlds(Path(folder), arguments.kills, arguments.seed):
            passed &= outcome.passed
            words = [("yes" if flag else "NO") for flag in (outcome.records, outcome.ledger)]
            line = f"{outcome.kind:<22} {outcome.kills:>5}  {words[0]:<18} {words[1]:<16} {outcome.seconds:>7.1f}  "
            print(line + "; ".join(outcome.notes), file=table, flush=True)
    print(f"hostile input: {fuzz.soak()} cases", flush=True)
    print("passed" if passed else "FAILED", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
