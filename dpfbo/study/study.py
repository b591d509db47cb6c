"""A study: the public description of a federated run, from which agents and server are made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.federation import FederatedResult, LocalPopulation
from dpfbo.federated.mechanism import Mechanism, SubsampledGaussian, WeightedAverage
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.schedule import Constant
from dpfbo.federated.server import ServerKind, ServerParts
from dpfbo.federated.weights import Weighting, level_of
from dpfbo.formats.words import delta_in_words, epsilon_in_words, neighbours
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.features import RandomFeatures, shared_features
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.accounting import accountant_named, default_delta
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.plan import PrivacyPlan, analysing
from dpfbo.privacy.release import KeptRelease
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, embedded_dimension
from dpfbo.space.parameters import Space
from dpfbo.space.regions import Regions
from dpfbo.study.algorithm import Algorithm
from dpfbo.study.sharing_plan import SharingPlan, plan

if TYPE_CHECKING:
    import dp_accounting

    Events = Sequence[dp_accounting.DpEvent]

ACCOUNTANTS = ("pld", "rdp", "moments", "fixed_size", "gdp")
COVERS = (
    "the ledger's broadcasts; not settings chosen by comparing runs on the same private data, nor other seeds and "
    "settings, whose ledgers add up"
)

_LARGEST_DELTA = 1e-3  # the largest default delta of real releases
_NO_NOISE = 1e3  # above this epsilon, the noise of a release is negligible


@dataclass(frozen=True)
class Study:
    """The description of a federated run: the settings that agents and server share, all of which are public.

    Args:
        domain: The search space.
        n_agents: The number of agents, N.
        rounds: The number of rounds after the initial points, T.
        n_init: The number of initial points of each agent.
        algorithm: The algorithm.
        mechanism: The mechanism of a differentially private algorithm; other algorithms ignore it.
        weights: The weight of each agent in each sub-region.
        acquisition: The settings of the maximisation of acquisition functions.
        dropout: A simulated loss of messages.
        seed: The seed of the shared features, the initial points and the agents' draws.
        rng: `seeded` for a simulation: the seed also determines the noise and the choice of agents, so whoever knows
            the seed can remove the noise. `os`: noise and choice of agents come from the operating system and cannot
            be repeated.
        delta: The delta of epsilon; None for N^-1.1, or min(N^-1.1, .001) if rng is `os`.
        accountant: The accountant of the epsilon after each round, one of `accountants`.
        accountants: The names of all accountants that report the epsilon of the run.
        space: The named parameters that are the domain's axes; None if the axes have no names.

    Guarantee:
        With a private algorithm, all broadcasts together have the guarantee of the mechanism. Neighbouring relation:
        one agent's messages of all rounds are replaced by zero vectors (zero-out) or, with fixed-size samples, by any
        other messages (replace-one); N is public. `SubsampledGaussian` states the `DpEvent` and the sensitivity.

    Raises:
        SettingError: A setting is wrong. `agents`, `plan` and `server` check further settings when they are used.

    Example:
        >>> import dpfbo
        >>> study = dpfbo.create_study(
        ...     {"x": dpfbo.Float(0, 1)}, n_agents=100, algorithm="dp_fts_de", noise_multiplier=1, delta=1e-3, rounds=10
        ... )
        >>> {name: round(epsilon, 2) for name, epsilon in study.plan.totals().items()}
        {'pld': 5.26, 'rdp': 6.27, 'moments': 7.46}
        >>> study.calibrated(1.0).mechanism.noise_multiplier
        3.108
    """

    domain: Domain
    n_agents: int
    rounds: int
    n_init: int
    algorithm: Algorithm
    mechanism: SubsampledGaussian
    weights: Weighting
    acquisition: Acquisition = Acquisition()
    dropout: Dropout = Dropout()
    seed: int = 0
    rng: str = "seeded"
    delta: float | None = None
    accountant: str = "pld"
    accountants: tuple[str, ...] = ACCOUNTANTS
    space: Space | None = None

    def __post_init__(self) -> None:
        checks.integer("n_agents", self.n_agents, minimum=1, maximum=checks.MOST_AGENTS)
        if self.n_agents == 1 and self.algorithm.sends:
            raise SettingError("n_agents", f"must be at least 2 for algorithm={self.algorithm.name}, got 1")
        checks.integer("rounds", self.rounds, minimum=1, maximum=checks.MOST_ROUNDS)
        checks.integer("seed", self.seed, minimum=0)
        checks.one_of("rng", self.rng, ("seeded", "os"))
        if self.space is not None and self.space.domain != self.domain:
            raise SettingError("space", "must have the domain of the study")
        q = self.mechanism.sampling_probability
        self.algorithm.check_run(self.n_init, self.weights, q)
        if isinstance(self.mechanism, DistributedGaussian):
            self._check_trust(self.mechanism)

    def _check_trust(self, mechanism: DistributedGaussian) -> None:
        if not (self.algorithm.private and self.algorithm.has_prior):
            raise SettingError(
                "trust",
                f"must be 'server' for algorithm={self.algorithm.name}: without a trusted server nobody keeps secret "
                "who was sampled, so that sampling saves no epsilon; dp_prior needs no sampling",
            )
        if self.dropout.probability:
            rule = "must be 0 with trust=nobody: the simulation has all sites"
            raise SettingError("probability", f"{rule}, got {self.dropout.probability!r}")
        mechanism.noise_of(self.n_agents)

    @property
    def trust(self) -> str:
        """The party that agents trust: `server`, or `nobody` if the sites add the noise and mask their messages."""
        return "nobody" if isinstance(self.mechanism, DistributedGaussian) else "server"

    @cached_property
    def views(self) -> dict[str, float]:
        """Epsilon for each kind of observer, at the study's delta, relation and accountant.

        With a trusted server, the only key is `broadcasts`, which everybody sees. Otherwise, the keys are those of
        `DistributedGaussian.multipliers`: `server` (the server together with up to `mechanism.colluders` sites), `site`
        (one site, or up to `mechanism.colluders` sites together) and `outsider` (somebody who sees only the
        broadcasts).
        """
        if not isinstance(self.mechanism, DistributedGaussian):
            return {"broadcasts": self.plan.epsilon()}
        z, by_view = self.mechanism.noise_multiplier, self.mechanism.multipliers(self.n_agents)
        ratios = {view: multiplier / self.mechanism.multiplier(0) for view, multiplier in by_view.items()}
        return {view: self.with_multiplier(z * ratio).plan.epsilon() for view, ratio in ratios.items()}

    @cached_property
    def digest(self) -> str:
        """A hash of all settings, in 16 hexadecimal digits that are the same in every process.

        Raises SettingError for a setting that is neither a dataclass, a tensor nor a plain value.
        """
        return hashlib.sha256(_canonical(self).encode()).hexdigest()[:16]

    def coverage(self) -> LedgerCoverage:
        """Return the description of this run for its ledger; see `Ledger.bind`."""
        seed = self.seed if self.rng == "seeded" else None
        return LedgerCoverage(self.digest, seed, None, self.plan.relation or None)

    @property
    def simulation(self) -> bool:
        """True if anybody who knows the seed can remove the noise."""
        return self.algorithm.private and self.rng == "seeded"

    @property
    def promise(self) -> str:
        """The study's privacy in words: epsilon, delta, relation and accountant, or that there is no epsilon."""
        return self.cost(self.plan.epsilon() if self.algorithm.private else None)

    def cost(self, epsilon: float | None) -> str:
        """Describe an epsilon of this study with delta, relation and accountant. epsilon: None if it is not finite."""
        plan = self.plan
        if not self.algorithm.sends:
            return "epsilon 0: nothing is sent or released"
        if epsilon is None:
            return "epsilon none: what is shared has no privacy guarantee"
        words = f"epsilon {epsilon_in_words(epsilon)} at {delta_in_words(plan.delta)}, {neighbours(plan.relation)}"
        words = f"{words}, by {plan.chosen}"
        if isinstance(self.mechanism, DistributedGaussian):
            c = self.mechanism.colluders
            words += f", for the server {f'with up to {c} sites' if c else 'alone'}"
            words += f"; {epsilon_in_words(self.views['site'])} for another site" if not c else ""
        return f"{words}{'; simulation: a known seed voids it' if self.simulation else ''}"

    @cached_property
    def outlook(self) -> SharingPlan | None:
        """The result of `dpfbo.plan` for this study; None if the server releases no private prior.

        The result is also None if epsilon is 0, or if epsilon exceeds 1000.
        """
        epsilon = self.plan.epsilon() if self.algorithm.private and self.algorithm.has_prior else None
        if not epsilon or epsilon > _NO_NOISE:
            return None
        return plan(self.domain, self.n_agents, epsilon, n_init=self.n_init, delta=self._delta, seed=self.seed)

    @property
    def streams(self) -> Streams:
        return Streams(self.seed)

    @cached_property
    def agents(self) -> Agents:
        """The settings that all agents share."""
        a, D = self.algorithm, embedded_dimension(self.domain)
        regions = Regions(a.P, self.domain.dimension)
        regions.check_against(self.domain, self.n_agents)
        features: RandomFeatures | NystromFeatures
        if a.has_prior and a.averaged_gp is not None:
            features = NystromFeatures.of(self.domain, a.M, a.averaged_gp.lengthscales)
        else:
            generator = self.streams.generator("features")
            features = shared_features(a.M, D, a.lengthscale, generator, a.paired).on(self.domain)
        return Agents(
            self.domain, regions, features, self.streams, self.rounds, self.n_init, a.message_noise,
            a.follow, a.own_gp, a.own_draw, self.acquisition, a.message, a.message_center, a.local_initialisation,
            a.design, a.averaged_gp,
        )  # fmt: skip

    @property
    def step(self) -> Mechanism:
        """The server's aggregation: the mechanism, or the plain weighted average if the algorithm is not private."""
        return self.mechanism if self.algorithm.private else WeightedAverage(self.algorithm.message_normalize)

    def population(self, problem: Problem, threads: int = 1) -> LocalPopulation:
        """Return all agents, to run in this process. threads: number of threads, each for a block of agents."""
        return LocalPopulation.of(problem, self.agents, self.algorithm.aggregates, threads)

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The broadcasts that a run makes unless a budget stops it, and their costs.

        Raises SettingError if the noise over- or underflows, or if rng is `os` and the accountant only approximates
        epsilon. Raises UnsupportedEvent if the accountant cannot analyse the mechanism.
        """
        server, events = self.algorithm.server, self.events
        nothing = None if server is not None and server.bare_messages else 0.0
        by = analysing(events, self.accountant, self.accountants)
        if by[self.accountant].approximation and self.rng == "os" and self.algorithm.private:
            raise SettingError(
                "accountant",
                f"must be one whose epsilon is a guarantee where releases are real (rng os), got {self.accountant!r}, "
                "an approximation",
            )
        return PrivacyPlan(events, self._delta, by, self.accountant, COVERS, epsilon_of_nothing=nothing)

    @property
    def events(self) -> Events:
        """The `DpEvent` of each planned broadcast."""
        if not self.algorithm.aggregates:
            return []
        regions = Regions(self.algorithm.P, 1)
        assignment = regions.assign(torch.arange(self.n_agents, device="cpu"))
        step, most = self.step, checks.MOST_DIFFERENT_ROUNDS
        made: dict[object, dp_accounting.DpEvent] = {}
        schedule = step.schedule if isinstance(step, SubsampledGaussian) else Constant()
        kinds = [(level_of(self.weights, t), schedule(t)) for t in range(self.broadcasts)]
        if len(set(kinds)) > most:
            rule = f"must be at most {most} where noise or weights always change, got {len(kinds)}"
            raise SettingError("rounds", rule)
        for t, kind in enumerate(kinds):
            if kind not in made:
                weights = self.weights(t, assignment, regions.P)
                if isinstance(step, SubsampledGaussian):
                    step.sigma(weights, t)  # raises if the standard deviation of the noise over- or underflows
                made[kind] = step.dp_event(weights, t)
        return [made[kind] for kind in kinds]

    @property
    def broadcasts(self) -> int:
        """The number of broadcasts that a run makes unless a budget stops it."""
        stop = self.algorithm.broadcasts
        return self.rounds if stop is None else min(stop, self.rounds)

    def calibrated(self, epsilon: float) -> Study:
        """Return this study with the smallest noise multiplier, to four digits, that costs at most `epsilon`.

        Raises ValueError if there is no such noise multiplier.
        """
        return self.with_multiplier(self.multiplier_for(epsilon))

    def multiplier_for(self, epsilon: float, guess: object = None) -> float:
        """Return the noise multiplier that `calibrated` sets. guess: a candidate to try first."""
        checks.positive("epsilon", epsilon)
        by = {self.accountant: accountant_named(self.accountant)}
        plan = PrivacyPlan((), self._delta, by, self.accountant, COVERS)
        least = min(self.mechanism.schedule(t) for t in range(self.rounds))
        events_of: Callable[[float], Events] = lambda z: self.with_multiplier(z).events
        return plan.calibrate_noise(events_of, epsilon, least, guess)

    def with_multiplier(self, z: float) -> Study:
        return replace(self, mechanism=replace(self.mechanism, noise_multiplier=z))

    def result(self) -> FederatedResult:
        return FederatedResult(momentum=self.algorithm.momentum)

    def server(
        self, ledger: Ledger, kept: KeptRelease | None = None, plan: PrivacyPlan | None = None
    ) -> ServerKind | None:
        """Return the server, which charges `ledger`; None if agents work alone.

        kept: the file that stores a release until the release is sent; used only with rng `os`. plan: a plan to use in
        place of `self.plan`, for example with a budget. None means `self.plan`, which has no budget.
        """
        kind, seeded, a = self.algorithm.server, self.rng == "seeded", self.agents
        if kind is None:
            return None
        if self.trust == "nobody" and not seeded:
            rule = "must be 'seeded' where one process has all messages; use dpfbo.secure.SecureSite for separate sites"
            raise SettingError("rng", f"{rule}, got 'os'")
        plan = self.plan if plan is None else plan
        entropy = SeededEntropy(self.streams) if seeded else SystemEntropy()
        parts = ServerParts(
            n_agents=self.n_agents, rounds=self.rounds, message_size=a.message_size, features=a.features,
            design=a.design, domain=self.domain, regions=a.regions,
            weighting=self.weights, mechanism=self.step, dropout=self.dropout, streams=self.streams, entropy=entropy,
            ledger=ledger, epsilon=plan.curve, budget=plan.budget, kept=None if seeded else kept,
        )  # fmt: skip
        server: ServerKind = kind.for_run(parts)
        return server

    @property
    def _delta(self) -> float:
        if self.delta is not None:
            return self.delta
        usual = default_delta(self.n_agents)
        return usual if self.rng == "seeded" else min(usual, _LARGEST_DELTA)


def _canonical(value: Any) -> str:
    """Return a value as a text for `Study.digest`; different values have different texts.

    A field with the metadata key `named` appears in the text only if the field's value differs from the default. So the
    digests of earlier studies stay the same if such a field is added to a class. Raises SettingError for an unsupported
    type.
    """
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind.__repr__(value)  # equal for Python's and NumPy's numbers
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        digest = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        return f"tensor({tuple(value.shape)}, {value.dtype}, {digest})"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_canonical(k)}: {_canonical(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_canonical, value))}]"
    if is_dataclass(value):
        named = [f for f in fields(value) if f.metadata.get("named") is None or getattr(value, f.name) != f.default]
        parts = (f"{f.name}={_canonical(getattr(value, f.name))}" for f in named)
        return f"{_canonical(type(value))}({', '.join(parts)})"
    name = type(value).__qualname__
    raise SettingError(name, f"must be a dataclass, a tensor or a plain value to be part of a study, got {value!r}")
