"""A run as an accountant sees it: who takes part, what every broadcast costs, and what they cost together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting
import torch

from dpfbo import checks
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.schedule import Constant, Power, Schedule, Steps
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.gp.regions import Regions
from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, calibrate, check_delta, default_delta, finite_or_none
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.gdp import Gdp
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.rdp import Rdp

ACCOUNTANTS: dict[str, Accountant] = {
    "moments": Moments(), "rdp": Rdp(), "pld": Pld(), "gdp": Gdp(), "fixed_size": FixedSize(),
}  # fmt: skip
COVERS = (
    "all broadcasts of one run; not settings chosen by comparing runs on the same private data, nor other runs on it, "
    "whose ledgers add up, nor what an agent publishes itself"
)
GIVEN = ("epsilon", "q", "z", "rounds")  # three of these decide the fourth
MOST_AGENTS = 10_000_000
MOST_ROUNDS = 1_000_000
MOST_DIFFERENT_ROUNDS = 1_000  # that a search for a number of rounds goes through


@dataclass(frozen=True)
class Plan:
    """What decides a run's epsilon. Field by field the option of the same name; see `runners.privacy --help`.

    z: of the first round, times (t + 1)^growth in round t; or zs, of each round, the last one of all later rounds.
    delta: None is N^-1.1. a, hold, steps: the course of the softmax weights, which only charge=effective looks at.

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
        checks.integer("--agents", self.agents, minimum=1)
        checks.integer("--rounds", self.rounds, minimum=1)
        if self.rounds > MOST_ROUNDS:
            raise ValueError(f"--rounds must be at most {MOST_ROUNDS}, got {self.rounds}")
        checks.probability("--q", self.q)
        for z in self.zs or (self.z,):
            _check_multiplier("--zs" if self.zs else "--z", z)
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
        if self.agents > MOST_AGENTS:
            raise ValueError(f"--agents must be at most {MOST_AGENTS}, got {self.agents}")

    def _check_growth(self) -> None:
        checks.real("--growth", self.growth)
        if abs(self.growth) > 10:
            raise ValueError(f"--growth must lie in [-10, 10], got {self.growth!r}")
        if self.zs and self.growth:
            raise ValueError(f"--growth must be left out where --zs gives the noise of each round, got {self.growth!r}")
        if (last := self.z * self.rounds**self.growth) < calibrate.SMALLEST_NOISE and not self.zs:
            raise ValueError(
                f"--growth must leave every round a noise multiplier of at least {calibrate.SMALLEST_NOISE}, got "
                f"{self.growth!r} and {last:.3g} in the last round"
            )

    @property
    def weights_matter(self) -> bool:
        """Whether what a round is charged depends on the agents' weights."""
        return self.charge == "effective" and self.sensitivity == "paper" and self.regions > 1

    @property
    def delta_used(self) -> float:
        return default_delta(self.agents) if self.delta is None else self.delta

    @property
    def accountants(self) -> dict[str, Accountant]:
        """Those that can analyse the rounds."""
        return analysing([self.mechanism.dp_event(self._weights(0), 0)])

    @property
    def mechanism(self) -> SubsampledGaussian:
        schedule: Schedule = Power(self.growth) if self.growth else Constant()
        if self.zs:
            schedule = Steps([z / self.zs[0] for z in self.zs])
        z = self.zs[0] if self.zs else self.z
        return SubsampledGaussian(
            self.q, z, 1.0, self.sensitivity, self.sampling, charge=self.charge, schedule=schedule
        )  # fmt: skip

    def events(self) -> list[dp_accounting.DpEvent]:
        """What each broadcast costs."""
        changing = max(1, len(self.zs))
        if self.weights_matter:
            changing = max(changing, (self.hold or 0) + (self.steps or 0))  # from then on they are uniform
        changing = self.rounds if self.growth else min(changing, self.rounds)
        mechanism = self.mechanism
        events = [mechanism.dp_event(self._weights(t), t) for t in range(changing)]
        return events + events[-1:] * (self.rounds - changing)

    def epsilon(self, accountant: Accountant) -> float:
        return accountant.epsilon(self.events(), self.delta_used)

    def answer(self) -> dict[str, Any]:
        """Epsilon by every accountant that applies, and all that it needs beside it."""
        events = self.events()
        q, _, subset = round_parameters(events[0])
        return {
            "agents": self.agents, "rounds": self.rounds, "q": self.q, "z": list(self.zs) or self.z,
            "growth": self.growth, "sampling": self.sampling, "subset": subset, "sensitivity": self.sensitivity,
            "charge": self.charge, "charged_multipliers": [round_parameters(event)[1] for event in events],
            **spent(events, self.delta_used), "covers": COVERS,
        }  # fmt: skip

    def _weights(self, t: int) -> torch.Tensor:
        """P x N; where they do not matter they are all 1, and take no memory."""
        if not self.weights_matter:
            return torch.ones(1, 1, dtype=torch.float64).expand(1, self.agents)
        assignment = Regions(self.regions, 1).assign(torch.arange(self.agents))
        return Softmax(Decay(self.hold, self.steps or 1), self.a)(t, assignment, self.regions)


def analysing(events: Iterable[dp_accounting.DpEvent]) -> dict[str, Accountant]:
    """The accountants that can analyse all of these events, and have one relation."""
    kinds, able = set(events), {}
    for name, accountant in ACCOUNTANTS.items():
        try:
            for event in kinds:
                accountant.check(event)
        except UnsupportedEvent:
            continue
        able[name] = accountant
    relation = next(iter(able.values())).relation if able else None
    return {name: accountant for name, accountant in able.items() if accountant.relation == relation}


def spent(events: Sequence[dp_accounting.DpEvent], delta: float) -> dict[str, Any]:
    """Epsilon of these events by every accountant that applies (None: no finite one), delta, relation."""
    able = analysing(events)
    return {
        "epsilon": {name: finite_or_none(accountant.epsilon(events, delta)) for name, accountant in able.items()},
        "approximations": [name for name, accountant in able.items() if accountant.approximation],
        "delta": delta,
        "relation": next(iter(able.values())).relation,
    }


def accountant_of(plan: Plan, name: str | None) -> str:
    """The accountant to plan by: pld, or fixed_size for such sampling, unless another is named."""
    able = plan.accountants
    if name is None:
        return "pld" if "pld" in able else next(iter(able))
    checks.one_of("--accountant", name, ACCOUNTANTS)
    if name not in able:
        raise ValueError(
            f"--accountant must be one that can analyse --sampling {plan.sampling} ({', '.join(able)}), got {name!r}"
        )
    return name


def solved(plan: Plan, unknown: str, target: float, accountant: Accountant) -> Plan:
    """The plan with its `unknown`, z, q or rounds, such that all of it costs at most the target.

    Raises ValueError if there is no such value.
    """
    checks.positive("--epsilon", target)
    if unknown == "z":
        least = min(1.0, plan.rounds**plan.growth)
        z = calibrate.noise_multiplier(lambda z: replace(plan, z=z).epsilon(accountant), target, least)
        return replace(plan, z=z)
    if unknown == "q":
        q = calibrate.sampling_probability(lambda q: replace(plan, q=q).epsilon(accountant), target)
        return replace(plan, q=q)
    if not plan.growth:
        T = calibrate.rounds(lambda T: replace(plan, rounds=T).epsilon(accountant), target)
        return replace(plan, rounds=T)
    n, curve = 64, [0.0]
    while curve[-1] <= target and len(curve) < MOST_DIFFERENT_ROUNDS:
        curve = accountant.curve(replace(plan, rounds=n).events(), plan.delta_used)
        n = min(2 * n, MOST_DIFFERENT_ROUNDS)
    return replace(plan, rounds=calibrate.rounds(lambda T: curve[T - 1], target, most=len(curve) - 1))


def _check_multiplier(name: str, z: object) -> None:
    checks.real(name, z)
    if not calibrate.SMALLEST_NOISE <= z <= calibrate.LARGEST_NOISE:  # type: ignore[operator]
        low, high = calibrate.SMALLEST_NOISE, calibrate.LARGEST_NOISE
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {z!r}")
