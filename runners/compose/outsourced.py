"""An outsourced run: from resolved settings to curator, modeler and what the release costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dpfbo import checks
from dpfbo.checkpoint import Checkpoint, CuratorFile
from dpfbo.outsourced.curator import Curator, KeptCuratorRelease
from dpfbo.outsourced.loop import Brief, OutsourcedResult, Setup
from dpfbo.outsourced.modeler import Belief, Policy
from dpfbo.outsourced.table import CandidateProblem
from dpfbo.outsourced.transforms import Transform
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.budget import Budget, EpsilonCurve
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.noise import DiscreteGaussian
from dpfbo.rng import Streams
from runners.compose.accounts import Accounts
from runners.compose.instantiate import instantiate

if TYPE_CHECKING:
    import dp_accounting

ACCOUNTANT = "analytic_gaussian"
COVERS = (
    "the curator's release, for neighbouring tables as the curator holds them, read, filtered and sampled; not its "
    "measurements, which tell the objective at rows of the modeler's choice, nor the GP's hyper-parameters where they "
    "were fitted to the data, nor settings chosen by comparing runs on the same data, nor other seeds and settings, "
    "whose releases add up"
)
_MOST_NUMBERS = 1_000_000_000  # candidates times measurements: 8 GB


@dataclass(frozen=True)
class Outsourced:
    """Everything that one outsourced run needs, validated (the counterpart of `experiment.Experiment`)."""

    problem: CandidateProblem
    transform: Transform
    policy: Policy
    rounds: int
    n_init: int
    streams: Streams
    settings: dict[str, Any]
    server_kind: str = "curator"
    broadcasts: int = 1
    family: ClassVar[str] = "outsourced"

    @property
    def private(self) -> bool:
        return self.transform.private

    @property
    def covers(self) -> str:
        """What epsilon is about."""
        return COVERS

    def result(self) -> OutsourcedResult:
        """Of no rounds yet."""
        return OutsourcedResult()

    def kept_release(self, checkpoint: Checkpoint) -> CuratorFile:
        """The file that keeps a release which cannot be drawn again."""
        return checkpoint.curator_file()

    @property
    def release_summary(self) -> dict[str, Any]:
        """What summary.json says of the release. `release` is what the curator alone knows (simulation-only)."""
        return {
            "published_claim": self.published_claim,
            "release": self.transform.private_facts(self.problem.table),
            "stand_in": self.problem.stand_in,
        }

    @property
    def published_claim(self) -> str | None:
        """What was published about the release and is no guarantee."""
        return self.transform.published_claim(self.problem.table.public)

    @property
    def setup(self) -> Setup:
        """What the loop needs besides curator and modeler."""
        return Setup(self.problem.table, self.streams, self.n_init, self.rounds)

    def curator(self, ledger: Ledger, kept: KeptCuratorRelease | None = None) -> Curator:
        """The curator, charging to `ledger`. kept: used where the noise cannot be drawn twice."""
        seeded = self.settings["privacy"]["rng"] == "seeded"
        entropy = SeededEntropy(self.streams) if seeded else SystemEntropy()
        epsilon, capacity = self.accounts.epsilon, self.n_init + self.rounds
        kept = None if seeded else kept
        return Curator(self.problem, self.transform, self.streams, entropy, ledger, epsilon, capacity, kept)

    def brief(self) -> Brief:
        """What the modeler is told: public settings, and the GP that is given to it."""
        prior, table = self.problem.prior, self.problem.table
        belief = Belief(self.transform.scale(table), prior.variance, prior.noise, prior.mean)
        return Brief(self.transform, table.public, belief, self.policy, self.n_init + self.rounds)

    @cached_property
    def accounts(self) -> Accounts:
        """What the release costs. Raises ValueError where that is more than the budget."""
        p, accountant = self.settings["privacy"], AnalyticGaussian(self.transform.relation)
        event = self.transform.event(self.problem.table.public)
        events = [] if event is None else [event]
        curve, budget = EpsilonCurve(accountant, events, p["delta"]), None
        if p["budget"]["epsilon"] is not None:
            budget = self._budget(accountant, events)
        return Accounts({ACCOUNTANT: accountant}, ACCOUNTANT, events, curve, budget, p["delta"], 0.0)

    def _budget(self, accountant: AnalyticGaussian, events: list[dp_accounting.DpEvent]) -> Budget:
        """The budget of this folder's ledger. Raises ValueError for one that does not pay for a release."""
        p = self.settings["privacy"]
        if not self.private:
            raise ValueError(
                f"privacy.budget.epsilon needs a transform with a guarantee, got {self.settings['algorithm']['name']}"
            )
        delta = p["delta"] if p["budget"]["delta"] is None else p["budget"]["delta"]
        check_delta(delta, "privacy.budget.delta")
        budget = Budget(p["budget"]["epsilon"], EpsilonCurve(accountant, events, delta), p["budget"]["when_spent"])
        if not budget.allows(events):
            raise ValueError(
                f"the release costs epsilon {budget.spent.after(events):.4g} at delta {delta:.4g}, more than "
                f"privacy.budget.epsilon={budget.epsilon!r}"
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
    problem = instantiate({k: v for k, v in settings["problem"].items() if k != "preset"})
    transform, policy = _transform(settings), _policy(a)
    public = problem.table.public
    transform.event(public)
    capacity = settings["n_init"] + settings["rounds"]
    if policy.policy != "random" and capacity * transform.most_candidates(public) > _MOST_NUMBERS:
        raise ValueError(
            f"rounds must be so few that candidates times measurements are at most {_MOST_NUMBERS:g}, got "
            f"{settings['rounds']} with {transform.most_candidates(public)} candidates"
        )
    return Outsourced(problem, transform, policy, settings["rounds"], settings["n_init"], streams, settings)


def _transform(settings: dict[str, Any]) -> Transform:
    """Raises ValueError for one that is not what the algorithm's name and the privacy settings say."""
    a, p = settings["algorithm"], settings["privacy"]
    if not isinstance(settings["transform"], dict):
        raise ValueError(f"transform must be one of the group transform, got {settings['transform']!r}")
    transform: Transform = instantiate(settings["transform"])
    if (found := type(transform).__name__) != a["transform"]:
        raise ValueError(f"algorithm={a['name']} is that with the transform {a['transform']}, got {found}")
    if transform.private is not a["private"]:
        raise ValueError(f"algorithm.private is what its transform is, {transform.private}: leave it out")
    for name in ("epsilon", "delta"):
        given = getattr(transform, name, p[name])
        if given != p[name]:
            raise ValueError(f"transform.{name} follows privacy.{name}={p[name]!r}: set that one, got {given!r}")
    if isinstance(getattr(transform, "noise", None), DiscreteGaussian) and p["rng"] != "os":
        raise ValueError(f"privacy/noise=discrete needs privacy.rng=os, got {p['rng']!r}: its noise has no seed")
    return transform


def _policy(algorithm: dict[str, Any]) -> Policy:
    modeler = algorithm["modeler"]
    if not isinstance(modeler, dict):
        raise ValueError(f"algorithm.modeler must hold the settings of a modeler, got {modeler!r}")
    known = [field.name for field in fields(Policy)]
    for name in modeler:
        checks.one_of("a key of algorithm.modeler", name, known)
    return Policy(**modeler)
