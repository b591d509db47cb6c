"""The finished rounds of a run."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from dpfbo.records import RoundRecord

MOST_BYTES = 256_000_000  # of the records in memory, if older records can be read back


class RoundLog(Sequence[RoundRecord]):
    """The records of rounds 0, 1, .. in their order.

    `read_back` is None, or a function that reads a round's record from its file. With this function, only the newest
    records stay in memory: as many as fit into `MOST_BYTES` (256 MB), but at least one. The metric's means and standard
    errors of all rounds stay in memory.
    """

    def __init__(self) -> None:
        self.read_back: Callable[[int], RoundRecord] | None = None
        self.means: list[float] = []
        self.standard_errors: list[float] = []
        self._newest: deque[RoundRecord] = deque()
        self._bytes = 0

    def append(self, record: RoundRecord) -> None:
        """Add the next round."""
        self.means.append(record.mean)
        self.standard_errors.append(record.standard_error)
        self._newest.append(record)
        self._bytes += record.bytes
        while self.read_back is not None and self._bytes > MOST_BYTES and len(self._newest) > 1:
            self._bytes -= self._newest.popleft().bytes

    def __len__(self) -> int:
        return len(self.means)

    def __iter__(self) -> Iterator[RoundRecord]:
        return (self[t] for t in range(len(self)))

    @overload
    def __getitem__(self, t: int) -> RoundRecord: ...

    @overload
    def __getitem__(self, t: slice) -> list[RoundRecord]: ...

    def __getitem__(self, t: int | slice) -> RoundRecord | list[RoundRecord]:
        if isinstance(t, slice):
            return [self[k] for k in range(*t.indices(len(self)))]
        k = range(len(self))[t]
        gone = len(self) - len(self._newest)
        if k >= gone:
            return self._newest[k - gone]
        assert self.read_back is not None  # otherwise no record was dropped
        return self.read_back(k)
