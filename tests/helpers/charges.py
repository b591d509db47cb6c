"""Charges as a server makes them: the events of a run, ledgers of charges that differ in z alone, and their lines."""

import dataclasses
import hashlib
import json

import torch

from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.privacy.ledger import Charge, Ledger
from dpfbo.space.regions import Regions

ZS = [2.0, 1.0, 1.5, 3.0, 2.5]


def events_charged(N, P, T, q, z, decay, charge, calibration="paper", schedule=None):
    """The events that the server charges in a run with softmax weights."""
    extra = {} if schedule is None else {"schedule": schedule}
    mechanism = SubsampledGaussian(q, z, 1.0, calibration, charge=charge, **extra)
    weighting, assignment = Softmax(decay), Regions(P, 1).assign(torch.arange(N))
    return [mechanism.dp_event(weighting(t, assignment, P), t) for t in range(T)]


def charge(t, z=1.0, **changes):
    named = hashlib.sha256(b"%d" % t).hexdigest()
    return dataclasses.replace(Charge(t, 0.35, z, 0.5, 0.5, named), **changes)


def charged(path, zs=ZS):
    ledger = Ledger(path)
    for t, z in enumerate(zs):
        ledger.charge(charge(t, z))
    return path


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def rewrite(path, k, **values):
    lines = lines_of(path)
    lines[k] = json.dumps({**json.loads(lines[k]), **values}).encode() + b"\n"
    path.write_bytes(b"".join(lines))
