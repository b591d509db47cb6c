"""The picture of an experiment's settings: the metric against the round, and its final value against epsilon."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfbo.formats.words import delta_in_symbols, metric_in_words, neighbours
from runners.record.look import DECADE, DPI, LOOK
from runners.wandb.finished_runs import SettingResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (11.0, 4.6)  # inches
MOST_NAMED = 12  # settings with a name in the legend
MOST_BANDS = 30  # settings whose standard error is drawn as a band
MARKERS = "osD^vP"


def draw(results: Sequence[SettingResult], path: Path) -> Path:
    """Write the picture as a PNG file. Bands and bars are one standard error over seeds; one seed has none.

    results: settings of one problem and one metric, all of whose metrics may be shown.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    n, summary = len(results), results[0].summary
    with rc_context(LOOK):
        figure = Figure(figsize=SIZE, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, result in enumerate(results):
            colour = colormaps["tab10"](number) if n <= 10 else colormaps["viridis"](number / n)
            mean, error = result.mean, result.error
            left.plot(mean, color=colour, label=result.label if n <= MOST_NAMED else None)
            if n <= MOST_BANDS:
                rounds = np.arange(len(mean))
                left.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
            if (epsilon := result.final_epsilon) is not None:
                bar = None if np.isnan(error[-1]) else error[-1]
                right.errorbar(epsilon, mean[-1], bar, color=colour, marker=MARKERS[number % 6], capsize=3)
        left.set_xlabel("round t")
        left.set_ylabel(f"{metric_in_words(summary['metric'])}\n({_over_seeds(results)})")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_xlabel(_of_epsilon(results))
        _scale_metric(left, results)
        _scale_epsilon(right, results)
        if n <= MOST_NAMED:
            figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        title = f"{summary['experiment']} · {summary['problem']} · {n} setting{'s' * (n != 1)}"
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=DPI, format="png")
    return path


def _over_seeds(results: Sequence[SettingResult]) -> str:
    few, many = (of(len(result.runs) for result in results) for of in (min, max))
    if many == 1:
        return "one seed"
    return f"mean ± standard error over {few if few == many else f'{few} to {many}'} seeds"


def _of_epsilon(results: Sequence[SettingResult]) -> str:
    """The name of the axis: by which accountants, at which delta, of which neighbours."""
    summaries = [result.summary for result in results]
    by = " or ".join(dict.fromkeys(str(s["accountant"]).upper() for s in summaries))
    deltas = list(dict.fromkeys(s["delta"] for s in summaries))
    at = delta_in_symbols(deltas[0]) if len(deltas) == 1 else "δ: see the table of settings"
    relations = " or ".join(dict.fromkeys(neighbours(s["relation"]) for s in summaries if s["relation"]))
    without = sum(result.final_epsilon is None for result in results)
    last = f"{without} without a finite ε: only on the left" if without else ""
    return "\n".join(filter(None, (f"final ε of one run, {by} accountant", at, relations, last)))


def _scale_metric(axes: "Axes", results: Sequence[SettingResult]) -> None:
    """Make the metric's axis logarithmic where it is to be minimised, stays above 0 and falls by a decade."""
    values = np.concatenate([result.mean for result in results])
    low, high = np.nanmin(values), np.nanmax(values)
    if results[0].summary["lower_is_better"] and low > 0 and high >= DECADE * low:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(low / 1.5, high * 1.2)


def _scale_epsilon(axes: "Axes", results: Sequence[SettingResult]) -> None:
    """Make epsilon's axis logarithmic above its smallest positive value, with room for settings at 0."""
    positive = [epsilon for result in results if (epsilon := result.final_epsilon)]
    if not positive:
        axes.set_xlim(-0.05, 1)
    elif max(positive) >= DECADE * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
