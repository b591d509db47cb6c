"""The events that planned broadcasts are, for a privacy plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dpfbo.federated.mechanism import Mechanism, SubsampledGaussian
from dpfbo.federated.weights import Weighting
from dpfbo.gp.regions import Regions

if TYPE_CHECKING:
    import dp_accounting


def planned_events(
    mechanism: Mechanism, weighting: Weighting, n_agents: int, P: int, broadcasts: int
) -> list[dp_accounting.DpEvent]:
    """The event of each broadcast of a server with P sub-regions.

    Raises ValueError for noise that is no ordinary number in some round.
    """
    assignment, events = Regions(P, 1).assign(torch.arange(n_agents)), []
    for t in range(broadcasts):
        weights = weighting(t, assignment, P)
        if isinstance(mechanism, SubsampledGaussian):
            mechanism.sigma(weights, t)
        events.append(mechanism.dp_event(weights, t))
    return events
