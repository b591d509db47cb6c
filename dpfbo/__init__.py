"""Differentially private federated Bayesian optimisation.

`import dpfbo` gives the names that most programs need. Further names are in the packages `dpfbo.problems`,
`dpfbo.federated`, `dpfbo.gp`, `dpfbo.outsourced`, `dpfbo.privacy`, `dpfbo.secure` and `dpfbo.space`.
"""

import os
from typing import TYPE_CHECKING

from dpfbo import lazy

# By default MKL's rounding may depend on a matrix's place in memory, and therefore on which agents share a process
# (dpfbo/gp/batches.py); in this mode it does not. MKL reads the variable at its first call; the speed is the same.
os.environ.setdefault("MKL_CBWR", "AUTO")

__all__ = [
    "Accountant", "Agent", "Algorithm", "Best", "Box", "Budget", "BudgetSpent", "Categorical", "Coordinator", "Custom",
    "Evaluation", "EvaluationError", "Fixed", "Float", "Grid", "Integer", "Ledger", "LedgerError",
    "MissingPackage", "Optimization", "Ordinal", "Preset", "PrivacyPlan", "Problem", "Round", "SettingError", "Space",
    "StateError", "Streams", "Study", "UnsupportedEvent", "WireError", "accountant_named", "algorithm_named",
    "create_study", "default_delta", "optimize", "plan", "run_study", "stop",
]  # fmt: skip

if TYPE_CHECKING:
    from dpfbo import federated as federated
    from dpfbo import gp as gp
    from dpfbo import outsourced as outsourced
    from dpfbo import privacy as privacy
    from dpfbo import problems as problems
    from dpfbo import secure as secure
    from dpfbo import space as space
    from dpfbo.checks import SettingError
    from dpfbo.extras import MissingPackage
    from dpfbo.formats.journal import StateError
    from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, accountant_named, default_delta
    from dpfbo.privacy.budget import Budget, BudgetSpent
    from dpfbo.privacy.ledger import Ledger, LedgerError
    from dpfbo.privacy.plan import PrivacyPlan
    from dpfbo.problems.custom import Custom, EvaluationError
    from dpfbo.problems.problem import Problem
    from dpfbo.protocol.agent import Agent
    from dpfbo.protocol.coordinator import Coordinator
    from dpfbo.protocol.wire import WireError
    from dpfbo.rng import Streams
    from dpfbo.run_result import Round
    from dpfbo.space.axes import Categorical, Float, Integer, Ordinal
    from dpfbo.space.domain import Box, Grid
    from dpfbo.space.parameters import Fixed, Space
    from dpfbo.study.algorithm import Algorithm, Preset, algorithm_named
    from dpfbo.study.best import Best
    from dpfbo.study.create import create_study, run_study
    from dpfbo.study.evaluations import Evaluation, stop
    from dpfbo.study.optimization import Optimization
    from dpfbo.study.optimize import optimize
    from dpfbo.study.sharing_plan import plan
    from dpfbo.study.study import Study
else:
    __getattr__, __dir__ = lazy.attach(__name__)
