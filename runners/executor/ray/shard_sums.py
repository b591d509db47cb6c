"""Tree aggregation: every shard adds up its agents' messages, and the server adds up the shards' sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from dpfbo.federated.mechanism import Mechanism, PartialSum


@dataclass(frozen=True)
class ShardSums:
    """The messages of one round, which stay in the shards' actors (`dpfbo.federated.mechanism.Contributions`).

    The order of all additions depends only on the chosen agents and the division into shards. firsts: first agent of
    each shard, ascending. shards: handles of their actors.

    Guarantee:
        The server trusts every shard to clip its agents' messages, and to keep secret which agents were chosen. If a
        shard's sum is not finite, or its shape is not P x M, the sum counts as zero and its messages as rejected.
    """

    t: int
    firsts: Sequence[int]
    shards: Sequence[Any]

    def add_up(self, mechanism: Mechanism, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        firsts = torch.tensor(self.firsts)
        owner = torch.searchsorted(firsts, chosen, right=True) - 1
        chosen = chosen[owner.argsort(stable=True)]
        owners, counts = owner.unique(return_counts=True)
        parts = chosen.split(counts.tolist())
        asked = [
            self.shards[s].add_up.remote(self.t, ids - firsts[s], weights[:, ids], mechanism)
            for s, ids in zip(owners.tolist(), parts, strict=True)
        ]
        zero = torch.zeros(len(weights), n_features, dtype=torch.float64)
        sums = [_usable(s, zero, len(ids)) for s, ids in zip(ray.get(asked), parts, strict=True)]
        total = sum((s.total for s in sums), zero)
        if not bool(torch.isfinite(total).all()):  # the total of finite sums may overflow
            return PartialSum(zero, 0, len(chosen))
        return PartialSum(total, sum(s.n_clipped for s in sums), sum(s.n_rejected for s in sums))


def _usable(part: PartialSum, zero: Tensor, k: int) -> PartialSum:
    """Return a shard's sum over k messages; if it is unusable, return zero with all k messages rejected."""
    if isinstance(part, PartialSum) and isinstance(part.total, Tensor) and part.total.dtype == torch.float64:
        counts = 0 <= part.n_clipped <= k and 0 <= part.n_rejected <= k
        if counts and part.total.shape == zero.shape and bool(torch.isfinite(part.total).all()):
            return part
    return PartialSum(zero, 0, k)
