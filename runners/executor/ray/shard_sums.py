"""Tree aggregation: the shards add up the chosen agents' messages, and some of them the sums of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from dpfbo.federated.mechanism import Mechanism, PartialSum


@dataclass(frozen=True)
class ShardSums:
    """The messages of a round that stay in their shards (`dpfbo.federated.mechanism.Contributions`).

    Each shard adds up its chosen agents' messages. If more than `fan_in` shards have any, they are taken in groups of
    `fan_in` neighbours, in the order of their agents: the first of a group adds up the group's sums, level by level,
    until at most `fan_in` sums are left for the server. The order of all additions follows from the chosen agents
    alone, and not from the time at which anything arrives. No sum of a group passes through the server.

    Guarantee. The server trusts every shard to clip its agents' messages, and with the knowledge which of them were
    chosen; the first of a group, in addition, with the sums of its group before any noise, and to add them up
    faithfully. What the server can check it checks: a shard's sum that is not finite or not P x M counts as zero, with
    all of its messages rejected, where it is added first; the sum of a group likewise, with those of all its shards.

    firsts: first agent of each shard, ascending. shards: handles of their actors.
    """

    t: int
    firsts: Sequence[int]
    shards: Sequence[Any]
    fan_in: int = 16

    def add_up(self, mechanism: Mechanism, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        firsts = torch.tensor(self.firsts)
        owner = torch.searchsorted(firsts, chosen, right=True) - 1
        chosen = chosen[owner.argsort(stable=True)]
        shards, counts = owner.unique(return_counts=True)
        shape = (len(weights), n_features)
        sums = []
        for s, ids in zip(shards.tolist(), chosen.split(counts.tolist()), strict=True):
            asked = self.shards[s].add_up.remote(self.t, ids - firsts[s], weights[:, ids], mechanism)
            sums.append(AskedSum(self.shards[s], asked, len(ids)))
        while len(sums) > self.fan_in:
            sums = [_of_group(sums[i : i + self.fan_in], shape) for i in range(0, len(sums), self.fan_in)]
        return added(ray.get([one.answer for one in sums]), [one.n_messages for one in sums], shape)


@dataclass(frozen=True)
class AskedSum:
    """A sum over some messages that an actor was asked for. answer: reference to a `PartialSum`."""

    actor: Any
    answer: Any
    n_messages: int


def _of_group(sums: Sequence[AskedSum], shape: tuple[int, int]) -> AskedSum:
    """The sum of several sums, which the actor of the first of them is asked for."""
    first, counts = sums[0], [one.n_messages for one in sums]
    if len(sums) == 1:
        return first
    answer = first.actor.add_sums.remote(counts, shape, *(one.answer for one in sums))
    return AskedSum(first.actor, answer, sum(counts))


def added(parts: Sequence[PartialSum], counts: Sequence[int], shape: tuple[int, int]) -> PartialSum:
    """The sum of sums over so many messages each, in their order; one that is unusable is zero, its messages rejected.

    shape: (P, M).
    """
    usable = [_accepted(part, shape, k) for part, k in zip(parts, counts, strict=True)]
    total = sum((p.total for p in usable), torch.zeros(shape, dtype=torch.float64))
    if not bool(torch.isfinite(total).all()):  # finite sums whose sum is not
        return PartialSum(torch.zeros(shape, dtype=torch.float64), 0, sum(counts))
    return PartialSum(total, sum(p.n_clipped for p in usable), sum(p.n_rejected for p in usable))


def _accepted(part: PartialSum, shape: tuple[int, int], k: int) -> PartialSum:
    """A sum over k messages; if it is unusable, zero, with all k rejected."""
    if isinstance(part, PartialSum) and isinstance(part.total, Tensor) and part.total.dtype == torch.float64:
        counts = 0 <= part.n_clipped <= k and 0 <= part.n_rejected <= k
        if counts and part.total.shape == shape and bool(torch.isfinite(part.total).all()):
            return part
    return PartialSum(torch.zeros(shape, dtype=torch.float64), 0, k)
