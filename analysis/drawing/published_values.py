"""Published values, to be drawn beside the same settings run here."""

from collections.abc import Sequence

from analysis.evidence.claim import PAPER, published_means
from analysis.evidence.selection import Case
from analysis.load import SettingRuns

CASES = ("landmine_platt", "grid")
WORDS = "published"


def published(groups: Sequence[SettingRuns]) -> dict[str, dict[float, float]]:
    """By label, the published metric by round, of the settings that the claims about published numbers are judged on.

    Where two settings here could be the published one, neither is.
    """
    found: dict[str, dict[float, float]] = {}
    for name in CASES:
        case = Case.named(name)
        for where, means in published_means(name, PAPER).items():
            alike = [g for g in groups if g.first in case and where.matches(g.first)]
            if len(alike) == 1:
                found[alike[0].label] = {t: mean.value for t, mean in sorted(means.items())}
    return found
