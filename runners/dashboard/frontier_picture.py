"""The picture of an experiment's settings: the metric against the round, and its final value against epsilon."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfbo.formats.words import delta_in_symbols, metric_in_words, neighbours
from runners.dashboard.settings_table import SettingResult
from runners.record.picture import DECADE, DPI, LOOK

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with rc_context(LOOK):
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, sharey=True)
        for number, result in enumerate(results):
            colour = (
                colormaps["tab10"](number % 10) if len(results) <= 10 else colormaps["viridis"](number / len(results))
            )
            mean, error = map(np.array, result.curve())
            name = result.label if len(results) <= MOST_NAMED else None
            left.plot(mean, color=colour, label=name)
            if len(results) <= MOST_BANDS:
                left.fill_between(
                    np.arange(len(mean)), mean - error, mean + error, color=colour, alpha=0.15, linewidth=0
                )
            epsilon = result.epsilon(result.summary["accountant"])
            if epsilon is not None:
                bar = None if np.isnan(error[-1]) else error[-1]
                right.errorbar(epsilon, mean[-1], bar, color=colour, marker=MARKERS[number % 6], capsize=3)
        left.set_xlabel("round t")
        left.set_ylabel(f"{metric_in_words(results[0].summary['metric'])}\n({_over_seeds(results)})")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        _scale(left, results)
        right.set_xlabel(_of_epsilon(results))
        _spread(right, results)
        if len(results) <= MOST_NAMED:
            figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        kinds = f"{len(results)} setting{'s' * (len(results) != 1)}"
        figure.suptitle(f"{results[0].summary['experiment']} · {results[0].summary['problem']} · {kinds}", fontsize=11)
        figure.savefig(path, dpi=DPI, format="png")
    return path


def _over_seeds(results: Sequence[SettingResult]) -> str:
    counts = sorted({len(result.runs) for result in results})
    n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return "one seed" if n == "1" else f"mean ± standard error over {n} seeds"


def _of_epsilon(results: Sequence[SettingResult]) -> str:
    """The name of the axis: by which accountants, at which delta, of which neighbours."""
    by = " or ".join(dict.fromkeys(str(r.summary["accountant"]).upper() for r in results))
    deltas = list(dict.fromkeys(r.summary["delta"] for r in results))
    at = delta_in_symbols(deltas[0]) if len(deltas) == 1 else "δ: see the table of settings"
    relations = " or ".join(dict.fromkeys(neighbours(r.summary["relation"]) for r in results if r.summary["relation"]))
    without = sum(r.epsilon(r.summary["accountant"]) is None for r in results)
    lines = [f"final ε of one run, {by} accountant", at, relations]
    lines += [f"{without} without a finite ε: only on the left"] if without else []
    return "\n".join(line for line in lines if line)


def _scale(axes: "Axes", results: Sequence[SettingResult]) -> None:
    """Make the metric's axis logarithmic where it is to be minimised, stays above 0 and falls by a decade."""
    values = np.concatenate([result.curve()[0] for result in results])
    low, high = np.nanmin(values), np.nanmax(values)
    if results[0].summary["lower_is_better"] and low > 0 and high >= DECADE * low:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(low / 1.5, high * 1.2)


def _spread(axes: "Axes", results: Sequence[SettingResult]) -> None:
    """Make epsilon's axis logarithmic above its smallest positive value, with room for settings at 0."""
    known = [r.epsilon(r.summary["accountant"]) for r in results]
    positive = [epsilon for epsilon in known if epsilon]
    if not positive:
        axes.set_xlim(-0.05, 1)
    elif max(positive) >= DECADE * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
