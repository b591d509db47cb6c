"""The server of the private prior: one release of summed statistics, and inference from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.mechanism import Messages
from dpfbo.federated.prior.inference import CommonPosterior, Released, infer
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.statistics import DesignSums, design_sums
from dpfbo.federated.server import RoundOutput, Server, ServerKind, ServerParts
from dpfbo.gp.design import Design
from dpfbo.gp.features import RandomFeatures

_BLOCK = 2_000_000  # features of the public design that are held at once


@dataclass(frozen=True)
class PriorServer(ServerKind):
    """Sums the statistics of all agents by the mechanism, and broadcasts the posterior of what they share.

    A message that is lost or unusable counts as zero in the release while its design counts in the public sums, since
    who sent something is private. Inference stays a post-processing, and its mean is then too small by about the share
    that was lost.

    Args:
        server: The aggregating server; its weights must be uniform, so that `N` times its release is the plain sum.
        model: The model of the private prior.
        design: The public design of the agents' first points.
        features: The shared map, M features.
        clip_norm: The norm that the mechanism clips messages to.

    Guarantee:
        The mechanism's release is the only function of the agents' data, with the ledger, budget and guarantee of
        `Server`. The designs of all agents are public, and so are the sums over them. Inference is a post-processing
        of the release and of public numbers.
    """

    server: Server
    model: PriorModel
    design: Design
    features: RandomFeatures
    clip_norm: float
    uses_messages: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True

    @classmethod
    def for_run(cls, parts: ServerParts) -> PriorServer:
        if parts.prior is None:
            raise SettingError("prior", "must be given for a server of the private prior")
        norm = getattr(parts.mechanism, "clip_norm", torch.inf)
        return cls(Server.for_run(parts), parts.prior, parts.design, parts.features, norm)

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, diagnostics = self.server.round(t, messages, late)
        if broadcast is None or record is None:
            return None, None, None
        return self.infer(broadcast.values, record.sigma), record, diagnostics

    def infer(self, values: Tensor, sigma: float) -> SharedPrior:
        """The prior that follows from a release, 1 x (M + 1), with noise of standard deviation sigma."""
        statistics, N = self.model.statistics, self.server.n_agents
        kappa = statistics.kappa(self.design.n_init)
        b, noise = N * values[0], N * sigma
        given = None if self.model.noise is None else self.model.noise / self.model.scale**2
        return self._broadcast(values, infer(Released(b[:-1], b[-1] / kappa, noise, noise / kappa), self.sums, given))

    def _broadcast(self, values: Tensor, found: CommonPosterior) -> SharedPrior:
        """The posterior in coordinates X with `caution S = X diag(spectrum) X'` and the optimistic `diag(tau) = X X'`.

        `diag(v)` is a multiple of `diag(tau)`. Without transfer all variance is taken for as large as if it were own.
        """
        share, most = found.own_share, 1 + self.model.optimism
        factor = 1 + self.model.optimism * share
        sd = (factor * found.own).sqrt()
        spectrum, Q = torch.linalg.eigh(self.model.caution * found.covariance / sd[:, None] / sd)
        inverse = Q.mT / sd  # X^-1
        alone, norm = (
            torch.tensor(x, dtype=values.dtype, device="cpu") for x in (most / (share * factor), self.clip_norm)
        )
        return SharedPrior(
            values, inverse @ found.mean, (sd[:, None] * Q).contiguous(), spectrum.clamp(min=0), inverse @ found.gain,
            found.noise, alone, norm,
        )  # fmt: skip

    @cached_property
    def sums(self) -> DesignSums:
        """The public sums over all agents' designs, computed for so many agents at once as fit the memory for it."""
        size = max(1, _BLOCK // (self.design.n_init * self.features.frequencies.shape[1]))
        parts = torch.arange(self.server.n_agents, device="cpu").split(size)
        return design_sums((self.features(self.design.points(ids)) for ids in parts), len(self.model.lengthscales))
