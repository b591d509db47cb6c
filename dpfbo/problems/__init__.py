"""Problems, which define the agents' objectives: frozen dataclasses, each with a YAML file in `conf/problem/`."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = [
    "Activity", "BotorchFunction", "Branin", "BraninGrid", "Credit", "Custom", "Digits", "EvaluationError", "Flats",
    "GridGP", "Homes", "Landmine", "Loans", "Problem", "Property", "School", "Synthetic", "SyntheticHeterogeneous",
]  # fmt: skip

if TYPE_CHECKING:
    from dpfbo.problems.activity import Activity
    from dpfbo.problems.botorch_function import BotorchFunction
    from dpfbo.problems.branin import Branin
    from dpfbo.problems.branin_grid import BraninGrid
    from dpfbo.problems.custom import Custom, EvaluationError
    from dpfbo.problems.digits import Digits
    from dpfbo.problems.grid_gp import GridGP
    from dpfbo.problems.landmine import Landmine
    from dpfbo.problems.loans import Loans
    from dpfbo.problems.places.homes_flats_credit import Credit, Flats, Homes
    from dpfbo.problems.problem import Problem
    from dpfbo.problems.property import Property
    from dpfbo.problems.school import School
    from dpfbo.problems.synthetic import Synthetic
    from dpfbo.problems.synthetic_heterogeneous import SyntheticHeterogeneous
else:
    __getattr__, __dir__ = lazy.attach(__name__)
