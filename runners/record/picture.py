"""The picture of one finished run: its metric against the round, with epsilon in words."""

import threading
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from dpfbo.formats.words import delta_in_symbols, epsilon_in_words, metric_in_words, neighbours

SIZE, DPI = (6.4, 4.2), 110  # inches, pixels an inch
COLOUR = "#555555"  # neutral: in pictures of several methods each has a colour of its own
DECADE = 10.0  # ratio of largest to smallest value from which an axis is logarithmic
FEW = 40  # rounds up to which each has a marker
LINE = 60  # characters below the axis

_drawing = threading.Lock()  # matplotlib's settings are those of the process
LOOK: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
}


def draw(summary: Mapping[str, Any], path: Path) -> Path:
    """Write the picture as a PNG file: mean over the agents, and its standard error as a band.

    Args:
        summary: contents of summary.json.
        path: the file to write.
    """
    # Imported here, since only a run with a tracker needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    curve, n_agents = summary["curve"], summary["n_agents"]
    rounds, mean, se = (np.array(curve[name], dtype=float) for name in ("round", "mean", "se"))
    agents = "" if "published_claim" in summary else f" · {n_agents} agent{'s' * (n_agents != 1)}"
    problem = summary["problem"].replace("_", " ")
    with _drawing, rc_context(LOOK):
        figure = Figure(figsize=SIZE)
        axes = figure.subplots()
        axes.plot(rounds, mean, color=COLOUR, marker="o" if len(rounds) <= FEW else None, markersize=3.5)
        axes.fill_between(rounds, mean - se, mean + se, color=COLOUR, alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"round t\n{spent_in_words(summary)}")
        over = "\n(mean ± standard error over agents)" if n_agents > 1 else ""
        axes.set_ylabel(metric_in_words(summary["metric"]) + over)
        if summary["lower_is_better"] and mean.min() > 0 and mean.max() >= DECADE * mean.min():
            axes.set_yscale("log", nonpositive="clip")
            axes.set_ylim(max((mean - se).min(), mean.min() / 2) / 1.2, (mean + se).max() * 1.2)
        figure.suptitle(f"{problem} · {summary['algorithm']} · seed {summary['seed']}{agents}", fontsize=11)
        figure.subplots_adjust(left=0.15, right=0.97, top=0.91, bottom=0.26)  # a layout engine takes far longer
        figure.savefig(path, dpi=DPI, format="png", pil_kwargs={"compress_level": 1})
    return path


def spent_in_words(summary: Mapping[str, Any]) -> str:
    """Epsilon of the run with delta and relation, or the reason that there is none."""
    epsilon, n = summary["epsilon"][summary["accountant"]], summary["n_charges"]
    if summary.get("published_claim"):
        return "ε: none, the published claim is not a guarantee"
    if epsilon is None:
        return "ε: none, what is shared is not protected by noise"
    if n == 0:
        return "ε = 0: nothing is sent or released"
    spent = f"ε = {epsilon_in_words(epsilon)} of {n} release{'s' * (n > 1)}, {summary['accountant'].upper()} accountant"
    return "\n".join([fill(f"{spent}, {delta_in_symbols(summary['delta'])}", LINE), neighbours(summary["relation"])])
