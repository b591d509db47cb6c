"""The whole library without optional packages and without a network: a program, and whatever it prints is JSON.

It is run where the packages are not installed (`python -m tests.bare`), and where they are, with their names as
arguments: then an import of one fails as if it were not there.
"""

import importlib.abc
import json
import re
import socket
import sys
import tempfile
from pathlib import Path


class Absent(importlib.abc.MetaPathFinder):
    """Finds nothing, and ends the search for these packages."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refuse(*address):
    raise OSError(f"a study wants the network: {address}")


def score(agent, x):
    return -((x["depth"] - 4 - agent % 2) ** 2) - abs(x["rate"] - 0.1) + (x["kernel"] == "rbf")


def main():
    sys.meta_path.insert(0, Absent(sys.argv[1:]))
    socket.socket.connect = refuse

    import dpfbo

    space = {
        "rate": dpfbo.Float(1e-3, 1.0, log=True),
        "depth": dpfbo.Integer(1, 12),
        "kernel": dpfbo.Categorical(["linear", "rbf"]),
    }
    found = {}
    folder = Path(tempfile.mkdtemp())
    for algorithm in ("ts", "dp_fts_de", "dp_prior"):
        ledger = dpfbo.Ledger(folder / f"{algorithm}.jsonl")
        acquisition = dpfbo.gp.Acquisition(n_candidates=30, n_starts=2)
        result = dpfbo.optimize(
            score, space, n_agents=8, algorithm=algorithm, rounds=3, n_init=3, rng="os", ledger=ledger,
            acquisition=acquisition, **({} if algorithm == "ts" else {"epsilon": 4.0, "delta": 1e-3}),
        )  # fmt: skip
        frame = result.to_pandas()
        found[algorithm] = [len(frame), frame["x.kernel"].iloc[0], result.epsilon, str(result)]

    study = dpfbo.create_study(space, n_agents=2, epsilon=8.0, delta=1e-3, rounds=2, n_init=2)
    server = dpfbo.Coordinator(study, folder / "server")
    for n in range(2):
        agent = dpfbo.Agent(study, n, folder=folder / f"site{n}")
        for _ in range(study.n_init):
            x = agent.ask()
            agent.tell(x, score(n, x))
        server.receive(n, agent.message())
    found["released"] = len(server.release()) > 0

    for name, call in {
        "plot": result.plot,
        "n_jobs": lambda: dpfbo.optimize(score, space, n_agents=2, algorithm="ts", rounds=1, n_jobs=2),
        "botorch": lambda: dpfbo.problems.BotorchFunction("Ackley"),
        "opendp": dpfbo.privacy.DiscreteGaussian,
    }.items():
        try:
            call()
        except dpfbo.MissingPackage as error:
            found[name] = str(error)
    print(json.dumps(found))


def check_study(found):
    """Check the output of `main` where no optional package is."""
    for name in ("ts", "dp_fts_de", "dp_prior"):
        assert found[name][0] == 48 and found[name][1] in ("linear", "rbf"), name
    assert found["ts"][2] == 0 and 3.9 < found["dp_fts_de"][2] <= 4 and 3.9 < found["dp_prior"][2] <= 4
    assert found["released"]
    assert found["plot"] == "a plot needs matplotlib: pip install 'dpfbo[analysis]'"
    assert re.fullmatch(
        r"an objective with n_jobs or timeout needs (loky|pebble|cloudpickle): pip install 'dpfbo\[problems\]'",
        found["n_jobs"],
    )
    assert found["botorch"] == "BotorchFunction needs botorch: pip install 'dpfbo[botorch]'"
    assert found["opendp"] == "discrete noise needs opendp: pip install 'dpfbo[opendp]'"


if __name__ == "__main__":
    main()
