"""Plot epsilon of a planned run against noise, sampling probability and rounds."""

import math
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from dpfbo import checks
from dpfbo.formats.files import replace_file
from dpfbo.formats.words import delta_in_symbols
from dpfbo.privacy.accounting.calibrate import LARGEST_NOISE, SMALLEST_NOISE
from runners.privacy.planner import PlannedRun
from runners.record import look

SIZE, DPI = (10.4, 4.3), 200  # inches, pixels per inch
POINTS = 11  # points in a panel on each side of the given value
LOOKS = {  # of accountants: no green or red, which would suggest good or bad, and no colour of a method
    "moments": ("#666666", "-", "o"), "rdp": ("#332288", "--", "s"), "pld": ("#AA4499", "-", "^"),
    "fixed_size": ("#AA4499", "-.", "D"),
}  # fmt: skip
LABELS = {"z": "noise multiplier z", "q": "sampling probability q", "rounds": "rounds T"}
_LOOK = {**look.LOOK, "legend.frameon": False, "pdf.fonttype": 42}


def grids(run: PlannedRun) -> dict[str, list[float]]:
    """Return each panel's x values: the run's own value and logarithmically spaced values on each side."""
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


def panels(run: PlannedRun) -> dict[str, pd.DataFrame]:
    """Compute epsilon for each panel: a row for each x value, a column for each accountant."""
    plan = run.plan()
    by = {name: accountant for name, accountant in plan.accountants.items() if not accountant.approximation}
    found = {}
    for setting, values in grids(run).items():
        events = [replace(run, **{setting: value}).events() for value in values]  # type: ignore[arg-type]
        epsilons = {name: [accountant.epsilon(e, plan.delta) for e in events] for name, accountant in by.items()}
        found[setting] = pd.DataFrame(epsilons, index=values)
    return found


def draw(data: dict[str, pd.DataFrame], run: PlannedRun, relation: str, out: Path) -> list[Path]:
    """Write the figure as PNG and PDF, and return both paths. out: with or without a suffix."""
    # imported here, because no other command needs matplotlib; without pyplot, which may need a display
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    with rc_context(_LOOK):
        figure = Figure(figsize=SIZE)
        axes = figure.subplots(1, len(data), sharey=True)
        figure.subplots_adjust(left=0.065, right=0.985, top=0.86, bottom=0.235, wspace=0.08)
        for axis, (setting, epsilon) in zip(axes, data.items(), strict=True):
            given = getattr(run, setting)
            axis.axvline(given, color="#888888", linestyle=":", linewidth=1.2)
            for name, values in epsilon.where((epsilon > 0) & (epsilon < math.inf)).items():
                colour, line, marker = LOOKS[str(name)]
                axis.plot(
                    values, label=f"{name}: ε = {values[given]:.4g}", color=colour, linestyle=line, marker=marker,
                    markevery=[values.index.get_loc(given)], markersize=5,
                )  # fmt: skip
            axis.set_xlabel(LABELS[setting])
            others = (text for name, text in _settings(run).items() if name != setting)
            axis.set_title(", ".join(others), fontsize=10)
            if setting != "rounds":
                axis.set_xscale("log")
                axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.xaxis.set_major_formatter("{x:g}")
                axis.xaxis.set_minor_formatter(NullFormatter())
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


def _settings(run: PlannedRun) -> dict[str, str]:
    return {"z": f"z = {run.z:g}", "q": f"q = {run.q:g}", "rounds": f"T = {run.rounds}"}


def caption(run: PlannedRun, relation: str) -> str:
    """Describe the settings, delta and neighbouring relation of the plot, and what epsilon covers."""
    sampling = "Poisson sampling" if run.sampling == "poisson" else "subsets of fixed size"
    return (
        f"Dotted, and in the legend: {', '.join(_settings(run).values())}. "
        f"N = {run.agents} agents, {delta_in_symbols(run.plan().delta)}, relation {relation}, user level, {sampling}. "
        "ε covers all broadcasts of one run, not the choice of q, z or T by comparing runs on the same private data."
    )
