"""Tree aggregation: the sum of the chosen agents' messages, whoever adds up what, in this process."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfbo.federated.mechanism import PartialSum, SubsampledGaussian

pytest.importorskip("ray")

import ray

from runners.executor.ray.shard_sums import ShardSums

P, M = 2, 20


class Holder:
    """A stand-in for the actor of a shard with these messages."""

    def __init__(self, messages, spoil=lambda part: part):
        self.asked = []

        def add_up(t, rows, weights, summation):
            self.asked.append((t, rows, weights))
            return spoil(summation.add_up(messages, rows, weights, M))

        self.add_up = SimpleNamespace(remote=add_up)


MECHANISM = SubsampledGaussian(0.5, 1.0, 2.0)
FIRSTS, ENDS = [0, 3, 4], [3, 4, 9]


def holders(monkeypatch, messages, spoil=lambda part: part):
    """Three shards of nine agents; `spoil` changes the answer of the last one."""
    monkeypatch.setattr(ray, "get", lambda values: values)
    good = [Holder(messages[a:b]) for a, b in zip(FIRSTS[:2], ENDS[:2], strict=True)]
    return [*good, Holder(messages[4:], spoil)]


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_sums_of_shards_are_the_sum(monkeypatch):
    messages, weights, chosen = numbers(9, M), numbers(P, 9, seed=1), torch.tensor([0, 2, 3, 4, 7, 8])
    shards = holders(monkeypatch, messages)
    part = ShardSums(5, FIRSTS, shards).add_up(MECHANISM, chosen, weights, M)
    whole = MECHANISM.add_up(messages, chosen, weights[:, chosen], M)
    assert torch.allclose(part.total, whole.total, rtol=1e-12, atol=1e-12)
    assert (part.n_clipped, part.n_rejected) == (whole.n_clipped, whole.n_rejected)
    assert whole.n_clipped > 0
    ((t, rows, w),) = shards[2].asked
    assert t == 5
    assert rows.tolist() == [0, 3, 4]  # only the chosen agents, by place in the shard
    assert torch.equal(w, weights[:, [4, 7, 8]])


def test_shard_without_a_chosen_agent_is_not_asked(monkeypatch):
    shards = holders(monkeypatch, numbers(9, M))
    part = ShardSums(0, FIRSTS, shards).add_up(MECHANISM, torch.tensor([1, 4]), numbers(P, 9), M)
    assert [len(s.asked) for s in shards] == [1, 0, 1]
    assert part.total.shape == (P, M)


def test_nobody_chosen_is_a_sum_of_zero(monkeypatch):
    part = ShardSums(0, FIRSTS, holders(monkeypatch, numbers(9, M))).add_up(
        MECHANISM, torch.arange(0), numbers(P, 9), M
    )
    assert torch.equal(part.total, torch.zeros(P, M, dtype=torch.float64))


@pytest.mark.parametrize(
    "total",
    [
        torch.full((P, M), math.nan, dtype=torch.float64),
        torch.full((P, M), math.inf, dtype=torch.float64),
        torch.zeros(P, M - 1, dtype=torch.float64),
        torch.zeros(5, M, dtype=torch.float64),
    ],
    ids=["nan", "inf", "few", "messages"],
)
def test_sum_that_is_unusable_counts_as_zero_and_as_rejected(monkeypatch, total):
    messages, weights, chosen = numbers(9, M), numbers(P, 9, seed=1), torch.tensor([0, 3, 4, 7, 8])
    shards = holders(monkeypatch, messages, lambda part: PartialSum(total, 3, 0))
    part = ShardSums(0, FIRSTS, shards).add_up(MECHANISM, chosen, weights, M)
    rest = ShardSums(0, FIRSTS, shards).add_up(MECHANISM, chosen[:2], weights, M)
    assert torch.equal(part.total, rest.total)
    assert part.n_rejected == 3
    assert part.n_clipped == rest.n_clipped


def test_one_entry_that_is_not_finite_is_enough(monkeypatch):
    total = numbers(P, M)
    total[1, 3] = -math.inf
    shards = holders(monkeypatch, numbers(9, M), lambda part: PartialSum(total, 0, 0))
    part = ShardSums(0, FIRSTS, shards).add_up(MECHANISM, torch.tensor([4]), numbers(P, 9), M)
    assert not part.total.any()
    assert part.n_rejected == 1


def one_each(messages, spoiled=None, spoil=None):
    """A shard for each agent; one of them spoils what it sends."""
    return [Holder(messages[n : n + 1], *([spoil] if n == spoiled else [])) for n in range(len(messages))]


def test_sums_are_added_in_the_order_of_the_shards_from_zero(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda values: values)
    messages, weights = numbers(23, M), numbers(P, 23, seed=1)
    chosen = torch.randperm(23, generator=torch.Generator().manual_seed(17))[:17].sort().values
    part = ShardSums(5, range(23), one_each(messages)).add_up(MECHANISM, chosen, weights, M)
    flat = torch.zeros(P, M, dtype=torch.float64)
    for n in chosen.tolist():
        flat = flat + MECHANISM.add_up(messages, torch.tensor([n]), weights[:, [n]], M).total
    assert torch.equal(part.total, flat)


def test_the_order_of_chosen_agents_does_not_matter(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda values: values)
    messages, weights, chosen = numbers(9, M), numbers(P, 9, seed=1), torch.tensor([8, 0, 5, 3, 1])
    given, ordered = (
        ShardSums(0, range(9), one_each(messages)).add_up(MECHANISM, c, weights, M)
        for c in (chosen, chosen.sort().values)
    )
    assert torch.equal(given.total, ordered.total)


@pytest.mark.parametrize("spoil", [{"total": torch.full((P, M), math.nan)}, {"n_clipped": 3}, {"n_rejected": -1}])
def test_an_unusable_sum_among_others_is_rejected(monkeypatch, spoil):
    monkeypatch.setattr(ray, "get", lambda values: values)
    messages, weights, chosen = numbers(9, M), numbers(P, 9, seed=1), torch.arange(9)
    shards = one_each(messages, 4, lambda part: replace(part, **spoil))
    part = ShardSums(0, range(9), shards).add_up(MECHANISM, chosen, weights, M)
    rest = chosen[chosen != 4]
    whole = MECHANISM.add_up(messages, rest, weights[:, rest], M)
    assert torch.allclose(part.total, whole.total, rtol=1e-12, atol=1e-12)
    assert (part.n_clipped, part.n_rejected) == (whole.n_clipped, 1)
