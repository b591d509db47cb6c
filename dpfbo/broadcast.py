"""What a server may hand to the agents for their next query."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RegionVectors:
    """One weight vector a region for all agents: `omega^(1..P)` of Algo. 1 line 13. values: P x M."""

    values: Tensor


@dataclass(frozen=True)
class AgentVectors:
    """A weight vector of its own for each agent, over the whole domain. values: N x M."""

    values: Tensor


@dataclass(frozen=True)
class Points:
    """A query for each agent, no function at all (the controls). values: N x D unit-cube points."""

    values: Tensor


Broadcast = RegionVectors | AgentVectors | Points
