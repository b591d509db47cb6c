"""Checks of how much one agent's message changes the release, in pairs of rounds with equal randomness.

Under equal seeds, the noise cancels in the difference of two releases.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dpfbo.audit.findings import ClaimBroken, require
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM

_ROUNDING = 1e-9  # tolerated relative error
_AGENTS = 32  # number of agents, from the largest weights down, that send a long message
_NEVER = "no agent was ever in S_t"


def usable_messages(rounds: RepeatedRounds, agent: int) -> dict[str, Tensor]:
    """Return messages of M finite numbers, with norms below, at and above the clip norm."""
    M, C = rounds.target.shape[2], rounds.target.message_norm
    ones, long = torch.ones(M, dtype=torch.float64), rounds.long_message(agent)
    first = torch.zeros(M, dtype=torch.float64)
    first[0] = 1.0
    return {
        "at the bound": long / LONG_NORM,
        "at the bound, all entries equal": C * ones / math.sqrt(M),
        "half the bound": long / LONG_NORM / 2,
        "a thousand times the bound": long,
        "one entry far above it": LONG_NORM * C * first,
        "all entries far above it": LONG_NORM * C * ones,
        "1e300": 1e300 * ones,
        "1e-300": 1e-300 * ones,
        "a millionth of the bound": 1e-6 * C * first,
    }


def unusable_messages(rounds: RepeatedRounds) -> dict[str, object]:
    """Return messages that the server must treat as the zero vector."""
    M = rounds.target.shape[2]
    ones = torch.ones(M, dtype=torch.float64)
    return {
        "NaN": math.nan * ones,
        "one NaN": torch.cat([ones[:-1], torch.tensor([math.nan])]),
        "infinity": math.inf * ones,
        "minus infinity": -math.inf * ones,
        "too short": ones[:-1],
        "too long": torch.ones(M + 1, dtype=torch.float64),
        "a matrix": ones[None],
        "missing": None,
        "a word": "message",
        "complex": torch.complex(ones, ones),
    }


def moved(rounds: RepeatedRounds) -> str:
    """Check that no single message changes a release by more than the claimed sensitivity.

    This sensitivity is sigma / z, with both values from the round's charge in the ledger.
    """
    worst, words = 0.0, _NEVER
    for t in rounds.examined:
        limit = rounds.claimed_sensitivity(t)
        for agent, seed, name, message, others in _one_agent_sends(rounds, t):
            with _sent(t, name):
                distance = float(rounds.change(seed, t, agent, message, others).nan_to_num(nan=math.inf).norm())
            if distance / limit > worst or words == _NEVER:
                worst = distance / limit
                words = f"round {t}: agent {agent} sends {name}: the release moves by {distance:.4g}, claim {limit:.4g}"
    return require(worst <= 1 + _ROUNDING, words)


def _one_agent_sends(rounds: RepeatedRounds, t: int) -> Iterator[tuple[int, int, str, Tensor, Tensor | None]]:
    """Yield (agent, seed, name, message, others) for each comparison that the check `moved` makes in round t.

    A comparison consists of two runs of the round with the same seed. In the first run, the agent sends the zero
    vector. In the second run, the agent sends `message`. name: a description of the message. others: the messages of
    the other agents in both runs, N x M, in which the row of `agent` is ignored; None if all other agents send zero
    vectors.
    """
    first = rounds.three_agents(t)
    for agent in dict.fromkeys([*first, *rounds.agents_by_weight(t)[:_AGENTS]]):
        for seed in rounds.seeds_with(t, agent, 1):
            if agent not in first:
                yield agent, seed, "a message far above the bound", rounds.long_message(agent), None
                continue
            for others in (None, rounds.crowd):
                for name, message in usable_messages(rounds, agent).items():
                    yield agent, seed, name + (" in a crowd" if others is not None else ""), message, others


def unusable(rounds: RepeatedRounds) -> str:
    """Check that each unusable message leads to the same release as the zero vector, bit for bit."""
    tried = 0
    for t in rounds.examined[:2]:
        for agent in rounds.three_agents(t)[:2]:
            for seed in rounds.seeds_with(t, agent, 1):
                for name, message in unusable_messages(rounds).items():
                    tried += 1
                    with _sent(t, name):
                        same = not rounds.change(seed, t, agent, message).any()  # a NaN counts as a change
                    words = f"round {t}: agent {agent} sends {name}, and the release is not that of a zero vector"
                    require(same, words)
    return f"each of {tried} unusable messages gives the same release as a zero vector" if tried else _NEVER


@contextmanager
def _sent(t: int, name: str) -> Iterator[None]:
    """Raise ClaimBroken in place of any error in round t. name: a label of the tested message, for the error's text."""
    try:
        yield
    except Exception as error:
        words = f"round {t}, {name}: one message ends the round with {type(error).__name__}: {error}"
        raise ClaimBroken(words) from error
