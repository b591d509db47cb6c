"""The kinds of broadcast: what a server sends to all agents, who may follow it in their next query."""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class RegionVectors:
    """One weight vector per region, sent to all agents: `omega^(1..P)` of Algo. 1 line 13. values: P x M."""

    values: Tensor


@dataclass(frozen=True)
class AgentVectors:
    """One weight vector per agent, which defines a function on the whole domain. values: N x M."""

    values: Tensor


@dataclass(frozen=True)
class Points:
    """One query per agent, which the controls send instead of a function. values: N x D unit-cube points."""

    values: Tensor


@dataclass(frozen=True)
class SharedPrior:
    """The posterior of the function that all objectives share (`dpfbo.federated.prior`), for the rest of the run.

    values: 1 x M, the release; all else is a post-processing of it. The unit is an objective's standard deviation.
    mean: M, of the function's weights; covariance: M (M + 1) / 2, the lower triangle of theirs; evidence: L, the
    probability of each length-scale; shared: the expected part of an objective's variance that is shared; explained:
    the part that the mean explains.
    """

    values: Tensor
    mean: Tensor
    covariance: Tensor
    evidence: Tensor
    shared: Tensor
    explained: Tensor


Broadcast = RegionVectors | AgentVectors | Points | SharedPrior
B = TypeVar("B")


def moved(broadcast: B, device: torch.device) -> B:
    """A copy of the broadcast on another device."""
    tensors: dict[str, Any] = {f.name: getattr(broadcast, f.name).to(device) for f in fields(broadcast)}  # type: ignore[arg-type]
    return type(broadcast)(**tensors)


def averaged(previous: Broadcast | None, new: Broadcast | None, momentum: float) -> Broadcast | None:
    """The agents' running average of broadcasts, `momentum * previous + (1 - momentum) * new`.

    The average is a post-processing of public vectors and costs no privacy. Only region vectors are averaged. Any other
    broadcast replaces the previous one, and a `SharedPrior` also stays after a round without a broadcast.
    """
    if new is None and isinstance(previous, SharedPrior):
        return previous
    if momentum == 0 or not isinstance(new, RegionVectors) or not isinstance(previous, RegionVectors):
        return new
    return RegionVectors(momentum * previous.values + (1 - momentum) * new.values)
