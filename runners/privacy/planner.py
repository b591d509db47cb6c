"""The privacy plan of a run that the command line describes."""

from dataclasses import dataclass, replace
from typing import Any

import dp_accounting
import torch

from dpfbo import checks
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.schedule import PowerSchedule, Steps
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.privacy.accounting import accountant_names, check_delta, default_delta
from dpfbo.privacy.accounting.calibrate import LARGEST_NOISE, SMALLEST_NOISE
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.plan import PrivacyPlan, analysing
from dpfbo.space.regions import Regions
from runners.privacy.report import facts

COVERS = (
    "all broadcasts of one run; not settings chosen by comparing runs on the same private data, nor other runs on it, "
    "whose ledgers add up, nor what an agent publishes itself"
)
GIVEN = ("epsilon", "q", "z", "rounds")  # three of these decide the fourth


@dataclass(frozen=True)
class PlannedRun:
    """The settings that decide a run's epsilon, options of the same names; see `runners.privacy --help`.

    z: noise multiplier, z (t + 1)^growth in round t. zs: instead, the multiplier of each round; the last one holds for
    all later rounds. delta: None is N^-1.1. a, hold, steps: decay of the softmax weights, for charge=effective only.

    Raises ValueError, with the option's name, for a value outside its range.
    """

    agents: int
    rounds: int
    q: float
    z: float = 1.0
    delta: float | None = None
    sampling: str = "poisson"
    sensitivity: str = "paper"
    charge: str = "nominal"
    regions: int = 1
    a: float = 15.0
    hold: int | None = None
    steps: int | None = None
    growth: float = 0.0
    zs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        checks.integer("--agents", self.agents, minimum=1, maximum=checks.MOST_AGENTS)
        checks.integer("--rounds", self.rounds, minimum=1, maximum=checks.MOST_ROUNDS)
        checks.probability("--q", self.q)
        for z in self.zs or (self.z,):
            name = "--zs" if self.zs else "--z"
            checks.real(name, z)
            if not SMALLEST_NOISE <= z <= LARGEST_NOISE:
                raise ValueError(f"{name} must lie in [{SMALLEST_NOISE:g}, {LARGEST_NOISE:g}], got {z!r}")
        if self.delta is not None:
            check_delta(self.delta, "--delta")
        checks.one_of("--sampling", self.sampling, ("poisson", "fixed_size"))
        checks.one_of("--sensitivity", self.sensitivity, ("paper", "tight"))
        checks.one_of("--charge", self.charge, ("nominal", "effective"))
        self._check_weights()
        self._check_growth()

    def _check_weights(self) -> None:
        checks.integer("--regions", self.regions, minimum=1)
        if self.regions > self.agents:
            raise ValueError(f"--regions must be at most --agents {self.agents}, got {self.regions}")
        checks.non_negative("--a", self.a)
        for name, value, minimum in (("--hold", self.hold, 0), ("--steps", self.steps, 1)):
            if value is not None:
                checks.integer(name, value, minimum)
            elif self.weights_matter:
                raise ValueError(f"{name} must be given with --charge effective and several regions, got none")

    def _check_growth(self) -> None:
        checks.real("--growth", self.growth)
        if not self.growth:
            return
        if self.rounds > (most := checks.MOST_DIFFERENT_ROUNDS):
            raise ValueError(f"--rounds must be at most {most} with --growth, got {self.rounds}")
        if abs(self.growth) > 10:
            raise ValueError(f"--growth must lie in [-10, 10], got {self.growth!r}")
        if self.zs:
            raise ValueError(f"--growth must be left out where --zs gives the noise of each round, got {self.growth!r}")
        if (last := self.z * self.rounds**self.growth) < SMALLEST_NOISE:
            raise ValueError(
                f"--growth must leave every round a noise multiplier of at least {SMALLEST_NOISE}, got "
                f"{self.growth!r} and {last:.3g} in the last round"
            )

    @property
    def weights_matter(self) -> bool:
        """True if the charge of a round depends on the agents' weights."""
        return self.charge == "effective" and self.sensitivity == "paper" and self.regions > 1

    @property
    def delta_used(self) -> float:
        return default_delta(self.agents) if self.delta is None else self.delta

    def events(self) -> list[dp_accounting.DpEvent]:
        """The privacy event of each broadcast."""
        changing = max(1, len(self.zs))
        if self.weights_matter:
            changing = max(changing, (self.hold or 0) + (self.steps or 0))  # the weights are uniform after these rounds
        events = self._first_events(self.rounds if self.growth else min(changing, self.rounds))
        return events + events[-1:] * (self.rounds - len(events))

    def plan(self, accountant: str | None = None) -> PrivacyPlan:
        """The privacy plan by the named accountant; by default pld, or fixed_size for subsets of fixed size.

        Raises ValueError for an accountant that cannot analyse the rounds.
        """
        able = analysing(self._first_events(1))
        if accountant is None:
            accountant = "pld" if "pld" in able else next(iter(able))
        checks.one_of("--accountant", accountant, accountant_names())
        if accountant not in able:
            raise ValueError(
                f"--accountant must be one that can analyse --sampling {self.sampling} ({', '.join(able)}), "
                f"got {accountant!r}"
            )
        return PrivacyPlan(self.events(), self.delta_used, able, accountant, COVERS)

    def answer(self) -> dict[str, Any]:
        """Epsilon by every accountant that applies, with the settings, delta and relation."""
        plan = self.plan()
        _, multipliers, subsets = zip(*map(round_parameters, plan.events), strict=True)
        return {
            "agents": self.agents, "rounds": self.rounds, "q": self.q, "z": list(self.zs) or self.z,
            "growth": self.growth, "sampling": self.sampling, "subset": subsets[0], "sensitivity": self.sensitivity,
            "charge": self.charge, "charged_multipliers": list(multipliers), **facts(plan), "covers": plan.covers,
        }  # fmt: skip

    def _first_events(self, count: int) -> list[dp_accounting.DpEvent]:
        z = self.zs[0] if self.zs else self.z
        schedule = Steps([later / z for later in self.zs]) if self.zs else PowerSchedule(self.growth)
        mechanism = SubsampledGaussian(
            self.q, z, 1.0, self.sensitivity, self.sampling, charge=self.charge, schedule=schedule
        )
        return [mechanism.dp_event(self._weights(t), t) for t in range(count)]

    def _weights(self, t: int) -> torch.Tensor:
        """The weights of round t, P x N; a view of a single 1 if the charge does not depend on them."""
        if not self.weights_matter:
            return torch.ones(1, 1, dtype=torch.float64).expand(1, self.agents)
        assignment = Regions(self.regions, 1).assign(torch.arange(self.agents))
        return Softmax(Decay(self.hold, self.steps or 1), self.a)(t, assignment, self.regions)


def solved(run: PlannedRun, unknown: str, target: float, accountant: str | None) -> PlannedRun:
    """The run with the value of `unknown` (z, q or rounds) at which its epsilon is at most the target.

    Raises ValueError if there is no such value, or if the accountant cannot analyse the rounds.
    """
    plan = run.plan(accountant)
    checks.positive("--epsilon", target)
    if unknown == "z":
        least = min(1.0, run.rounds**run.growth)
        return replace(run, z=plan.calibrate_noise(lambda z: replace(run, z=z).events(), target, least))
    if unknown == "q":
        return replace(run, q=plan.calibrate_sampling(lambda q: replace(run, q=q).events(), target))

    def events_of(T: int) -> list[dp_accounting.DpEvent]:
        events = replace(run, rounds=min(T, checks.MOST_ROUNDS)).events()
        return events + events[-1:] * (T - len(events))  # the search tries one round beyond the limit

    return replace(run, rounds=plan.calibrate_rounds(events_of, target, alike=not run.growth))
