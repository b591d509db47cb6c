"""The picture of one finished run: its metric against the round, and against epsilon."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfbo.formats.words import delta_in_symbols, epsilon_in_words, metric_in_words, neighbours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SIZE, ONE_PANEL_SIZE, DPI = (9.6, 4.0), (6.4, 4.0), 110  # inches, pixels an inch
LEFT, RIGHT, TOP, LINE_HEIGHT = 0.95, 0.15, 0.4, 0.165  # inches: margins, and a line below a panel
LINE = 50  # characters below a panel
COLOUR = "#555555"  # neutral: in pictures of several methods each has a colour of its own
DECADE = 10.0  # ratio of largest to smallest value from which an axis is logarithmic

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


def draw(summary: Mapping[str, Any], epsilons: Sequence[float], path: Path) -> Path:
    """Write the picture as a PNG file: mean over the agents, and its standard error as a band.

    The metric after a round stands at the epsilon of the broadcasts before that round. Where nothing was released,
    or no finite epsilon covers it, there is no second panel, and the picture says why.

    Args:
        summary: contents of summary.json.
        epsilons: after each broadcast, by the run's accountant; inf if there is no finite one.
        path: the file to write.
    """
    # Imported here, since only a run with a tracker needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    mean, se = np.array(summary["curve"]["mean"]), np.array(summary["curve"]["se"])
    spent = np.array([0.0, *epsilons])
    why_not = reason_without_epsilon(summary, spent, len(mean))
    with _drawing, rc_context(LOOK):
        figure = Figure(figsize=ONE_PANEL_SIZE if why_not else SIZE)
        panels = figure.subplots(1, 1 if why_not else 2, squeeze=False, sharey=True)[0]
        _curve(panels[0], np.array(summary["curve"]["round"]), mean, se)
        panels[0].set_xlabel("round t" + (f"\n{why_not}" if why_not else ""))
        panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        over = "\n(mean ± standard error over agents)" if summary["n_agents"] > 1 else ""
        panels[0].set_ylabel(metric_in_words(summary["metric"]) + over)
        _metric_axis(panels[0], summary, mean, se)
        if not why_not:
            is_log = spent[1] > 0 and spent[-1] >= DECADE * spent[1]
            _curve(panels[1], *((spent[1:], mean[1:], se[1:]) if is_log else (spent, mean, se)))
            _epsilon_axis(panels[1], summary, spent, is_log)
        figure.suptitle(_title(summary), fontsize=11, y=1 - 0.1 / figure.get_figheight(), va="top")
        _set_margins(figure, max(panel.get_xlabel().count("\n") for panel in panels) + 1)
        figure.savefig(path, dpi=DPI, format="png", pil_kwargs={"compress_level": 1})
    return path


def reason_without_epsilon(summary: Mapping[str, Any], spent: np.ndarray, rounds: int) -> str:
    """The reason that there is no curve against epsilon; empty if there is one."""
    if summary.get("published_claim"):
        return "ε: none, the published claim is not a guarantee"
    if summary["epsilon"][summary["accountant"]] is None or not np.isfinite(spent).all():
        return "ε: none, what is shared is not protected by noise"
    if summary["n_charges"] == 0:
        return "ε = 0: nothing is sent or released"
    if len(spent) != rounds:
        n = summary["n_charges"]
        return f"ε = {epsilon_in_words(float(spent[-1]))}, of {n} release{'s' * (n > 1)}"
    if "published_claim" in summary:
        at = delta_in_symbols(summary["delta"])
        return fill(f"ε = {spent[-1]:.3g} at {at}, of one release before the first round", LINE)
    return ""


def _set_margins(figure: "Figure", lines: int) -> None:
    """Leave room for the labels, `lines` of them below; matplotlib's own layout would take half of a run's W&B time."""
    width, height = figure.get_size_inches()
    bottom = (0.36 + lines * LINE_HEIGHT) / height
    figure.subplots_adjust(left=LEFT / width, right=1 - RIGHT / width, top=1 - TOP / height, bottom=bottom, wspace=0.1)


def _curve(axes: "Axes", x: np.ndarray, mean: np.ndarray, se: np.ndarray) -> None:
    few = len(x) <= 40
    axes.plot(x, mean, color=COLOUR, marker="o" if few else None, markersize=3.5)
    axes.fill_between(x, mean - se, mean + se, color=COLOUR, alpha=0.15, linewidth=0)


def _metric_axis(axes: "Axes", summary: Mapping[str, Any], mean: np.ndarray, se: np.ndarray) -> None:
    """Make the axis logarithmic where a metric to be minimised stays above 0 and falls by a decade."""
    if summary["lower_is_better"] and mean.min() > 0 and mean.max() >= DECADE * mean.min():
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(max((mean - se).min(), mean.min() / 2) / 1.2, (mean + se).max() * 1.2)
        _few_ticks(axes.yaxis, mean.min(), mean.max())


def _epsilon_axis(axes: "Axes", summary: Mapping[str, Any], spent: np.ndarray, is_log: bool) -> None:
    """Label and scale the axis: linear, with round 0 at 0, or logarithmic, without round 0."""
    lines = [
        f"ε spent before the round, {summary['accountant'].upper()} accountant",
        fill(delta_in_symbols(summary["delta"]), LINE),
        neighbours(summary["relation"]),
    ]
    first, last = spent[1], spent[-1]
    if is_log:
        axes.set_xscale("log")
        axes.set_xlim(first / 1.1, last * 1.1)
        _few_ticks(axes.xaxis, first, last)
        lines.append("round 0, at ε = 0, is left of the axis")
    elif last > 0:
        axes.set_xlim(-0.02 * last, 1.04 * last)
    axes.set_xlabel("\n".join(lines))


def _few_ticks(axis: "Axis", low: float, high: float) -> None:
    """Label a logarithmic axis at 1, 2, 5 of each decade, or at the decades; ticks are most of a picture's time."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _title(summary: Mapping[str, Any]) -> str:
    N = summary["n_agents"]
    setting = f"{summary['problem'].replace('_', ' ')} · {summary['algorithm']} · seed {summary['seed']}"
    return setting if "published_claim" in summary else f"{setting} · {N} agent{'s' * (N != 1)}"
