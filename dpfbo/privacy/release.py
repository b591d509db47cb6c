"""Releases of a server or a curator, and facts about a release that only a simulation may reveal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Release:
    """Released numbers and the parameters of their noise; all fields are public.

    Args:
        values: P x M (sub-regions x features) from a server. The shape of a curator's values depends on the transform.
        sigma: The standard deviation of the noise in each number; 0 without noise.
        sensitivity: The L2 sensitivity from which sigma was derived; infinite if no bound is enforced.
    """

    values: Tensor
    sigma: float
    sensitivity: float


@dataclass(frozen=True)
class Diagnostics:
    """Secret numbers about one release; epsilon does not cover these numbers.

    Together with the public broadcast, the norms of sum and noise reveal facts about the sum. Servers and curators
    return these numbers only in a simulation, never if the noise comes from the operating system's entropy.

    Args:
        signal: The L2 norm of the sum.
        noise: The L2 norm of the noise.
        n_chosen: |S_t|, the number of sampled agents.
        n_clipped: The number of messages of sampled agents that were longer than the clip norm. For a curator, the
            number of rows that were moved into the public box.
        n_rejected: The number of sampled agents whose messages count as zero vectors, because they are lost, late, of
            wrong shape, or not finite.
        n_dropped: The number of lost or late messages of all agents, sampled or not.
    """

    signal: float
    noise: float
    n_chosen: int
    n_clipped: int
    n_rejected: int
    n_dropped: int = 0


class KeptRelease(Protocol):
    """Stores a release on disk before its privacy cost is charged, so that a restart sends the same bytes."""

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        """Return the release of a round and the secret order of its rows; None if no release of the round is stored.

        The order is None unless a curator reordered the rows.
        """

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        """Write a release to durable storage; the arguments are what `load` returns."""
