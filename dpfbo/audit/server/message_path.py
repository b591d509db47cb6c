"""Checks of the path from the observations of real agents to the release of a `PriorServer`.

Two neighbouring worlds differ in some or all observations of one agent.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpfbo.audit.findings import require
from dpfbo.audit.server.post_processing import public_server
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import Change
from dpfbo.federated.prior_server import PriorServer

_ROUNDING = 1e-9  # tolerated relative error
_NOT_ASKED = "no agents are part of this audit"


def _alternating(size: float) -> Change:
    """Return a function that replaces the observations of an agent by size, -size, size, and so on."""
    return lambda y: size * (1.0 - 2.0 * (torch.arange(y.shape[1]) % 2)).expand_as(y).to(y.dtype)


def _last(value: float) -> Change:
    """Return a change that replaces the last observation."""
    return lambda y: torch.cat([y[:, :-1], torch.full_like(y[:, -1:], value)], 1)


CHANGES: dict[str, Change] = {
    "the opposite": lambda y: -y,
    "the same everywhere": torch.zeros_like,
    "plus and minus 0.1": _alternating(0.1),
    "plus and minus 1000": _alternating(1e3),
    "plus and minus 1e150": _alternating(1e150),
    "plus and minus 1e300": _alternating(1e300),
    "1e6 in the end": _last(1e6),
    "NaN": lambda y: torch.full_like(y, math.nan),
    "one NaN": _last(math.nan),
    "one infinity": _last(math.inf),
}


def _worlds(rounds: RepeatedRounds) -> Iterator[tuple[int, str, Change]]:
    """Yield (agent, name of the change, change) for three agents and each change in `CHANGES`.

    Each triple describes a world in which the change is applied to this agent's observations.
    """
    return ((agent, name, change) for agent in rounds.three_agents(0) for name, change in CHANGES.items())


def public_design(rounds: RepeatedRounds) -> str:
    """Check that the points of round 0, and the server's sums over them, follow from public settings alone.

    The sums are the server's `DesignSums`. If agents are part of the audit, also check that they query these points,
    whatever they observe.
    """
    target, tried = rounds.target, 0
    if not isinstance(target.server, PriorServer):
        return "the server uses no design"
    with torch.inference_mode(False):
        public = public_server(target.server)
        points = public.design.points(torch.arange(target.shape[0]))
        _check_server(target.server, public, points)
        if target.agents is None:
            return f"the server's sums are public; {_NOT_ASKED}"
        own = torch.equal(target.agents.first_turn().record.u, points)
        require(own, "the agents' first queries are not the points of the public design")
        for agent, name, change in _worlds(rounds):
            tried += 1
            same = torch.equal(target.agents.first_turn(agent, change).record.u, points)
            require(same, f"the first queries change when agent {agent} observes {name}")
    return f"the server's sums are public; the first queries are public in {tried} worlds"


def _check_server(server: PriorServer, public: PriorServer, points: Tensor) -> None:
    own = torch.equal(server.design.points(torch.arange(len(points))), points)
    require(own, "the server's design is not that of public settings")
    used, right = replace(server).sums, public.sums
    same = torch.equal(used.A, right.A) and torch.equal(used.Q, right.Q)
    require(same, "the server's sums over all designs are not those of public points")
    require(used.n_agents == right.n_agents, "the server's sums are over more or fewer agents than the public ones")


def own_data(rounds: RepeatedRounds) -> str:
    """Check that changed observations of one agent change no message of another agent.

    Also check that the changed observations move the release by at most the claimed sensitivity.
    """
    target, worst, words = rounds.target, 0.0, "no agent was ever in S_t"
    if target.agents is None:
        return f"{_NOT_ASKED}: their messages may be anything"
    limit, (N, _, M) = rounds.claimed_sensitivity(0), target.shape
    with torch.inference_mode(False):
        sent = target.agents.first_turn().messages
        assert sent is not None  # `first_turn` requests messages
        require(sent.shape == (N, M), f"agents send {tuple(sent.shape)} numbers, the server expects {N} x {M}")
        for agent, name, change in _worlds(rounds):
            messages: Any = target.agents.first_turn(agent, change).messages
            moved = [n for n in (messages != sent).any(1).nonzero()[:, 0].tolist() if n != agent]
            require(not moved, f"agent {agent} observes {name}, and the messages of {len(moved)} others change")
            for seed in rounds.seeds_with(0, agent, 1):
                distance = float(rounds.change(seed, 0, agent, messages[agent], sent).nan_to_num(nan=math.inf).norm())
                if distance >= worst:
                    worst = distance
                    words = f"agent {agent} observes {name}: the release moves by {distance:.4g}, claim {limit:.4g}"
    return require(worst <= limit * (1 + _ROUNDING), words)
