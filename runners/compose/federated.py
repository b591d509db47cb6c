"""The library's objects for a run of agents and, perhaps, a server, made from its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from dpfbo.checkpoint import Checkpoint, ReleaseFile
from dpfbo.federated.agents import Agents
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.federation import FederatedResult
from dpfbo.federated.mechanism import Mechanism
from dpfbo.federated.server import AnyServer
from dpfbo.federated.server_parts import ServerParts
from dpfbo.federated.weights import Weighting
from dpfbo.gp.features import block_features, shared_features
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.plan import PrivacyPlan
from dpfbo.privacy.release import KeptRelease
from dpfbo.problems import Problem
from dpfbo.rng import Streams
from dpfbo.space.domain import embedded_dimension
from dpfbo.space.regions import Regions
from runners.compose.keys import keys
from runners.compose.privacy_plan import broadcasts_plan, mechanism_of
from runners.compose.settings import FederatedSettings


@dataclass(frozen=True)
class FederatedExperiment:
    """All parts of one run, validated; only the server is made later, on its ledger."""

    settings: FederatedSettings
    problem: Problem
    agents: Agents
    mechanism: Mechanism
    dropout: Dropout
    streams: Streams
    family: ClassVar[str] = "federated"

    @staticmethod
    def of(settings: FederatedSettings, problem: Problem) -> "FederatedExperiment":
        """Raises ValueError, one sentence with the key, for settings that do not fit the problem."""
        streams = Streams(settings.seed)
        with keys("dropout"):
            dropout = Dropout(settings.dropout.probability, streams)
        agents = _agents(settings, problem, streams)
        return FederatedExperiment(settings, problem, agents, mechanism_of(settings), dropout, streams)

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    @property
    def weighting(self) -> Weighting:
        return self.settings.weights

    @property
    def private(self) -> bool:
        return self.settings.algorithm.private

    def result(self) -> FederatedResult:
        """The result of no rounds yet."""
        return FederatedResult(momentum=self.settings.algorithm.momentum)

    def kept_release(self, checkpoint: Checkpoint) -> ReleaseFile:
        """The file for a release that cannot be drawn again."""
        return checkpoint.release_file()

    @property
    def release_summary(self) -> dict[str, Any]:
        """The entries of summary.json about a release before the run: none here."""
        return {}

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The broadcasts and their costs, computed at the first use, so that no agent waits for the accountants.

        Raises ValueError for settings that cannot be accounted for or cost more than their budget.
        """
        return broadcasts_plan(self.settings, self.problem.n_agents, self.mechanism)

    @property
    def broadcasts(self) -> int:
        """The largest number of broadcasts that the run makes."""
        if self.settings.algorithm.aggregates:
            return len(self.plan.events)
        stop = self.settings.algorithm.broadcasts
        return self.rounds if stop is None else min(stop, self.rounds)

    def earlier_releases(self, checkpoint: Checkpoint) -> list[tuple[Tensor, float]]:
        """Values and noise of the releases of an interrupted run, for a server that infers from all of them."""
        if self.agents.prior is None or self.agents.prior.releases == 1:
            return []
        done = checkpoint.read()
        return [(r.broadcast.values, r.server.sigma) for r in done if r.broadcast is not None and r.server is not None]

    def server(
        self, ledger: Ledger, kept: KeptRelease | None = None, earlier: Sequence[tuple[Tensor, float]] = ()
    ) -> AnyServer | None:
        """The server of this algorithm, charging to `ledger`; None for agents that work alone.

        kept: used where the noise cannot be drawn twice. earlier: of an interrupted run, see `earlier_releases`.
        """
        kind, seeded, a = self.settings.algorithm.server, self.settings.privacy.seeded, self.agents
        if kind is None:
            return None
        parts = ServerParts(
            self.problem.n_agents, self.rounds, a.message_size, a.features, a.design, a.prior,
            self.problem.domain, a.acquisition, a.regions, self.weighting, self.mechanism, self.dropout, self.streams,
            SeededEntropy(self.streams) if seeded else SystemEntropy(), ledger, self.plan.curve,
            self.plan.budget, None if seeded else kept, earlier,
        )  # fmt: skip
        with keys("problem"):
            server: AnyServer = kind.for_run(parts)
        return server


def _agents(settings: FederatedSettings, problem: Problem, streams: Streams) -> Agents:
    a, domain = settings.algorithm, problem.domain
    with keys("algorithm", n_features="algorithm.M", method="algorithm.own_draw.method"):
        regions = Regions(a.P, domain.dimension)
        regions.check_against(domain, problem.n_agents)
        generator = streams.generator("features")
        if a.prior is None:
            features = shared_features(a.M, embedded_dimension(domain), a.lengthscale, generator, a.paired)
        else:
            features = block_features(a.M, embedded_dimension(domain), a.prior.lengthscales, generator)
        return Agents(
            domain=domain,
            regions=regions,
            features=features.on(domain),
            streams=streams,
            rounds=settings.rounds,
            n_init=settings.n_init,
            message_noise=a.message_noise,
            follow=a.follow,
            own_gp=a.own_gp,
            own_draw=a.own_draw,
            acquisition=settings.acquisition,
            message=a.message,
            message_center=a.message_center,
            local_initialisation=a.local_initialisation,
            design_kind=a.design,
            prior=a.prior,
        )
