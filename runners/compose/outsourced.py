"""The library's objects for a run of a curator and a modeler, made from its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from dpfbo.checkpoint import Checkpoint, ReleaseFile
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.loop import Brief, OutsourcedResult, Setup
from dpfbo.outsourced.table import CandidateProblem
from dpfbo.outsourced.transforms import Transform
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.plan import PrivacyPlan
from dpfbo.rng import Streams
from runners.compose.keys import keys
from runners.compose.settings import RELEASE_ACCOUNTANT, OutsourcedSettings

COVERS = (
    "the curator's release, for neighbouring tables as the curator holds them, read, filtered and sampled; not its "
    "measurements, which tell the objective at rows of the modeler's choice, nor the GP's hyper-parameters where they "
    "were fitted to the data, nor settings chosen by comparing runs on the same data, nor other seeds and settings, "
    "whose releases add up"
)
_MOST_NUMBERS = 1_000_000_000  # candidates x measurements: 8 GB


@dataclass(frozen=True)
class OutsourcedExperiment:
    """All parts of one outsourced run, validated (the counterpart of `FederatedExperiment`)."""

    settings: OutsourcedSettings
    problem: CandidateProblem
    broadcasts: ClassVar[int] = 1

    @staticmethod
    def of(settings: OutsourcedSettings, problem: CandidateProblem) -> OutsourcedExperiment:
        """Raises ValueError, one sentence with the key, for settings that do not fit the problem."""
        public, transform = problem.table.public, settings.transform
        with keys("transform"):
            transform.event(public)
        most = transform.most_candidates(public)
        if settings.algorithm.modeler.policy != "random" and (settings.n_init + settings.rounds) * most > _MOST_NUMBERS:
            raise ValueError(
                f"rounds must be so few that candidates times measurements are at most {_MOST_NUMBERS:g}, got "
                f"{settings.rounds} with {most} candidates"
            )
        return OutsourcedExperiment(settings, problem)

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    @property
    def transform(self) -> Transform:
        return self.settings.transform

    @property
    def private(self) -> bool:
        return self.transform.private

    @property
    def published_claim(self) -> str | None:
        """The published claim about the release, which is no guarantee; None if there is none."""
        return self.transform.published_claim(self.problem.table.public)

    @property
    def release_summary(self) -> dict[str, Any]:
        """The entries of summary.json about the release, with the curator's private facts in a simulation."""
        facts: dict[str, Any] = {"published_claim": self.published_claim, "stand_in": self.problem.stand_in}
        if self.settings.privacy.seeded:
            facts["release"] = self.transform.private_facts(self.problem.table)
        return facts

    @property
    def setup(self) -> Setup:
        """The arguments of the loop besides curator and modeler."""
        return Setup(self.problem.table, Streams(self.settings.seed), self.settings.n_init, self.rounds)

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The costs of the release. Raises ValueError if they exceed the budget."""
        p, event = self.settings.privacy, self.transform.event(self.problem.table.public)
        assert p.delta is not None  # checked by the settings
        events, accountant = [] if event is None else [event], AnalyticGaussian(self.transform.relation)
        plan = PrivacyPlan(events, p.delta, {RELEASE_ACCOUNTANT: accountant}, RELEASE_ACCOUNTANT, COVERS)
        if p.budget.epsilon is not None and not self.private:
            name = self.settings.algorithm.name
            raise ValueError(f"privacy.budget.epsilon needs a transform with a guarantee, got {name}")
        return p.budget.limited(plan, "the release costs")

    def result(self) -> OutsourcedResult:
        """The result of no rounds yet."""
        return OutsourcedResult()

    def kept_release(self, checkpoint: Checkpoint) -> ReleaseFile:
        """The file for a release that cannot be drawn again."""
        return checkpoint.curator_file()

    def curator(self, ledger: Ledger, checkpoint: Checkpoint | None = None) -> Curator:
        """The curator, charging to `ledger`. checkpoint: has its release, where the noise cannot be drawn twice."""
        seeded, streams = self.settings.privacy.seeded, Streams(self.settings.seed)
        entropy = SeededEntropy(streams) if seeded else SystemEntropy()
        kept = None if seeded or checkpoint is None else self.kept_release(checkpoint)
        capacity = self.settings.n_init + self.rounds
        return Curator(self.problem, self.transform, streams, entropy, ledger, self.plan.curve, capacity, kept)

    def brief(self) -> Brief:
        """The modeler's whole input: public settings, and its GP."""
        table = self.problem.table
        belief = replace(self.problem.prior, lengthscale=self.transform.scale(table))
        capacity = self.settings.n_init + self.rounds
        return Brief(self.transform, table.public, belief, self.settings.algorithm.modeler, capacity)
