"""Texts for sentences and pictures: names of accountants, relations and metrics, and formatted epsilon and delta."""

import math
from collections.abc import Iterable
from enum import IntEnum

ZERO_OUT, REPLACE_ONE = "zero-out", "replace-one"
RELATIONS = {
    ZERO_OUT: "one agent's messages of all rounds replaced by zero vectors",
    REPLACE_ONE: "one agent's messages of all rounds replaced by any others",
}
METHODS = {  # of accountants
    "moments": "moments accountant of the paper",
    "rdp": "Rényi divergences",
    "pld": "privacy-loss distributions",
    "gdp": "Gaussian DP, an approximation, not a guarantee",
    "fixed_size": "Rényi divergences, without replacement",
    "analytic_gaussian": "exact, of Gaussian noise without sampling",
}
_METRICS = {"one_minus_auc": "1 − AUC", "one_minus_r2": "1 − R²", "nmse": "normalised MSE"}
_OBJECTIVES = {  # of metrics that are 1 less the objective
    "one_minus_auc": "AUC", "one_minus_r2": "R²", "validation_error": "accuracy", "nmse": "1 − normalised MSE",
}  # fmt: skip
_LARGE_DELTA, _USUAL_DELTA = 0.01, 0.001  # above the first epsilon comes with a warning; the second raises no question
_DECIMALS = 0.1  # epsilon from which two decimals are enough


class Source(IntEnum):
    """The source of a query: tables have its name, tensors and checkpoints its number."""

    initial = 0
    own = 1
    server = 2
    random = 3  # replaced a repeated query
    modeler = 4


def metric_in_words(metric: str) -> str:
    """A metric in words: `1 − AUC`, `simple regret`."""
    return _METRICS.get(metric, metric.replace("_", " "))


def objective_in_words(metric: str) -> str:
    """The name of an objective's value, from the metric of its problem: `AUC`; `value` where it has no name."""
    return _OBJECTIVES.get(metric, "value")


def neighbours(relation: str) -> str:
    """A relation in words; the federated family's relations are about all messages of a user."""
    return f"relation {relation}, user level" if relation in RELATIONS else f"neighbours: {relation}"


def epsilon_in_words(epsilon: float | None, decimals: int = 2) -> str:
    """Epsilon rounded to `decimals`, or to two digits so that a cost is never `0.00`; `none` if it is not finite."""
    if epsilon is None or not math.isfinite(epsilon):
        return "none"
    return f"{epsilon:.{decimals}f}" if epsilon >= _DECIMALS else f"{epsilon:.2g}"


def large_delta(deltas: Iterable[float]) -> str:
    """The warning that follows a delta above 0.01, with a space before it; empty for a smaller delta."""
    largest = max(deltas, default=0.0)
    if largest <= _LARGE_DELTA:
        return ""
    return f" (large: a chance of {largest:.0%} that ε protects nobody; {_USUAL_DELTA} is usual)"


def delta_in_symbols(delta: float) -> str:
    """`δ = 0.00294`, for pictures; a warning follows a large delta."""
    return f"δ = {delta:.3g}{large_delta([delta])}"


def delta_in_words(delta: float) -> str:
    """`delta 0.00294`; a warning follows a large delta."""
    return delta_in_symbols(delta).replace("δ =", "delta").replace("ε", "epsilon")
