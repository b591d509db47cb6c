"""Two sites and a server run as processes of their own and exchange files, for objectives that no program can call.

A process that is killed and started again continues from its folder. Run it by `python examples/ask_and_tell.py`.
"""

import time
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp

import dpfbo

SPACE = {"degrees": dpfbo.Float(100, 250), "minutes": dpfbo.Integer(5, 60)}
AGREED = {"n_agents": 2, "algorithm": "dp_prior", "epsilon": 4.0, "delta": 1e-3, "n_init": 3, "rng": "os"}


def evaluate(site, x):
    return -(((x["degrees"] - 180 - 10 * site) / 40) ** 2) - ((x["minutes"] - 25) / 10) ** 2


def site(number, folder, rounds):
    study = dpfbo.create_study(SPACE, rounds=rounds, **AGREED)
    agent = dpfbo.Agent(study, number, folder=folder / f"site{number}")
    for t in range(study.n_init + rounds):
        if t == study.n_init:
            send(agent.message(), folder / f"message{number}.bin")
            agent.receive(wait_for(folder / "broadcast.bin"))
        x = agent.ask()
        agent.tell(x, evaluate(number, x))
    return agent.best()


def send(data, path):
    path.with_suffix(".part").write_bytes(data)
    path.with_suffix(".part").rename(path)  # so that nobody reads an unfinished file


def wait_for(path, seconds=300):
    for _ in range(10 * seconds):
        if path.exists():
            return path.read_bytes()
        time.sleep(0.1)
    raise TimeoutError(f"{path} has not arrived")


def main(rounds=5, folder=None):
    folder = Path(mkdtemp() if folder is None else folder)
    with get_context("spawn").Pool(2) as sites:
        done = sites.starmap_async(site, [(n, folder, rounds) for n in range(2)])
        server = dpfbo.Coordinator(dpfbo.create_study(SPACE, rounds=rounds, **AGREED), folder / "server")
        for n in range(2):
            server.receive(n, wait_for(folder / f"message{n}.bin"))
        send(server.release(), folder / "broadcast.bin")  # charges the ledger on disk, then returns
        print(f"released once, epsilon {server.epsilon:.2f}")
        for n, (configuration, value) in enumerate(done.get()):
            print(f"site {n}: {value:.3f} at {configuration}")


if __name__ == "__main__":
    main()
