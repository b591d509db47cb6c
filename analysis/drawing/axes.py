"""The axis of the metric, and how a picture names it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.labels import metric_label
from analysis.load import Setting

LOGARITHMIC_FROM = 4.0  # ratio of the largest to the smallest value


def title(groups: Sequence[Setting], what: str) -> str:
    """`1 − AUC by iteration: landmine problem, platt score`."""
    s, score = groups[0].first.summary, groups[0].first.config["problem"].get("score")
    metric = metric_label(s["metric"])
    of = f"{s['problem'].replace('_', ' ')} problem" + (f", {score} score" if score else "")
    return f"{metric[0].upper()}{metric[1:]} {what}: {of}"


def metric_axis(
    axes: Axes, groups: Sequence[Setting], values: np.ndarray, headroom: float, late: np.ndarray | None = None
) -> None:
    """The vertical axis, spanned by `values`, finite ones; logarithmic where they allow it and need it.

    headroom: factor above the largest value on a logarithmic axis; its half, of the span, on a linear one. late: the
    values of late rounds, which alone span a linear axis, so that the first rounds do not flatten the others.
    """
    s = groups[0].first.summary
    axes.set_ylabel(f"{metric_label(s['metric'])} (mean over agents)")
    positive = values[values > 0]
    high = float(values.max())
    if s["lower_is_better"] and (values >= 0).all() and positive.size and high / positive.min() >= LOGARITHMIC_FROM:
        low = float(positive.min())
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(low / 1.3, high * headroom)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        spanning = values if late is None or not late.size else late
        low, high = float(spanning.min()), float(spanning.max())
        span = high - low or abs(high) or 1.0
        axes.set_ylim(low - 0.08 * span, high + (headroom - 1) / 2 * span)
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
