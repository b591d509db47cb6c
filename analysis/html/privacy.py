"""The report's table of privacy: each private setting's epsilon, beside the one printed in the paper."""

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from analysis.evidence.claim import printed_epsilon
from analysis.html.text_table import RowGroup, TextTable
from analysis.load import SettingRuns
from analysis.tables import epsilons_in_words
from dpfbo.formats.words import large_delta

COLUMNS = ("setting", "q", "z")  # columns of the table even if they are constant
SYMBOLS = ("S", "N", "T", "δ")


def row(group: SettingRuns) -> dict[str, str]:
    """Return the cells of one private setting by column."""
    s, p, federated = group.first.summary, group.first.config["privacy"], not group.first.outsourced
    found = {"setting": group.label}
    if federated:
        found |= {"ε moments": epsilons_in_words(group, ["moments"]), "ε moments, published": _published(group)}
    found |= {f"ε {name}": epsilons_in_words(group, [name]) for name in s["epsilon"]}
    if federated:
        found |= {**{key: f"{p[key]:.4g}" for key in ("q", "z", "S")}, "N": str(s["n_agents"])}
    found |= {"T": str(s["rounds"]), "releases": str(s["n_charges"])}
    found |= {"δ": f"{s['delta']:.3g}{large_delta([s['delta']])}", "relation": s["relation"], "rng": s["rng"]}
    if federated:
        found |= {key: str(p.get(key, "–")) for key in ("sampling", "sensitivity", "charge")}
        found["schedule"] = str(p.get("schedule", {}).get("_target_", "–"))
    return {**found, "noise": str(p.get("noise", {}).get("_target_", "–"))}


def table(by_experiment: Sequence[tuple[str, Sequence[dict[str, str]]]]) -> TextTable | None:
    """Return the table of all rows, grouped by experiment.

    A column that is constant within every group moves to the headings of the groups. The columns "setting", "q" and "z"
    and the epsilon columns are never moved.
    """
    if not by_experiment:
        return None
    found = pd.concat([pd.DataFrame(rows).assign(experiment=name) for name, rows in by_experiment], ignore_index=True)
    found = found.fillna("–")
    names = [str(key) for key in found]
    named = [key for key in names if key not in (*COLUMNS, "experiment") and not key.startswith("ε")]
    by_name = found.groupby("experiment", sort=False)
    steady = [key for key in named if by_name[key].nunique().max() == 1]
    shown = [key for key in names if key not in (*steady, "experiment") and set(found[key]) != {"–"}]
    groups = tuple(
        RowGroup(
            tuple(rows[shown].itertuples(index=False, name=None)), str(name), _listed(rows.iloc[0].to_dict(), steady)
        )
        for name, rows in by_name
    )
    return TextTable("", tuple(shown), groups)


def _listed(row: Mapping[Hashable, str], keys: Sequence[str]) -> str:
    """Return some settings of a row in words, such as `N = 200, sampling poisson`."""
    return ", ".join(
        f"{key} = {row[key]}" if key in SYMBOLS else f"{key} {row[key]}" for key in keys if row[key] != "–"
    )


def _published(group: SettingRuns) -> str:
    """Return the epsilon that the paper prints for this setting, or a dash."""
    s, p = group.first.summary, group.first.config["privacy"]
    if p.get("sampling", "poisson") != "poisson" or s["n_charges"] != s["rounds"]:
        return "–"
    printed = printed_epsilon(s["problem"], {f"privacy.{key}": p[key] for key in "qz"}, s["n_agents"], s["rounds"])
    return "–" if printed is None else f"{printed:.2f}"
