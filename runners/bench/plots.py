"""The picture of a suite: times, with floors as dashed lines, and peak memory where it is asked for."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runners.bench.measurement import FLOOR_MB, NOT_COUNTED, BenchPanel, Findings, Measurement
from runners.record.look import DPI, LOOK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_WIDTH, _HEIGHT, _ROW = 5.4, 4.6, 0.36  # inches: of a panel, and of a phase in a comparison
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = "osD^vP*"
_GREY = "#555555"
_FEW_DECADES = 300.0  # ratio of the ends of an axis below which powers of ten are too few ticks
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
        figure = Figure(figsize=(_WIDTH * max(1, len(shown)), max(_HEIGHT, 2.2 + _ROW * rows)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, max(1, len(shown)), squeeze=False)[0]
        for ax, (panel, kind) in zip(axes, shown, strict=False):
            measurements = findings.of(panel)
            if kind == "memory":
                _memory(ax, panel, measurements)
            elif panel.axis is None:
                (_comparison if _phases(measurements) else _list)(ax, panel, measurements)
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
            ax.plot(*zip(*floors, strict=True), color=_colour(k), linestyle="--", linewidth=1.2)
    _name_floors(ax, measurements)
    _finish(ax, panel, panel.unit, panel.title)


def _memory(ax: "Axes", panel: BenchPanel, measurements: Sequence[Measurement]) -> None:
    """Peak memory against size; dashed, that before the run and the records."""
    for k, (what, series) in enumerate(_series(measurements).items()):
        known = [(m.size[str(panel.axis)], m.peak_mb, m.more.get(FLOOR_MB)) for m in series if m.peak_mb]
        if known:
            x, peak, least = zip(*known, strict=True)
            ax.plot(x, peak, color=_colour(k), marker=_MARKERS[k % 7], markersize=5, label=what)
            if k == 0 and None not in least:
                ax.plot(x, least, color=_GREY, linestyle="--", linewidth=1.2, label="program and records")
    _finish(ax, panel, "peak memory of the process, MB", "peak memory")


def _finish(ax: "Axes", panel: BenchPanel, y: str, title: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(panel.label)
    ax.set_ylabel(y)
    ax.set_title(title, fontsize=10)
    _plain_numbers(ax.yaxis, *ax.get_ylim())
    sizes = sorted({x for line in ax.get_lines() for x in map(float, line.get_xdata())})  # type: ignore[arg-type]
    ax.set_xticks(sizes, [f"{x:,.0f}".replace(",", " ") for x in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_minor_locator(LogLocator(subs=()))
    _legend(ax)


def _name_floors(ax: "Axes", measurements: Sequence[Measurement]) -> None:
    """One entry of the legend for all floors."""
    if any(m.floors for m in measurements):
        ax.plot([], [], color=_GREY, linestyle="--", label="floor, in the same colour")


def _plain_numbers(axis: "Axis", low: float, high: float) -> None:
    """Ticks of a logarithmic axis without exponents; where a decade may hold all, also at 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high / low < _FEW_DECADES:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(ax: "Axes") -> None:
    """The legend, so many inches below the axes that it leaves room for their label."""
    from matplotlib.figure import Figure
    from matplotlib.transforms import ScaledTranslation

    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    below = ax.transAxes + ScaledTranslation(0, -0.5, figure.dpi_scale_trans)
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.45, 0), bbox_transform=below, ncols=2)


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
        label = m.what
        ax.errorbar(x, y, xerr=errors, color=_colour(k), marker=_MARKERS[k % 7], linestyle="", capsize=2, label=label)
        floors = {**{name: floor.time for name, floor in m.floors.items()}, "time": m.floor}
        for i, name in enumerate(names):
            if floor := floors.get(name):
                ax.plot([floor] * 2, [i + offset - 0.12, i + offset + 0.12], color=_colour(k), linestyle="--")
    _name_floors(ax, measurements)
    ax.set_yticks(range(len(names)), [*(name.replace("_", " ") for name in phases), _ALL])
    ax.invert_yaxis()
    _finish_comparison(ax, panel)
    _legend(ax)


def _list(ax: "Axes", panel: BenchPanel, measurements: Sequence[Measurement]) -> None:
    """One row for each measurement, on a logarithmic axis; dashed, its floor."""
    for i, m in enumerate(measurements):
        errors = [[m.time.median - m.time.low], [m.time.high - m.time.median]]
        ax.errorbar([m.time.median], [i], xerr=errors, color=_colour(i), marker=_MARKERS[i % 7], capsize=3)
        if m.floor:
            ax.plot([m.floor] * 2, [i - 0.25, i + 0.25], color=_colour(i), linestyle="--")
    ax.set_yticks(range(len(measurements)), [m.what for m in measurements])
    ax.set_ylim(len(measurements) - 0.5, -0.5)
    _finish_comparison(ax, panel)
    if any(m.floors for m in measurements):
        _name_floors(ax, measurements)
        _legend(ax)


def _finish_comparison(ax: "Axes", panel: BenchPanel) -> None:
    ax.set_xscale("log")
    _plain_numbers(ax.xaxis, *ax.get_xlim())
    ax.set_xlabel(panel.unit)
    ax.set_title(panel.title, fontsize=10)


def _phases(measurements: Sequence[Measurement]) -> list[str]:
    found = dict.fromkeys(name for m in measurements for name, spread in m.phases.items() if spread.median > 0)
    return sorted(found, key=lambda name: name != NOT_COUNTED)


def _series(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    return {what: [m for m in measurements if m.what == what] for what in dict.fromkeys(m.what for m in measurements)}


def _colour(k: int) -> str:
    return _COLOURS[k % len(_COLOURS)]
