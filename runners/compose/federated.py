"""Build all parts of a federated run from its settings."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from dpfbo.checkpoint import Checkpoint, ReleaseFile
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.federation import FederatedResult
from dpfbo.federated.mechanism import Mechanism
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.server import ServerKind
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.plan import PrivacyPlan
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.study.study import Study
from runners.compose.keys import keys
from runners.compose.settings import FederatedSettings


@dataclass(frozen=True)
class FederatedExperiment:
    """All validated parts of one federated run, except the server."""

    settings: FederatedSettings
    problem: Problem
    study: Study
    release_summary: ClassVar[dict[str, Any]] = {}  # entries of summary.json about a curator's release: none

    @staticmethod
    def of(settings: FederatedSettings, problem: Problem) -> "FederatedExperiment":
        """Build the experiment. Raises ValueError, which names the key, if settings do not fit the problem."""
        privacy = settings.privacy
        with keys("dropout"):
            dropout = Dropout(settings.dropout.probability, Streams(settings.seed))
        with keys("privacy", probability="dropout.probability"):
            study = Study(
                problem.domain, problem.n_agents, settings.rounds, settings.n_init, settings.algorithm,
                privacy.mechanism, settings.weights, settings.acquisition, dropout=dropout, seed=settings.seed,
                rng=privacy.rng, delta=privacy.delta, accountant=privacy.accountant,
                accountants=tuple(privacy.accountants),
            )  # fmt: skip
        with keys("algorithm", n_features="algorithm.M", method="algorithm.own_draw.method"):
            study.agents  # noqa: B018
        return FederatedExperiment(settings, problem, study)

    def calibrated(self, epsilon: float) -> "FederatedExperiment":
        """Return the experiment with the noise multiplier that meets `epsilon`. Raises ValueError if none does."""
        privacy = self.settings.privacy
        with keys("privacy"):
            z = self.study.multiplier_for(epsilon, privacy.mechanism.noise_multiplier)
        study = self.study.with_multiplier(z)
        settings = replace(self.settings, privacy=replace(privacy, mechanism=study.mechanism))
        return FederatedExperiment(settings, self.problem, study)

    @property
    def rounds(self) -> int:
        return self.study.rounds

    @property
    def agents(self) -> Agents:
        return self.study.agents

    @property
    def mechanism(self) -> Mechanism:
        return self.study.step

    @property
    def private(self) -> bool:
        return self.study.algorithm.private

    @property
    def broadcasts(self) -> int:
        """The largest number of broadcasts that the run can make."""
        return len(self.plan.events) if self.study.algorithm.aggregates else self.study.broadcasts

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The planned broadcasts and their costs.

        Raises ValueError if the broadcasts cannot be accounted for, or if they cost more than the budget and when_spent
        is "refuse".
        """
        with keys("privacy"):
            plan = self.study.plan
        budget = self.settings.privacy.budget
        if budget.epsilon is not None and not self.private:
            name = self.settings.algorithm.name
            raise ValueError(f"privacy.budget.epsilon needs a private algorithm, got algorithm={name}")
        hint = ", which pays for {}: privacy.budget.when_spent=stop ends the broadcasts there"
        return budget.limited(plan, f"{len(plan.events)} broadcasts cost", hint)

    def result(self) -> FederatedResult:
        """Return an empty result."""
        return self.study.result()

    def kept_release(self, checkpoint: Checkpoint) -> ReleaseFile:
        """Return the file from which a restarted run sends the same release again; unused with seeded noise."""
        return checkpoint.release_file()

    def server(self, ledger: Ledger, checkpoint: Checkpoint | None = None) -> ServerKind | None:
        """Create the algorithm's server, which charges to `ledger`; None if the agents work alone.

        checkpoint: keeps the release of the round in progress, unless the noise is seeded.
        """
        plan = None if self.study.algorithm.server is None else self.plan
        kept = None if checkpoint is None else self.kept_release(checkpoint)
        with keys("problem"):
            return self.study.server(ledger, kept, plan)
