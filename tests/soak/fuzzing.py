"""The hostile input of a soak: random cases by kind, tracebacks and hangs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hostile import fuzz

# of ten thousand; a case of settings is composed by Hydra or is a whole run, and takes a hundred times as long
CASES = {
    "files": 3400, "messages": 2500, "ledgers": 2000, "checkpoints": 1500, "invalid settings": 550,
    "valid settings": 50,
}  # fmt: skip


@dataclass(frozen=True)
class Fuzzed:
    """The cases of one kind. planned, cases: asked for, and run. hangs: cases that were stopped. note: of a failure."""

    kind: str
    planned: int
    cases: int
    tracebacks: int
    hangs: int
    seconds: float
    note: str = ""

    @property
    def passed(self) -> bool:
        return not self.tracebacks and not self.hangs and self.cases >= self.planned


def fuzzed(cases: int) -> Iterator[Fuzzed]:
    """Run so many cases over all kinds; a kind ends at its first failure."""
    for kind, share in CASES.items():
        planned, begin, before = max(1, round(share * cases / 10_000)), time.monotonic(), fuzz.DONE[kind]
        check = fuzz.valid_settings if kind == "valid settings" else fuzz.ALL[kind]
        tracebacks = hangs = 0
        note = ""
        try:
            check(planned)
        except fuzz.Hang as error:
            hangs, note = 1, str(error)
        except Exception as error:
            tracebacks, note = 1, f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - begin
        yield Fuzzed(kind, planned, fuzz.DONE[kind] - before, tracebacks, hangs, seconds, note)
