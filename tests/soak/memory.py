"""Memory of this process while it goes from run to run."""

import threading
import time
from types import TracebackType

from tests.helpers.process_memory import resident

_SECONDS = 0.2  # between two looks
GROWTH, SLACK = 1.25, 64 * 2**20  # the most at the end may be so many times that at a tenth, and so many bytes more


def flat(memory: tuple[int, int]) -> bool:
    """True if a process has not grown by more than `GROWTH` and `SLACK` after a tenth of its time."""
    return memory[1] <= GROWTH * memory[0] + SLACK


class Watched:
    """Looks at the memory of this process until the end of a `with`."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, int]] = []
        self._end = threading.Event()

    def __enter__(self) -> "Watched":
        self._look()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    @property
    def memory(self) -> tuple[int, int]:
        """The most bytes until a tenth of the time, and at all."""
        first, last = self.looks[0][0], self.looks[-1][0]
        early = max(size for at, size in self.looks if at <= first + (last - first) / 10)
        return early, max(size for _, size in self.looks)

    def _go_on(self) -> None:
        while not self._end.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        self.looks.append((time.monotonic(), resident()))
