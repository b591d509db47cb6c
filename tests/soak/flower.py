"""python -m tests.soak.flower --kills K: random SIGKILLs of sites and server of a secure sum over Flower.

Needs the environment of `make flower`. Studies of five sites are run one after another. Every few seconds a site or the
server is killed and started again. In the end each study has the queries and the release of its simulation, and each
site has charged what it sent and masked one vector for each key.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

import dpfbo
from runners.deploy.project import Project
from tests.runners.deploy.deployments import charged, configurations, simulated_sum
from tests.runners.deploy.processes import QUICK, quick_world, world

N = 5
_LONGEST = 900.0  # seconds of one study
_MOST = 25  # kills in one study, which then ends


def one_study(folder, seed, most):
    """Run a study with at most so many kills; returns their number."""
    choose = random.Random(seed)
    project, sites = quick_world(folder, N, "--trust", "nobody", "--max-dropouts", 1, "--seed", seed)
    commands = {"server": ["server", project.folder, *QUICK]}
    commands |= {f"site{n}": ["site", site] for n, site in enumerate(sites)}
    kills, begin = 0, time.monotonic()
    with world(folder) as w:
        running = {name: w.start(name, *command) for name, command in commands.items()}
        while any(process.poll() is None for process in running.values()):
            assert time.monotonic() < begin + _LONGEST, f"the study of seed {seed} does not end"
            time.sleep(choose.uniform(0.5, 8.0))
            for name, process in running.items():
                if process.poll() not in (None, 0):
                    raise AssertionError(f"{name} has failed: {w.output(name)[-2000:]}")
            alive = [name for name, process in running.items() if process.poll() is None]
            if alive and kills < most:
                name = choose.choice(alive)
                w.kill(running[name])
                running[name] = w.start(name, *commands[name])
                kills += 1
    check(project, sites)
    return kills


def check(project: Project, sites: list[Path]) -> None:
    """Compare with the simulation, and what was charged with what was masked."""
    found, expected = simulated_sum(project.shared.study, range(N))
    assert [configurations(site) for site in sites] == found, "other queries than those of the simulation"
    assert charged(project) == expected, "another release than that of the simulation"
    for site in sites:
        ledger = dpfbo.Ledger(site / "agent" / "ledger.jsonl")
        masked = list((site / "agent").glob("sum-*-masked.bin"))
        assert len(ledger.charges) == len(masked) == 1, (
            f"{site}: {len(ledger.charges)} charges of {len(masked)} vectors"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.flower", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    torch.set_num_threads(1)  # as in the processes of `World`: queries are equal to the bit for the same number only
    wanted, kills, seed = parser.parse_args().kills, 0, 0
    while kills < wanted:
        folder = Path(tempfile.mkdtemp(prefix="dpfbo-flower-"))
        kills += one_study(folder, seed, min(_MOST, wanted - kills))
        shutil.rmtree(folder)
        seed += 1
        print(f"{kills} kills in {seed} studies, nothing lost", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
