"""The kinds of broadcast: a server sends one to all agents, and each agent may use it to choose its next query."""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class RegionVectors:
    """One weight vector per region, `omega^(1..P)` of Algo. 1 line 13. values: P x M."""

    values: Tensor


@dataclass(frozen=True)
class AgentVectors:
    """One weight vector per agent, which defines a function on the whole domain. values: N x M."""

    values: Tensor


@dataclass(frozen=True)
class Points:
    """One query per agent. values: N x D unit-cube points."""

    values: Tensor


@dataclass(frozen=True)
class SharedPrior:
    """The posterior of the function that all objectives share (`dpfbo.federated.prior`); agents keep it to the end.

    values: 1 x M, the release; all other fields are a post-processing of it. mean: M, the posterior mean of the
    function's weights. covariance: M (M + 1) / 2, the lower triangle of their posterior covariance. The function is
    in units of an objective's standard deviation. evidence: L, the probability of each length-scale. shared: the
    posterior expectation of the fraction of an objective's variance that is due to the shared function. explained: the
    fraction of an objective's variance that the mean explains.
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
    """Return a copy of the broadcast on another device."""
    tensors: dict[str, Any] = {f.name: getattr(broadcast, f.name).to(device) for f in fields(broadcast)}  # type: ignore[arg-type]
    return type(broadcast)(**tensors)


def averaged(previous: Broadcast | None, new: Broadcast | None, momentum: float) -> Broadcast | None:
    """Return the agents' running average of broadcasts, `momentum * previous + (1 - momentum) * new`.

    The average is a post-processing of public vectors and costs no privacy. It is taken only if both broadcasts are
    `RegionVectors`. Otherwise, `new` replaces `previous`, with one exception: if `new` is None, a previous
    `SharedPrior` is kept.
    """
    if new is None and isinstance(previous, SharedPrior):
        return previous
    if momentum == 0 or not isinstance(new, RegionVectors) or not isinstance(previous, RegionVectors):
        return new
    return RegionVectors(momentum * previous.values + (1 - momentum) * new.values)
