"""The kinds of broadcast that agents may follow in their next query."""

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
    """A query for each agent instead of a function (the controls). values: N x D unit-cube points."""

    values: Tensor


Broadcast = RegionVectors | AgentVectors | Points


def averaged(previous: Broadcast | None, new: Broadcast | None, momentum: float) -> Broadcast | None:
    """The agents' running average of broadcasts, `momentum * previous + (1 - momentum) * new`.

    It is a post-processing of public vectors and costs no privacy. Only region vectors are averaged.
    """
    if momentum == 0 or not isinstance(new, RegionVectors) or not isinstance(previous, RegionVectors):
        return new
    return RegionVectors(momentum * previous.values + (1 - momentum) * new.values)
