"""The axis of the metric, and how a picture names it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.drawing.looks import plain
from analysis.drawing.page import text_width
from analysis.labels import problem_label, variant_in_words
from analysis.load import SettingRuns
from dpfbo.formats.words import metric_in_words

LOGARITHMIC_FROM = 4.0  # ratio of the largest to the smallest value


def title(groups: Sequence[SettingRuns], what: str) -> str:
    """`1 − AUC by iteration: landmine problem, platt score`; of outsourced settings without the word problem."""
    s, score = groups[0].first.summary, groups[0].first.config["problem"].get("score")
    metric = metric_in_words(s["metric"])
    of = problem_label(s["problem"]) + ("" if groups[0].first.outsourced else " problem")
    of += variant_in_words(groups[0].first.config["problem"]) + (f", {score} score" if score else "")
    return f"{metric[0].upper()}{metric[1:]} {what}: {of}"


@dataclass(frozen=True)
class Span:
    """The range of the metric that an axis shows. logarithmic: where the values allow it and need it."""

    logarithmic: bool
    low: float
    high: float


def span(groups: Sequence[SettingRuns], values: np.ndarray, headroom: float, late: np.ndarray | None = None) -> Span:
    """The range of an axis for `values`, which are finite.

    headroom: factor above the largest value on a logarithmic axis; its half, of the span, on a linear one. late: the
    values of late rounds, which alone span a linear axis, so that the first rounds do not flatten the others.
    """
    positive, high = values[values > 0], float(values.max())
    lower_is_better = groups[0].first.summary["lower_is_better"]
    if lower_is_better and (values >= 0).all() and positive.size and high / positive.min() >= LOGARITHMIC_FROM:
        return Span(True, float(positive.min()) / 1.3, high * headroom)
    spanning = values if late is None or not late.size else late
    low, high = float(spanning.min()), float(spanning.max())
    size = high - low or abs(high) or 1.0
    return Span(False, low - 0.08 * size, high + (headroom - 1) / 2 * size)


def metric_axis(axes: Axes, groups: Sequence[SettingRuns], shown: Span) -> None:
    """Set the vertical axis."""
    of = "units of σ_y" if groups[0].first.outsourced else "mean over agents"
    label_metric(axes, metric_in_words(groups[0].first.summary["metric"]), f" ({of})")
    if shown.logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(shown.low, shown.high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if shown.high / shown.low < 1e3 else (1.0,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(shown.low, shown.high)
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def label_metric(axes: Axes, metric: str, more: str = "") -> None:
    """Name the vertical axis; more: what stands behind the metric where the axis is long enough."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    long = axes.get_position().height * figure.get_size_inches()[1]
    label = axes.set_ylabel(plain(f"{metric}{more}"))
    if text_width(metric + more, label.get_fontsize()) > long:
        axes.set_ylabel(plain(metric))


def cut_off(groups: Sequence[SettingRuns], shown: Span) -> str:
    """`The first 8 rounds are above the picture.`; empty where all is in it."""
    means = [g.curve()["mean"].to_numpy() for g in groups]
    above, below = [_leading(mean > shown.high) for mean in means], [_leading(mean < shown.low) for mean in means]
    for counts, side in ((above, "above"), (below, "below")):
        fewest, most = min(counts), max(counts)
        if most:
            rounds = f"first {max(1, fewest - 1)} to {most - 1} rounds are"
            if fewest in (0, most) or most <= 2:
                rounds = {1: "start is", 2: "first round is"}.get(most, f"first {most - 1} rounds are")
            return f"{'The' if fewest else 'Of some lines the'} {rounds} {side} the picture."
    return ""


def _leading(outside: np.ndarray) -> int:
    """The number of rounds 0, 1, ... that are outside, up to the first that is not."""
    return int(outside.size if outside.all() else outside.argmin())
