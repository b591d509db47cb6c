"""The metric of a run's agents by round: median, quantiles and mean over the agents, of whom there may be a million."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.drawing.by_iteration import X_LABEL
from analysis.drawing.looks import ONE_RUN
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.drawing.picture import LOGARITHMIC_FROM, label_metric
from analysis.labels import problem_label
from analysis.load import LoadError
from analysis.rounds import RunFiles
from dpfbo.formats.summary import PERCENT
from dpfbo.formats.words import metric_in_words

BANDS = ((5, 95, 0.14), (25, 75, 0.26))  # percent, percent, opacity


def table(run: RunFiles) -> pd.DataFrame:
    """One row a round: `agents` that have a value, the `mean` over them, and the quantiles `q05` to `q95`."""
    rows = []
    for round, metric in enumerate(run.metric_by_round()):
        known = metric[~np.isnan(metric)]
        row = {"round": round, "agents": len(known), "mean": known.mean() if len(known) else np.nan}
        levels = np.quantile(known, [p / 100 for p in PERCENT]) if len(known) else np.full(len(PERCENT), np.nan)
        rows.append(row | {f"q{p:02d}": level for p, level in zip(PERCENT, levels, strict=True)})
    if not rows or not any(row["agents"] for row in rows):
        raise LoadError(f"no agent of {run.folder} has a value yet")
    return pd.DataFrame(rows)


def figure(run: RunFiles, found: pd.DataFrame, style: PageStyle = SCREEN) -> Figure:
    """The picture of `table`."""
    facts, values = run.facts, found[[f"q{p:02d}" for p in PERCENT]].to_numpy()
    words = metric_in_words(str(facts.get("metric") or "metric"))
    entries = [
        Line2D([], [], color=ONE_RUN, label="median"),
        *(
            Line2D([], [], color=ONE_RUN, alpha=alpha + 0.1, linewidth=6, label=f"{low} to {high} %")
            for low, high, alpha in BANDS[::-1]
        ),
        Line2D([], [], color="#444444", linestyle=":", label="mean"),
    ]
    title = f"{words[0].upper()}{words[1:]} over the agents{_of(facts)}"
    drawn, (axes,) = page(title, entries, [PanelHead(x_label=X_LABEL)], _caption(run, found), style)
    for low, high, alpha in BANDS:
        axes.fill_between(
            found["round"], found[f"q{low:02d}"], found[f"q{high:02d}"], color=ONE_RUN, alpha=alpha, linewidth=0
        )
    axes.plot(found["round"], found["q50"], color=ONE_RUN)
    axes.plot(
        found["round"], found["mean"], color="#444444", linestyle=":", linewidth=0.8 * mpl.rcParams["lines.linewidth"]
    )
    known = values[np.isfinite(values)]
    if facts.get("lower_is_better") is not False and (known > 0).all() and known.max() / known.min() > LOGARITHMIC_FROM:
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_metric(axes, words)
    return drawn


def _of(facts: Mapping[str, Any]) -> str:
    problem = facts.get("problem")
    return f": {problem_label(problem)} problem" if isinstance(problem, str) else ""


def _caption(run: RunFiles, found: pd.DataFrame) -> str:
    agents, last = int(found["agents"].max()), int(found["round"].max())
    algorithm, T = run.facts.get("algorithm"), run.facts.get("rounds")
    parts = [f"One run of {agents:,} agents" + (f" by {algorithm}" if isinstance(algorithm, str) else "") + "."]
    if not run.finished:
        parts.append(f"It is not finished: rounds 0 to {last}" + (f" of {T}." if isinstance(T, int) else "."))
    parts.append("Quantiles over the agents, each agent's own value; no epsilon covers them.")
    return " ".join(parts)
