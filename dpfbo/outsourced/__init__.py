"""Bayesian optimisation outsourced to another party (Kharkovskii, Dai, Low 2020: PO-GP-UCB).

A *curator* holds the inputs and can measure the objective; a *modeler* optimises. The curator releases a transformed
table once. The modeler runs GP-UCB on it, sends indices of candidates, and receives measurements. Besides these
messages, the modeler knows only its `Brief`; curator and modeler share neither memory nor a seed.
"""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = [
    "Belief", "Brief", "CandidateProblem", "Cover", "Curator", "GaussianNoise", "Histogram", "LocalModeler",
    "OutsourcedResult", "Plain", "Policy", "RandomProjection", "Setup", "Table", "run_outsourced",
]  # fmt: skip

if TYPE_CHECKING:
    from dpfbo.outsourced.curator import Curator
    from dpfbo.outsourced.hyperparameters import Belief
    from dpfbo.outsourced.loop import Brief, LocalModeler, OutsourcedResult, Setup
    from dpfbo.outsourced.loop import run as run_outsourced
    from dpfbo.outsourced.modeler import Policy
    from dpfbo.outsourced.table import CandidateProblem, Table
    from dpfbo.outsourced.transforms.cover import Cover
    from dpfbo.outsourced.transforms.gaussian import GaussianNoise
    from dpfbo.outsourced.transforms.histogram import Histogram
    from dpfbo.outsourced.transforms.plain import Plain
    from dpfbo.outsourced.transforms.random_projection import RandomProjection
else:
    __getattr__, __dir__ = lazy.attach(__name__)
