"""Valid and invalid objectives of a custom problem."""

import math
import sys
import time


def sphere(agent, x):
    return -float(((x - 0.1 * agent) ** 2).sum())


def broken(agent, x):
    raise RuntimeError("sensor off")


def not_a_number(agent, x):
    return float("nan")


def text(agent, x):
    return "high"


def tuned(agent, x):
    """A function of a rate (log), a depth and a kind; best at 0.01, 5 and b."""
    base = {"a": 0.0, "b": 0.3, "c": -0.2}[x["kind"]]
    return base - (math.log10(x["rate"]) + 2) ** 2 / 4 - abs(x["depth"] - 5) / 10 + 0.01 * agent


def conditional(agent, x):
    """A function of exactly the active parameters of a space; any other parameter is an unused key."""
    x = dict(x)
    kernel, layers = x.pop("kernel"), x.pop("layers")
    value = -abs(x.pop("c") - 0.3) + {"linear": 0.0, "rbf": 0.5, "poly": 0.2}[kernel] + 0.01 * len(layers)
    if kernel != "linear":
        value -= abs(math.log10(x.pop("gamma")) + 1.5)
    if kernel == "poly" and x.pop("degree") in (3, 4):
        value -= abs(x.pop("scale") - 0.3)
    if x:
        raise KeyError(f"inactive parameters: {x}")
    return value


def leaving(agent, x):
    sys.exit(3)


def sometimes(agent, x):
    """A function without a value where the depth is odd."""
    if x["depth"] % 2:
        raise RuntimeError("sensor off")
    return tuned(agent, x)


def slow(agent, x):
    """A sphere that takes a twentieth of a second."""
    time.sleep(0.05)
    return -float(((x - 0.3) ** 2).sum())
