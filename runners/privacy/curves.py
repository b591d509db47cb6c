"""The picture of a planned run: epsilon against noise, sampling probability and rounds, by several accountants."""

import math
import textwrap
from collections.abc import Sequence
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

SIZE, DPI = (10.4, 4.3), 200  # inches, pixels an inch
POINTS = 11  # of a panel, on either side of the given value
LOOKS = {  # of accountants: no green or red, which would praise or warn, and no colour of a method
    "moments": ("#666666", "-", "o"), "rdp": ("#332288", "--", "s"), "pld": ("#AA4499", "-", "^"),
    "fixed_size": ("#AA4499", "-.", "D"),
}  # fmt: skip
LABELS = {"z": "noise multiplier z", "q": "sampling probability q", "rounds": "rounds T"}
_LOOK = {**look.LOOK, "legend.frameon": False, "pdf.fonttype": 42}


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
    ends = {
        "z": (max(run.z / 4, SMALLEST_NOISE), min(4 * run.z, LARGEST_NOISE)),
        "q": (run.q / 8, min(1.0, 8 * run.q)),
        "rounds": (1, min(2 * run.rounds, checks.MOST_ROUNDS)),
    }
    found: dict[str, list[float]] = {}
    for name, (low, high) in ends.items():
        given = getattr(run, name)
        values = {given, *np.geomspace(low, given, POINTS + 1)[:-1], *np.geomspace(given, high, POINTS + 1)[1:]}
        found[name] = sorted({round(value) for value in values} if name == "rounds" else map(float, values))
    return found


def panels(run: PlannedRun) -> list[Panel]:
    """Epsilon along each grid."""
    plan = run.plan()
    by = {name: accountant for name, accountant in plan.accountants.items() if not accountant.approximation}
    found = []
    for setting, values in grids(run).items():
        panel = Panel(setting, getattr(run, setting), values, {name: [] for name in by})
        for value in values:
            events = replace(run, **{setting: value}).events()  # type: ignore[arg-type]
            for name, accountant in by.items():
                panel.epsilon[name].append(accountant.epsilon(events, plan.delta))
        found.append(panel)
    return found


def draw(data: Sequence[Panel], run: PlannedRun, relation: str, out: Path) -> list[Path]:
    """Write the picture as PNG and PDF, each whole or not at all; returns both paths. out: with or without a suffix."""
    # imported here, because no other command needs matplotlib; without pyplot, which may need a display
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {"z": f"z = {run.z:g}", "q": f"q = {run.q:g}", "rounds": f"T = {run.rounds}"}
    with rc_context(_LOOK):
        figure = Figure(figsize=SIZE)
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(data), sharey=True)
        figure.subplots_adjust(left=0.065, right=0.985, top=0.86, bottom=0.235, wspace=0.08)
        for axis, panel in zip(axes, data, strict=True):
            _draw_panel(axis, panel)
            axis.set_title(", ".join(text for name, text in settings.items() if name != panel.name), fontsize=10)
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter("{x:g}")
        axes[0].set_ylabel("privacy loss ε")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels), bbox_to_anchor=(0.525, 1.0))
        figure.text(0.065, 0.02, textwrap.fill(caption(run, relation), 145), fontsize=8.5, color="#444444")
        base = out.with_suffix("") if out.suffix in (".png", ".pdf") else out
        paths = [base.with_name(f"{base.name}.{kind}") for kind in ("png", "pdf")]
        for path in paths:
            replace_file(path, partial(figure.savefig, dpi=DPI, format=path.suffix[1:]))
    return paths


def _draw_panel(axis: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

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
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())


def caption(run: PlannedRun, relation: str) -> str:
    """The setting, delta and relation of the drawn epsilons, and what epsilon covers."""
    sampling = "Poisson sampling" if run.sampling == "poisson" else "subsets of fixed size"
    return (
        f"Dotted, and in the legend: z = {run.z:g}, q = {run.q:g}, T = {run.rounds}. "
        f"N = {run.agents} agents, {delta_in_symbols(run.plan().delta)}, relation {relation}, user level, {sampling}. "
        "ε covers all broadcasts of one run, not the choice of q, z or T by comparing runs on the same private data."
    )
