"""A tiny study, and messages of it."""

import torch

import dpfbo
from dpfbo import Float, Space
from dpfbo.gp import Acquisition
from dpfbo.protocol import wire

SPACE = Space({"a": Float(0, 1), "b": Float(0, 1)})
N, N_INIT, T = 3, 2, 3


def study_of(algorithm="dp_fts_de", seed=0):
    return dpfbo.create_study(
        SPACE, n_agents=N, algorithm=algorithm, rounds=T, n_init=N_INIT, seed=seed,
        acquisition=Acquisition(n_candidates=20, n_starts=1), preset=dpfbo.Preset(M=20, P=1),
        rng="seeded", **({"epsilon": 5.0, "delta": 1e-2} if algorithm.startswith("dp_") else {}),
    )  # fmt: skip


def sent(study, round=0, agent=0, values=None):
    """A message of these numbers, well formed."""
    values = torch.zeros(study.agents.message_size) if values is None else values
    return wire.message(study.digest, round, agent, values)
