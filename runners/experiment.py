"""From composed settings to the library's objects: the only module that reads the configuration."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting
import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from threadpoolctl import threadpool_limits

from dpfbo import checks
from dpfbo.accounting import Accountant, UnsupportedEvent, calibrate, check_delta, default_delta, finite_or_none
from dpfbo.acquisition import Acquisition
from dpfbo.agents import Agents
from dpfbo.controls import RandomServer, SobolServer
from dpfbo.draws import OwnDraw
from dpfbo.dropout import Dropout
from dpfbo.entropy import SeededEntropy, SystemEntropy
from dpfbo.features import shared_features
from dpfbo.gp import OwnGP
from dpfbo.ledger import Ledger
from dpfbo.mechanism import Mechanism, SubsampledGaussian, WeightedAverage
from dpfbo.noise import DiscreteGaussian
from dpfbo.problems import Problem
from dpfbo.regions import Regions
from dpfbo.rng import Streams
from dpfbo.server import AnyServer, Budget, BudgetSpent, EpsilonCurve, KeptRelease, PeerExchange, Server
from dpfbo.weights import Weighting

CONF = Path(__file__).resolve().parent.parent / "conf"
SERVERS = ("none", "aggregate", "peer", "random", "sobol")
EXECUTORS = ("local", "ray")
DEVICES = ("auto", "cpu", "cuda")

_NOT_A_SETTING = (
    "seed",
    "results_dir",
    "data_dir",
    "experiment_name",
    "progress",
    "executor",
    "tracker",
    "resume",
    "seeds",
    "sweep",
)


def by_regions(by_P: DictConfig, P: int) -> float:
    """Resolver `by_regions`: the entry for P sub-regions, else the default."""
    return by_P.get(P, by_P.default)


OmegaConf.register_new_resolver("by_regions", by_regions, replace=True)


@dataclass(frozen=True)
class Experiment:
    """Everything that one run needs, validated; only the server awaits its ledger.

    accountants: those that epsilon is reported by. events: what each planned broadcast costs.
    """

    problem: Problem
    agents: Agents
    weighting: Weighting
    mechanism: Mechanism
    accountants: dict[str, Accountant]
    epsilon: EpsilonCurve
    budget: Budget | None
    delta: float
    rounds: int
    events: list[dp_accounting.DpEvent]
    streams: Streams
    dropout: Dropout
    settings: dict[str, Any]

    @property
    def server_kind(self) -> str:
        return self.settings["algorithm"]["server"]

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
        self.epsilon.prepare()
        return Server(
            N, M, self.agents.regions, self.weighting, self.mechanism, entropy, ledger, self.epsilon, self.dropout,
            None if seeded else kept, self.budget,
        )  # fmt: skip

    @property
    def epsilon_of_nothing(self) -> float | None:
        """Epsilon while no release was charged: 0; None where agents exchange messages as they are."""
        return None if self.server_kind == "peer" else 0.0

    def epsilons(self, ledger: Ledger) -> dict[str, float | None]:
        """Epsilon of every accountant for all that was released; None where there is no finite one."""
        return self.epsilons_of(ledger.events())

    def epsilons_of(self, events: list[dp_accounting.DpEvent]) -> dict[str, float | None]:
        """The same for any releases."""
        if not events:
            return dict.fromkeys(self.accountants, self.epsilon_of_nothing)
        shown = self.settings["privacy"]["accountant"]  # the one whose curve is known already
        spent = {
            name: self.epsilon.after(events) if name == shown else accountant.epsilon(events, self.delta)
            for name, accountant in self.accountants.items()
        }
        return {name: finite_or_none(value) for name, value in spent.items()}

    @property
    def broadcasts(self) -> int:
        """How many there are at most."""
        if self.server_kind == "aggregate":
            return len(self.events)
        stop = self.settings["algorithm"]["broadcasts"]
        return self.rounds if stop is None else min(stop, self.rounds)

    def check_budget(self, spent: list[dp_accounting.DpEvent], done: int) -> None:
        """Raise BudgetSpent if the budget must pay for the rest of the run, after `done` broadcasts, and cannot.

        spent: all that the ledger holds, those of other runs included.
        """
        if self.budget is None or self.budget.when_spent == "stop" or self.settings["privacy"]["rng"] != "os":
            return
        if not self.budget.allows([*spent, *self.events[done:]]):
            raise BudgetSpent(
                f"{len(self.events) - done} more broadcasts would cost more than privacy.budget.epsilon="
                f"{self.budget.epsilon!r} with the {len(spent)} that the ledger holds already"
            )

    @property
    def relation(self) -> str:
        """What epsilon compares."""
        return self.accountants[self.settings["privacy"]["accountant"]].relation

    @property
    def approximations(self) -> list[str]:
        """The accountants whose epsilon is no guarantee."""
        return [name for name, accountant in self.accountants.items() if accountant.approximation]


def build(cfg: DictConfig) -> Experiment:
    """Validate the settings and build the experiment.

    Raises ValueError (one sentence) for a bad setting, MissingData for a data file that is not there,
    UnsupportedEvent for a mechanism that an accountant cannot analyse.
    """
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise ValueError(f"{key} must be given")
    try:
        return assemble(OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]
    except KeyError as error:
        raise ValueError(f"setting {error} is missing; --cfg job shows all settings") from error


def assemble(settings: dict[str, Any]) -> Experiment:
    """`build` from settings that are resolved already, as a worker process gets them."""
    a, p = settings["algorithm"], settings["privacy"]
    checks.integer("rounds", settings["rounds"], minimum=1)
    checks.one_of("algorithm.server", a["server"], SERVERS)
    check_executor(settings["executor"])
    checks.one_of("progress", settings["progress"], (True, False))
    checks.one_of("resume", settings["resume"], (True, False))
    checks.one_of("algorithm.private", a["private"], (True, False))
    checks.momentum("algorithm.momentum", a["momentum"])
    if a["private"] and a["server"] != "aggregate":
        raise ValueError(f"algorithm.private needs algorithm.server=aggregate, got {a['server']!r}")
    folder = str(settings["experiment_name"])
    if not folder or Path(folder).name != folder:
        raise ValueError(f"experiment_name must be a plain folder name, got {folder!r}")
    checks.one_of("privacy.rng", p["rng"], ("seeded", "os"))
    checks.one_of("privacy.accountant", p["accountant"], p["accountants"])
    streams = Streams(settings["seed"])
    problem = _instantiate({k: v for k, v in settings["problem"].items() if k != "preset"})
    regions = Regions(a["P"], problem.domain.dimension)
    regions.check_against(problem.domain, problem.n_agents)
    mechanism = _mechanism(settings)
    delta = default_delta(problem.n_agents) if p["delta"] is None else p["delta"]
    check_delta(delta)
    used = mechanism if a["private"] else WeightedAverage(a["message_normalize"])
    weighting = _instantiate(settings["weights"])
    events = _events(settings, used, weighting, regions, problem.n_agents)
    accountants = _accountants(p, set(events), delta)
    shown = accountants[p["accountant"]]
    budget, events = _within_budget(settings, shown, events, delta)
    return Experiment(
        problem=problem,
        agents=_agents(settings, problem, regions, streams),
        weighting=weighting,
        mechanism=used,
        accountants=accountants,
        epsilon=EpsilonCurve(shown, events, delta),
        budget=budget,
        delta=delta,
        rounds=settings["rounds"],
        events=events,
        streams=streams,
        dropout=_dropout(settings, streams),
        settings=settings,
    )


def _mechanism(settings: dict[str, Any]) -> SubsampledGaussian:
    a, p = settings["algorithm"], settings["privacy"]
    noise = _instantiate(p["noise"])
    if isinstance(noise, DiscreteGaussian) and p["rng"] != "os" and a["private"]:
        raise ValueError(f"privacy/noise=discrete needs privacy.rng=os, got {p['rng']!r}: its noise has no seed")
    return SubsampledGaussian(
        p["q"], p["z"], p["S"], p["sensitivity"], p["sampling"], a["message_normalize"], p["charge"],
        _instantiate(p["schedule"]), noise,
    )  # fmt: skip


def _events(
    settings: dict[str, Any], mechanism: Mechanism, weighting: Weighting, regions: Regions, n_agents: int
) -> list[dp_accounting.DpEvent]:
    """What each of the planned broadcasts costs; none where no server adds up messages.

    Raises ValueError for noise that is no ordinary number in some round.
    """
    stop = settings["algorithm"]["broadcasts"]
    if stop is not None:
        checks.integer("algorithm.broadcasts", stop, minimum=1)
    if settings["algorithm"]["server"] != "aggregate":
        return []
    T, assignment = settings["rounds"], regions.assign(torch.arange(n_agents))
    events = []
    for t in range(T if stop is None else min(stop, T)):
        weights = weighting(t, assignment, regions.P)
        if isinstance(mechanism, SubsampledGaussian):
            mechanism.sigma(weights, t)
        events.append(mechanism.dp_event(weights, t))
    return events


def _accountants(privacy: dict[str, Any], events: set[dp_accounting.DpEvent], delta: float) -> dict[str, Accountant]:
    """The accountants to report by: the chosen one, which must analyse the events, and others of its relation that do.

    Approximations only if chosen.
    """
    nodes = {name: _instantiate(node) for name, node in privacy["accountants"].items()}
    chosen, used = privacy["accountant"], {}
    for name, accountant in nodes.items():
        if name != chosen and (accountant.approximation or accountant.relation != nodes[chosen].relation):
            continue
        try:
            for event in events:
                accountant.check(event)
        except UnsupportedEvent:
            if name == chosen:
                raise
            continue
        used[name] = accountant
    return used


def _within_budget(
    settings: dict[str, Any], accountant: Accountant, events: list[dp_accounting.DpEvent], delta: float
) -> tuple[Budget | None, list[dp_accounting.DpEvent]]:
    """The budget, and those of the planned events that it pays for. Raises ValueError if it must pay for all."""
    b = settings["privacy"]["budget"]
    if b["epsilon"] is None:
        return None, events
    if not settings["algorithm"]["private"]:
        raise ValueError(
            f"privacy.budget.epsilon needs a private algorithm, got algorithm={settings['algorithm']['name']}"
        )
    if accountant.approximation:
        raise ValueError(
            "privacy.budget needs an accountant whose epsilon is a guarantee, got "
            f"privacy.accountant={settings['privacy']['accountant']}, an approximation"
        )
    delta = delta if b["delta"] is None else b["delta"]
    check_delta(delta, "privacy.budget.delta")
    budget = Budget(b["epsilon"], EpsilonCurve(accountant, events, delta), b["when_spent"])
    affordable = sum(budget.allows(events[: k + 1]) for k in range(len(events)))
    if affordable < len(events) and budget.when_spent == "refuse":
        raise ValueError(
            f"{len(events)} broadcasts cost epsilon {budget.spent.after(events):.4g} at delta {delta:.4g}, more than "
            f"privacy.budget.epsilon={b['epsilon']!r}, which pays for {affordable}: "
            "privacy.budget.when_spent=stop ends the broadcasts there"
        )
    return budget, events[:affordable]


def calibrated(cfg: DictConfig) -> DictConfig:
    """The same settings with `privacy.z` such that a run costs `privacy.epsilon`, where that is given.

    Raises ValueError for a target that cannot be met, or that the algorithm or the accountant has no use for.
    """
    target = cfg.privacy.epsilon
    if target is None or not cfg.algorithm.private or OmegaConf.missing_keys(cfg):
        return cfg
    checks.positive("privacy.epsilon", target)
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    p = settings["privacy"]
    n_agents = assemble({**settings, "privacy": {**p, "z": 1.0, "budget": {"epsilon": None}}}).problem.n_agents
    accountant, weighting = _instantiate(p["accountants"][p["accountant"]]), _instantiate(settings["weights"])
    regions = Regions(settings["algorithm"]["P"], 1)
    delta = default_delta(n_agents) if p["delta"] is None else p["delta"]

    def epsilon_of(z: float) -> float:
        mechanism = _mechanism({**settings, "privacy": {**p, "z": z}})
        return accountant.epsilon(_events(settings, mechanism, weighting, regions, n_agents), delta)

    try:
        fits = 0.99 * target <= epsilon_of(p["z"]) <= target  # calibrated before
    except ValueError:
        fits = False
    if fits:
        return cfg
    cfg = cfg.copy()
    cfg.privacy.z = calibrate.noise_multiplier(epsilon_of, target)
    return cfg


def setting_hash(cfg: DictConfig) -> str:
    """Names a setting: the same for all seeds, results folders, executors and trackers.

    Where the algorithm is not private, the privacy settings do not count either.
    """
    neutral = OmegaConf.create(OmegaConf.to_container(cfg))
    neutral.seed = "<seed>"  # what nobody can type: a function_seed that equals the seed is another setting
    resolved: dict[str, Any] = OmegaConf.to_container(neutral, resolve=True)  # type: ignore[assignment]
    for key in _NOT_A_SETTING:
        resolved.pop(key, None)
    for key in ("preset", "data_dir", "n_jobs"):
        resolved["problem"].pop(key, None)
    if not resolved["algorithm"]["private"]:
        del resolved["privacy"]
    return hashlib.sha256(json.dumps(_numbers_alike(resolved), sort_keys=True).encode()).hexdigest()[:12]


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


def _numbers_alike(node: Any) -> Any:
    """The same tree with every number a float, so that z=1 and z=1.0 are one setting."""
    if isinstance(node, dict):
        return {key: _numbers_alike(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_numbers_alike(value) for value in node]
    return float(node) if isinstance(node, int) and not isinstance(node, bool) else node


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
        own_gp=_instantiate({"_target_": f"{OwnGP.__module__}.OwnGP", **a["own_gp"]}),
        own_draw=_instantiate({"_target_": f"{OwnDraw.__module__}.OwnDraw", **a["own_draw"]}),
        acquisition=_instantiate({"_target_": f"{Acquisition.__module__}.Acquisition", **settings["acquisition"]}),
        message=a["message"],
    )


def _instantiate(node: dict[str, Any]) -> Any:
    """hydra.utils.instantiate whose errors are the constructor's own."""
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        raise (error.__cause__ or error) from None


def use_threads(threads: int) -> None:
    """Limit the threads of tensor and array operations in this process."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
