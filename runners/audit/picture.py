"""The pictures of an audit: an attack's scores under two neighbouring inputs, and its trade-off curve."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfbo.audit.bounds import CONFIDENCE, Verdict
from dpfbo.formats.files import replace_file
from runners.record.look import LOOK as COMMON

PANEL, DPI = (5.1, 4.6), 150  # inches, pixels per inch
WITHOUT, WITH, CLAIM, VIOLATED = "#0072B2", "#D55E00", "#000000", "#B00000"
BINS = 60
TITLE = 120  # characters per line

LOOK = {**COMMON, "axes.grid": False, "legend.frameon": False, "legend.fontsize": 9, "axes.titlesize": 10}


def draw(panels: Sequence[Callable[[Axes], None]], title: str, path: Path) -> Path:
    """Draw the panels into a PNG file. panels: functions that draw on the given axes."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(max(2, len(panels)) * PANEL[0], PANEL[1]), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            panel(axes)
        figure.suptitle(fill(title, TITLE), fontsize=11)
        replace_file(path, lambda file: figure.savefig(file, dpi=DPI, format="png"))
    return path


def scores(axes: Axes, verdict: Verdict, names: tuple[str, str], score: str, title: str) -> None:
    """Draw an attack's scores under two neighbouring inputs (worlds), and the thresholds of its tests.

    names: the worlds' names. score: the x axis's label.
    """
    worlds = dict(zip(names, (verdict.without, verdict.with_message), strict=True))
    together = np.concatenate([world[np.isfinite(world)] for world in worlds.values()])
    low, high = np.quantile(together, [0.001, 0.999]) if len(together) else (0.0, 1.0)
    edges = np.linspace(low, high + 1e-9 * max(1e-6, abs(high)), BINS + 1).tolist()
    for (label, world), colour in zip(worlds.items(), (WITHOUT, WITH), strict=True):
        inside = np.clip(np.nan_to_num(world, posinf=high), low, high)
        share = np.full(len(inside), 1 / len(inside))
        axes.hist(inside, edges, weights=share, color=colour, alpha=0.35, label=label)
        axes.hist(inside, edges, weights=share, color=colour, histtype="step")
    for test, line, label in zip(verdict.tests, ("-", "--"), ("threshold of a test", "_"), strict=False):
        if low <= test.threshold <= high:
            axes.axvline(test.threshold, ymax=0.7, color=CLAIM, linestyle=line, linewidth=1.2, label=label)
    axes.set_ylim(0, 1.42 * axes.get_ylim()[1])
    axes.set(xlabel=score, ylabel=f"share of {verdict.trials} each")
    axes.legend(loc="upper left")
    axes.set_title(title)


def tradeoff(axes: Axes, verdict: Verdict) -> None:
    """Draw an attack's measured error rates at all thresholds, and the region of rates that the claim excludes."""
    alpha = np.linspace(0, 1, 501)
    claimed = verdict.claim.profile.tradeoff(alpha)
    axes.fill_between(alpha, claimed, color=CLAIM, alpha=0.07, linewidth=0)
    axes.plot(alpha, claimed, color=CLAIM, label="claimed: no test in the grey region")
    quiet, loud = (np.sort(s[len(s) // 2 :]) for s in (verdict.without, verdict.with_message))
    thresholds = np.concatenate([[-math.inf], np.sort(np.concatenate([quiet, loud]))])
    above = 1 - np.searchsorted(quiet, thresholds, side="right") / len(quiet)
    below = np.searchsorted(loud, thresholds, side="right") / len(loud)
    axes.plot(above, below, color=WITH, linewidth=1.1, label="measured, all thresholds")
    for test, label in zip(verdict.tests, (f"upper bounds of both rates ({CONFIDENCE:.0%})", "_"), strict=False):
        axes.plot([test.fpr], [test.fnr], "o", color=WITHOUT, markersize=6, zorder=3, label=label)
    axes.set(xlim=(-0.01, 1), ylim=(-0.01, 1), aspect="equal")
    axes.set_xlabel("false-positive rate (message seen where there is none)")
    axes.set_ylabel("false-negative rate (message missed)")
    axes.legend(loc="upper right")
    axes.set_title("holds" if verdict.holds else "VIOLATED", color=CLAIM if verdict.holds else VIOLATED)
