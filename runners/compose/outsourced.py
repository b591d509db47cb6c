"""Build all parts of an outsourced run from its settings."""

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
    "the curator's release, for neighbouring tables as the curator holds them after reading, filtering and sampling; "
    "not its measurements, which reveal the objective at rows that the modeler chooses, nor the GP's hyper-parameters "
    "if they were fitted to the data, nor settings chosen by comparing runs on the same data, nor runs with other "
    "seeds and settings, whose epsilons add up"
)
_MOST_NUMBERS = 1_000_000_000  # candidates x measurements: 8 GB


@dataclass(frozen=True)
class OutsourcedExperiment:
    """All validated parts of one outsourced run, which has a curator and a modeler."""

    settings: OutsourcedSettings
    problem: CandidateProblem
    broadcasts: ClassVar[int] = 1

    @staticmethod
    def of(settings: OutsourcedSettings, problem: CandidateProblem) -> OutsourcedExperiment:
        """Build the experiment. Raises ValueError, with the setting's key, if a setting does not fit the problem."""
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
        """A sentence on the transform's published privacy claim and why it is no guarantee; None without a claim."""
        return self.transform.published_claim(self.problem.table.public)

    @property
    def release_summary(self) -> dict[str, Any]:
        """The entries of summary.json about the release.

        Facts that a real curator must keep secret are included only in a simulation.
        """
        facts: dict[str, Any] = {"published_claim": self.published_claim, "stand_in": self.problem.stand_in}
        if self.settings.privacy.seeded:
            facts["release"] = self.transform.private_facts(self.problem.table)
        return facts

    @property
    def setup(self) -> Setup:
        """The arguments of `dpfbo.outsourced.loop.run` besides the curator and the modeler."""
        return Setup(self.problem.table, Streams(self.settings.seed), self.settings.n_init, self.rounds)

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The cost of the release. Raises ValueError if it exceeds the budget."""
        p, event = self.settings.privacy, self.transform.event(self.problem.table.public)
        assert p.delta is not None  # checked by the settings
        events, accountant = [] if event is None else [event], AnalyticGaussian(self.transform.relation)
        plan = PrivacyPlan(events, p.delta, {RELEASE_ACCOUNTANT: accountant}, RELEASE_ACCOUNTANT, COVERS)
        if p.budget.epsilon is not None and not self.private:
            name = self.settings.algorithm.name
            raise ValueError(f"privacy.budget.epsilon needs a transform with a guarantee, got {name}")
        return p.budget.limited(plan, "the release costs")

    def result(self) -> OutsourcedResult:
        """Return an empty result."""
        return OutsourcedResult()

    def kept_release(self, checkpoint: Checkpoint) -> ReleaseFile:
        """Return the file from which a restarted run sends the same release again; unused with seeded noise."""
        return checkpoint.curator_file()

    def curator(self, ledger: Ledger, checkpoint: Checkpoint | None = None) -> Curator:
        """Create the curator, which charges to `ledger`. checkpoint: stores the release of a real run (rng `os`)."""
        seeded, streams = self.settings.privacy.seeded, Streams(self.settings.seed)
        entropy = SeededEntropy(streams) if seeded else SystemEntropy()
        kept = None if seeded or checkpoint is None else self.kept_release(checkpoint)
        capacity = self.settings.n_init + self.rounds
        return Curator(self.problem, self.transform, streams, entropy, ledger, self.plan.curve, capacity, kept)

    def brief(self) -> Brief:
        """Return the modeler's whole input besides the release: public settings, and the modeler's GP.

        If the release has no guarantee, the GP's length-scale may depend on the largest norm of the secret rows.
        """
        table = self.problem.table
        belief = replace(self.problem.prior, lengthscale=self.transform.scale(table))
        capacity = self.settings.n_init + self.rounds
        return Brief(self.transform, table.public, belief, self.settings.algorithm.modeler, capacity)
