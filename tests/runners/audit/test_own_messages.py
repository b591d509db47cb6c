"""An agent's message is a function of its own data alone: no other agent's message moves with its observations."""

from dataclasses import replace

import pytest
import torch

from dpfbo.audit.server.target import AgentsSide
from dpfbo.federated.population.shard import Shard
from runners.compose.composition import build
from tests.helpers.compose import compose
from tests.helpers.small_runs import SMALL

KINDS = {"dp_fts_de": [], "dp_prior": ["algorithm=dp_prior", "privacy.epsilon=1"]}
CHANGES = {"the opposite": lambda y: -y, "much larger, in another order": lambda y: 1e3 * y.flip(-1) + 5}


class CentredShard(Shard):
    """A shard that subtracts the mean of all its agents' messages from each, before anything is clipped."""

    def step(self, t, broadcast, send):
        turn = super().step(t, broadcast, send)
        if turn.messages is None:
            return turn
        return replace(turn, messages=turn.messages - turn.messages.mean(0))


def moved(side, agent, change):
    """The agents whose messages in round 0 change when one observes something else, beyond rounding."""
    before, after = side.first_turn().messages, side.first_turn(agent, change).messages
    gap = (after - before).norm(dim=1) / before.norm(dim=1)
    return (gap > 1e-9).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_agents_observations_move_its_own_message_alone(kind, change):
    experiment = build(compose(*SMALL, *KINDS[kind]))
    side = AgentsSide(experiment.problem, experiment.agents)
    for agent in (0, experiment.problem.n_agents - 1):
        assert moved(side, agent, CHANGES[change]) == [agent]


def test_messages_that_are_centred_together_are_found():
    experiment = build(compose(*SMALL))
    side = AgentsSide(experiment.problem, experiment.agents, CentredShard)
    assert moved(side, 0, CHANGES["the opposite"]) == list(range(experiment.problem.n_agents))


def test_the_messages_that_are_added_up_are_those_that_are_sent():
    """A shard that makes only some agents' messages makes the same ones; its sum is the mechanism's over them."""
    experiment = build(compose(*SMALL))
    problem, mechanism = experiment.problem, experiment.mechanism
    shards = [Shard(problem, experiment.agents, torch.arange(problem.n_agents)) for _ in range(2)]
    sent = shards[0].step(0, None, send=True).messages
    shards[1].step(0, None, send=False)
    rows = torch.arange(0, problem.n_agents, 2)
    assert torch.allclose(shards[1].messages(0, rows), sent[rows], rtol=1e-9, atol=0)
    weights = torch.rand(2, len(rows), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    C = mechanism.message_norm(2)
    clipped = sent[rows] * (C / sent[rows].norm(dim=1, keepdim=True).clamp(min=C))
    expected = weights @ clipped / mechanism.sampling_probability
    total = shards[1].add_up(0, rows, weights, mechanism).total
    assert torch.allclose(total, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))
