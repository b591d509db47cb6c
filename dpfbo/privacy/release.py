"""What one broadcast of a server, or the one release of a curator, consists of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Release:
    """One released joint vector and what the server alone knows of how it came about.

    values: P x M, the only part that is broadcast. sigma, sensitivity: public. signal, noise: L2 norms of the
    sum and of the noise. n_chosen: |S_t|. n_clipped: chosen messages longer than the clip norm. n_rejected:
    chosen messages that were missing, of a wrong shape, or not finite, and counted as zero. order: of a curator that
    released its rows in a secret order, which row stands behind each. All but `values`, sigma and sensitivity are
    private.
    """

    values: Tensor
    sigma: float
    sensitivity: float
    signal: float
    noise: float
    n_chosen: int
    n_clipped: int
    n_rejected: int
    order: Sequence[int] | None = None


class KeptRelease(Protocol):
    """Where a release is kept, durably, from before its charge until the round is over.

    A server that is killed in between sends the same bytes when it is started again, although its noise
    cannot be drawn a second time.
    """

    def load(self, round: int) -> Release | None: ...

    def save(self, round: int, release: Release) -> None: ...
