"""The server of the private prior: releases of summed statistics, and inference from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.messages import Messages
from dpfbo.federated.prior.inference import CommonPosterior, Released, infer
from dpfbo.federated.prior.later import JointSums, LaterDesign, joint_posterior
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.statistics import DesignSums, added, centred, design_sums
from dpfbo.federated.server import RoundOutput, Server
from dpfbo.federated.server_parts import ServerParts
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.design import Design
from dpfbo.gp.features import RandomFeatures

_AGENTS = 4096  # whose later points are computed at once
_BLOCK = 2_000_000  # features of the public design that are held at once


@dataclass(frozen=True)
class PriorServer:
    """Sums the statistics of all agents by the mechanism, and broadcasts the posterior of what they share.

    Guarantee. The mechanism's releases are the only functions of the agents' data, with the ledger, budget and
    guarantee of `Server`. The designs of all agents are public (`Design`; later ones follow from earlier releases,
    `LaterDesign`), and so are the sums over them. Inference is a post-processing of the releases and of public numbers.

    A message that is lost or unusable counts as zero in the release while its design counts in the public sums, since
    who sent something is private. Inference stays a post-processing, and its mean is then too small by about the share
    that was lost.

    server: the aggregating server; its weights must be uniform, so that `N` times its release is the plain sum.
    past: values and noise of each release so far, by round; kept only if there will be more than one.
    """

    server: Server
    model: PriorModel
    design: Design
    features: RandomFeatures
    clip_norm: float
    acquisition: Acquisition = Acquisition()
    past: dict[int, tuple[Tensor, float]] = field(default_factory=dict)
    uses_messages: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True
    bare_messages: ClassVar[bool] = False

    @classmethod
    def for_run(cls, parts: ServerParts) -> PriorServer:
        if parts.prior is None:
            raise SettingError("prior", "must be given for a server of the private prior")
        norm = getattr(parts.mechanism, "clip_norm", torch.inf)
        past = dict(enumerate(parts.earlier)) if parts.prior.releases > 1 else {}
        server = Server.for_run(parts)
        return cls(server, parts.prior, parts.design, parts.features, norm, parts.acquisition, past)

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, diagnostics = self.server.round(t, messages, late)
        if broadcast is None or record is None:
            return None, None, None
        if self.model.releases > 1:
            self.past[t] = broadcast.values, record.sigma
        return self.infer(broadcast.values, record.sigma, t), record, diagnostics

    def infer(self, values: Tensor, sigma: float, t: int = 0) -> SharedPrior:
        """The prior that follows from the releases so far.

        values: 1 x (M + 1), released in round t with noise of standard deviation sigma; those of earlier rounds are in
        `past`.
        """
        if self.model.releases == 1:
            return self._broadcast(values, self._first(values, sigma))
        past = [*(self.past[i] for i in range(t)), (values, sigma)]
        found = self._first(*past[0])
        prior, points = self._broadcast(past[0][0], found), list[Tensor]()
        agents = torch.arange(self.server.n_agents, device="cpu")
        for i in range(1, len(past)):
            points.append(torch.cat([self.later_points(prior, part, i) for part in agents.split(_AGENTS)]))
            sums = JointSums.of(self._rows(points), found.own)
            found = joint_posterior(found, [self._released(*past[j], j) for j in range(i + 1)], sums)
            prior = self._broadcast(past[i][0], found)
        return prior

    def later_points(self, prior: SharedPrior, agents: Tensor, t: int) -> Tensor:
        """The public points of agents (n ids) in round t, before its release; prior: the last broadcast. n x D."""
        design = LaterDesign(self.features, self.design.domain, self.acquisition, self.design.streams)
        return design.points(prior, agents, t)

    def _released(self, values: Tensor, sigma: float, t: int) -> Released:
        statistics, n_init = self.model.statistics, self.design.n_init
        N, kappa = self.server.n_agents, statistics.kappa(n_init)
        gain = statistics.later_gain(n_init) if t else 1.0
        b, noise = N * values[0], N * sigma
        return Released(b[:-1] / gain, b[-1] / kappa, noise / gain, noise / kappa)

    def _first(self, values: Tensor, sigma: float) -> CommonPosterior:
        given = None if self.model.noise is None else self.model.noise / self.model.scale**2
        return infer(self._released(values, sigma, 0), self.sums, given)

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
        """The public sums over all agents' first designs."""
        features = (self.features(self.design.points(ids)) for ids in self._parts(0))
        return design_sums(features, len(self.model.lengthscales))

    def _rows(self, later: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """`Z_0 .. Z_i` of some agents each. later: the points of all agents in rounds 1..i, N x D."""
        for ids in self._parts(len(later)):
            points = torch.cat([self.design.points(ids), *(x[ids][:, None] for x in later)], 1)
            Phi, n_init = self.features(points), self.design.n_init
            new = [added(Phi[:, : n_init + i + 1])[:, None] for i in range(len(later))]
            yield [centred(Phi[:, :n_init]), *new]

    def _parts(self, later: int) -> Sequence[Tensor]:
        """The agents, so many at once that the features of all their points fit in the memory for them."""
        size = max(1, _BLOCK // ((self.design.n_init + later) * self.features.frequencies.shape[1]))
        return torch.arange(self.server.n_agents, device="cpu").split(size)
