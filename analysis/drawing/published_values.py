"""Selection of the published values that are drawn with the runs of the same settings."""

from collections.abc import Sequence

from analysis.evidence.claim import PAPER, published_means
from analysis.evidence.selection import Case
from analysis.load import SettingRuns

CASES = ("landmine_platt", "grid")
WORDS = "published"


def published(groups: Sequence[SettingRuns]) -> dict[str, dict[float, float]]:
    """Return the published metric by the label of its setting, and by round; claims select settings in the same way.

    If two settings match a published one, neither gets its values.
    """
    found: dict[str, dict[float, float]] = {}
    for name in CASES:
        case = Case.named(name)
        for where, means in published_means(name, PAPER).items():
            alike = [g for g in groups if g.first in case and where.matches(g.first)]
            if len(alike) == 1:
                found[alike[0].label] = {t: mean.value for t, mean in sorted(means.items())}
    return found
