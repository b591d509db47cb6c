"""The privacy of every private setting, beside the epsilon that the paper prints for it."""

from collections.abc import Sequence

from analysis.evidence.claim import printed_epsilon
from analysis.html.text_table import RowGroup, TextTable, epsilon
from analysis.load import SettingRuns
from dpfbo.formats.words import large_delta

COLUMNS = ("setting", "q", "z")  # always in the table
SYMBOLS = ("S", "N", "T", "δ")


def row(group: SettingRuns) -> dict[str, str]:
    """One private setting, by column."""
    s, p = group.first.summary, group.first.config["privacy"]
    if group.first.outsourced:
        return _release(group)
    return {
        "setting": group.label,
        "ε moments": epsilon(group, "moments"),
        "ε moments, published": _published(group),
        **{f"ε {name}": epsilon(group, name) for name in s["epsilon"] if name != "moments"},
        **{key: f"{p[key]:.4g}" for key in ("q", "z", "S")},
        "N": str(s["n_agents"]),
        "T": str(s["rounds"]),
        "releases": str(s["n_charges"]),
        "δ": f"{s['delta']:.3g}{large_delta([s['delta']])}",
        "relation": s["relation"],
        "rng": s["rng"],
        **{key: str(p.get(key, "–")) for key in ("sampling", "sensitivity", "charge")},
        **{key: str(p.get(key, {}).get("_target_", "–")) for key in ("noise", "schedule")},
    }


def _release(group: SettingRuns) -> dict[str, str]:
    """One setting whose curator's release has a guarantee."""
    s, p = group.first.summary, group.first.config["privacy"]
    return {
        "setting": group.label,
        **{f"ε {name}": epsilon(group, name) for name in s["epsilon"]},
        "T": str(s["rounds"]),
        "releases": str(s["n_charges"]),
        "δ": f"{s['delta']:.3g}{large_delta([s['delta']])}",
        "relation": s["relation"],
        "rng": s["rng"],
        "noise": str(p.get("noise", {}).get("_target_", "–")),
    }


def table(by_experiment: Sequence[tuple[str, Sequence[dict[str, str]]]]) -> TextTable | None:
    """All rows, by experiment. What is the same in all rows is said once, above, or once for each experiment."""
    rows = [row for _, group in by_experiment for row in group]
    if not rows:
        return None
    values = {key: {row.get(key, "–") for row in rows} for key in dict.fromkeys(key for row in rows for key in row)}
    named = [key for key in values if key not in COLUMNS and not key.startswith("ε")]
    same = [key for key in named if len(values[key]) == 1]
    steady = [
        key
        for key in named
        if key not in same and all(len({row.get(key, "–") for row in rows}) == 1 for _, rows in by_experiment)
    ]
    shown = [key for key in values if key not in (*same, *steady) and values[key] != {"–"}]
    groups = tuple(
        RowGroup(tuple(tuple(row.get(key, "–") for key in shown) for row in rows), name, _listed(rows[0], steady))
        for name, rows in by_experiment
    )
    return TextTable(f"In all rows: {_listed(rows[0], same)}." if same else "", tuple(shown), groups)


def _listed(row: dict[str, str], keys: Sequence[str]) -> str:
    """The public settings in words: `N = 200, T = 40, sampling poisson`."""
    return ", ".join(f"{key} = {row[key]}" if key in SYMBOLS else f"{key} {row[key]}" for key in keys if key in row)


def _published(group: SettingRuns) -> str:
    """Epsilon that the paper prints for this problem, N, T, q and z, with Poisson sampling; – for none."""
    s, p = group.first.summary, group.first.config["privacy"]
    if p.get("sampling", "poisson") != "poisson" or s["n_charges"] != s["rounds"]:
        return "–"
    printed = printed_epsilon(s["problem"], {f"privacy.{key}": p[key] for key in "qz"}, s["n_agents"], s["rounds"])
    return "–" if printed is None else f"{printed:.2f}"
