"""The privacy plan of a run, from its settings; its errors name the user's keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dpfbo.federated.mechanism import Mechanism, SubsampledGaussian, WeightedAverage
from dpfbo.privacy.accounting import accountant_named, default_delta
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.plan import PrivacyPlan, analysing
from dpfbo.space.regions import Regions
from runners.compose.keys import MECHANISM, keys
from runners.compose.privacy_settings import RELEASE_ACCOUNTANT, BudgetSettings
from runners.compose.settings import FederatedSettings, OutsourcedSettings

if TYPE_CHECKING:
    import dp_accounting

    Events = Sequence[dp_accounting.DpEvent]

BROADCASTS = (
    "the ledger's broadcasts; not settings chosen by comparing runs on the same private data, nor other seeds and "
    "settings, whose ledgers add up"
)
RELEASE = (
    "the curator's release, for neighbouring tables as the curator holds them, read, filtered and sampled; not its "
    "measurements, which tell the objective at rows of the modeler's choice, nor the GP's hyper-parameters where they "
    "were fitted to the data, nor settings chosen by comparing runs on the same data, nor other seeds and settings, "
    "whose releases add up"
)


def mechanism_of(settings: FederatedSettings) -> Mechanism:
    """The server's step. Its settings are checked even if the algorithm is not private."""
    a, p = settings.algorithm, settings.privacy
    with keys("privacy", **MECHANISM):
        private = SubsampledGaussian(
            p.q, p.z, p.S, p.sensitivity, p.sampling, a.message_normalize, p.charge, p.schedule, p.noise
        )
    return private if a.private else WeightedAverage(a.message_normalize)


def broadcasts_plan(settings: FederatedSettings, n_agents: int, mechanism: Mechanism) -> PrivacyPlan:
    """The plan of a federated run.

    Raises ValueError for a bad setting or a plan that exceeds its budget, UnsupportedEvent for a mechanism that the
    chosen accountant cannot analyse.
    """
    p, a, events = settings.privacy, settings.algorithm, _events(settings, n_agents, mechanism)
    nothing = None if a.server is not None and a.server.bare_messages else 0.0
    by = analysing(events, p.accountant, p.accountants)
    plan = PrivacyPlan(events, _delta(settings, n_agents), by, p.accountant, BROADCASTS, epsilon_of_nothing=nothing)
    if plan.accountant.approximation and not p.seeded and a.private:
        raise ValueError(
            f"privacy.accountant={p.accountant} is an approximation: with privacy.rng=os, whose releases are real, "
            "choose one whose epsilon is a guarantee"
        )
    if p.budget.epsilon is None:
        return plan
    if not a.private:
        raise ValueError(f"privacy.budget.epsilon needs a private algorithm, got algorithm={a.name}")
    hint = ", which pays for {}: privacy.budget.when_spent=stop ends the broadcasts there"
    return _within_budget(plan, p.budget, f"{len(events)} broadcasts cost", hint)


def release_plan(settings: OutsourcedSettings, relation: str, events: Events) -> PrivacyPlan:
    """The plan of a curator's release. Raises ValueError if it exceeds its budget."""
    p = settings.privacy
    assert p.delta is not None  # checked by the settings
    plan = PrivacyPlan(events, p.delta, {RELEASE_ACCOUNTANT: AnalyticGaussian(relation)}, RELEASE_ACCOUNTANT, RELEASE)
    if p.budget.epsilon is None:
        return plan
    if not settings.transform.private:
        name = settings.algorithm.name
        raise ValueError(f"privacy.budget.epsilon needs a transform with a guarantee, got {name}")
    return _within_budget(plan, p.budget, "the release costs")


def multiplier_for(settings: FederatedSettings, n_agents: int) -> float:
    """The smallest noise multiplier z, to four digits, with which a private run costs at most `privacy.epsilon`.

    Raises ValueError for a target that cannot be met.
    """
    p = settings.privacy
    assert p.epsilon is not None
    by = {p.accountant: accountant_named(p.accountant)}
    plan = PrivacyPlan((), _delta(settings, n_agents), by, p.accountant, BROADCASTS)

    def events_of(z: float) -> Events:
        changed = replace(settings, privacy=replace(p, z=z))
        return _events(changed, n_agents, mechanism_of(changed))

    least = min(p.schedule(t) for t in range(settings.rounds))  # z times this must not be below the smallest multiplier
    return plan.calibrate_noise(events_of, p.epsilon, least, guess=p.z)


def affordable(plan: PrivacyPlan, spent: Events, done: int) -> int:
    """`PrivacyPlan.affordable`. Raises BudgetSpent if when_spent=refuse and the budget does not pay for all of them."""
    paid, planned = plan.affordable(spent, done), len(plan.events)
    if paid < planned and plan.budget is not None and plan.budget.when_spent == "refuse":
        raise BudgetSpent(
            f"{planned - done} more broadcasts would cost more than privacy.budget.epsilon={plan.budget.epsilon!r} "
            f"with the {len(spent)} that the ledger holds already"
        )
    return paid


def _within_budget(plan: PrivacyPlan, budget: BudgetSettings, who: str, hint: str = "") -> PrivacyPlan:
    """The plan with the budget. Raises ValueError if a budget with when_spent=refuse does not pay for all releases.

    hint: end of that sentence, with the number of releases that the budget pays for.
    """
    assert budget.epsilon is not None
    with keys("privacy.budget", budget="privacy.budget"):
        limited = plan.limited(budget.epsilon, budget.delta, budget.when_spent)
    if len(limited.events) < len(plan.events) and budget.when_spent == "refuse":
        cost = limited.budget.spent.after(plan.events)  # type: ignore[union-attr]
        raise ValueError(
            f"{who} epsilon {cost:.4g} at delta {plan.delta if budget.delta is None else budget.delta:.4g}, more than "
            f"privacy.budget.epsilon={budget.epsilon!r}{hint.format(len(limited.events))}"
        )
    return limited


def _delta(settings: FederatedSettings, n_agents: int) -> float:
    return default_delta(n_agents) if settings.privacy.delta is None else settings.privacy.delta


def _events(settings: FederatedSettings, n_agents: int, mechanism: Mechanism) -> Events:
    """The event of each planned broadcast; empty if no server adds up messages.

    Raises ValueError for noise that is not a normal number in some round.
    """
    if not settings.algorithm.aggregates:
        return []
    T, stop, regions = settings.rounds, settings.algorithm.broadcasts, Regions(settings.algorithm.P, 1)
    assignment = regions.assign(torch.arange(n_agents))
    events = []
    with keys("privacy", **MECHANISM):
        for t in range(T if stop is None else min(stop, T)):
            weights = settings.weights(t, assignment, regions.P)
            if isinstance(mechanism, SubsampledGaussian):
                mechanism.sigma(weights, t)
            events.append(mechanism.dp_event(weights, t))
    return events
