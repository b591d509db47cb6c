"""Accountants, which compute epsilon with dp-accounting; those of federated runs are listed in `ACCOUNTANTS`.

The accountants in `ACCOUNTANTS` use the zero-out neighbouring relation (REPLACE_SPECIAL in dp-accounting), except
`fixed_size`, which uses replace-one. `analytic_gaussian` is for releases without sampling, under any relation.

The accountants use these undocumented parts of dp-accounting 0.6.0: the class `GaussianPrivacyLoss`, its attributes and
its method `connect_dots_bounds`; the function `create_pmf_pessimistic_connect_dots_fixed_gap`; the constructor of
`PrivacyLossDistribution`; the constant `DEFAULT_RDP_ORDERS`; and the attribute `RdpAccountant.rdp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from numbers import Real
from typing import TYPE_CHECKING, Protocol

from dpfbo import checks, extensions, lazy
from dpfbo.checks import SettingError
from dpfbo.formats.words import ZERO_OUT

if TYPE_CHECKING:
    import dp_accounting


ACCOUNTANTS = {"moments": "Moments", "rdp": "Rdp", "pld": "Pld", "gdp": "Gdp", "fixed_size": "FixedSize"}  # classes
_LARGEST_MULTIPLIER = 1e6  # largest z; more noise is accounted for as this much, so that squares do not overflow
_DIGITS = 8  # significant digits of z


class UnsupportedEvent(ValueError):
    """The accountant cannot analyse this kind of event."""


class Accountant(Protocol):
    """Computes the epsilon of a sequence of dp-accounting events.

    Attributes:
        relation: The neighbouring relation of its epsilon.
        approximation: True if its epsilon is not a guarantee.
    """

    @property
    def relation(self) -> str: ...

    @property
    def approximation(self) -> bool: ...

    def check(self, event: dp_accounting.DpEvent) -> None:
        """Raise UnsupportedEvent if the accountant cannot analyse this event."""

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        """Return epsilon after each event."""

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        """Return epsilon after all events, or 0 without events; faster than `curve`."""


def accountant_names() -> tuple[str, ...]:
    """Return the names of all accountants, those of other packages last."""
    return (*ACCOUNTANTS, *extensions.entries(extensions.ACCOUNTANTS))


def accountant_named(name: str) -> Accountant:
    """Return the accountant of this name.

    Args:
        name: `pld`, `rdp`, `moments`, `gdp`, `fixed_size`, or a name that another package adds (`dpfbo.extensions`).

    Returns:
        The accountant. `gdp` is an approximation; `pld`, `rdp`, `moments` and `fixed_size` give upper bounds of
        epsilon.

    Raises:
        SettingError: There is no accountant of this name.

    Example:
        >>> import dpfbo
        >>> from dpfbo.privacy.accounting.events import round_event
        >>> rounds = [round_event(q=0.35, z=1.0)] * 60
        >>> for name in ("pld", "rdp", "moments"):
        ...     print(name, round(dpfbo.accountant_named(name).epsilon(rounds, delta=0.01), 2))
        pld 11.77
        rdp 14.5
        moments 16.07
    """
    checks.one_of("accountant", name, accountant_names())
    if name not in ACCOUNTANTS:
        added: Accountant = extensions.load(extensions.ACCOUNTANTS, name)()
        return added
    with lazy.uncollected():
        accountant: Accountant = getattr(import_module(f"{__name__}.{name}"), ACCOUNTANTS[name])()
    return accountant


def default_delta(n_agents: int) -> float:
    """Return the delta of the DP-FTS-DE paper, N^-1.1 (Sec. 5), which is large for few agents.

    Args:
        n_agents: N.

    Returns:
        Delta; 0.1 for a single agent, for which the formula gives 1.

    Example:
        >>> import dpfbo
        >>> round(dpfbo.default_delta(200), 5)
        0.00294
    """
    return n_agents**-1.1 if n_agents > 1 else 0.1


def check_delta(delta: object, name: str = "delta") -> None:
    """Raise SettingError unless delta lies in (0, 1)."""
    if isinstance(delta, bool) or not isinstance(delta, Real) or not 0 < delta < 1:  # type: ignore[operator]
        raise SettingError(name, f"must lie in (0, 1), got {checks.shown(delta)}")


def accounted_multiplier(z: float) -> float:
    """Cap a noise multiplier at 1e6, and round it down to 8 significant digits."""
    z = min(z, _LARGEST_MULTIPLIER)
    nearest = float(f"{z:.{_DIGITS}g}")
    if nearest <= z:
        return nearest
    return float(f"{nearest - 10.0 ** (math.floor(math.log10(z)) - _DIGITS + 1):.{_DIGITS}g}")


def sampled_gaussian(event: dp_accounting.DpEvent) -> tuple[float, float]:
    """Return (q, z) of a Poisson-sampled Gaussian event, or (1, 0) of an event without noise.

    q is the sampling probability, and z the noise multiplier that `accounted_multiplier` returns. Raises
    UnsupportedEvent for any other event.
    """
    import dp_accounting  # here: it imports SciPy, and an agent's process needs neither

    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        return 1.0, 0.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        inner = event.event
        if isinstance(inner, dp_accounting.GaussianDpEvent):
            return event.sampling_probability, accounted_multiplier(inner.noise_multiplier)
    raise UnsupportedEvent(
        f"moments, rdp, pld and gdp cannot analyse {type(event).__name__} under the {ZERO_OUT} relation: use "
        "sampling=poisson, or accountant=fixed_size with sampling=fixed_size"
    )


def kinds_of(events: Sequence[dp_accounting.DpEvent]) -> list[tuple[float, float]]:
    """Return the pair (q, z) of each event, read by `sampled_gaussian`."""
    known = {id(event): event for event in events}
    kinds = {i: sampled_gaussian(event) for i, event in known.items()}
    return [kinds[id(event)] for event in events]


def finite_or_none(epsilon: float) -> float | None:
    """Return epsilon if it is finite, else None."""
    return epsilon if math.isfinite(epsilon) else None
