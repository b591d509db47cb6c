"""The step without privacy: the weighted sum of all messages as they come, and what is recorded of it."""

import math

import pytest
import torch

from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.rng import Streams

ENTROPY = SeededEntropy(Streams(5))
WEIGHTS = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]], dtype=torch.float64)
SENT = torch.tensor([[3.0, 4.0], [600.0, 800.0], [0.0, 0.5]], dtype=torch.float64)


def test_the_sum_is_of_all_messages_as_they_come():
    out, private = WeightedAverage().release(SENT, WEIGHTS, 2, ENTROPY, 0)
    assert torch.equal(out.values, WEIGHTS @ SENT)
    assert (out.sigma, out.sensitivity) == (0.0, math.inf)
    assert private.signal == float((WEIGHTS @ SENT).norm())
    assert (private.noise, private.n_chosen, private.n_clipped, private.n_rejected) == (0.0, 3, 0, 0)
    part = WeightedAverage().add_up(SENT, torch.tensor([0, 2]), WEIGHTS[:, [0, 2]], 2)
    assert torch.equal(part.total, WEIGHTS[:, [0, 2]] @ SENT[[0, 2]]) and part.n_clipped == 0


def test_normalised_it_is_of_unit_vectors():
    out, _ = WeightedAverage(normalize=True).release(SENT, WEIGHTS, 2, ENTROPY, 0)
    assert torch.allclose(out.values, WEIGHTS @ (SENT / SENT.norm(dim=1, keepdim=True)), rtol=1e-14)


@pytest.mark.parametrize("mechanism", [WeightedAverage(), SubsampledGaussian(1.0, 0.0, 2000.0)])
def test_lost_and_unusable_messages_are_counted_together(mechanism):
    sent = [SENT[0], torch.tensor([math.nan, 1.0]), SENT[2]]
    out, private = mechanism.release(sent, WEIGHTS, 2, ENTROPY, 0, lost=torch.tensor([True, False, False]))
    assert torch.equal(out.values, WEIGHTS[:, 2:] @ SENT[2:])
    assert (private.n_chosen, private.n_rejected, private.n_clipped, private.noise) == (3, 2, 0, 0.0)


class Held:
    """Messages that stay with their holders."""

    def add_up(self, summation, chosen, weights, n_features):
        return summation.add_up(SENT, chosen, weights[:, chosen], n_features)


def test_holders_add_up_by_the_mechanism_of_the_server():
    mechanism = SubsampledGaussian(1.0, 0.0, 2.0)
    held = mechanism.release(Held(), WEIGHTS, 2, ENTROPY, 0)[0].values
    assert torch.equal(held, mechanism.release(SENT, WEIGHTS, 2, ENTROPY, 0)[0].values)
