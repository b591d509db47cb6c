"""The server of the private prior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.mechanism import Messages
from dpfbo.federated.prior import DesignSums, infer
from dpfbo.federated.server import RoundOutput, Server, ServerKind, ServerParts
from dpfbo.gp import batches
from dpfbo.gp.design import Design
from dpfbo.gp.nystrom import NystromFeatures


@dataclass(frozen=True)
class PriorServer(ServerKind):
    """The server that broadcasts the posterior of the agents' shared function, given the noisy sum of their messages.

    A lost or unusable message counts as zero in the release. It is secret which messages were lost, so the posterior is
    computed as if all messages had arrived. The inferred mean is therefore too small by about the fraction of lost
    messages.

    Args:
        server: The aggregating server; its weights must be uniform.
        design: The public design, which determines the agents' initial points.
        features: The shared map of M features.

    Guarantee:
        Only the mechanism's release depends on the agents' data; ledger, budget and guarantee are those of `Server`.
        The initial points of all agents are public. Inference is a post-processing of the release and of numbers that
        are computed from these points.
    """

    server: Server
    design: Design
    features: NystromFeatures
    uses_messages: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True

    @classmethod
    def for_run(cls, parts: ServerParts) -> PriorServer:
        if not isinstance(parts.features, NystromFeatures):
            raise SettingError("prior", "must be given for a server of the private prior")
        return cls(Server.for_run(parts), parts.design, parts.features)

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, diagnostics = self.server.round(t, messages, late)
        if broadcast is None or record is None:
            return None, None, None
        return self.infer(broadcast.values, record.sigma), record, diagnostics

    def infer(self, values: Tensor, sigma: float) -> SharedPrior:
        """Infer the prior from a release, 1 x M, whose noise has standard deviation sigma."""
        return prior_after(values, sigma, self.sums, self.features)

    @cached_property
    def sums(self) -> DesignSums:
        """The matrices that `infer` needs (`DesignSums`), computed from the public initial points of all agents."""
        return DesignSums.of(self.design, self.features, self.server.n_agents)


def prior_after(values: Tensor, sigma: float, sums: DesignSums, features: NystromFeatures) -> SharedPrior:
    """Infer the prior from a release, `values`, of 1 x M numbers.

    The release is the mean of all messages plus noise. sigma: the standard deviation of this noise.
    """
    N = sums.n_agents
    with batches.one_thread():  # so that every machine rounds alike
        return infer(values, N * values[0], N * sigma, sums, features)
