"""Published values, to be drawn beside the same settings run here: `published/*.csv` on landmine and the GP grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from analysis.evidence import po_gp_ucb
from analysis.load import SettingRuns

FOLDER = Path(__file__).parent.parent / "published"
N_AGENTS, REGIONS, LAST = 29, 4, 60  # the published landmine runs; LAST: the round of fig3a's points
WORDS = "published"


@dataclass(frozen=True)
class Published:
    """The published metric of a setting at some rounds; epsilon: by the moments accountant, after `LAST`."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]
    epsilon: float | None = None

    def at(self, t: int) -> float | None:
        return dict(zip(self.rounds, self.values, strict=True)).get(t)


def published(groups: Sequence[SettingRuns]) -> dict[str, Published]:
    """By label, of the settings that were published too: the algorithm and, of private ones, q and z.

    Empty but for landmine with the Platt score and all its fields: the margin score's numbers are not comparable; and
    for the GP grid. Where two settings here could be the published one, neither is.
    """
    if groups[0].first.outsourced:
        return _outsourced(groups)
    found: dict[str, Published] = {}
    for key, values in _known().items():
        alike = [g for g in groups if _comparable(g) and _key(g) == key]
        if len(alike) == 1:
            found[alike[0].label] = values
    return found


def _outsourced(groups: Sequence[SettingRuns]) -> dict[str, Published]:
    """Table 1 of PO-GP-UCB, where the claims about it are judged."""
    found: dict[str, Published] = {}
    for _, where, mean in po_gp_ucb.published():
        alike = [g for g in groups if g.first in po_gp_ucb.SYNTHETIC and where.matches(g.first)]
        if len(alike) == 1:
            found[alike[0].label] = Published((po_gp_ucb.SYNTHETIC.T,), (mean.value,))
    return found


def _comparable(group: SettingRuns) -> bool:
    s, config = group.first.summary, group.first.config
    regions = {"fts_de": REGIONS, "dp_fts_de": REGIONS}.get(s["algorithm"], 1)
    return (
        (s["problem"], s["metric"], s["n_agents"]) == ("landmine", "one_minus_auc", N_AGENTS)
        and config["problem"].get("score") == "platt"
        and config["algorithm"]["P"] == regions
    )


def _key(group: SettingRuns) -> tuple[str, float | None, float | None]:
    config = group.first.config
    q, z = (config["privacy"]["q"], config["privacy"]["z"]) if group.private else (None, None)
    return config["algorithm"]["name"], q, z


@cache
def _known() -> dict[tuple[str, float | None, float | None], Published]:
    """fig3d's curves; fig3a's points, the last of a curve, where there is no curve."""
    curves: dict[tuple[str, float | None, float | None], dict[int, float]] = {}
    wide = pd.read_csv(FOLDER / "landmine_fig3d.csv").set_index("iteration")
    for column in wide.columns:
        values = wide[column].dropna()
        curves[_parsed(column)] = {int(t): float(v) for t, v in zip(values.index, values, strict=True)}
    epsilons = {}
    for row in pd.read_csv(FOLDER / "landmine_fig3a.csv").itertuples():
        key = _name(str(row.method)), _number(row.q), _number(row.z)
        curves.setdefault(key, {}).setdefault(LAST, float(row.one_minus_auc_t60))  # type: ignore[arg-type]
        epsilons[key] = _number(row.epsilon_moments)
    return {
        key: Published(tuple(sorted(c)), tuple(c[t] for t in sorted(c)), epsilons.get(key)) for key, c in curves.items()
    }


def _parsed(column: str) -> tuple[str, float | None, float | None]:
    """`DP-FTS-DE_q0.35_z1` -> dp_fts_de, 0.35, 1."""
    method, *numbers = column.split("_")
    given = {text[0]: float(text[1:]) for text in numbers}
    return _name(method), given.get("q"), given.get("z")


def _name(method: str) -> str:
    return method.lower().replace("-", "_")


def _number(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload, arg-type]
