"""The library's objects for a run of a curator and a modeler, made from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from dpfbo.checkpoint import Checkpoint, ReleaseFile
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.hyperparameters import Belief
from dpfbo.outsourced.loop import Brief, OutsourcedResult, Setup
from dpfbo.outsourced.table import CandidateProblem
from dpfbo.outsourced.transforms import Transform
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.plan import PrivacyPlan
from dpfbo.privacy.release import KeptRelease
from dpfbo.rng import Streams
from runners.compose.keys import keys
from runners.compose.privacy_plan import release_plan
from runners.compose.settings import OutsourcedSettings

_MOST_NUMBERS = 1_000_000_000  # candidates x measurements: 8 GB


@dataclass(frozen=True)
class OutsourcedExperiment:
    """All parts of one outsourced run, validated (the counterpart of `FederatedExperiment`)."""

    settings: OutsourcedSettings
    problem: CandidateProblem
    streams: Streams
    broadcasts: ClassVar[int] = 1
    family: ClassVar[str] = "outsourced"

    @staticmethod
    def of(settings: OutsourcedSettings, problem: CandidateProblem) -> OutsourcedExperiment:
        """Raises ValueError, one sentence with the key, for settings that do not fit the problem."""
        streams = Streams(settings.seed)
        public, transform = problem.table.public, settings.transform
        with keys("transform"):
            transform.event(public)
        most = transform.most_candidates(public)
        if settings.algorithm.modeler.policy != "random" and (settings.n_init + settings.rounds) * most > _MOST_NUMBERS:
            raise ValueError(
                f"rounds must be so few that candidates times measurements are at most {_MOST_NUMBERS:g}, got "
                f"{settings.rounds} with {most} candidates"
            )
        return OutsourcedExperiment(settings, problem, streams)

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    @property
    def n_init(self) -> int:
        return self.settings.n_init

    @property
    def transform(self) -> Transform:
        return self.settings.transform

    @property
    def private(self) -> bool:
        return self.transform.private

    def result(self) -> OutsourcedResult:
        """The result of no rounds yet."""
        return OutsourcedResult()

    def kept_release(self, checkpoint: Checkpoint) -> ReleaseFile:
        """The file for a release that cannot be drawn again."""
        return checkpoint.curator_file()

    @property
    def release_summary(self) -> dict[str, Any]:
        """The entries of summary.json about the release, with the curator's private facts in a simulation."""
        seeded = self.settings.privacy.seeded
        facts = {"release": self.transform.private_facts(self.problem.table)} if seeded else {}
        return {"published_claim": self.published_claim, "stand_in": self.problem.stand_in, **facts}

    @property
    def published_claim(self) -> str | None:
        """The published claim about the release, which is no guarantee; None if there is none."""
        return self.transform.published_claim(self.problem.table.public)

    @property
    def setup(self) -> Setup:
        """The arguments of the loop besides curator and modeler."""
        return Setup(self.problem.table, self.streams, self.n_init, self.rounds)

    def curator(self, ledger: Ledger, kept: KeptRelease | None = None) -> Curator:
        """The curator, charging to `ledger`. kept: used where the noise cannot be drawn twice."""
        seeded = self.settings.privacy.seeded
        entropy = SeededEntropy(self.streams) if seeded else SystemEntropy()
        epsilon, capacity = self.plan.curve, self.n_init + self.rounds
        kept = None if seeded else kept
        return Curator(self.problem, self.transform, self.streams, entropy, ledger, epsilon, capacity, kept)

    def brief(self) -> Brief:
        """The modeler's whole input: public settings, and its GP."""
        prior, table = self.problem.prior, self.problem.table
        belief = Belief(self.transform.scale(table), prior.variance, prior.noise, prior.mean)
        policy, capacity = self.settings.algorithm.modeler, self.n_init + self.rounds
        return Brief(self.transform, table.public, belief, policy, capacity)

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The costs of the release. Raises ValueError if they exceed the budget."""
        event = self.transform.event(self.problem.table.public)
        return release_plan(self.settings, self.transform.relation, [] if event is None else [event])
