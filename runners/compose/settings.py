"""The settings of a run: one tree of frozen dataclasses, made once from the composed configuration (`typed`).

Every class checks itself; the library checks fields that are its objects, such as an OwnGP. A field marked `OUTSIDE` is
no part of the setting: runs that differ only in such fields have the same setting.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server_parts import ServerKind
from dpfbo.federated.weights import Weighting
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.own_gp import OwnGP
from dpfbo.outsourced.modeler import Policy
from dpfbo.outsourced.transforms import Transform
from dpfbo.privacy.accounting import check_delta
from runners.compose.executor_settings import LocalExecutor, RayExecutor
from runners.compose.privacy_settings import RELEASE_ACCOUNTANT, MechanismPrivacy, ReleasePrivacy

OUTSIDE = {"setting": False}


@dataclass(frozen=True)
class ProblemSettings:
    """The problem's class with its arguments (`node`), and the paper's settings for it (`preset`)."""

    OUTSIDE = ("preset", "data_dir", "n_jobs")  # keys of the node that are no part of the setting

    node: dict[str, Any]
    preset: dict[str, Any]


@dataclass(frozen=True)
class DropoutSettings:
    """Messages that the server never gets. deadline: seconds that it waits in a round, None for no limit."""

    probability: float
    deadline: float | None

    def __post_init__(self) -> None:
        if self.deadline is not None:
            checks.positive("deadline", self.deadline)


@dataclass(frozen=True)
class WandbSettings:
    """tracker.wandb, Weights & Biases. conf/tracker/default.yaml explains the settings."""

    mode: str
    project: str
    show: str
    entity: str | None

    def __post_init__(self) -> None:
        checks.one_of("mode", self.mode, ("online", "offline", "disabled"))
        checks.one_of("show", self.show, ("auto", "all", "released"))


@dataclass(frozen=True)
class TrackerSettings:
    """The trackers that mirror a run."""

    wandb: WandbSettings


@dataclass(frozen=True)
class FederatedAlgorithm:
    """A member of the federated family. conf/algorithm/_base.yaml explains the settings.

    server: class, None for agents that work alone. prior: None without a private prior.
    """

    name: str
    server: type[ServerKind] | None
    private: bool
    P: int
    local_initialisation: bool
    M: int
    lengthscale: float
    paired: bool
    message: str
    message_noise: float
    message_center: bool
    message_normalize: bool
    momentum: float
    broadcasts: int | None
    follow: str
    own_gp: OwnGP
    own_draw: OwnDraw
    design: str = "uniform"
    prior: PriorModel | None = None
    preset: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.one_of("private", self.private, (True, False))
        checks.momentum("momentum", self.momentum)
        if self.broadcasts is not None:
            checks.integer("broadcasts", self.broadcasts, minimum=1)
        if self.prior is not None or self.server is PriorServer:
            self._check_prior()
        for name in self._without_effect():
            value = getattr(self, name)
            raise SettingError(name, f"has no effect on algorithm={self.name}: leave it out, got {value!r}")
        if self.private and not self.aggregates:
            raise SettingError("private", f"needs a server that adds up messages, got {self.server_name}")
        if self.server is None and self.follow != "never":
            raise SettingError("follow", f"must be 'never' without a server, got {self.follow!r}")

    def _check_prior(self) -> None:
        """Raise SettingError for a setting of messages and broadcasts that contradicts the private prior's model."""
        if self.prior is None:
            raise SettingError("prior", "must be given for a PriorServer, got None")
        if self.server is not PriorServer:
            raise SettingError("server", f"must be a PriorServer for a private prior, got {self.server_name}")
        if self.message != "statistics":
            raise SettingError("message", f"must be 'statistics' for a private prior, got {self.message!r}")
        for name, only, why in (
            ("P", 1, "all agents share one prior over the whole domain"),
            ("broadcasts", self.prior.releases, "every broadcast is a release, whose public points come before it"),
            ("message_center", False, "statistics are of contrasts already"),
            ("message_normalize", False, "the release is inferred from sums of statistics as they are"),
        ):
            if (value := getattr(self, name)) != only:
                raise SettingError(name, f"must be {only} for algorithm={self.name}: {why}, got {value!r}")

    @property
    def aggregates(self) -> bool:
        """True if a server adds up the messages."""
        return self.server is not None and self.server.aggregates

    @property
    def sends(self) -> bool:
        """True if the agents send messages."""
        return self.server is not None and self.server.uses_messages

    @property
    def server_name(self) -> str:
        return "none" if self.server is None else self.server.__name__

    def _without_effect(self) -> list[str]:
        """The settings of messages and broadcasts that differ from their defaults and that this algorithm ignores."""
        return [
            *(["message"] if self.message != "sample" and not self.sends else []),
            *(["message_center"] if self.message_center is True and not self.sends else []),
            *(["message_normalize"] if self.message_normalize is True and not self.aggregates else []),
            *(["local_initialisation"] if self.local_initialisation is False and self.P == 1 else []),
            *(["momentum"] if self.momentum and (not self.aggregates or self.prior is not None) else []),
            *(["paired"] if self.paired is True and self.prior is not None else []),
            *(["follow"] if self.follow != "always" and self.prior is not None else []),
            *(["broadcasts"] if self.broadcasts is not None and self.server is None else []),
        ]


@dataclass(frozen=True)
class OutsourcedAlgorithm:
    """An algorithm of curator and modeler. transform: name of its class."""

    name: str
    server: type[Any]
    transform: str
    private: bool
    modeler: Policy


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of every run. seeds, scale and sweep belong to a sweep."""

    problem: ProblemSettings
    rounds: int
    n_init: int
    dropout: DropoutSettings
    seed: int = field(metadata=OUTSIDE)
    experiment_name: str = field(metadata=OUTSIDE)
    results_dir: str = field(metadata=OUTSIDE)
    data_dir: str | None = field(metadata=OUTSIDE)
    resume: bool = field(metadata=OUTSIDE)
    progress: bool = field(metadata=OUTSIDE)
    executor: LocalExecutor = field(metadata=OUTSIDE)
    tracker: TrackerSettings = field(metadata=OUTSIDE)
    seeds: Any = field(default=None, metadata=OUTSIDE)
    scale: Any = field(default=None, metadata=OUTSIDE)
    sweep: Any = field(default=None, metadata=OUTSIDE)

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, minimum=0)
        checks.integer("rounds", self.rounds, minimum=1)
        checks.integer("n_init", self.n_init, minimum=1)
        checks.one_of("progress", self.progress, (True, False))
        checks.one_of("resume", self.resume, (True, False))
        if not self.experiment_name or Path(self.experiment_name).name != self.experiment_name:
            raise SettingError("experiment_name", f"must be a plain folder name, got {self.experiment_name!r}")

    @property
    def ray(self) -> RayExecutor:
        """The executor of a run on Ray. Raises TypeError for another executor."""
        if not isinstance(self.executor, RayExecutor):
            raise TypeError(f"executor={self.executor.name} has no actors")
        return self.executor


@dataclass(frozen=True, kw_only=True)
class FederatedSettings(RunSettings):
    """A run of agents and, perhaps, a server."""

    algorithm: FederatedAlgorithm
    privacy: MechanismPrivacy
    weights: Weighting
    acquisition: Acquisition

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm.private:
            self.privacy.check_noise(self.privacy.noise)
        if self.dropout.deadline is not None:
            self._check_deadline()
        if self.algorithm.prior is not None:
            self._check_prior()

    def _check_prior(self) -> None:
        """Raise ValueError for a setting with which the release is not the plain sum of statistics with noise."""
        name, weights, q = self.algorithm.name, type(self.weights), self.privacy.q
        if self.n_init < 2:
            raise SettingError("n_init", f"must be at least 2 for algorithm={name}: one point has no contrast, got 1")
        if weights is not Uniform:
            raise SettingError(
                "weights", f"must be uniform for algorithm={name}: the release is a plain sum, got {weights.__name__}"
            )
        if self.algorithm.prior is not None and self.algorithm.prior.releases > self.rounds:
            raise SettingError(
                "algorithm.broadcasts",
                f"must be at most the number of rounds, {self.rounds}, got {self.algorithm.prior.releases!r}",
            )
        if self.algorithm.private and q != 1:
            raise SettingError(
                "privacy.q",
                f"must be 1 for algorithm={name}: the noise that sampling adds to a sum is not modelled, got {q!r}",
            )

    def _check_deadline(self) -> None:
        deadline, executor = self.dropout.deadline, self.executor
        if not isinstance(executor, RayExecutor):
            raise ValueError(f"dropout.deadline needs executor=ray, whose agents can be late, got {deadline!r}")
        if self.algorithm.private and not self.privacy.seeded and executor.agents_per_actor != 1:
            raise ValueError(
                "dropout.deadline with privacy.rng=os needs executor.agents_per_actor=1, got "
                f"{executor.agents_per_actor!r}: agents of one actor are late together, and epsilon covers one "
                "agent's messages"
            )


@dataclass(frozen=True, kw_only=True)
class OutsourcedSettings(RunSettings):
    """A run of a curator and a modeler."""

    algorithm: OutsourcedAlgorithm
    privacy: ReleasePrivacy
    transform: Transform

    def __post_init__(self) -> None:
        super().__post_init__()
        p = self.privacy
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
            raise ValueError("dropout is about agents' messages: an outsourced run has none, leave it out")
        self._check_executor()
        self._check_transform()

    def _check_executor(self) -> None:
        for name in ("device", "num_gpus"):
            if (given := getattr(self.executor, name, None)) not in (None, 0, "cpu", "auto"):
                asked = f"executor.{name}={given}"
                raise ValueError(f"{asked} is for agents: curator and modeler work on the CPU, leave it out")

    def _check_transform(self) -> None:
        """Raise ValueError for a transform that contradicts the algorithm or the privacy settings."""
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
    """The keys of a configuration that are no part of its setting."""
    return tuple(f.name for f in fields(RunSettings) if not f.metadata.get("setting", True))
