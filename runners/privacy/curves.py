"""The picture of a planned run: epsilon against noise, sampling probability and rounds, by several accountants."""

import math
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfbo import checks
from dpfbo.formats.files import replace_file
from dpfbo.formats.words import delta_in_symbols
from dpfbo.privacy.accounting.calibrate import LARGEST_NOISE, SMALLEST_NOISE
from runners.privacy.planner import PlannedRun
from runners.record import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FORMATS = (".png", ".pdf")
SIZE, DPI = (10.4, 4.3), 200  # inches, pixels an inch
DECADE = 10.0  # ratio of largest to smallest epsilon that the axis shows at least
POINTS, FEW_POINTS = 11, 6  # points on either side of the given value; few if a point takes many events
LOOKS = {  # of accountants: no green or red, which would praise or warn, and no colour of a method
    "moments": ("#666666", "-", "o"), "rdp": ("#332288", "--", "s"), "pld": ("#AA4499", "-", "^"),
    "fixed_size": ("#AA4499", "-.", "D"),
}  # fmt: skip
SAMPLING = {"poisson": "Poisson sampling", "fixed_size": "subsets of fixed size"}
LABELS = {"z": "noise multiplier z", "q": "sampling probability q", "rounds": "rounds T"}

LOOK = {**look.LOOK, "legend.frameon": False, "pdf.fonttype": 42}


@dataclass(frozen=True)
class Panel:
    """Epsilon of plans that differ in one setting. epsilon: by accountant, one number a value; may be inf."""

    name: str
    given: float
    values: list[float]
    epsilon: dict[str, list[float]]

    def as_json(self) -> dict[str, Any]:
        finite = {name: [v if math.isfinite(v) else None for v in vs] for name, vs in self.epsilon.items()}
        return {"against": self.name, "given": self.given, "values": self.values, "epsilon": finite}


def grids(run: PlannedRun) -> dict[str, list[float]]:
    """The values of each panel, the given one among them: z and q evenly spaced on a logarithmic axis."""
    n = FEW_POINTS if run.weights_matter or run.growth else POINTS
    least, longest = SMALLEST_NOISE, checks.MOST_ROUNDS
    if run.growth < 0:  # the last round must keep some noise
        least = min(run.z, least * run.rounds**-run.growth)
        longest = max(run.rounds, int(math.exp(min(20.0, math.log(run.z / SMALLEST_NOISE) / -run.growth))))
    rounds = np.geomspace(1, min(2 * run.rounds, longest), 2 * POINTS).round().astype(int).tolist()
    q = _around(run.q, run.q / 8, min(1.0, 8 * run.q), n)
    if run.sampling == "fixed_size":  # a subset is a whole number of agents
        q = sorted({run.q, *(max(1, round(value * run.agents)) / run.agents for value in q)})
    z = _around(run.z, max(run.z / 4, least), min(4 * run.z, LARGEST_NOISE), n)
    return {"z": z, "q": q, "rounds": sorted({run.rounds, *rounds})}


def _around(given: float, low: float, high: float, n: int) -> list[float]:
    """Values from low to high through the given one, n logarithmic steps on either side."""
    below, above = np.geomspace(low, given, n + 1)[:-1], np.geomspace(given, high, n + 1)[1:]
    return [*(below if low < given else []), given, *(above if high > given else [])]


def panels(run: PlannedRun, done: Callable[[], None] = lambda: None) -> list[Panel]:
    """Epsilon along each grid. done: called after each point."""
    by = {name: accountant for name, accountant in run.plan().accountants.items() if not accountant.approximation}
    found = []
    for setting, values in grids(run).items():
        panel = Panel(setting, getattr(run, setting), values, {name: [] for name in by})
        for value in values:
            events = _changed(run, setting, value).events()
            for name, accountant in by.items():
                panel.epsilon[name].append(accountant.epsilon(events, run.delta_used))
            done()
        found.append(panel)
    return found


def _changed(run: PlannedRun, setting: str, value: float) -> PlannedRun:
    changes: dict[str, Any] = {setting: int(value) if setting == "rounds" else value}
    return replace(run, **changes)


def draw(data: Sequence[Panel], run: PlannedRun, relation: str, out: Path) -> list[Path]:
    """Write the picture as PNG and PDF, each whole or not at all; returns both paths. out: with or without a suffix."""
    # imported here, because no other command needs matplotlib; without pyplot, which may need a display
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(LOOK):
        figure = Figure(figsize=SIZE)
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(data), sharey=True)
        figure.subplots_adjust(left=0.065, right=0.985, top=0.86, bottom=0.235, wspace=0.08)
        settings = {"z": f"z = {run.z:g}", "q": f"q = {run.q:g}", "rounds": f"T = {run.rounds}"}
        for axis, panel in zip(axes, data, strict=True):
            _draw_panel(axis, panel)
            axis.set_title(", ".join(text for name, text in settings.items() if name != panel.name), fontsize=10)
        _scale_epsilon(axes[0], [v for panel in data for values in panel.epsilon.values() for v in values])
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels), bbox_to_anchor=(0.525, 1.0))
        figure.text(0.065, 0.02, textwrap.fill(caption(run, relation), 145), fontsize=8.5, color="#444444")
        return _saved(figure, out)


def _draw_panel(axis: "Axes", panel: Panel) -> None:
    axis.axvline(panel.given, color="#888888", linestyle=":", linewidth=1.2)
    at = panel.values.index(panel.given)
    for name, values in panel.epsilon.items():
        colour, line, marker = LOOKS[name]
        axis.plot(
            panel.values, [v if 0 < v < math.inf else math.nan for v in values], label=f"{name}: ε = {values[at]:.4g}",
            color=colour, linestyle=line, marker=marker, markevery=[at], markersize=5,
        )  # fmt: skip
    axis.set_xlabel(LABELS[panel.name])
    if panel.name != "rounds":
        axis.set_xscale("log")
        _plain_ticks(axis.xaxis, (1.0, 2.0, 5.0))


def _scale_epsilon(axis: "Axes", values: Sequence[float]) -> None:
    shown = [v for v in values if 0 < v < math.inf]
    high = 1.3 * max(shown, default=DECADE)
    low = min([high / DECADE, *(v / 1.3 for v in shown)])
    axis.set_yscale("log")
    axis.set_ylim(max(low, high / 1e5), high)
    axis.set_ylabel("privacy loss ε")
    _plain_ticks(axis.yaxis, (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,))


def _plain_ticks(axis: "Axis", multiples: Sequence[float]) -> None:
    """Label a logarithmic axis with plain numbers, at these multiples of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=multiples))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def caption(run: PlannedRun, relation: str) -> str:
    """The setting, delta and relation of the drawn epsilons, and what epsilon covers."""
    growth = f", times (t + 1)^{run.growth:g} in round t" if run.growth else ""
    return (
        f"Dotted, and in the legend: z = {run.z:g}{growth}, q = {run.q:g}, T = {run.rounds}. "
        f"N = {run.agents} agents, {delta_in_symbols(run.delta_used)}, "
        f"relation {relation}, user level, {SAMPLING[run.sampling]}, {run.charge} charge. "
        "ε covers all broadcasts of one run, not the choice of q, z or T by comparing runs on the same private data."
    )


def check_writable(out: Path) -> None:
    """Raise ValueError unless files can be written in the folder of `out`, which is made."""
    if out.is_dir() or not out.name:
        raise ValueError(f"--out must name a file, got the folder {str(out)!r}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(f"--out must be where a file can be written, got {str(out)!r}: {error.strerror}") from error


def _saved(figure: Any, out: Path) -> list[Path]:
    base = out.with_suffix("") if out.suffix in FORMATS else out
    paths = [base.with_name(base.name + suffix) for suffix in FORMATS]
    for path in paths:
        replace_file(path, partial(figure.savefig, dpi=DPI, format=path.suffix[1:]))
    return paths
