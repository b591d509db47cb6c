"""Messages become M finite numbers of bounded norm: clip norms, clipping and scaling in closed form."""

import math

import pytest
import torch

from dpfbo.federated.messages import accept, clip, scale_to, usual_norm

ROWS = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [6.0, 8.0]], dtype=torch.float64)


@pytest.mark.parametrize(("n_features", "P", "norm"), [(100, 1, 11.0), (100, 4, 22.0), (15, 2, 6.025), (1, 1, 1.1)])
def test_the_usual_norm_is_that_of_a_draw_and_a_tenth_more(n_features, P, norm):
    """1.1 sqrt(M P), to three decimals."""
    assert usual_norm(n_features, P) == norm


def test_those_longer_than_the_norm_are_counted_and_no_other():
    clipped, longer = clip(ROWS, 5.0)
    assert longer == 1
    assert torch.equal(clipped[:3], ROWS[:3]) and torch.allclose(clipped[3], ROWS[0], rtol=1e-15)
    assert clip(ROWS, math.nextafter(5.0, 0.0))[1] == 2


def test_scaled_messages_have_the_norm_and_zeros_stay():
    scaled = scale_to(ROWS, 10.0)
    expected = torch.tensor([[6.0, 8.0], [6.0, 8.0], [0.0, 0.0], [6.0, 8.0]], dtype=torch.float64)
    assert torch.allclose(scaled, expected, rtol=1e-15, atol=0)
    tiny = torch.finfo(torch.float64).tiny * torch.tensor([[1.0], [0.5], [0.25]], dtype=torch.float64)
    assert scale_to(tiny, 10.0).tolist() == [[10.0], [10.0], [0.0]]  # zero below half the smallest normal number


@pytest.mark.parametrize("as_list", [False, True])
def test_accepted_messages_are_in_the_order_asked_for(as_list):
    sent = list(ROWS) if as_list else ROWS
    received, rejected = accept(sent, torch.tensor([3, 0]), 2)
    assert torch.equal(received, ROWS[[3, 0]]) and rejected == 0 and received.dtype == torch.float64
    received, rejected = accept(sent, torch.tensor([3, 4]), 2)  # there is no agent 4
    assert torch.equal(received, torch.stack([ROWS[3], torch.zeros(2, dtype=torch.float64)])) and rejected == 1
    assert accept(sent, torch.tensor([], dtype=torch.long), 2)[0].shape == (0, 2)


def test_a_tensor_of_more_dimensions_holds_no_messages():
    received, rejected = accept(torch.ones(4, 2, 3, dtype=torch.float64), torch.tensor([0, 1]), 2)
    assert torch.equal(received, torch.zeros(2, 2, dtype=torch.float64)) and rejected == 2


def test_a_single_number_holds_no_messages():
    received, rejected = accept(torch.tensor(1.0, dtype=torch.float64), torch.tensor([0, 1]), 2)
    assert torch.equal(received, torch.zeros(2, 2, dtype=torch.float64)) and rejected == 2
