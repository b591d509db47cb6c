"""The message path of the private prior from the agents' end: a public design, and one message of bounded length.

Two neighbouring worlds differ in all observations of one agent. The agents, their statistics and the server are real.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dpfbo.audit.server.post_processing import public_server
from dpfbo.audit.server.repeated_rounds import CheckResult, Context, RepeatedRounds
from dpfbo.federated.population.shard import Turn
from dpfbo.federated.prior_server import PriorServer

_ROUNDING = 1e-9  # relative error
_DESIGN, _OWN = "public design", "own data"
_NOT_ASKED = "no agents are part of this audit"


def _alternating(size: float) -> Callable[[Tensor], Tensor]:
    """All observations `size` or `-size` by turns."""
    return lambda y: size * (1.0 - 2.0 * (torch.arange(y.shape[1]) % 2)).expand_as(y).to(y.dtype)


def _last(value: float) -> Callable[[Tensor], Tensor]:
    """The last observation replaced."""
    return lambda y: torch.cat([y[:, :-1], torch.full_like(y[:, -1:], value)], 1)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
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


def _worlds(rounds: RepeatedRounds) -> Iterator[tuple[int, str, Turn]]:
    """(agent, change, turn) of every world in which one agent's observations are others."""
    assert rounds.target.agents is not None
    for agent in rounds.three_agents(0):
        for name, change in CHANGES.items():
            yield agent, name, rounds.target.agents.first_turn(agent, change)


def public_design(rounds: RepeatedRounds) -> CheckResult:
    """The points of round 0, and the server's sums over them, are those of public settings, whatever is observed."""
    target, tried = rounds.target, 0
    if not isinstance(target.server, PriorServer):
        return CheckResult(_DESIGN, True, "the server uses no design", 0.0, 0.0)
    with torch.inference_mode(False):
        public = public_server(target.server, target.mechanism.clip_norm)
        points = public.design.points(torch.arange(target.shape[0]))
        words = _server_side(target.server, public, points)
        if not words and target.agents is not None:
            if not torch.equal(target.agents.first_turn().record.u, points):
                words = "the agents' first queries are not the points of the public design"
            for agent, name, turn in _worlds(rounds):
                tried += 1
                if not words and not torch.equal(turn.record.u, points):
                    words = f"the first queries change when agent {agent} observes {name}"
    if words:
        return CheckResult(_DESIGN, False, words, 1.0, 0.0)
    words = f"the first queries are public in {tried} worlds" if target.agents is not None else _NOT_ASKED
    return CheckResult(_DESIGN, True, f"the server's sums are public; {words}", 0.0, 0.0)


def _server_side(server: PriorServer, public: PriorServer, points: Tensor) -> str:
    """The difference between a server's design and the public one, in words; empty if there is none."""
    if not torch.equal(server.design.points(torch.arange(len(points))), points):
        return "the server's design is not that of public settings"
    used, right = replace(server).sums, public.sums
    if not (torch.equal(used.A, right.A) and torch.equal(used.squares, right.squares)):
        return "the server's sums over all designs are not those of public points"
    return "" if used.contrasts == right.contrasts else "the server counts other contrasts than the public design has"


def own_data(rounds: RepeatedRounds) -> CheckResult:
    """One agent's observations change its own message alone, and move the release by no more than is claimed."""
    target = rounds.target
    if target.agents is None:
        return CheckResult(_OWN, True, f"{_NOT_ASKED}: their messages may be anything", 0.0, math.inf)
    worst, words, limit = 0.0, "no agent was ever in S_t", rounds.claimed_sensitivity(0)
    with torch.inference_mode(False):
        sent = target.agents.first_turn().messages
        assert sent is not None
        if sent.shape != (target.shape[0], target.shape[2]):
            words = f"agents send {tuple(sent.shape)} numbers, the server expects {target.shape[0]} x {target.shape[2]}"
            return CheckResult(_OWN, False, words, math.inf, limit)
        others = Context("the others send their statistics", sent)
        for agent, name, turn in _worlds(rounds):
            assert turn.messages is not None
            moved = [n for n in (turn.messages != sent).any(1).nonzero()[:, 0].tolist() if n != agent]
            if moved:
                words = f"agent {agent} observes {name}, and the messages of {len(moved)} others change"
                return CheckResult(_OWN, False, words, math.inf, limit)
            for seed in rounds.seeds_with(0, agent, 1):
                distance = float(rounds.change(seed, 0, agent, turn.messages[agent], others).norm())
                distance = distance if math.isfinite(distance) else math.inf
                if distance >= worst:
                    worst = distance
                    words = f"agent {agent} observes {name}, and moves the release by {distance:.4g} of {limit:.4g}"
    return CheckResult(_OWN, bool(worst <= limit * (1 + _ROUNDING)), words, worst, limit)
