"""From settings to the privacy plan of a run: its mechanism, the event of each broadcast, and its budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.mechanism import Mechanism, SubsampledGaussian, WeightedAverage
from dpfbo.federated.weights import Weighting
from dpfbo.gp.regions import Regions
from dpfbo.privacy.accounting import accountant_named, check_delta, default_delta
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.noise import DiscreteGaussian
from dpfbo.privacy.plan import PrivacyPlan, analysing
from runners.compose.instantiate import instantiate

if TYPE_CHECKING:
    import dp_accounting

COVERS = (
    "the ledger's broadcasts; not settings chosen by comparing runs on the same private data, nor other seeds and "
    "settings, whose ledgers add up"
)


def plan_of(settings: dict[str, Any], n_agents: int, mechanism: Mechanism, weighting: Weighting) -> PrivacyPlan:
    """The privacy plan of a federated run.

    Raises ValueError for a bad setting, or a plan that costs more than its budget; UnsupportedEvent for a mechanism
    that the chosen accountant cannot analyse.
    """
    a, p = settings["algorithm"], settings["privacy"]
    chosen, delta = p["accountant"], _delta(p, n_agents)
    events = _events(settings, mechanism, weighting, n_agents)
    accountants, nothing = analysing(events, chosen, p["accountants"]), None if a["server"] == "peer" else 0.0
    plan = PrivacyPlan(events, delta, accountants, chosen, COVERS, epsilon_of_nothing=nothing)
    if plan.accountant.approximation and p["rng"] == "os" and a["private"]:
        raise ValueError(
            f"privacy.accountant={chosen} is an approximation: with privacy.rng=os, whose releases are real, "
            "choose one whose epsilon is a guarantee"
        )
    if p["budget"]["epsilon"] is None:
        return plan
    if not a["private"]:
        raise ValueError(f"privacy.budget.epsilon needs a private algorithm, got algorithm={a['name']}")
    hint = ", which pays for {}: privacy.budget.when_spent=stop ends the broadcasts there"
    return within_budget(plan, p["budget"], f"{len(events)} broadcasts cost", hint)


def within_budget(plan: PrivacyPlan, budget: dict[str, Any], who: str, hint: str = "") -> PrivacyPlan:
    """The part of the plan that the budget pays for.

    Raises ValueError for a bad budget, or one that must pay for all and does not: `who` costs more, {} in the hint is
    the number of releases that it pays for.
    """
    epsilon, delta, when_spent = budget["epsilon"], budget["delta"], budget["when_spent"]
    with _named({name: f"privacy.budget.{name}" for name in budget} | {"budget": "privacy.budget"}):
        limited = plan.limited(epsilon, delta, when_spent)
    if len(limited.events) < len(plan.events) and when_spent == "refuse":
        cost = limited.budget.spent.after(plan.events)  # type: ignore[union-attr]
        raise ValueError(
            f"{who} epsilon {cost:.4g} at delta {plan.delta if delta is None else delta:.4g}, more than "
            f"privacy.budget.epsilon={epsilon!r}{hint.format(len(limited.events))}"
        )
    return limited


def affordable(plan: PrivacyPlan, spent: list[dp_accounting.DpEvent], done: int) -> int:
    """`PrivacyPlan.affordable`. Raises BudgetSpent if the budget must pay for all planned broadcasts and does not."""
    paid, planned = plan.affordable(spent, done), len(plan.events)
    if paid < planned and plan.budget is not None and plan.budget.when_spent == "refuse":
        raise BudgetSpent(
            f"{planned - done} more broadcasts would cost more than privacy.budget.epsilon={plan.budget.epsilon!r} "
            f"with the {len(spent)} that the ledger holds already"
        )
    return paid


@contextmanager
def _named(keys: dict[str, str]) -> Iterator[None]:
    """A setting that breaks a rule of the library is called by its key."""
    try:
        yield
    except SettingError as error:
        raise SettingError(keys.get(error.name, error.name), error.rule) from None


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
    p, schedule = settings["privacy"], instantiate(settings["privacy"]["schedule"])
    checks.positive("privacy.epsilon", p["epsilon"])
    by = {p["accountant"]: accountant_named(p["accountant"])}
    plan = PrivacyPlan((), _delta(p, n_agents), by, p["accountant"], COVERS)

    def events_of(z: float) -> list[dp_accounting.DpEvent]:
        mechanism = mechanism_of({**settings, "privacy": {**p, "z": z}})
        return _events(settings, mechanism, weighting, n_agents)

    least = min(schedule(t) for t in range(settings["rounds"]))  # z times it must not be below the smallest multiplier
    return plan.calibrate_noise(events_of, p["epsilon"], least, guess=p["z"])


def _delta(privacy: dict[str, Any], n_agents: int) -> float:
    delta = default_delta(n_agents) if privacy["delta"] is None else privacy["delta"]
    check_delta(delta, "privacy.delta")
    return delta


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
