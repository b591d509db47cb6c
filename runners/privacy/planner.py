"""The privacy plan of a run whose rounds all have the same sampling probability q and noise multiplier z."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dpfbo import checks
from dpfbo.privacy.accounting import accountant_names, check_delta, default_delta
from dpfbo.privacy.accounting.calibrate import LARGEST_NOISE, SMALLEST_NOISE
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.plan import PrivacyPlan, analysing
from runners.privacy.report import facts

if TYPE_CHECKING:
    import dp_accounting

COVERS = (
    "all broadcasts of one run; not settings chosen by comparing runs on the same private data, nor other runs on "
    "them, whose ledgers add up, nor what an agent publishes itself"
)


@dataclass(frozen=True)
class PlannedRun:
    """The settings that determine a run's epsilon, named like the command's options.

    q: sampling probability. z: noise multiplier. delta: None for N^-1.1, where N is the number of agents.

    Raises ValueError, with the option's name, for a value outside its range.
    """

    agents: int
    rounds: int
    q: float
    z: float
    delta: float | None = None
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        checks.integer("--agents", self.agents, minimum=1, maximum=checks.MOST_AGENTS)
        checks.integer("--rounds", self.rounds, minimum=1, maximum=checks.MOST_ROUNDS)
        checks.probability("--q", self.q)
        checks.real("--z", self.z)
        if not SMALLEST_NOISE <= self.z <= LARGEST_NOISE:
            raise ValueError(f"--z must lie in [{SMALLEST_NOISE:g}, {LARGEST_NOISE:g}], got {self.z!r}")
        if self.delta is not None:
            check_delta(self.delta, "--delta")
        checks.one_of("--sampling", self.sampling, ("poisson", "fixed_size"))

    @property
    def subset(self) -> tuple[int, int] | None:
        """The size of each round's subset and the number of agents; None for Poisson sampling."""
        if self.sampling == "poisson":
            return None
        return max(1, math.floor(self.q * self.agents + 0.5)), self.agents

    def events(self, rounds: int | None = None) -> list[dp_accounting.DpEvent]:
        """Return one privacy event for each broadcast. rounds: number of broadcasts; None for `self.rounds`."""
        return [round_event(self.q, self.z, self.subset)] * (self.rounds if rounds is None else rounds)

    def plan(self, accountant: str | None = None) -> PrivacyPlan:
        """Return the privacy plan by the named accountant; by default pld, or fixed_size for subsets of fixed size.

        Raises ValueError for an accountant that cannot analyse the rounds.
        """
        able = analysing(self.events(1))
        if accountant is None:
            accountant = "pld" if "pld" in able else next(iter(able))
        checks.one_of("--accountant", accountant, accountant_names())
        if accountant not in able:
            raise ValueError(
                f"--accountant must be one that can analyse --sampling {self.sampling} ({', '.join(able)}), "
                f"got {accountant!r}"
            )
        delta = default_delta(self.agents) if self.delta is None else self.delta
        return PrivacyPlan(self.events(), delta, able, accountant, COVERS)

    def answer(self) -> dict[str, Any]:
        """Return epsilon by every accountant that applies, with the settings, delta and neighbouring relation."""
        return {**asdict(self), "subset": self.subset, **facts(self.plan())}


def solved(run: PlannedRun, unknown: str, target: float, accountant: str) -> PlannedRun:
    """Return the run with the option `unknown` changed so that epsilon is at most `target`.

    unknown: z, q or rounds. z is set to the least value that meets the target; q and rounds are set to the largest.

    Raises ValueError if no value meets the target, or if the number of rounds would be too large.
    """
    plan = run.plan(accountant)
    checks.positive("--epsilon", target)
    if unknown == "z":
        return replace(run, z=plan.calibrate_noise(lambda z: replace(run, z=z).events(), target))
    if unknown == "q":
        return replace(run, q=plan.calibrate_sampling(lambda q: replace(run, q=q).events(), target))
    return replace(run, rounds=plan.calibrate_rounds(run.events, target))
