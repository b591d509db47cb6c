"""The distribution of the metric over the agents of a run in each round, as table, text and picture."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.drawing.by_iteration import X_LABEL
from analysis.drawing.looks import ONE_RUN
from analysis.drawing.page import PanelHead, page
from analysis.drawing.page_style import SCREEN
from analysis.drawing.picture import GREY, LOGARITHMIC_FROM, label_metric
from analysis.labels import problem_label
from analysis.load import LoadError
from analysis.rounds import RunFiles
from dpfbo.formats.summary import PERCENT
from dpfbo.formats.words import metric_in_words

MOST_LINES = 12  # rounds in the table on the terminal; the CSV file has all
BANDS = ((5, 95, 0.14), (25, 75, 0.26))  # low and high quantile in percent, opacity


def table(run: RunFiles) -> pd.DataFrame:
    """Return a row for each round, with the mean and quantiles of the metric over the agents.

    The columns are `round`; `agents`, the number of agents with a value; `mean`; and the quantiles `q05`, `q25`, `q50`,
    `q75` and `q95`. Raises LoadError if no agent has a value in any round.
    """
    rows = []
    for round, metric in enumerate(run.metric_by_round()):
        known = metric[~np.isnan(metric)]
        row = {"round": round, "agents": len(known), "mean": known.mean() if len(known) else np.nan}
        levels = np.quantile(known, [p / 100 for p in PERCENT]) if len(known) else np.full(len(PERCENT), np.nan)
        rows.append(row | {f"q{p:02d}": level for p, level in zip(PERCENT, levels, strict=True)})
    if not any(row["agents"] for row in rows):
        raise LoadError(f"no agent of {run.folder} has a value yet")
    return pd.DataFrame(rows)


def figure(run: RunFiles, found: pd.DataFrame) -> Figure:
    """Draw `found`, the result of `table`."""
    facts, t = run.facts, found["round"]
    words = metric_in_words(str(facts.get("metric") or "metric"))
    parts = [
        f"One run of {found['agents'].max():,} agents" + f" by {facts['algorithm']}" * ("algorithm" in facts) + "."
    ]
    if not run.finished:
        of = f" of {facts['rounds']}" if isinstance(facts.get("rounds"), int) else ""
        parts.append(f"It is not finished: rounds 0 to {t.max()}{of}.")
    parts.append("Quantiles over the agents of each agent's own value; no epsilon covers them.")
    of = f": {problem_label(facts['problem'])} problem" if isinstance(facts.get("problem"), str) else ""
    entries = [Line2D([], [], color=ONE_RUN, label="median")]
    for low, high, alpha in BANDS[::-1]:
        label = f"{low} to {high} %"
        entries.append(Line2D([], [], color=ONE_RUN, alpha=alpha + 0.1, linewidth=6, label=label))
    entries.append(Line2D([], [], color=GREY, linestyle=":", label="mean"))
    title = f"{words[0].upper()}{words[1:]} over the agents{of}"
    drawn = page(title, entries, [PanelHead(x_label=X_LABEL)], " ".join(parts), SCREEN)
    (axes,) = drawn.axes
    for low, high, alpha in BANDS:
        axes.fill_between(t, found[f"q{low:02d}"], found[f"q{high:02d}"], color=ONE_RUN, alpha=alpha, linewidth=0)
    axes.plot(t, found["q50"], color=ONE_RUN)
    axes.plot(t, found["mean"], color=GREY, linestyle=":", linewidth=0.8 * mpl.rcParams["lines.linewidth"])
    known = found[[f"q{p:02d}" for p in PERCENT]].stack()
    if facts.get("lower_is_better") is not False and (known > 0).all() and known.max() / known.min() > LOGARITHMIC_FROM:
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_metric(axes, words)
    return drawn


def in_words(run: RunFiles, found: pd.DataFrame) -> str:
    """Return `found` as text, with at most `MOST_LINES` rounds."""
    rows = np.unique(np.linspace(0, len(found) - 1, min(MOST_LINES, len(found))).round().astype(int))
    facts, state = run.facts, "" if run.finished else ", not finished"
    names = [str(facts[key]) for key in ("problem", "algorithm", "metric") if isinstance(facts.get(key), str)]
    shown = found.iloc[rows].rename(columns={f"q{p:02d}": f"{p} %" for p in PERCENT})
    text = shown.to_string(index=False, float_format=lambda value: f"{value:.4g}")
    return f"{run.folder}{state}: {' · '.join(names)}\n{text}"
