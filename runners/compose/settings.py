"""The values of a run's composed configuration, checked and stored in one tree of frozen dataclasses.

A run's setting is this tree without the fields marked `OUTSIDE`, such as the seed. `runners.identity.setting` names
each setting by a digest. In an annotation `Annotated[type, rule]`, the rule checks the field's value.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.weights import Weighting
from dpfbo.gp.acquisition import Acquisition
from dpfbo.outsourced.modeler import Policy
from dpfbo.outsourced.transforms import Transform
from dpfbo.privacy.accounting import accountant_names, check_delta
from dpfbo.privacy.noise import DiscreteGaussian, Noise
from dpfbo.privacy.plan import PrivacyPlan
from dpfbo.study.algorithm import Algorithm
from runners.compose.keys import keys

OUTSIDE = {"setting": False}
RELEASE_ACCOUNTANT = "analytic_gaussian"  # the accountant of a curator's release
ANY_CODE = "any_code"  # resume=any_code: a simulation may resume although the code of its mechanism has changed

Rule = Callable[[str, object], None]  # checks the value of the named field and raises SettingError


def one_of(*allowed: object) -> Rule:
    return lambda name, value: checks.one_of(name, value, allowed)


def integer(minimum: int, maximum: int = checks.LARGEST_INTEGER) -> Rule:
    return lambda name, value: checks.integer(name, value, minimum, maximum)


def unless(exception: object, rule: Rule) -> Rule:
    """Return a rule that accepts the value `exception`, and applies `rule` to any other."""
    return lambda name, value: None if value == exception else rule(name, value)


def folder_name(name: str, value: object) -> None:
    if not value or Path(str(value)).name != value:
        raise SettingError(name, f"must be a plain folder name, got {value!r}")


@dataclass(frozen=True)
class ProblemSettings:
    """The problem's class with its arguments."""

    OUTSIDE = ("preset", "data_dir", "n_jobs")  # keys of the configuration that are not part of the setting

    node: dict[str, Any]


@dataclass(frozen=True)
class DropoutSettings:
    """The loss of messages to the server. deadline: seconds that the server waits in a round; None for no limit."""

    probability: float
    deadline: Annotated[float | None, unless(None, checks.positive)]


@dataclass(frozen=True)
class WandbSettings:
    """The settings of tracker.wandb (Weights & Biases), which conf/tracker/default.yaml explains."""

    mode: Annotated[str, one_of("online", "offline", "disabled")]
    project: str
    show: Annotated[str, one_of("auto", "all", "released")]
    artifacts: Annotated[bool, one_of(True, False)]
    alerts: Annotated[bool, one_of(True, False)]
    entity: str | None

    def check_artifacts(self, seeded: bool) -> None:
        """Raise ValueError if `artifacts` would upload records that `show` hides. seeded: True for a simulation."""
        if self.artifacts and (self.show == "released" or (self.show == "auto" and not seeded)):
            rng = "seeded" if seeded else "os"
            raise ValueError(
                "tracker.wandb.artifacts=true uploads records with values that are not released: it needs "
                f"tracker.wandb.show=all, got {self.show!r} with privacy.rng={rng}"
            )


@dataclass(frozen=True)
class TrackerSettings:
    """The settings of experiment trackers."""

    wandb: WandbSettings


@dataclass(frozen=True)
class LocalExecutor:
    """The settings of executor=local."""

    name: str
    device: Annotated[str, one_of("auto", "cpu", "cuda")]
    threads: Annotated[int, integer(1, checks.MOST_WORKERS)]


@dataclass(frozen=True)
class RayExecutor(LocalExecutor):
    """The settings of executor=ray, which conf/executor/ray.yaml explains."""

    address: str | None
    agents_per_actor: Annotated[int | str, unless("auto", integer(1))]
    num_cpus: Annotated[float | None, unless(None, checks.non_negative)]
    num_gpus: Annotated[float, checks.non_negative]
    placement: Annotated[str, one_of("DEFAULT", "SPREAD")]
    aggregation: Annotated[str, one_of("auto", "messages", "tree")]
    max_restarts: Annotated[int, integer(0)]
    placement_timeout: Annotated[float, checks.positive]
    dashboard: Annotated[bool, one_of(True, False)]
    runtime_env: dict[str, Any]
    init: dict[str, Any]


@dataclass(frozen=True)
class BudgetSettings:
    """The limit of epsilon for all charges of a ledger. epsilon: None for no limit. delta: None for the run's delta."""

    epsilon: float | None
    delta: Annotated[float | None, unless(None, lambda name, value: check_delta(value, name))]
    when_spent: str

    def limited(self, plan: PrivacyPlan, what: str, hint: str = "") -> PrivacyPlan:
        """Return the plan with this budget. Raises ValueError if the plan costs more and when_spent is "refuse".

        what: the start of the error message, such as "the release costs". hint: the end of the message, in which {}
        stands for the number of affordable releases.
        """
        if self.epsilon is None:
            return plan
        with keys("privacy.budget", budget="privacy.budget"):
            limited = plan.limited(self.epsilon, self.delta, self.when_spent)
        if len(limited.events) < len(plan.events) and self.when_spent == "refuse":
            cost = limited.budget.spent.after(plan.events)  # type: ignore[union-attr]
            delta = plan.delta if self.delta is None else self.delta
            raise ValueError(
                f"{what} epsilon {cost:.4g} at delta {delta:.4g}, more than privacy.budget.epsilon={self.epsilon!r}"
                f"{hint.format(len(limited.events))}"
            )
        return limited


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """The privacy settings of every run. epsilon: the target; None without one. delta: None for N^-1.1 (N agents)."""

    epsilon: Annotated[float | None, unless(None, checks.positive)]
    delta: Annotated[float | None, unless(None, lambda name, value: check_delta(value, name))]
    rng: Annotated[str, one_of("seeded", "os")]
    accountant: str
    budget: BudgetSettings

    @property
    def seeded(self) -> bool:
        """True if the server's or curator's random numbers follow from the seed, as in a simulation."""
        return self.rng == "seeded"

    def check_noise(self, noise: object) -> None:
        """Raise ValueError if a seeded run has a noise that cannot be seeded."""
        if isinstance(noise, DiscreteGaussian) and self.seeded:
            raise ValueError(f"privacy/noise=discrete needs privacy.rng=os, got {self.rng!r}: its noise has no seed")


@dataclass(frozen=True, kw_only=True)
class ReleasePrivacy(PrivacySettings):
    """The privacy settings of a curator's release. noise: used by the transform, if the transform adds noise."""

    noise: Noise


@dataclass(frozen=True, kw_only=True)
class MechanismPrivacy(PrivacySettings):
    """The privacy settings of a federated run.

    accountants: the accountants whose epsilon is in summary.json; `accountant` is one of them.
    """

    mechanism: SubsampledGaussian
    accountants: list[str]

    def __post_init__(self) -> None:
        if not isinstance(self.accountants, list) or not self.accountants:
            raise SettingError("accountants", f"must be a list of names, such as [pld,rdp], got {self.accountants!r}")
        checks.one_of("accountant", self.accountant, self.accountants)
        for name in self.accountants:
            checks.one_of("accountants", name, accountant_names())
        if isinstance(self.mechanism, DistributedGaussian) and not self.seeded:
            rule = "must be seeded with trust=nobody: one process has all messages, so it is a simulation"
            raise SettingError("rng", f"{rule}, got {self.rng!r}")


@dataclass(frozen=True)
class OutsourcedAlgorithm:
    """An outsourced algorithm, with a curator and a modeler. transform: the name of the class of its transform."""

    name: str
    server: type[Any]
    transform: str
    private: bool
    modeler: Policy


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of every run.

    seeds, scale, sweep, launcher: used only by a sweep. allow: packages whose classes may be instantiated.
    """

    problem: ProblemSettings
    rounds: Annotated[int, integer(1, checks.MOST_ROUNDS)]
    n_init: Annotated[int, integer(1, checks.MOST_INITIAL)]
    dropout: DropoutSettings
    seed: Annotated[int, integer(0)] = field(metadata=OUTSIDE)
    experiment_name: Annotated[str, folder_name] = field(metadata=OUTSIDE)
    results_dir: str = field(metadata=OUTSIDE)
    data_dir: str | None = field(metadata=OUTSIDE)
    resume: Annotated[bool | str, one_of(True, False, ANY_CODE)] = field(metadata=OUTSIDE)
    again: Annotated[bool, one_of(True, False)] = field(metadata=OUTSIDE)
    progress: Annotated[bool, one_of(True, False)] = field(metadata=OUTSIDE)
    executor: LocalExecutor = field(metadata=OUTSIDE)
    tracker: TrackerSettings = field(metadata=OUTSIDE)
    seeds: Any = field(default=None, metadata=OUTSIDE)
    scale: Any = field(default=None, metadata=OUTSIDE)
    sweep: Any = field(default=None, metadata=OUTSIDE)
    launcher: Any = field(default=None, metadata=OUTSIDE)
    allow: Any = field(default=(), metadata=OUTSIDE)

    @property
    def ray(self) -> RayExecutor:
        """The settings of executor=ray. Raises TypeError for another executor."""
        if not isinstance(self.executor, RayExecutor):
            raise TypeError(f"executor={self.executor.name} has no actors")
        return self.executor


@dataclass(frozen=True, kw_only=True)
class FederatedSettings(RunSettings):
    """The settings of a federated run, which has agents and perhaps a server."""

    privacy: MechanismPrivacy
    algorithm: Algorithm
    weights: Weighting
    acquisition: Acquisition

    def __post_init__(self) -> None:
        self.tracker.wandb.check_artifacts(self.privacy.seeded)
        if self.algorithm.private:
            self.privacy.check_noise(self.privacy.mechanism.noise)
        self._check_deadline()
        with keys("algorithm", n_init="n_init", weights="weights"):
            q = self.privacy.mechanism.sampling_probability
            self.algorithm.check_run(self.n_init, self.weights, q)

    def _check_deadline(self) -> None:
        deadline, executor = self.dropout.deadline, self.executor
        if deadline is None:
            return
        if not isinstance(executor, RayExecutor):
            raise ValueError(f"dropout.deadline needs executor=ray, whose agents can be late, got {deadline!r}")
        if self.algorithm.private and not self.privacy.seeded and executor.agents_per_actor != 1:
            raise ValueError(
                f"dropout.deadline with privacy.rng=os needs executor.agents_per_actor=1, got "
                f"{executor.agents_per_actor!r}: agents of one actor are late together, and epsilon covers one agent's "
                "messages"
            )


@dataclass(frozen=True, kw_only=True)
class OutsourcedSettings(RunSettings):
    """The settings of an outsourced run, which has a curator and a modeler."""

    algorithm: OutsourcedAlgorithm
    privacy: ReleasePrivacy
    transform: Transform

    def __post_init__(self) -> None:
        p = self.privacy
        self.tracker.wandb.check_artifacts(p.seeded)
        checks.one_of("privacy.accountant", p.accountant, (RELEASE_ACCOUNTANT,))
        checks.positive("privacy.epsilon", p.epsilon)
        check_delta(p.delta, "privacy.delta")
        p.check_noise(getattr(self.transform, "noise", None))
        if p.budget.when_spent != "refuse":
            raise ValueError(
                "privacy.budget.when_spent must be refuse for an outsourced run, which cannot do without its release, "
                f"got {p.budget.when_spent!r}"
            )
        if self.dropout.probability or self.dropout.deadline is not None:
            raise ValueError("dropout is about agents' messages: an outsourced run has none, so leave it out")
        for name in ("device", "num_gpus"):
            if (given := getattr(self.executor, name, None)) not in (None, 0, "cpu", "auto"):
                asked = f"executor.{name}={given}"
                raise ValueError(f"{asked} is for agents: curator and modeler work on the CPU, so leave it out")
        self._check_transform()

    def _check_transform(self) -> None:
        a, p, found = self.algorithm, self.privacy, type(self.transform).__name__
        if found != a.transform:
            raise ValueError(f"algorithm={a.name} needs the transform {a.transform}, got {found}")
        if self.transform.private is not a.private:
            raise ValueError(f"algorithm.private must be {self.transform.private}, as its transform is: leave it out")
        for name, wanted in (("epsilon", p.epsilon), ("delta", p.delta)):
            given = getattr(self.transform, name, wanted)
            if given != wanted:
                raise ValueError(f"transform.{name} follows privacy.{name}={wanted!r}: set that one, got {given!r}")


Settings = FederatedSettings | OutsourcedSettings


def outside_setting() -> tuple[str, ...]:
    """Return the names of the fields of `RunSettings` that are marked `OUTSIDE`."""
    return tuple(f.name for f in fields(RunSettings) if not f.metadata.get("setting", True))
