"""A study of two sites and a server on the command line, played by a loop, and with every process killed at random."""

import contextlib
import io
import itertools
import json
import os
import random
import signal
import time
import traceback
from collections import Counter

import torch

import dpfbo
from dpfbo.problems.custom import Custom
from runners import study
from tests.helpers.objectives import tuned

SPACE = """
rate: {type: float, lower: 1e-4, upper: 1, log: true}
depth: {type: integer, lower: 1, upper: 12}
kind: {type: categorical, choices: [a, b, c]}
"""
N, N_INIT, T = 2, 3, 3


def call(*arguments):
    """The answer of a call in this process."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert study.main([str(a) for a in arguments]) == 0
    return json.loads(text.getvalue())


def described(folder, *options):
    (folder / "space.yaml").write_text(SPACE)
    few = ["--agents", N, "--n-init", N_INIT, "--rounds", T, "--delta", "1e-3", "--epsilon", 2]
    return call("new", folder / "study.json", "--space", folder / "space.yaml", *few, *options)


def simulated(algorithm):
    space = dpfbo.Space({
        "rate": dpfbo.Float(1e-4, 1, log=True), "depth": dpfbo.Integer(1, 12),
        "kind": dpfbo.Categorical(["a", "b", "c"]),
    })  # fmt: skip
    made = dpfbo.create_study(
        space, n_agents=N, algorithm=algorithm, epsilon=2.0, delta=1e-3, rounds=T, n_init=N_INIT, rng="seeded"
    )
    result = dpfbo.run_study(made, Custom(tuned, n_agents=N, space=space))
    x = torch.cat([r.x for r in result.result.rounds], 1)
    return [[space.configuration(point) for point in agent] for agent in x], result


def played(folder, do):
    """All calls of a study in their order, by `do`; returns the configurations by site."""
    found = [[] for _ in range(N)]
    do("host", folder / "server", folder / "study.json")
    for n in range(N):
        do("join", folder / f"site{n}", folder / "study.json", "--agent", n)

    def evaluate(n):
        asked = do("ask", folder / f"site{n}")
        x = asked["configuration"]
        do("tell", folder / f"site{n}", json.dumps({**asked, "value": tuned(n, x)}))
        found[n].append(x)

    for n in range(N):
        for _ in range(N_INIT):
            evaluate(n)
    for t in range(T):
        if not do("status", folder / "server")["finished"]:
            for n in range(N):
                do("message", folder / f"site{n}", folder / "m.bin", "--round", t)
                do("collect", folder / "server", n, folder / "m.bin")
            do("release", folder / "server", folder / "b.bin", "--round", t)
            for n in range(N):
                do("receive", folder / f"site{n}", folder / "b.bin")
        for n in range(N):
            evaluate(n)
    return found


class Killer:
    """`call` in a process of its own, which is killed at a random moment; the call is then given again.

    kills: by folder of a site or the server. errors: a file of what all calls said. No call may know whether it was
    done before.
    """

    def __init__(self, folder, seed):
        self.kills = Counter()
        self._answer, self._dice = folder / "answer.json", random.Random(seed)
        self.errors = folder / "errors"
        self.errors.touch()
        self._usual = {}  # seconds of a call, by command

    def __call__(self, *arguments):
        for attempt in itertools.count():
            self._answer.unlink(missing_ok=True)
            begin, child = time.monotonic(), os.fork()
            if child == 0:
                self._do(arguments)
            if attempt == 0 or self._dice.random() < 0.5:
                time.sleep(1.2 * self._dice.random() * self._usual.get(arguments[0], 0.02))
                os.kill(child, signal.SIGKILL)  # within the call, or after its end
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                self.kills[arguments[1].name] += 1
                if not self._answer.exists() or self._dice.random() < 0.5:  # killed after the answer, or unseen
                    continue
            else:
                assert os.waitstatus_to_exitcode(status) == 0, arguments
                self._usual[arguments[0]] = time.monotonic() - begin
            return json.loads(self._answer.read_text())

    def _do(self, arguments):
        code = 1
        try:
            part = self._answer.with_suffix(".part")
            with open(self.errors, "a") as errors, contextlib.redirect_stderr(errors):
                try:
                    part.write_text(json.dumps(call(*arguments)))
                except BaseException:
                    traceback.print_exc()
                    raise
            part.rename(self._answer)
            code = 0
        finally:
            os._exit(code)
