"""Accountants: epsilon of a sequence of events, after each of them. dp-accounting does the work.

An accountant has `curve(events, delta) -> list of epsilons`, one after each event. The relation is zero-out
(REPLACE_SPECIAL). One file each; its YAML in `conf/accountant/` names the class. An event that an accountant
cannot analyse raises `UnsupportedEvent`, so that a run is refused before it starts.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Protocol

import dp_accounting

RELATION = "zero-out"


class UnsupportedEvent(ValueError):
    """The accountant cannot analyse this kind of event."""


class Accountant(Protocol):
    """Epsilon after each event of a run."""

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]: ...


def default_delta(n_agents: int) -> float:
    """delta = N^-1.1 (paper, Sec. 5); 0.1 for a single agent, where that would be 1."""
    return n_agents**-1.1 if n_agents > 1 else 0.1


def check_delta(delta: object) -> None:
    """Raise ValueError unless delta lies in (0, 1)."""
    if isinstance(delta, bool) or not isinstance(delta, Real) or not 0 < float(delta) < 1:
        raise ValueError(f"privacy.delta must lie in (0, 1), got {delta!r}")


def sampled_gaussian(event: dp_accounting.DpEvent) -> tuple[float, float]:
    """(q, z) of a Poisson-sampled Gaussian event; z = 0 for one without noise.

    Raises UnsupportedEvent for any other event.
    """
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        return 1.0, 0.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        inner = event.event
        if isinstance(inner, dp_accounting.GaussianDpEvent):
            return event.sampling_probability, inner.noise_multiplier
    raise UnsupportedEvent(
        f"no accountant here analyses {type(event).__name__} under the {RELATION} relation, "
        "use privacy.sampling=poisson"
    )


def finite_or_none(epsilon: float) -> float | None:
    """None stands for "no finite epsilon" in files."""
    return epsilon if math.isfinite(epsilon) else None
