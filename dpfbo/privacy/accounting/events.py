"""Conversion between the parameters of one round of the mechanism and its dp-accounting event."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dpfbo.privacy.accounting import UnsupportedEvent

if TYPE_CHECKING:
    import dp_accounting


def round_event(q: float, z: float | None, subset: tuple[int, int] | None = None) -> dp_accounting.DpEvent:
    """Return the event of one round with noise multiplier z = sigma / sensitivity; non-private if z is None or 0.

    subset: None for Poisson sampling with probability q, under zero-out; (k, N) for a subset of fixed size k of N
    agents, under replace-one. With a subset, the event's multiplier is z / 2, because two clipped messages can differ
    by twice the clip norm.
    """
    return _round_event(q, z, subset)


@lru_cache(maxsize=65536, typed=True)
def _round_event(q: float, z: float | None, subset: tuple[int, int] | None) -> dp_accounting.DpEvent:
    import dp_accounting  # here: it imports SciPy, and an agent's process needs neither

    if not z:
        return dp_accounting.NonPrivateDpEvent()
    if subset is None:
        return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    k, N = subset
    return dp_accounting.SampledWithoutReplacementDpEvent(N, k, dp_accounting.GaussianDpEvent(z / 2))


def round_parameters(event: dp_accounting.DpEvent) -> tuple[float, float | None, tuple[int, int] | None]:
    """Return arguments (q, z, subset) with which `round_event` makes this event.

    Raises UnsupportedEvent if there are none.
    """
    import dp_accounting

    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        return 1.0, None, None
    inner = getattr(event, "event", None)
    if isinstance(inner, dp_accounting.GaussianDpEvent):
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            return event.sampling_probability, inner.noise_multiplier, None
        if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
            k, N = event.sample_size, event.source_dataset_size
            return k / N, 2 * inner.noise_multiplier, (k, N)
    raise UnsupportedEvent(f"a round of this mechanism cannot be a {type(event).__name__}")
