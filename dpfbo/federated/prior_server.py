"""The server of the private prior: one release of summed statistics, and inference from it."""

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
    """Sums the statistics of all agents by the mechanism, and broadcasts the posterior of what they share.

    A message that is lost or unusable counts as zero in the release while its design counts in the public sums, since
    who sent something is private. Inference stays a post-processing, and its mean is then too small by about the share
    that was lost.

    Args:
        server: The aggregating server; its weights must be uniform, so that `N` times its release is the plain sum.
        design: The public design of the agents' first points.
        features: The shared map, M features.

    Guarantee:
        The mechanism's release is the only function of the agents' data, with the ledger, budget and guarantee of
        `Server`. The designs of all agents are public, and so are the sums over them. Inference is a post-processing
        of the release and of public numbers.
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
        """The prior that follows from a release, 1 x M, with noise of standard deviation sigma."""
        return prior_after(values, sigma, self.sums, self.features)

    @cached_property
    def sums(self) -> DesignSums:
        """The public sums over all agents' designs."""
        return DesignSums.of(self.design, self.features, self.server.n_agents)


def prior_after(values: Tensor, sigma: float, sums: DesignSums, features: NystromFeatures) -> SharedPrior:
    """The prior that follows from a release, 1 x M, with noise of standard deviation sigma."""
    N = sums.n_agents
    with batches.one_thread():  # the same last digits on every machine
        return infer(values, N * values[0], N * sigma, sums, features)
