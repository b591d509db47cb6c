"""Differential privacy: noise, the ledger of charges, accountants that compute epsilon, and budgets that limit it."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = [
    "Accountant", "Budget", "BudgetSpent", "Diagnostics", "DiscreteGaussian", "EpsilonCurve", "Gaussian", "Ledger",
    "LedgerError", "PrivacyPlan", "Release", "SeededEntropy", "SystemEntropy", "UnsupportedEvent", "accountant_named",
    "default_delta",
]  # fmt: skip

if TYPE_CHECKING:
    from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, accountant_named, default_delta
    from dpfbo.privacy.budget import Budget, BudgetSpent, EpsilonCurve
    from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
    from dpfbo.privacy.ledger import Ledger, LedgerError
    from dpfbo.privacy.noise import DiscreteGaussian, Gaussian
    from dpfbo.privacy.plan import PrivacyPlan
    from dpfbo.privacy.release import Diagnostics, Release
else:
    __getattr__, __dir__ = lazy.attach(__name__)
