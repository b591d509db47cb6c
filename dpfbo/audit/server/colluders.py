"""The release that the audit attacks if no server is trusted.

It lacks the noise shares of `max_dropouts` sites, assumed to have dropped out, and of `colluders` sites, assumed to
collude with the server. Its charge counts the noise of the other sites alone.
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
    """A mechanism whose release lacks the noise shares of the last `max_dropouts + colluders` sites.

    The messages of these sites stay in the sum.
    """

    def share(self, agent: int, n_agents: int, M: int, entropy: Entropy, round: int) -> Tensor:
        if agent >= self.noise_of(n_agents).honest:
            return torch.zeros(M, dtype=torch.int64)
        return super().share(agent, n_agents, M, entropy, round)

    def released(self, steps: Tensor, n_agents: int, taking_part: int, round: int) -> Release:
        return super().released(steps, n_agents, min(taking_part, self.noise_of(n_agents).honest), round)


@dataclass(frozen=True)
class HeldSum(DistributedGaussian):
    """A mechanism that always releases the numbers in `held`."""

    held = torch.empty(0)

    def released(self, steps: Tensor, n_agents: int, taking_part: int, round: int) -> Release:
        return replace(super().released(steps, n_agents, taking_part, round), values=self.held.clone())


def worst_case(target: Target) -> Target:
    """Return a copy of the target whose releases lack the noise shares of missing and colluding sites.

    Such a release is what the server and its colluders see. If the server is trusted, return the target itself.
    """
    if not isinstance(target.mechanism, DistributedGaussian):
        return target
    return target.with_mechanism(_as(ColludersView, target.mechanism))


def attacked_view(target: Target) -> str | None:
    """Describe the view that is attacked; None if it is the release itself."""
    if not isinstance(target.mechanism, ColludersView):
        return None
    noise = target.mechanism.noise_of(target.shape[0])
    gone = f"{noise.max_dropouts} missing and {noise.colluders} colluding"
    return f"the sum with the noise shares of {noise.honest} of {noise.n_sites} sites, without those of {gone} ones"


def held_sum(mechanism: DistributedGaussian, values: Tensor) -> DistributedGaussian:
    """Copy the mechanism; the copy releases exactly `values`, whatever the messages and the noise are."""
    return _as(HeldSum, mechanism, held=values)


def _as(view: type[DistributedGaussian], mechanism: DistributedGaussian, **more: object) -> DistributedGaussian:
    """Return a copy of the mechanism with a class that inherits from `view` and from the mechanism's class."""
    kind = type(view.__name__, (view, type(mechanism)), more)
    made: DistributedGaussian = kind(**{f.name: getattr(mechanism, f.name) for f in fields(mechanism)})
    return made
