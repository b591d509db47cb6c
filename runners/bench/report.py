"""The report of a suite: numbers, tables, and a plot of times and memory against size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from runners.bench.fresh_process import Timed
from runners.bench.suites import BenchCase
from runners.record.look import DPI, LOOK

NOT_COUNTED = ("objective", "set-up")  # phases that `time` leaves out


def entry(case: BenchCase, timed: Timed) -> dict[str, Any]:
    """Return one measurement's entry in the report.

    The measured times are medians over the repeats, in total and by phase. All times are in the suite's unit
    (`Suite.unit`), and memory is in MB.
    """

    def median(name: str) -> float:
        return case.units * float(np.median([run.get(name, 0.0) for run in timed.runs]))

    counted = [run["total"] - sum(run.get(name, 0.0) for name in NOT_COUNTED) for run in timed.runs]
    low, time, high = (case.units * float(value) for value in np.quantile(counted, [0.25, 0.5, 0.75]))
    floor = case.units * sum(timed.floors.values()) or None
    phases = [name for name in timed.runs[0] if name not in ("total", "cpu")]
    return {
        "what": case.what, "size": dict(case.size), "time": time, "quartiles": [low, high], "repeats": len(timed.runs),
        "cpu": median("cpu"), "floor": floor, "ratio": floor and time / floor, "peak_mb": timed.peak_mb,
        "gpu_mb": timed.gpu_mb,
        "least_mb": None if case.records_mb is None else timed.start_mb + case.records_mb,
        "phases": {name: median(name) for name in phases},
        "floors": {name: case.units * seconds for name, seconds in timed.floors.items()},
    }  # fmt: skip


def tables(entries: Sequence[dict[str, Any]]) -> str:
    """Return a table of the measurements and, if there are phases, a table of the times by phase.

    In the second table, brackets hold a phase's time divided by its lower bound (floor).
    """
    rows, phases = [], []
    for e in entries:
        size = ", ".join(f"{name} = {value:,}".replace(",", " ") for name, value in e["size"].items())
        low, high = e["quartiles"]
        rows.append({
            "what": e["what"], "size": size, "time": _digits(e["time"]), "quartiles": f"{_digits(low)}–{_digits(high)}",
            "repeats": e["repeats"], "CPU": _digits(e["cpu"]), "floor": _digits(e["floor"]),
            "time / floor": _digits(e["ratio"], 2), "peak memory, MB": f"{e['peak_mb']:.0f}",
            **({} if e["gpu_mb"] is None else {"on the GPU, MB": f"{e['gpu_mb']:.0f}"}),
        })  # fmt: skip
        ratios = {name: f" ({_digits(e['phases'][name] / floor, 2)})" for name, floor in e["floors"].items()
                  if e["phases"].get(name)}  # fmt: skip
        phases.append({"what": e["what"], **{n: _digits(v) + ratios.get(n, "") for n, v in e["phases"].items()}})
    parts = [rows, phases] if any(e["phases"] for e in entries) else [rows]
    return "\n\n".join(pd.DataFrame(part).fillna("").to_string(index=False) for part in parts)


def _digits(value: float | None, n: int = 3) -> str:
    return "" if value is None else f"{float(f'{value:.{n}g}'):g}"


def draw(title: str, unit: str, entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot times and peak memory against one size, such as the number of agents.

    Dashed lines show the lower bounds on the times and on the memory. The size is the first one that varies within a
    series. If no size varies, no file is written.
    """
    # pyplot is not used, because it would keep the figures in memory.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sizes = pd.DataFrame([e["size"] for e in entries])
    varying = sizes.groupby([e["what"] for e in entries]).nunique().max() > 1
    if not varying.any():
        return
    axis = varying.idxmax()
    with rc_context(LOOK):
        figure = Figure(figsize=(10.8, 4.6), layout="constrained")
        times, memory = figure.subplots(1, 2)
        for k, what in enumerate(dict.fromkeys(e["what"] for e in entries if axis in e["size"])):
            own = [e for e in entries if e["what"] == what]
            x, colour = [e["size"][axis] for e in own], f"C{k}"
            middle, quartiles = np.array([e["time"] for e in own]), np.array([e["quartiles"] for e in own]).T
            errors = abs(quartiles - middle)
            times.errorbar(x, middle, errors, color=colour, marker="o", capsize=3, label=what)
            times.plot(x, [e["floor"] or np.nan for e in own], color=colour, linestyle="--")
            memory.plot(x, [e["peak_mb"] for e in own], color=colour, marker="o", label=what)
            memory.plot(x, [e["least_mb"] or np.nan for e in own], color=colour, linestyle="--")
        for ax, label in ((times, unit), (memory, "peak memory of the process, MB")):
            ax.loglog()
            ax.set_xlabel(axis)
            ax.set_ylabel(label)
        times.plot([], [], color="grey", linestyle="--", label="floor; program and records")
        figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(title, fontsize=10)
        figure.savefig(path, format="png", dpi=DPI)
