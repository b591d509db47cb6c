"""From composed settings to the library's objects: the only module that reads the configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from omegaconf import DictConfig, OmegaConf
from threadpoolctl import threadpool_limits

from dpfbo import checks
from dpfbo.checkpoint import Checkpoint, ReleaseFile
from dpfbo.federated.agents import Agents
from dpfbo.federated.controls import RandomServer, SobolServer
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.federation import FederatedResult
from dpfbo.federated.mechanism import Mechanism
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.server import AnyServer, Server
from dpfbo.federated.weights import Weighting
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.features import shared_features
from dpfbo.gp.hyperparameters import OwnGP
from dpfbo.gp.regions import Regions
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.release import KeptRelease
from dpfbo.problems import Problem
from dpfbo.rng import Streams
from runners.compose.accounts import Accounts, accounts_of, mechanism_of, multiplier_for
from runners.compose.instantiate import instantiate
from runners.compose.outsourced import Outsourced, assemble_outsourced, is_outsourced

CONF = Path(__file__).resolve().parent.parent.parent / "conf"
SERVERS = ("none", "aggregate", "peer", "random", "sobol", "curator")
EXECUTORS = ("local", "ray")
DEVICES = ("auto", "cpu", "cuda")


def by_regions(by_P: DictConfig, P: int) -> float:
    """Resolver `by_regions`: the entry for P sub-regions, else the default."""
    return by_P.get(P, by_P.default)


OmegaConf.register_new_resolver("by_regions", by_regions, replace=True)


@dataclass(frozen=True)
class Experiment:
    """Everything that one run needs, validated; only the server awaits its ledger."""

    problem: Problem
    agents: Agents
    weighting: Weighting
    mechanism: Mechanism
    rounds: int
    streams: Streams
    dropout: Dropout
    settings: dict[str, Any]
    family: ClassVar[str] = "federated"

    @property
    def server_kind(self) -> str:
        return self.settings["algorithm"]["server"]

    @property
    def private(self) -> bool:
        return bool(self.settings["algorithm"]["private"])

    def result(self) -> FederatedResult:
        """Of no rounds yet."""
        return FederatedResult(momentum=self.settings["algorithm"]["momentum"])

    def kept_release(self, checkpoint: Checkpoint) -> ReleaseFile:
        """The file that keeps a release which cannot be drawn again."""
        return checkpoint.release_file()

    @property
    def release_summary(self) -> dict[str, Any]:
        """What summary.json says of the release: nothing here."""
        return {}

    @property
    def covers(self) -> str:
        """What epsilon is about."""
        return (
            "the ledger's broadcasts; not settings chosen by comparing runs on the same private data, nor other seeds "
            "and settings, whose ledgers add up"
        )

    def server(self, ledger: Ledger, kept: KeptRelease | None = None) -> AnyServer | None:
        """The server of this algorithm, charging to `ledger`; None for agents that work alone.

        kept: used where the noise cannot be drawn twice.
        """
        N, domain = self.problem.n_agents, self.problem.domain
        if self.server_kind == "none":
            return None
        if self.server_kind == "peer":
            return PeerExchange(N, self.streams, self.dropout)
        if self.server_kind == "random":
            return RandomServer(N, domain, self.streams)
        if self.server_kind == "sobol":
            return SobolServer(N, domain, self.streams, self.rounds)
        seeded = self.settings["privacy"]["rng"] == "seeded"
        entropy = SeededEntropy(self.streams) if seeded else SystemEntropy()
        M = self.agents.features.frequencies.shape[1]
        self.accounts.epsilon.prepare()
        return Server(
            N, M, self.agents.regions, self.weighting, self.mechanism, entropy, ledger, self.accounts.epsilon,
            self.dropout, None if seeded else kept, self.accounts.budget,
        )  # fmt: skip

    @cached_property
    def accounts(self) -> Accounts:
        """What it costs; only who asks for it (not an agent) waits for the accountants.

        Raises ValueError for settings that cannot be accounted for or cost more than their budget.
        """
        return accounts_of(self.settings, self.problem.n_agents, self.mechanism, self.weighting)

    @property
    def broadcasts(self) -> int:
        """How many there are at most."""
        if self.server_kind == "aggregate":
            return len(self.accounts.events)
        stop = self.settings["algorithm"]["broadcasts"]
        return self.rounds if stop is None else min(stop, self.rounds)


AnyExperiment = Experiment | Outsourced


def build(cfg: DictConfig) -> AnyExperiment:
    """Validate the settings and build the experiment.

    Raises ValueError (one sentence) for a bad setting, MissingData for a data file that is not there,
    UnsupportedEvent for a mechanism that an accountant cannot analyse.
    """
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise ValueError(f"{key} must be given")
    _check_fits(cfg)
    with _settings_there():
        experiment = assemble(OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]
        experiment.accounts  # noqa: B018
        return experiment


@contextmanager
def _settings_there() -> Iterator[None]:
    """A setting that was deleted, or is no group any more, as one sentence."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"setting {error} is missing; --cfg job shows all settings") from error


def federated(experiment: AnyExperiment) -> Experiment:
    """The experiment, if it has agents and a server. Raises ValueError for an outsourced one."""
    if isinstance(experiment, Outsourced):
        name = experiment.settings["algorithm"]["name"]
        raise ValueError(f"algorithm={name} has no agents and no server that adds up their messages")
    return experiment


def _check_fits(cfg: DictConfig) -> None:
    """Raise ValueError for an algorithm with a problem of the other kind, whose settings it could not even resolve."""
    preset, a = cfg.problem.get("preset") or {}, cfg.algorithm
    checks.one_of("algorithm.server", a.get("server"), SERVERS)
    if is_outsourced(cfg):
        for name in ("weights", "acquisition"):
            if cfg.get(name) is not None:
                raise ValueError(f"{name} has no effect on algorithm={a.name}: leave it out")
    if is_outsourced(cfg) != ("message" not in preset):
        kinds = ("a table of candidates", "agents")
        wanted, found = kinds if is_outsourced(cfg) else kinds[::-1]
        name = str(cfg.problem.get("_target_")).rsplit(".", 1)[-1]
        raise ValueError(f"algorithm={a.name} needs a problem with {wanted}, and {name} has {found}")
    if is_outsourced(cfg) != ("q" not in (cfg.get("privacy") or {"q": None})):
        raise ValueError(f"algorithm={a.name} needs privacy={'outsourced' if is_outsourced(cfg) else 'default'}")
    if not is_outsourced(cfg) and cfg.get("transform") is not None:
        raise ValueError(f"transform is for outsourced algorithms such as po_gp_ucb, got algorithm={a.name}")


def assemble(settings: dict[str, Any]) -> AnyExperiment:
    """`build` from settings that are resolved already, as a worker process gets them, without its accounts."""
    a, p = settings["algorithm"], settings["privacy"]
    if not isinstance(p["budget"], dict):
        raise ValueError(f"privacy.budget must have epsilon, delta and when_spent, got {p['budget']!r}")
    checks.integer("rounds", settings["rounds"], minimum=1)
    check_executor(settings["executor"])
    checks.one_of("progress", settings["progress"], (True, False))
    checks.one_of("resume", settings["resume"], (True, False))
    checks.one_of("algorithm.private", a["private"], (True, False))
    folder = str(settings["experiment_name"])
    if not folder or Path(folder).name != folder:
        raise ValueError(f"experiment_name must be a plain folder name, got {folder!r}")
    checks.one_of("privacy.rng", p["rng"], ("seeded", "os"))
    streams = Streams(settings["seed"])
    return (assemble_outsourced if is_outsourced(settings) else _assemble_federated)(settings, streams)


def _assemble_federated(settings: dict[str, Any], streams: Streams) -> Experiment:
    a, p = settings["algorithm"], settings["privacy"]
    checks.momentum("algorithm.momentum", a["momentum"])
    _check_effect(a)
    if a["private"] and a["server"] != "aggregate":
        raise ValueError(f"algorithm.private needs algorithm.server=aggregate, got {a['server']!r}")
    checks.one_of("privacy.accountant", p["accountant"], p["accountants"])
    problem = instantiate({k: v for k, v in settings["problem"].items() if k != "preset"})
    regions = Regions(a["P"], problem.domain.dimension)
    regions.check_against(problem.domain, problem.n_agents)
    return Experiment(
        problem=problem,
        agents=_agents(settings, problem, regions, streams),
        weighting=instantiate(settings["weights"]),
        mechanism=mechanism_of(settings),
        rounds=settings["rounds"],
        streams=streams,
        dropout=_dropout(settings, streams),
        settings=settings,
    )


def calibrated(cfg: DictConfig) -> DictConfig:
    """The same settings with `privacy.z` such that a run costs `privacy.epsilon`, where that is given.

    They also say which data were found, where that was left open.

    Raises ValueError for a target that cannot be met, or a z that is given beside it, MissingData without data.
    """
    _check_fits(cfg)
    cfg = _with_data_found(cfg)
    p, private = cfg.get("privacy", {}), cfg.algorithm.get("private") and not is_outsourced(cfg)
    if p.get("epsilon") is None or not private or OmegaConf.missing_keys(cfg):
        return cfg
    given = None if OmegaConf.is_interpolation(p, "z") else p.get("z")  # on the command line, or calibrated before
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    with _settings_there():
        experiment = _assemble_federated({**settings, "privacy": {**settings["privacy"], "z": 0.0}}, Streams(0))
        z = multiplier_for(settings, experiment.problem.n_agents, experiment.weighting)
    if given is not None and given != z:
        raise ValueError(
            f"privacy.z must be left out where privacy.epsilon={p.epsilon!r} says what it is, got {given!r}"
        )
    cfg = cfg.copy()
    cfg.privacy.z = z
    return cfg


def _with_data_found(cfg: DictConfig) -> DictConfig:
    """The same settings with the data that were found where they say `auto`: others are another setting."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg.problem)  # type: ignore[assignment]
    if "auto" not in plain.values() or OmegaConf.missing_keys(cfg):
        return cfg
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    problem = instantiate({k: v for k, v in settings["problem"].items() if k != "preset"})
    cfg = cfg.copy()
    for key in (key for key, value in plain.items() if value == "auto" and hasattr(problem, "found")):
        cfg.problem[key] = problem.found
    return cfg


def check_executor(executor: dict[str, Any]) -> None:
    """Raise ValueError for an executor's settings that no machine could serve."""
    checks.one_of("executor.name", executor["name"], EXECUTORS)
    checks.one_of("executor.device", executor["device"], DEVICES)
    checks.integer("executor.threads", executor["threads"], minimum=1)
    if executor["name"] != "ray":
        return
    if executor["agents_per_actor"] != "auto":
        checks.integer("executor.agents_per_actor", executor["agents_per_actor"], minimum=1)
    if executor["num_cpus"] is not None:
        checks.non_negative("executor.num_cpus", executor["num_cpus"])
    checks.non_negative("executor.num_gpus", executor["num_gpus"])
    checks.one_of("executor.placement", executor["placement"], ("DEFAULT", "SPREAD"))
    checks.one_of("executor.aggregation", executor["aggregation"], ("auto", "messages", "tree"))
    checks.integer("executor.max_restarts", executor["max_restarts"], minimum=0)
    checks.positive("executor.placement_timeout", executor["placement_timeout"])


def _check_effect(a: dict[str, Any]) -> None:
    """Raise ValueError for settings of messages and broadcasts that an algorithm has no use for."""
    sends, averages = a["server"] in ("aggregate", "peer"), a["server"] == "aggregate"
    unused = [
        *(["message"] if a["message"] != "sample" and not sends else []),
        *(["message_center"] if a["message_center"] is True and not sends else []),
        *(["message_normalize"] if a["message_normalize"] is True and not averages else []),
        *(["local_initialisation"] if a["local_initialisation"] is False and a["P"] == 1 else []),
        *(["momentum"] if a["momentum"] and not averages else []),
        *(["broadcasts"] if a["broadcasts"] is not None and a["server"] == "none" else []),
    ]
    for name in unused:
        raise ValueError(f"algorithm.{name} has no effect on algorithm={a['name']}: leave it out, got {a[name]!r}")


def _dropout(settings: dict[str, Any], streams: Streams) -> Dropout:
    deadline = settings["dropout"]["deadline"]
    if deadline is not None:
        checks.positive("dropout.deadline", deadline)
        if settings["executor"]["name"] != "ray":
            raise ValueError(f"dropout.deadline needs executor=ray, whose agents can be late, got {deadline!r}")
        alone = settings["executor"]["agents_per_actor"] == 1
        if settings["algorithm"]["private"] and settings["privacy"]["rng"] == "os" and not alone:
            raise ValueError(
                "dropout.deadline with privacy.rng=os needs executor.agents_per_actor=1, got "
                f"{settings['executor']['agents_per_actor']!r}: agents of one actor are late together, and epsilon "
                "covers one agent's messages"
            )
    return Dropout(settings["dropout"]["probability"], streams)


def _agents(settings: dict[str, Any], problem: Problem, regions: Regions, streams: Streams) -> Agents:
    a = settings["algorithm"]
    if a["server"] == "none" and a["follow"] != "never":
        raise ValueError(f"algorithm.follow must be 'never' without a server, got {a['follow']!r}")
    generator = streams.generator("features")
    return Agents(
        domain=problem.domain,
        regions=regions,
        features=shared_features(a["M"], problem.domain.dimension, a["lengthscale"], generator, a["paired"]),
        streams=streams,
        rounds=settings["rounds"],
        n_init=settings["n_init"],
        message_noise=a["message_noise"],
        follow=a["follow"],
        own_gp=instantiate({"_target_": f"{OwnGP.__module__}.OwnGP", **a["own_gp"]}),
        own_draw=instantiate({"_target_": f"{OwnDraw.__module__}.OwnDraw", **a["own_draw"]}),
        acquisition=instantiate({"_target_": f"{Acquisition.__module__}.Acquisition", **settings["acquisition"]}),
        message=a["message"],
        message_center=a["message_center"],
        local_initialisation=a["local_initialisation"],
    )


def use_threads(threads: int) -> None:
    """Limit the threads of tensor and array operations in this process."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
