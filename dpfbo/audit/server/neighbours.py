"""Neighbouring rounds with equal randomness: the exact change of the release by one agent's message.

With the seed held, replacing one message shows the sum without its noise. Every check reports the measured value and
the one that the claim allows; for given seeds none depends on chance.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dpfbo.audit.server.repeated_rounds import CheckResult, Context, RepeatedRounds
from dpfbo.audit.server.target import LONG_NORM

_ROUNDING = 1e-9  # relative error
_AGENTS = 32  # agents, those with the largest weights, that send a long message


def usable_messages(rounds: RepeatedRounds, agent: int) -> dict[str, Tensor]:
    """Short and long messages of M numbers, in directions that a wrong norm would favour."""
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
    """Messages that the server must treat as the zero vector."""
    M = rounds.target.shape[2]
    ones = torch.ones(M, dtype=torch.float64)
    one_nan = ones.clone()
    one_nan[-1] = math.nan
    return {
        "NaN": math.nan * ones,
        "one NaN": one_nan,
        "infinity": math.inf * ones,
        "minus infinity": -math.inf * ones,
        "too short": ones[:-1],
        "too long": torch.ones(M + 1, dtype=torch.float64),
        "a matrix": ones[None],
        "missing": None,
        "a word": "message",
        "complex": torch.complex(ones, ones),
    }


def moved(rounds: RepeatedRounds) -> CheckResult:
    """No message of one agent moves a release by more than the claimed sensitivity, sigma over the charged z."""
    worst, allowed, words = 0.0, 1.0, "no agent was ever in S_t"
    for t in rounds.examined:
        limit = rounds.claimed_sensitivity(t)
        for agent, seed, name, message, others in _one_agent_sends(rounds, t):
            try:
                distance = float(rounds.change(seed, t, agent, message, others).norm())
            except Exception as error:
                return CheckResult("moved", False, f"round {t}, {name}: {_raised(error)}", math.inf, limit)
            distance = distance if math.isfinite(distance) else math.inf
            if distance / limit > worst / allowed or worst == 0.0:
                worst, allowed = distance, limit
                words = f"round {t}: agent {agent} sends {name}, and moves the release by {distance:.4g} of {limit:.4g}"
    return CheckResult("moved", bool(worst <= allowed * (1 + _ROUNDING)), words, worst, allowed)


def _one_agent_sends(rounds: RepeatedRounds, t: int) -> Iterator[tuple[int, int, str, Tensor, Context | None]]:
    """(agent, seed, name, message, others) of every trial in a round."""
    first = rounds.three_agents(t)
    for agent in dict.fromkeys([*first, *rounds.agents_by_weight(t)[:_AGENTS]]):
        for seed in rounds.seeds_with(t, agent, 1):
            if agent not in first:
                yield agent, seed, "a message far above the bound", rounds.long_message(agent), None
                continue
            for others in (None, rounds.crowd):
                for name, message in usable_messages(rounds, agent).items():
                    yield agent, seed, name + (" in a crowd" if others else ""), message, others


def additive(rounds: RepeatedRounds) -> CheckResult:
    """An agent's contribution depends neither on others' messages nor on |S_t|, and S_t does not depend on messages.

    A division by |S_t|, or one norm for the whole sum, breaks this.
    """
    worst, words = 0.0, "no agent was ever in S_t"
    for t in rounds.examined[:2]:
        limit = rounds.claimed_sensitivity(t)
        for agent in rounds.three_agents(t):
            message, reference = rounds.long_message(agent), None
            seeds = dict.fromkeys([*rounds.seeds_with(t, agent, 2), *range(4)])
            for seed in seeds:
                member = rounds.is_member(seed, t, agent)
                for others in (None, rounds.crowd, rounds.loud_crowd, rounds.absent_crowd):
                    added = rounds.change(seed, t, agent, message, others)
                    if member and reference is None:
                        reference = added
                    expected = reference if member and reference is not None else torch.zeros_like(added)
                    gap = float(torch.nan_to_num(added - expected, nan=math.inf).norm()) / limit
                    if gap >= worst:
                        worst = gap
                        crowd = others.name if others else "nobody else sends"
                        words = f"round {t}: what agent {agent} adds changes by {gap:.2g} sensitivities when {crowd}"
    return CheckResult("additive", worst <= 1e-6, words, worst, 1e-6)


def unusable(rounds: RepeatedRounds) -> CheckResult:
    """A message that is missing, not finite or of a wrong shape does what the zero vector does, bit for bit."""
    worst, words, tried = 0.0, "no agent was ever in S_t", 0
    for t in rounds.examined[:2]:
        for agent in rounds.three_agents(t)[:2]:
            for seed in rounds.seeds_with(t, agent, 1):
                for name, message in unusable_messages(rounds).items():
                    tried += 1
                    try:
                        gap = float((rounds.change(seed, t, agent, message)).norm())
                    except Exception as error:
                        return CheckResult("unusable", False, f"round {t}, {name}: {_raised(error)}", math.inf, 0.0)
                    if gap != 0:  # NaN too
                        words = f"round {t}: agent {agent} sends {name}, and the release is not that of a zero vector"
                        return CheckResult("unusable", False, words, gap if math.isfinite(gap) else math.inf, 0.0)
    if tried:
        words = f"{tried} unusable messages, each the same release as a zero vector"
    return CheckResult("unusable", True, words, worst, 0.0)


def finite(rounds: RepeatedRounds) -> CheckResult:
    """Every release is finite, whatever all agents send at once."""
    N, tried = rounds.target.shape[0], 0
    for t in rounds.examined[:2]:
        agent = rounds.three_agents(t)[0]
        seed = next(iter(rounds.seeds_with(t, agent, 1)), 0)
        for name, message in {**usable_messages(rounds, agent), **unusable_messages(rounds)}.items():
            tried += 1
            try:
                values = rounds.release(seed, t, [message] * N)  # type: ignore[list-item]
            except Exception as error:
                return CheckResult(
                    "finite", False, f"round {t}, all agents send {name}: {_raised(error)}", math.inf, 0.0
                )
            bad = int((~torch.isfinite(values)).sum())
            if bad:
                words = f"round {t}: all agents send {name}, {bad} released numbers are not finite"
                return CheckResult("finite", False, words, float(bad), 0.0)
    return CheckResult("finite", True, f"{tried} messages, each sent by all agents: every release is finite", 0.0, 0.0)


def _raised(error: Exception) -> str:
    return f"one message ends the round with {type(error).__name__}: {error}"
