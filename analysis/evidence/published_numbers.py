"""The numbers in analysis/published (its README says where they are from), as means to agree with."""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.evidence.selection import LAST, Measure, at
from analysis.evidence.verdicts import PublishedMean

FOLDER = Path(__file__).parent.parent / "published"

LANDMINE_SE, LANDMINE_RUNS = 0.0027, 10  # of every point of the published curves: about, over the authors' 10 runs
REIMPLEMENTATION_FUNCTIONS = 15
OUTSOURCED_FUNCTIONS = {
    "table1": 1,
    "reimplementation": 50,
}  # Table 1: 50 starts on it; the reimplementation's: a guess

Points = tuple[tuple[Measure, PublishedMean], ...]


@dataclass(frozen=True)
class PrivacyLoss:
    """A printed epsilon, moments accountant, delta = N^-1.1."""

    q: float
    z: float
    epsilon: float


def privacy_losses(experiment: str) -> list[PrivacyLoss]:
    """The table of epsilons: `synthetic` (N = 200, T = 40, P = 2) or `landmine` (N = 29, T = 60, P = 4)."""
    rows = [row for row in _rows("privacy_losses.csv") if row["experiment"] == experiment]
    return [PrivacyLoss(float(row["q"]), float(row["z"]), float(row["epsilon_moments"])) for row in rows]


def landmine_curve(column: str) -> Points:
    """A curve of Fig. 3d, Platt score, at the iterations read."""
    rows = [row for row in _rows("landmine_fig3d.csv") if row[column]]
    return tuple((at(int(row["iteration"])), _landmine(float(row[column]))) for row in rows)


def landmine_last(method: str, z: float | None = None) -> Points:
    """A point of Fig. 3a, Platt score, after 60 iterations."""
    rows = [r for r in _rows("landmine_fig3a.csv") if r["method"] == method and (z is None or float(r["z"]) == z)]
    return ((LAST, _landmine(float(rows[0]["one_minus_auc_t60"]))),)


def landmine_gain(worse: str, good: str, z: float | None = None) -> PublishedMean:
    """The distance by which `good` ends below `worse` in Fig. 3a; the errors of both, as if independent."""
    (_, a), (_, b) = *landmine_last(worse), *landmine_last(good, z)
    return PublishedMean(a.value - b.value, math.sqrt(2) * LANDMINE_SE, LANDMINE_RUNS)


def reimplementation_curve(setting: str) -> Points:
    """A curve of the independent reimplementation on the synthetic problem."""
    (row,) = (row for row in _rows("synthetic_reimplementation.csv") if row["setting"] == setting)
    rounds = [int(key[1:]) for key in row if key.startswith("t") and not key.endswith("_se")]
    return tuple(
        (at(t), PublishedMean(float(row[f"t{t}"]), float(row[f"t{t}_se"]), REIMPLEMENTATION_FUNCTIONS)) for t in rounds
    )


@dataclass(frozen=True)
class PublishedRegret:
    """A simple regret after 50 rounds on the synthetic grid. epsilon: of PO-GP-UCB the claimed one."""

    epsilon: float | None
    r: int | None
    noise_aware: bool | None
    mean: PublishedMean


def po_gp_ucb_regrets(source: str) -> list[PublishedRegret]:
    """`table1`, of the paper, or `reimplementation`."""
    return [
        PublishedRegret(
            math.exp(float(row["ln_epsilon"])) if row["ln_epsilon"] else None,
            int(row["r"]) if row["r"] else None,
            row["noise_aware"] == "true" if row["noise_aware"] else None,
            PublishedMean(float(row["simple_regret_T50"]), None, OUTSOURCED_FUNCTIONS[source]),
        )
        for row in _rows(f"po_synthetic_{source}.csv")
    ]


def _landmine(value: float) -> PublishedMean:
    return PublishedMean(value, LANDMINE_SE, LANDMINE_RUNS)


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    with (FOLDER / name).open(newline="") as file:
        return tuple(csv.DictReader(file))
