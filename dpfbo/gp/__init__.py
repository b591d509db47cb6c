"""Gaussian processes: shared random features, posteriors and draws, the agents' own models, and acquisition."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = [
    "Acquisition",
    "AveragedGP",
    "ConfidenceScale",
    "Design",
    "NystromFeatures",
    "OwnDraw",
    "OwnGP",
    "RandomFeatures",
    "shared_features",
]

if TYPE_CHECKING:
    from dpfbo.gp.acquisition import Acquisition
    from dpfbo.gp.averaged_gp import AveragedGP
    from dpfbo.gp.design import Design
    from dpfbo.gp.draws import ConfidenceScale, OwnDraw
    from dpfbo.gp.features import RandomFeatures, shared_features
    from dpfbo.gp.nystrom import NystromFeatures
    from dpfbo.gp.own_gp import OwnGP
else:
    __getattr__, __dir__ = lazy.attach(__name__)
