"""One release of a server or a curator, and the private numbers that a simulation records beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Release:
    """Released numbers and the law of their noise, all of them public.

    Args:
        values: P x M from a server; from a curator in the shape of its transform.
        sigma: The standard deviation of the noise in each number; 0 without noise.
        sensitivity: The L2 sensitivity that sigma was derived from; infinite where nothing is bounded.
    """

    values: Tensor
    sigma: float
    sensitivity: float


@dataclass(frozen=True)
class Diagnostics:
    """Private numbers of one release, which epsilon does not cover.

    Together with the public broadcast, the norms of sum and noise reveal facts about the sum. Servers and curators
    therefore return them in a simulation only, never beside noise of the operating system.

    Args:
        signal: The L2 norm of the sum.
        noise: The L2 norm of the noise.
        n_chosen: |S_t|.
        n_clipped: The number of chosen messages longer than the clip norm.
        n_rejected: The number of chosen messages that count as zero: missing, of a wrong shape, or not finite.
        n_dropped: The number of all agents' messages that were lost or came too late.
    """

    signal: float
    noise: float
    n_chosen: int
    n_clipped: int
    n_rejected: int
    n_dropped: int = 0


class KeptRelease(Protocol):
    """Durable storage of a release, from before its charge until the round is over: a restart sends the same bytes."""

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        """The release of a round with the secret order of a curator's rows (None for a server); None if not kept."""

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        """Write a release to durable storage; arguments as `load` returns them."""
