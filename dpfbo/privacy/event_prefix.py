"""The first events of a list that only grows, without a copy of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import dp_accounting


class EventPrefix(Sequence["dp_accounting.DpEvent"]):
    """The first n events of a list to which its owner only appends; equal to any sequence of the same events.

    source: that list. A reader that compared the first k events before need not compare them again where the source is
    the same object.
    """

    def __init__(self, source: list[dp_accounting.DpEvent], n: int) -> None:
        self.source, self._n = source, n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> dp_accounting.DpEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[dp_accounting.DpEvent]: ...

    def __getitem__(self, index: Any) -> Any:
        positions = range(self._n)[index]  # raises IndexError beyond the first n
        if isinstance(positions, int):
            return self.source[positions]
        if positions.step == 1:
            return self.source[positions.start : positions.stop]
        return [self.source[i] for i in positions]

    def __iter__(self) -> Iterator[dp_accounting.DpEvent]:
        return iter(self.source[: self._n])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))
