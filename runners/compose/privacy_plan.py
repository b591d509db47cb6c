"""The privacy plan of a run, from its settings; its errors name the user's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.plan import PrivacyPlan
from runners.compose.keys import keys
from runners.compose.settings import RELEASE_ACCOUNTANT, BudgetSettings, FederatedSettings, OutsourcedSettings

if TYPE_CHECKING:
    import dp_accounting

    Events = Sequence[dp_accounting.DpEvent]

RELEASE = (
    "the curator's release, for neighbouring tables as the curator holds them, read, filtered and sampled; not its "
    "measurements, which tell the objective at rows of the modeler's choice, nor the GP's hyper-parameters where they "
    "were fitted to the data, nor settings chosen by comparing runs on the same data, nor other seeds and settings, "
    "whose releases add up"
)


def limited(settings: FederatedSettings, plan: PrivacyPlan) -> PrivacyPlan:
    """The plan of a federated run with its budget. Raises ValueError for a plan that exceeds it."""
    budget, a = settings.privacy.budget, settings.algorithm
    if budget.epsilon is None:
        return plan
    if not a.private:
        raise ValueError(f"privacy.budget.epsilon needs a private algorithm, got algorithm={a.name}")
    hint = ", which pays for {}: privacy.budget.when_spent=stop ends the broadcasts there"
    return _within_budget(plan, budget, f"{len(plan.events)} broadcasts cost", hint)


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
