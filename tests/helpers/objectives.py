"""Valid and invalid objectives of a custom problem."""


def sphere(agent, x):
    return -float(((x - 0.1 * agent) ** 2).sum())


def broken(agent, x):
    raise RuntimeError("sensor off")


def not_a_number(agent, x):
    return float("nan")


def text(agent, x):
    return "high"
