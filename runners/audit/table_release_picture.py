"""The picture of an outsourced table's audit: the scores of each attack, and the recovered rows."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfbo.audit.release.reconstruction import Reconstruction
from dpfbo.audit.release.two_tables import AttackResult
from dpfbo.formats.files import replace_file
from runners.audit.server_picture import BINS, CLAIM, DPI, LOOK, TITLE, WITH, WITHOUT

PANEL = (5.0, 4.5)  # inches
MOST_POINTS = 2_000  # rows drawn
AXES = {
    "column space": "score: log residual outside the\ntable's column space minus that\noutside the neighbour's",
    "likelihood ratio": "score (log-likelihood ratio of the release)",
}


def draw(told: Sequence[AttackResult], rebuilt: Reconstruction | None, title: str, path: Path) -> Path:
    """Write the picture as a PNG file, whole or not at all."""
    panels = len(told) + (rebuilt is not None)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(max(2, panels) * PANEL[0], PANEL[1]), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for place, t in zip(axes, told, strict=False):
            _scores(place, t)
        if rebuilt is not None:
            _rows(axes[-1], rebuilt)
        figure.suptitle(fill(title, TITLE), fontsize=11)
        replace_file(path, lambda file: figure.savefig(file, dpi=DPI, format="png"))
    return path


def _scores(axes: Axes, told: AttackResult) -> None:
    v = told.verdict
    both = np.concatenate([told.without, told.with_message])
    low, high = np.quantile(both, [0.001, 0.999])
    edges = np.linspace(low, high + 1e-9 * max(1e-6, abs(high)), BINS + 1).tolist()
    for label, scores, colour in (
        ("the table was released", told.without, WITHOUT),
        ("its neighbour was", told.with_message, WITH),
    ):
        share = np.full(len(scores), 1 / len(scores))
        inside = np.clip(scores, low, high)
        axes.hist(inside, edges, weights=share, color=colour, alpha=0.35, label=label)
        axes.hist(inside, edges, weights=share, color=colour, histtype="step")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_xlabel(AXES[told.attack.name])
    axes.set_ylabel(f"share of {v.trials} releases of each")
    axes.legend(loc="upper left", fontsize=9)
    verdict = "holds" if told.holds else "VIOLATED"
    words = f"{told.attack.words}: {told.accuracy:.1%} told apart\nlower bound of ε {v.epsilon:.2f}: claim {verdict}"
    axes.set_title(words, fontsize=10, color=CLAIM if told.holds else "#B00000")


def _rows(axes: Axes, rebuilt: Reconstruction) -> None:
    """Plot the first feature of evenly chosen rows, recovered against true."""
    some = np.unique(np.linspace(0, len(rebuilt.rows) - 1, MOST_POINTS).astype(int))
    truth, seen = rebuilt.rows[:, 0].numpy(), rebuilt.recovered[:, 0].numpy()
    ends = [float(truth.min()), float(truth.max())]
    axes.plot(ends, ends, color=CLAIM, linewidth=0.8, label="the truth")
    axes.plot(truth[some], seen[some], ".", color=WITHOUT, markersize=2.5, label="rows, recovered")
    known = rebuilt.known.numpy()
    axes.plot(truth[known], seen[known], "o", color=WITH, markersize=6, label="rows known beforehand")
    axes.set_xlabel("first feature of a row, scaled")
    axes.set_ylabel("the same, recovered from one release")
    axes.legend(loc="upper left", fontsize=9)
    axes.set_title(f"{len(known)} rows known, all recovered to\n{rebuilt.rms:.2g} (root mean square)", fontsize=10)
