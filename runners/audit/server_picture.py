"""The picture of a server's audit: the scores of both worlds, and their trade-off curve beside the claimed one."""

import math
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfbo.audit.bounds import Verdict
from dpfbo.audit.server.two_world import Replay
from dpfbo.formats.files import replace_file
from runners.record import look

SIZE, DPI = (10.2, 4.6), 150  # inches, pixels an inch
WITHOUT, WITH, CLAIM = "#0072B2", "#D55E00", "#000000"
BINS = 60
TITLE = 120  # characters of a line

LOOK = {**look.LOOK, "axes.grid": False, "legend.frameon": False}


def draw(replay: Replay, verdict: Verdict, title: str, path: Path) -> Path:
    """Write the picture as a PNG file, whole or not at all."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=SIZE, layout="constrained")
        left, right = figure.subplots(1, 2)
        _scores(left, replay, verdict)
        _tradeoff(right, replay, verdict)
        figure.suptitle(fill(title, TITLE), fontsize=11)
        replace_file(path, lambda file: figure.savefig(file, dpi=DPI, format="png"))
    return path


def _scores(axes: Axes, replay: Replay, verdict: Verdict) -> None:
    worlds = {"without the canary's message": (replay.without, WITHOUT), "with it": (replay.with_message, WITH)}
    if replay.opposite:
        worlds = {
            "with the opposite message": (replay.without, WITHOUT),
            "with the message": (replay.with_message, WITH),
        }
    together = np.concatenate([scores[np.isfinite(scores)] for scores, _ in worlds.values()])
    low, high = np.quantile(together, [0.001, 0.999]) if len(together) else (0.0, 1.0)
    edges = np.linspace(low, high + 1e-9 * max(1.0, abs(high)), BINS + 1).tolist()
    for label, (scores, colour) in worlds.items():
        inside = np.clip(np.nan_to_num(scores, posinf=high), low, high)
        share = np.full(len(inside), 1 / len(inside))
        axes.hist(inside, edges, weights=share, color=colour, alpha=0.35, label=label)
        axes.hist(inside, edges, weights=share, color=colour, histtype="step")
    for test, line in zip(verdict.tests, ("-", "--"), strict=False):
        if low <= test.threshold <= high:
            title = "_" if line == "--" else "thresholds" if len(verdict.tests) > 1 else "threshold"
            axes.axvline(test.threshold, ymax=0.7, color=CLAIM, linestyle=line, linewidth=1.2, label=title)
    axes.set_ylim(0, 1.42 * axes.get_ylim()[1])
    axes.set_xlabel("score of a run (log-likelihood ratio of its releases)")
    axes.set_ylabel("share of the runs")
    axes.legend(loc="upper left", fontsize=9)
    axes.set_title(f"{verdict.trials} runs in each world", fontsize=10)


def _tradeoff(axes: Axes, replay: Replay, verdict: Verdict) -> None:
    alpha = np.linspace(0, 1, 501)
    claimed = verdict.claim.profile.tradeoff(alpha)
    axes.fill_between(alpha, claimed, color=CLAIM, alpha=0.07, linewidth=0)
    axes.plot(alpha, claimed, color=CLAIM, label="claimed: no test lies in the grey")
    without, with_message = (np.sort(s[len(s) // 2 :]) for s in (replay.without, replay.with_message))
    thresholds = np.concatenate([[-math.inf], np.sort(np.concatenate([without, with_message]))])
    above = 1 - np.searchsorted(without, thresholds, side="right") / len(without)
    below = np.searchsorted(with_message, thresholds, side="right") / len(with_message)
    axes.plot(above, below, color=WITH, linewidth=1.1, label="measured, all thresholds")
    label = f"upper bounds of both rates ({verdict.confidence:.0%})"
    for test, marker in zip(verdict.tests, "os", strict=False):
        axes.plot([test.fpr], [test.fnr], marker, color=WITHOUT, markersize=6, zorder=3, label=label)
        label = "_"
    axes.set_xlim(-0.01, 1)
    axes.set_ylim(-0.01, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("false-positive rate (message seen where there is none)")
    axes.set_ylabel("false-negative rate (message missed)")
    axes.legend(loc="upper right", fontsize=9)
    axes.set_title("holds" if verdict.holds else "VIOLATED", fontsize=10, color=CLAIM if verdict.holds else "#B00000")
