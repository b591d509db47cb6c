"""The score of a module's mutants, and the survivors that a file explains."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.mutants.mutation import Mutant

SCORE_HEADER = (
    f"{'module':<12} {'mutants':>7} {'killed':>7} {'timed out':>9} {'survived':>8} {'explained':>9} {'score':>7}"
)


class Explained:
    """The survivors that are known to be harmless: module, function, and the lines before and after the change."""

    def __init__(self, changes: frozenset[tuple[str, str, str, str]]) -> None:
        self._changes = changes

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "Explained":
        """From `[[survivors]]` with module, function, why, and changes, each `[was, becomes]`. Raises ValueError."""
        found = set()
        for entry in content.get("survivors", ()):
            if not str(entry.get("why", "")).strip():
                raise ValueError(f"a survivor of {entry['function']} has no reason (why)")
            for was, becomes in entry["changes"]:
                found.add((entry["module"], entry["function"], was, becomes))
        return cls(frozenset(found))

    def __contains__(self, mutant: Mutant) -> bool:
        return (mutant.module, mutant.function, mutant.was, mutant.becomes) in self._changes


def score_line(name: str, mutants: Sequence[Mutant], explained: Explained) -> str:
    """One line of the table. Score: those found (killed, timed out) over all."""
    counts = Counter(mutant.status for mutant in mutants)
    survivors = [mutant for mutant in mutants if mutant.survived]
    known = sum(mutant in explained for mutant in survivors)
    score = 1 - len(survivors) / len(mutants)
    killed = len(mutants) - len(survivors) - counts["timeout"]
    return (
        f"{name:<12} {len(mutants):>7} {killed:>7} {counts['timeout']:>9} {len(survivors):>8} {known:>9} {score:>7.1%}"
    )
