"""The gain of sharing over the baseline `local`, by the number of agents, for each epsilon.

In `local`, each agent tunes on its own, with the same optimiser and first points as in the other algorithms.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing.looks import Style, of_algorithm, variants
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.picture import JOINED, PicturePanel, Series, Span, XAxis, picture
from analysis.labels import NAMES, problem_label, variant_in_words
from analysis.load import Run, trust_in_words, variant
from dpfbo.formats.words import metric_in_words

Method = tuple[str, float | None]  # an algorithm, and its target epsilon
ALONE = "local"
APART = 1.25  # least ratio of two numbers of agents that both have a tick
BLIND = 0.01  # target epsilon below which a release counts as noise alone


def has_gains(runs: Sequence[Run]) -> bool:
    """Return True if the gain can be drawn against the number of agents.

    At least one problem must have `local` runs with different numbers of agents, and every private run must have a
    trusted server.
    """
    if any(trust_in_words(run) for run in runs):
        return False
    sizes: dict[object, set[int]] = {}
    for run in runs:
        if run.config["algorithm"]["name"] == ALONE:
            sizes.setdefault(_problem(run), set()).add(run.summary["n_agents"])
    return any(len(found) > 1 for found in sizes.values())


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the gain over `local` and its standard error, with a row for each problem, number of agents and setting.

    gain: difference of the metric averaged over rounds 1..T, paired by seed and positive if the setting is better. T is
    the number of rounds of the shortest run. kept: gain divided by the gain of `shared_prior`, which shares without
    noise; NaN unless the gain of `shared_prior` is above three standard errors.
    """
    T = min(run.summary["rounds"] for run in runs)
    found: dict[tuple[object, int, Method], dict[int, float]] = {}
    firsts: dict[tuple[object, int, Method], Run] = {}
    for run in runs:
        key = (_problem(run), run.summary["n_agents"], _method(run))
        firsts.setdefault(key, run)
        found.setdefault(key, {})[run.seed] = float(np.mean(run.curve[1 : T + 1]))
    rows = []
    for (problem, N, method), values in found.items():
        alone = found.get((problem, N, (ALONE, None)), {})
        seeds = sorted(values.keys() & alone.keys())
        if method[0] == ALONE or not seeds:
            continue
        first = firsts[problem, N, method]
        s = first.summary
        sign = 1.0 if s["lower_is_better"] else -1.0
        d = sign * pd.Series([alone[seed] - values[seed] for seed in seeds])
        rows.append({
            "panel": problem_label(s["problem"]) + variant_in_words(first.config["problem"]), "metric": s["metric"],
            "n_agents": N, "algorithm": method[0], "target_epsilon": method[1], "rounds": T, "seeds": len(d),
            "gain": d.mean(), "se": d.sem() if len(d) > 1 else 0.0, "alone": np.mean([*alone.values()]),
            "delta": s["delta"] if s["private"] else None,
        })  # fmt: skip
    frame = pd.DataFrame(rows).sort_values(["panel", "n_agents", "algorithm", "target_epsilon"], ignore_index=True)
    ceiling = frame[frame["algorithm"] == "shared_prior"].set_index(["panel", "n_agents"])
    clear = ceiling.loc[ceiling["gain"] > 3 * ceiling["se"], "gain"]
    frame["kept"] = [row.gain / clear.get((row.panel, row.n_agents), np.nan) for row in frame.itertuples()]
    return frame


def figure(found: pd.DataFrame, style: PageStyle = SCREEN) -> Figure:
    """Draw `found`, the result of `table`."""
    pairs = zip(found["algorithm"].astype(str), found["target_epsilon"].astype(float), strict=True)
    methods = sorted({(name, math.inf if math.isnan(target) else target) for name, target in pairs}, key=_order)
    looks = _looks(methods)
    panels: list[PicturePanel | None] = []
    for title, rows in found.groupby("panel"):
        sizes = sorted(rows["n_agents"].unique(), reverse=True)
        ticks = [N for i, N in enumerate(sizes) if i == 0 or sizes[i - 1] >= APART * N]
        axis = XAxis("agents N", min(sizes) / 1.2, max(sizes) * 1.2, True, ticks)
        series = []
        for method in methods:
            same = (rows["algorithm"] == method[0]) & (rows["target_epsilon"].fillna(math.inf) == method[1])
            own = rows[same].sort_values("n_agents")
            if len(own):
                x, mean, se = (own[name].to_numpy(float) for name in ("n_agents", "gain", "se"))
                series.append(Series(_label(*method), looks[method], JOINED, x, mean, se))
        low, high = (np.concatenate([one.ends()[k] for one in series]) for k in (0, 1))
        margin = 0.06 * (max(high.max(), 0) - min(low.min(), 0)) or 0.01
        panels.append(
            PicturePanel(str(title), series, axis, Span(False, min(low.min(), 0) - margin, high.max() + margin))
        )
    first = found.iloc[0]
    deltas = ", ".join(f"{d:.3g}" for d in sorted(found["delta"].dropna().unique()))
    caption = (
        f"Differences of the metric, averaged over rounds 1 to {first['rounds']} and paired by seed, from the same "
        f"optimiser alone with the same first points; bars: ± one standard error over {found['seeds'].max()} seeds. "
        f"δ = {deltas}, relation zero-out, user level."
    )
    metrics = "; ".join(metric_in_words(metric) for metric in found["metric"].unique())
    heading = "Gain of sharing over tuning alone"
    return picture(heading, panels, caption, (f"gain ({metrics})", ""), style, min(3, len(panels)), legend_above=True)


def _problem(run: Run) -> tuple[object, ...]:
    """Return the key of a problem, without its number of agents."""
    key = variant(run)
    return (*key[:2], *key[3:])


def _method(run: Run) -> Method:
    return run.config["algorithm"]["name"], run.config["privacy"].get("epsilon") if run.summary["private"] else None


def _order(method: tuple[str, float]) -> tuple[int, str, float]:
    return (0 if method[0] == "shared_prior" else 1 if method[0] == "dp_prior" else 2, method[0], -method[1])


def _label(name: str, target: float) -> str:
    if math.isinf(target):
        return NAMES.get(name, name)
    return f"{NAMES.get(name, name)}, {f'ε = {target:g}' if target >= BLIND else 'noise alone'}"


def _looks(methods: Sequence[tuple[str, float]]) -> dict[tuple[str, float], Style]:
    looks: dict[tuple[str, float], Style] = {}
    for name in dict.fromkeys(name for name, _ in methods):
        own = [method for method in methods if method[0] == name]
        looks |= dict(zip(own, variants(of_algorithm(name), len(own)), strict=True))
    return looks
