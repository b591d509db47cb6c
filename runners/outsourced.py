"""An outsourced run: from resolved settings to curator, modeler and what the release costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpfbo import checks
from dpfbo.accounting import Accountant, check_delta
from dpfbo.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.entropy import SeededEntropy, SystemEntropy
from dpfbo.ledger import Ledger
from dpfbo.noise import DiscreteGaussian
from dpfbo.outsourced import Transform
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.modeler import Belief, Policy
from dpfbo.outsourced.parties import Brief
from dpfbo.outsourced.random_projection import RandomProjection, singular_values, threshold
from dpfbo.outsourced.table import CandidateProblem
from dpfbo.rng import Streams
from dpfbo.server import Budget, EpsilonCurve, KeptRelease
from runners.accounts import Accounts
from runners.instantiate import instantiate

ACCOUNTANT = "analytic_gaussian"
COVERS = (
    "the curator's release; not its measurements, which tell the objective at rows of the modeler's choice, nor the "
    "GP's hyper-parameters where they were fitted to the data, nor settings chosen by comparing runs on the same data"
)


@dataclass(frozen=True)
class Outsourced:
    """Everything that one outsourced run needs, validated (the counterpart of `runners.experiment.Experiment`)."""

    problem: CandidateProblem
    transform: Transform
    policy: Policy
    rounds: int
    n_init: int
    streams: Streams
    settings: dict[str, Any]
    server_kind: str = "curator"
    momentum: float = 0.0
    broadcasts: int = 1

    @property
    def private(self) -> bool:
        return self.transform.private

    @property
    def covers(self) -> str:
        """What epsilon is about."""
        return COVERS

    def known_of_release(self) -> dict[str, Any]:
        """What the curator alone knows of its release (simulation-only)."""
        if not isinstance(self.transform, RandomProjection):
            return {}
        smallest = float(singular_values(self.problem.table.rows).min())
        w = threshold(self.transform.r, self.transform.epsilon, self.transform.delta)
        return {"sigma_min": smallest, "w": w, "raised": smallest < w}

    @property
    def published_claim(self) -> str | None:
        """What was published about the release and is no guarantee."""
        return self.transform.published_claim(self.problem.table.public)

    def curator(self, ledger: Ledger, kept: KeptRelease | None = None) -> Curator:
        """The curator, charging to `ledger`. kept: used where the noise cannot be drawn twice."""
        seeded = self.settings["privacy"]["rng"] == "seeded"
        entropy = SeededEntropy(self.streams) if seeded else SystemEntropy()
        kept = None if seeded else kept
        return Curator(self.problem, self.transform, self.streams, entropy, ledger, self.accounts.epsilon, kept)

    def brief(self) -> Brief:
        """What the modeler is told: public settings, and the GP that is given to it."""
        prior, table = self.problem.prior, self.problem.table
        belief = Belief(self.transform.scale(table), prior.variance, prior.noise, prior.mean)
        return Brief(self.transform, table.public, belief, self.policy, self.n_init + self.rounds)

    @cached_property
    def accounts(self) -> Accounts:
        """What the release costs. Raises ValueError where that is more than the budget."""
        p = self.settings["privacy"]
        event = self.transform.event(self.problem.table.public)
        accountant: Accountant = AnalyticGaussian(self.transform.relation)
        events = [] if event is None else [event]
        curve = EpsilonCurve(accountant, events, p["delta"])
        return Accounts({ACCOUNTANT: accountant}, ACCOUNTANT, events, curve, self._budget(), p["delta"], 0.0)

    def _budget(self) -> Budget | None:
        b = self.settings["privacy"]["budget"]
        if b["epsilon"] is None:
            return None
        if not self.private:
            raise ValueError(
                f"privacy.budget.epsilon needs a transform with a guarantee, got {self.settings['algorithm']['name']}"
            )
        delta = self.settings["privacy"]["delta"] if b["delta"] is None else b["delta"]
        check_delta(delta, "privacy.budget.delta")
        event = self.transform.event(self.problem.table.public)
        events = [] if event is None else [event]
        curve = EpsilonCurve(AnalyticGaussian(self.transform.relation), events, delta)
        budget = Budget(b["epsilon"], curve, b["when_spent"])
        if not budget.allows(events):
            raise ValueError(
                f"the release costs epsilon {budget.spent.after(events):.4g} at delta {delta:.4g}, more than "
                f"privacy.budget.epsilon={b['epsilon']!r}"
            )
        return budget


def is_outsourced(settings: Mapping[str, Any]) -> bool:
    """Whether the algorithm is a curator's and a modeler's."""
    return settings["algorithm"].get("server") == "curator"


def assemble_outsourced(settings: dict[str, Any], streams: Streams) -> Outsourced:
    """The run that resolved settings describe. Raises ValueError (one sentence) for a bad one."""
    a, p = settings["algorithm"], settings["privacy"]
    checks.one_of("privacy.accountant", p["accountant"], (ACCOUNTANT,))
    checks.positive("privacy.epsilon", p["epsilon"])
    check_delta(p["delta"])
    checks.integer("n_init", settings["n_init"], minimum=1)
    if settings["dropout"]["probability"] or settings["dropout"]["deadline"] is not None:
        raise ValueError("dropout is about agents' messages: an outsourced run has none, leave it out")
    executor = settings["executor"]
    for name in ("device", "num_gpus"):
        if executor.get(name) not in (None, 0, "cpu", "auto"):
            asked = f"executor.{name}={executor[name]}"
            raise ValueError(f"{asked} is for agents: curator and modeler work on the CPU, leave it out")
    if p["budget"]["when_spent"] != "refuse":
        raise ValueError(
            "privacy.budget.when_spent must be refuse for an outsourced run, which cannot do without its release, "
            f"got {p['budget']['when_spent']!r}"
        )
    if not isinstance(a["modeler"], dict):
        raise ValueError(f"algorithm.modeler must hold the settings of a modeler, got {a['modeler']!r}")
    transform: Transform = instantiate(settings["transform"])
    if isinstance(getattr(transform, "noise", None), DiscreteGaussian) and p["rng"] != "os":
        raise ValueError(f"privacy/noise=discrete needs privacy.rng=os, got {p['rng']!r}: its noise has no seed")
    if (found := type(transform).__name__) != a["transform"] or transform.private is not a["private"]:
        raise ValueError(f"algorithm={a['name']} is that with the transform {a['transform']}, got {found}")
    policy = instantiate({"_target_": f"{Policy.__module__}.Policy", **a["modeler"]})
    problem = instantiate({k: v for k, v in settings["problem"].items() if k != "preset"})
    transform.event(problem.table.public)
    return Outsourced(problem, transform, policy, settings["rounds"], settings["n_init"], streams, settings)
