"""The Rényi accountant; dp-accounting computes the Rényi divergences and converts them to epsilon."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from absl import logging as absl_logging
from dp_accounting.rdp import rdp_privacy_accountant

from dpfbo.privacy.accounting.additive import AdditiveAccountant

ORDERS = tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
_ROUNDING = 1e-14  # least divergence: rounding may turn smaller ones into 0 or less, which would count as no loss


@dataclass(frozen=True)
class Rdp(AdditiveAccountant):
    """Composes Rényi divergences at dp-accounting's default orders (Mironov 2017; Canonne et al. 2020).

    Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events.
    """

    def _cost(self, q: float, z: float) -> np.ndarray:
        if z == 0:
            return np.full(len(ORDERS), np.inf)
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        return divergences_of(event, dp_accounting.NeighboringRelation.REPLACE_SPECIAL, ORDERS)

    def _epsilon_of(self, total: np.ndarray, delta: float) -> float:
        return epsilon_of(ORDERS, total, delta)


def epsilon_of(orders: Sequence[float], divergences: np.ndarray, delta: float) -> float:
    """Return the epsilon that Rényi divergences imply at the best of these orders; inf if all are infinite."""
    if not np.isfinite(divergences).any():
        return math.inf
    return float(rdp_privacy_accountant.compute_epsilon(orders, divergences, delta)[0])


def divergences_of(
    event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation, orders: Sequence[float]
) -> np.ndarray:
    """Return dp-accounting's Rényi divergence of one event at each order; inf where its series does not converge."""
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)  # dp-accounting warns of every order that does not converge
    try:
        accountant = rdp_privacy_accountant.RdpAccountant(orders, relation).compose(event)
    finally:
        absl_logging.set_verbosity(verbosity)
    return np.maximum(accountant.rdp, _ROUNDING)
