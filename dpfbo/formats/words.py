"""Texts for sentences and plots: names of accountants, neighbouring relations, metrics; formatted epsilon and delta."""

import math
from collections.abc import Iterable
from enum import IntEnum

ZERO_OUT, REPLACE_ONE = "zero-out", "replace-one"
RELATIONS = {
    ZERO_OUT: "one agent's messages of all rounds replaced by zero vectors",
    REPLACE_ONE: "one agent's messages of all rounds replaced by any others",
}
METHODS = {  # by accountant
    "moments": "moments accountant of the paper",
    "rdp": "Rényi divergences",
    "pld": "privacy-loss distributions",
    "gdp": "Gaussian DP, an approximation, not a guarantee",
    "fixed_size": "Rényi divergences, without replacement",
    "analytic_gaussian": "exact, of Gaussian noise without sampling",
}
_METRICS = {"one_minus_auc": "1 − AUC", "one_minus_r2": "1 − R²", "nmse": "normalised MSE"}
_OBJECTIVES = {  # the objective, for metrics that are 1 minus the objective
    "one_minus_auc": "AUC", "one_minus_r2": "R²", "validation_error": "accuracy", "nmse": "1 − normalised MSE",
}  # fmt: skip
_LARGE_DELTA, _USUAL_DELTA = 0.01, 0.001  # a delta above the first gets a warning, which recommends the second
_DECIMALS = 0.1  # a smaller epsilon is shown with two significant digits


class Source(IntEnum):
    """The part of the algorithm that chose a query.

    Tables contain the name of a source. Tensors and checkpoints contain its number.
    """

    initial = 0
    own = 1
    server = 2
    random = 3  # a random point in place of a repeated query
    modeler = 4


def metric_in_words(metric: str) -> str:
    """Return a metric in words, such as `1 − AUC` or `simple regret`."""
    return _METRICS.get(metric, metric.replace("_", " "))


def objective_in_words(metric: str) -> str:
    """Return the name of a metric's objective, such as `AUC` for `one_minus_auc`; `value` if it has no name."""
    return _OBJECTIVES.get(metric, "value")


def neighbours(relation: str) -> str:
    """Describe a neighbouring relation; add "user level" to the relations of federated runs."""
    return f"relation {relation}, user level" if relation in RELATIONS else f"neighbours: {relation}"


def epsilon_in_words(epsilon: float | None, decimals: int = 2) -> str:
    """Format epsilon to `decimals` places, or to two significant digits if below 0.1; `none` if it is not finite."""
    if epsilon is None or not math.isfinite(epsilon):
        return "none"
    return f"{epsilon:.{decimals}f}" if epsilon >= _DECIMALS else f"{epsilon:.2g}"


def large_delta(deltas: Iterable[float]) -> str:
    """Return a warning, with a leading space, if the largest delta is above 0.01; else an empty text."""
    largest = max(deltas, default=0.0)
    if largest <= _LARGE_DELTA:
        return ""
    return f" (large: it allows a chance of {largest:.0%} that ε protects nobody; {_USUAL_DELTA} is usual)"


def delta_in_symbols(delta: float) -> str:
    """Format delta for plots, such as `δ = 0.00294`, followed by a warning if it is large."""
    return f"δ = {delta:.3g}{large_delta([delta])}"


def delta_in_words(delta: float) -> str:
    """Format delta for sentences, such as `delta 0.00294`, followed by a warning if it is large."""
    return delta_in_symbols(delta).replace("δ =", "delta").replace("ε", "epsilon")
