"""What a run costs in privacy: its mechanism, the event of each broadcast, the accountants, and the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dpfbo import checks
from dpfbo.federated.mechanism import Mechanism, SubsampledGaussian, WeightedAverage
from dpfbo.federated.weights import Weighting
from dpfbo.gp.regions import Regions
from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, calibrate, check_delta, default_delta, finite_or_none
from dpfbo.privacy.budget import Budget, BudgetSpent, EpsilonCurve
from dpfbo.privacy.noise import DiscreteGaussian
from runners.compose.instantiate import instantiate

if TYPE_CHECKING:
    import dp_accounting


@dataclass(frozen=True)
class Accounts:
    """What a run will cost and has cost.

    accountants: those that epsilon is reported by; chosen: the one of every round. events: what each planned broadcast
    costs. epsilon: of the charges, by the chosen one at delta. nothing: epsilon while no release was charged, None
    where agents exchange messages as they are.
    """

    accountants: dict[str, Accountant]
    chosen: str
    events: list[dp_accounting.DpEvent]
    epsilon: EpsilonCurve
    budget: Budget | None
    delta: float
    nothing: float | None

    @property
    def relation(self) -> str:
        """What epsilon compares."""
        return self.accountants[self.chosen].relation

    @property
    def approximations(self) -> list[str]:
        """The accountants whose epsilon is no guarantee."""
        return [name for name, accountant in self.accountants.items() if accountant.approximation]

    def epsilons(self, events: list[dp_accounting.DpEvent]) -> dict[str, float | None]:
        """Epsilon of releases by every accountant; None where there is no finite one."""
        if not events:
            return dict.fromkeys(self.accountants, self.nothing)
        spent = {
            name: self.epsilon.after(events) if name == self.chosen else accountant.epsilon(events, self.delta)
            for name, accountant in self.accountants.items()
        }
        return {name: finite_or_none(value) for name, value in spent.items()}

    def affordable(self, spent: list[dp_accounting.DpEvent], done: int) -> int:
        """How many broadcasts a run may make, `done` of them made before, if fresh noise adds to what was `spent`.

        spent: all that the ledger holds, releases of other runs included. Raises BudgetSpent if that is not all and
        the budget must pay for all.
        """
        if self.budget is None:
            return len(self.events)
        paid = done
        while paid < len(self.events) and self.budget.allows([*spent, *self.events[done : paid + 1]]):
            paid += 1
        if paid < len(self.events) and self.budget.when_spent == "refuse":
            raise BudgetSpent(
                f"{len(self.events) - done} more broadcasts would cost more than privacy.budget.epsilon="
                f"{self.budget.epsilon!r} with the {len(spent)} that the ledger holds already"
            )
        return paid


def accounts_of(settings: dict[str, Any], n_agents: int, mechanism: Mechanism, weighting: Weighting) -> Accounts:
    """The accounts of a run.

    Raises ValueError for a bad setting, or a plan that costs more than its budget; UnsupportedEvent for a mechanism
    that the chosen accountant cannot analyse.
    """
    p = settings["privacy"]
    delta = default_delta(n_agents) if p["delta"] is None else p["delta"]
    check_delta(delta)
    events = _events(settings, mechanism, weighting, n_agents)
    accountants = _accountants(p, set(events))
    chosen = accountants[p["accountant"]]
    if chosen.approximation and p["rng"] == "os" and settings["algorithm"]["private"]:
        raise ValueError(
            f"privacy.accountant={p['accountant']} is an approximation: with privacy.rng=os, whose releases are real, "
            "choose one whose epsilon is a guarantee"
        )
    budget, events = _within_budget(settings, chosen, events, delta)
    nothing = None if settings["algorithm"]["server"] == "peer" else 0.0
    return Accounts(accountants, p["accountant"], events, EpsilonCurve(chosen, events, delta), budget, delta, nothing)


def mechanism_of(settings: dict[str, Any]) -> Mechanism:
    """The server's step; its settings are checked even where the algorithm is not private."""
    a, p = settings["algorithm"], settings["privacy"]
    noise = instantiate(p["noise"])
    if isinstance(noise, DiscreteGaussian) and p["rng"] != "os" and a["private"]:
        raise ValueError(f"privacy/noise=discrete needs privacy.rng=os, got {p['rng']!r}: its noise has no seed")
    private = SubsampledGaussian(
        p["q"], p["z"], p["S"], p["sensitivity"], p["sampling"], a["message_normalize"], p["charge"],
        instantiate(p["schedule"]), noise,
    )  # fmt: skip
    return private if a["private"] else WeightedAverage(a["message_normalize"])


def multiplier_for(settings: dict[str, Any], n_agents: int, weighting: Weighting) -> float:
    """The smallest noise multiplier z, to four digits, with which a private run costs at most `privacy.epsilon`.

    Raises ValueError for a target that cannot be met.
    """
    p = settings["privacy"]
    target, delta = p["epsilon"], default_delta(n_agents) if p["delta"] is None else p["delta"]
    checks.positive("privacy.epsilon", target)
    check_delta(delta)
    accountant, schedule = instantiate(p["accountants"][p["accountant"]]), instantiate(p["schedule"])

    def epsilon_of(z: float) -> float:
        mechanism = mechanism_of({**settings, "privacy": {**p, "z": z}})
        return accountant.epsilon(_events(settings, mechanism, weighting, n_agents), delta)

    least = min(schedule(t) for t in range(settings["rounds"]))  # z times it must not be below the smallest multiplier
    if calibrate.is_noise_multiplier(p["z"], epsilon_of, target, least):
        return p["z"]
    return calibrate.noise_multiplier(epsilon_of, target, least)


def _events(
    settings: dict[str, Any], mechanism: Mechanism, weighting: Weighting, n_agents: int
) -> list[dp_accounting.DpEvent]:
    """What each of the planned broadcasts costs; none where no server adds up messages.

    Raises ValueError for noise that is no ordinary number in some round.
    """
    stop = settings["algorithm"]["broadcasts"]
    if stop is not None:
        checks.integer("algorithm.broadcasts", stop, minimum=1)
    if settings["algorithm"]["server"] != "aggregate":
        return []
    T, regions = settings["rounds"], Regions(settings["algorithm"]["P"], 1)
    assignment = regions.assign(torch.arange(n_agents))
    events = []
    for t in range(T if stop is None else min(stop, T)):
        weights = weighting(t, assignment, regions.P)
        if isinstance(mechanism, SubsampledGaussian):
            mechanism.sigma(weights, t)
        events.append(mechanism.dp_event(weights, t))
    return events


def _accountants(privacy: dict[str, Any], events: set[dp_accounting.DpEvent]) -> dict[str, Accountant]:
    """The accountants to report by: the chosen one, which must analyse the events, and others of its relation that do.

    Approximations only if chosen.
    """
    nodes = {name: instantiate(node) for name, node in privacy["accountants"].items()}
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
