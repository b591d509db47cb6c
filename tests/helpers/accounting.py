"""The events that a server charges."""

import torch

from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.space.regions import Regions


def charged(N, P, T, q, z, decay, charge, calibration="paper", schedule=None):
    """The events that the server charges in a run with softmax weights."""
    extra = {} if schedule is None else {"schedule": schedule}
    mechanism = SubsampledGaussian(q, z, 1.0, calibration, charge=charge, **extra)
    weighting, assignment = Softmax(decay), Regions(P, 1).assign(torch.arange(N))
    return [mechanism.dp_event(weighting(t, assignment, P), t) for t in range(T)]
