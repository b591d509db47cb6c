"""The dp-accounting event of one round of the mechanism, and the round's parameters from it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dpfbo.privacy.accounting import UnsupportedEvent

if TYPE_CHECKING:
    import dp_accounting


def round_event(q: float, z: float | None, subset: tuple[int, int] | None = None) -> dp_accounting.DpEvent:
    """The event of one round at multiplier z = sigma / sensitivity under zero-out; z None or 0: not private.

    Equal rounds are one object, whose comparison with itself costs nothing.

    subset: (k, N) for a subset of fixed size k of N agents instead of Poisson sampling with probability q. Its
    relation is replace-one, and two clipped messages differ by up to twice the norm of one: the event's multiplier is
    z / 2.
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
    """(q, z, subset) of `round_event`. Raises UnsupportedEvent for any other event."""
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
    raise UnsupportedEvent(f"a round of this mechanism is no {type(event).__name__}")
