"""The release that is attacked where no server is trusted: attackers know all noise shares but the fewest.

The charge of such a release is for the server together with `colluders` sites, after `max_dropouts` sites have dropped
out. A release in which nobody drops out has more noise than that, and does not show whether the charge is right.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dpfbo.audit.server.target import Target
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release


@dataclass(frozen=True)
class ColludersView(DistributedGaussian):
    """The release minus the noise shares of the last `max_dropouts + colluders` sites.

    All messages stay in the sum: whoever sees those of the missing sites, too, sees more.
    """

    def share(self, agent: int, n_agents: int, M: int, entropy: Entropy, round: int) -> Tensor:
        if agent >= self.noise_of(n_agents).honest:
            return torch.zeros(M, dtype=torch.int64)
        return super().share(agent, n_agents, M, entropy, round)

    def released(self, steps: Tensor, n_agents: int, taking_part: int, round: int) -> Release:
        return super().released(steps, n_agents, min(taking_part, self.noise_of(n_agents).honest), round)


@dataclass(frozen=True)
class HeldSum(DistributedGaussian):
    """A mechanism whose release has the same numbers, `held`, whatever is sent."""

    held = torch.empty(0)

    def released(self, steps: Tensor, n_agents: int, taking_part: int, round: int) -> Release:
        return replace(super().released(steps, n_agents, taking_part, round), values=self.held.clone())


def worst_case(target: Target) -> Target:
    """The target as server and colluders see it, where no server is trusted; else the target itself."""
    if not isinstance(target.mechanism, DistributedGaussian):
        return target
    return target.with_mechanism(_as(ColludersView, target.mechanism))


def attacked_view(target: Target) -> str | None:
    """The attacked view in words; None if it is the release itself."""
    if not isinstance(target.mechanism, ColludersView):
        return None
    noise = target.mechanism.noise_of(target.shape[0])
    gone = f"{noise.max_dropouts} missing and {noise.colluders} colluding"
    return f"the sum with the noise shares of {noise.honest} of {noise.n_sites} sites, without those of {gone} ones"


def held_sum(mechanism: DistributedGaussian, values: Tensor) -> DistributedGaussian:
    """The mechanism with its sum held at `values`."""
    return _as(HeldSum, mechanism, held=values)


def _as(view: type[DistributedGaussian], mechanism: DistributedGaussian, **more: object) -> DistributedGaussian:
    """The mechanism in which methods of `view` precede its own, so that all other code stays that of its class."""
    kind = type(view.__name__, (view, type(mechanism)), more)
    made: DistributedGaussian = kind(**{f.name: getattr(mechanism, f.name) for f in fields(mechanism)})
    return made
