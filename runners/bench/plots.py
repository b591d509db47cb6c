"""The picture of a suite: times, with floors as dashed lines, and peak memory where it is asked for."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runners.bench.measurement import NOT_COUNTED, BenchPanel, Findings, Measurement
from runners.record.picture import DPI, LOOK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _ROW = 5.4, 4.0, 0.34  # inches: of a panel, and of a phase in a comparison
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_MARKERS = "osD^vP*"
_ALL = "everything but\nthe objective"


def png(findings: Findings) -> bytes:
    """The picture of all panels, side by side."""
    # Imported here, since only a suite that has ended needs it; without pyplot, which would keep figures.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [
        (p, kind) for p in findings.panels if findings.of(p) for kind in (["time", "memory"] if p.memory else ["time"])
    ]
    rows = max((len(_phases(findings.of(p))) for p, _ in shown if p.axis is None), default=0)
    out = io.BytesIO()
    with rc_context(LOOK):
        figure = Figure(figsize=(_WIDTH * max(1, len(shown)), max(_HEIGHT, 1.6 + _ROW * rows)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, max(1, len(shown)), squeeze=False)[0]
        for ax, (panel, kind) in zip(axes, shown, strict=False):
            measurements = findings.of(panel)
            if kind == "memory":
                _memory(ax, panel, measurements)
            elif panel.axis is None:
                _comparison(ax, panel, measurements)
            else:
                _growth(ax, panel, measurements)
        figure.savefig(out, format="png", dpi=DPI)
    return out.getvalue()


def _growth(ax: "Axes", panel: BenchPanel, measurements: Sequence[Measurement]) -> None:
    """Times against size on logarithmic axes: medians with quartiles, floors dashed in the same colour."""
    for k, (what, series) in enumerate(_series(measurements).items()):
        x = [m.size[str(panel.axis)] for m in series]
        middle = [m.time.median for m in series]
        errors = [[m.time.median - m.time.low for m in series], [m.time.high - m.time.median for m in series]]
        ax.errorbar(x, middle, errors, color=_colour(k), marker=_MARKERS[k % 7], capsize=3, markersize=5, label=what)
        floors = [(a, m.floor) for a, m in zip(x, series, strict=True) if m.floor]
        if floors:
            ax.plot(*zip(*floors, strict=True), color=_colour(k), linestyle="--", linewidth=1.2, label=f"{what}, floor")
    _finish(ax, panel, panel.unit, panel.title)


def _memory(ax: "Axes", panel: BenchPanel, measurements: Sequence[Measurement]) -> None:
    """Peak memory against size; dotted, that before the run."""
    for k, (what, series) in enumerate(_series(measurements).items()):
        known = [(m.size[str(panel.axis)], m.peak_mb, m.start_mb) for m in series if m.peak_mb and m.start_mb]
        if known:
            x, peak, start = zip(*known, strict=True)
            ax.plot(x, peak, color=_colour(k), marker=_MARKERS[k % 7], markersize=5, label=what)
            ax.plot(x, start, color=_colour(k), linestyle=":", linewidth=1.2, label=f"{what}, before the run")
    _finish(ax, panel, "peak memory of the process, MB", "peak memory")


def _finish(ax: "Axes", panel: BenchPanel, y: str, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(panel.label)
    ax.set_ylabel(y)
    ax.set_title(title, fontsize=10)
    low, high = ax.get_ylim()
    if high / low < 30:  # a decade may hold all: label parts of it
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    sizes = sorted({x for line in ax.get_lines() for x in map(float, line.get_xdata())})  # type: ignore[arg-type]
    ax.set_xticks(sizes, [f"{x:,.0f}".replace(",", " ") for x in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_minor_locator(LogLocator(subs=()))
    ax.legend(fontsize=8)


def _comparison(ax: "Axes", panel: BenchPanel, measurements: Sequence[Measurement]) -> None:
    """Times by phase on one logarithmic axis, a marker for each series; a dash is the floor of the first."""
    phases = _phases(measurements)
    names = [*phases, "time"]
    for k, m in enumerate(measurements):
        spreads = {**m.phases, "time": m.time}
        at = [(i, spreads[name]) for i, name in enumerate(names) if name in spreads and spreads[name].median > 0]
        if not at:
            continue
        offset = 0.5 * (k / max(1, len(measurements) - 1) - 0.5)
        y, x = [i + offset for i, _ in at], [s.median for _, s in at]
        errors = [[s.median - s.low for _, s in at], [s.high - s.median for _, s in at]]
        label = m.what.replace("\n", " ")
        ax.errorbar(x, y, xerr=errors, color=_colour(k), marker=_MARKERS[k % 7], linestyle="", capsize=2, label=label)
        floors = {**{name: floor.time for name, floor in m.floors.items()}, "time": m.floor}
        for i, name in enumerate(names):
            if floors.get(name):
                ax.plot([floors[name]] * 2, [i + offset - 0.12, i + offset + 0.12], color=_colour(k), linestyle="--")
    if any(m.floors for m in measurements):
        ax.plot([], [], color=_colour(6), linestyle="--", label="floor, in the same colour")
    ax.set_xscale("log")
    ax.set_yticks(range(len(names)), [*(name.replace("_", " ") for name in phases), _ALL if phases else "time"])
    ax.invert_yaxis()
    ax.set_xlabel(panel.unit)
    ax.set_title(panel.title, fontsize=10)
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=2)


def _phases(measurements: Sequence[Measurement]) -> list[str]:
    found = dict.fromkeys(name for m in measurements for name, spread in m.phases.items() if spread.median > 0)
    return sorted(found, key=lambda name: name != NOT_COUNTED)


def _series(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    return {what: [m for m in measurements if m.what == what] for what in dict.fromkeys(m.what for m in measurements)}


def _colour(k: int) -> str:
    return _COLOURS[k % len(_COLOURS)]
