"""Rényi accountant: dp-accounting's RDP with its tighter conversion."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import dp_accounting
import numpy as np
from absl import logging as absl_logging
from dp_accounting.rdp import rdp_privacy_accountant

from dpfbo.accounting import ZERO_OUT, check_delta, sampled_gaussian


@dataclass(frozen=True)
class Rdp:
    """Composition of Rényi divergences at dp-accounting's default orders (Mironov 2017; Canonne et al. 2020).

    Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events.
    """

    relation: ClassVar[str] = ZERO_OUT
    approximation: ClassVar[bool] = False

    def check(self, event: dp_accounting.DpEvent) -> None:
        sampled_gaussian(event)

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        orders = np.array(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
        total, epsilons = np.zeros(len(orders)), []
        for event in events:
            total = total + _divergences(*sampled_gaussian(event))
            epsilons.append(_epsilon(orders, total, delta))
        return epsilons

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        total = sum((_divergences(*sampled_gaussian(event)) for event in events), np.zeros(1))
        orders = np.array(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
        return _epsilon(orders, total, delta) if events else 0.0


def _epsilon(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    if not np.isfinite(divergences).any():
        return float("inf")
    return float(rdp_privacy_accountant.compute_epsilon(orders, divergences, delta)[0])


@cache
def _divergences(q: float, z: float) -> np.ndarray:
    """Rényi divergence of one event at every default order (infinite where the series does not converge)."""
    if z == 0:
        return np.full(len(rdp_privacy_accountant.DEFAULT_RDP_ORDERS), np.inf)
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)  # orders that do not converge are left out, with a warning each
    try:
        return rdp_privacy_accountant.RdpAccountant(neighboring_relation=relation).compose(event).rdp
    finally:
        absl_logging.set_verbosity(verbosity)
