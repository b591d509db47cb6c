"""The tables of a suite: phases as rows where there are phases, else one row for each measurement."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from runners.bench.machine import MachineFacts
from runners.bench.measurement import NOT_COUNTED, BenchPanel, Findings, Measurement

WIDTH = 118  # of a table where there is no terminal
PLAIN, OURS = "plain loop", "dpfbo"


def show(findings: Findings, console: Console | None = None) -> None:
    """Print the machine, a table for each panel (and series), and the notes."""
    console = Console() if console is None else console
    if not console.is_terminal:
        console = Console(file=console.file, width=max(WIDTH, console.width))
    for line in MachineFacts.from_dict(findings.machine).words():
        console.print(line, highlight=False, soft_wrap=True)
    for panel in findings.panels:
        for title, table in tables(panel, findings.of(panel)):
            console.print(f"\n{title}", highlight=False, soft_wrap=True)
            console.print(table)
    for note in findings.notes:
        console.print(note, highlight=False, soft_wrap=True)


def tables(panel: BenchPanel, measurements: Sequence[Measurement]) -> Iterator[tuple[str, Table]]:
    """The tables of a panel with their titles; with an axis and phases one for each series."""
    if not measurements:
        return
    if not any(m.phases for m in measurements):
        yield f"{panel.title} · {panel.unit}", _list(measurements)
    else:
        counted = "median (its ratio to the floor)"
        series = [""] if panel.axis is None else list(dict.fromkeys(m.what for m in measurements))
        for what in series:
            title = " · ".join(filter(None, (panel.title, what, f"{panel.unit}, {counted}")))
            yield title, _by_phase(panel, [m for m in measurements if what in ("", m.what)])


def _by_phase(panel: BenchPanel, measurements: Sequence[Measurement]) -> Table:
    table = Table()
    table.add_column("phase")
    for m in measurements:
        head = m.what if panel.axis is None else f"{panel.axis} = {_number(m.size[panel.axis])}"
        draw = m.more.get("own draw")
        table.add_column(f"{head}\n{draw} draw" if draw and panel.axis is None else head, justify="right")
    ours, peer = (next((m for m in measurements if m.what == what), None) for what in (OURS, PLAIN))
    plain = None if ours is None or peer is None else plain_ratios(ours, peer)
    if plain is not None:
        table.add_column(f"{PLAIN}\n/ {OURS}", justify="right")

    def row(label: str, cells: Sequence[str], last: str = "") -> None:
        table.add_row(label, *cells, *([last] if plain is not None else []))

    for phase in dict.fromkeys(phase for m in measurements for phase in m.phases):
        cells = [_phase_cell(m, phase) for m in measurements]
        row(phase.replace("_", " "), cells, _ratio((plain or {}).get(phase)))
    table.add_section()
    everything = f"everything but the {NOT_COUNTED}" if any(NOT_COUNTED in m.phases for m in measurements) else "all"
    row(everything, [_time_cell(m) for m in measurements], _ratio((plain or {}).get("time")))
    for label, cells in _facts(measurements):
        row(label, cells)
    return table


def plain_ratios(ours: Measurement, plain: Measurement) -> dict[str, float | None]:
    """Time of the plain loop over that of dpfbo, by phase and for `time`; None if one of them is 0."""
    times = [{**{name: s.median for name, s in m.phases.items()}, "time": m.time.median} for m in (plain, ours)]
    names = dict.fromkeys([*times[0], *times[1]])
    return {n: times[0][n] / times[1][n] if times[0].get(n) and times[1].get(n) else None for n in names}


def _list(measurements: Sequence[Measurement]) -> Table:
    table = Table()
    sizes = list(dict.fromkeys(name for m in measurements for name in m.size))
    facts = _facts(measurements)
    for name in ("", *sizes, "median (/ floor)", *(label for label, _ in facts)):
        table.add_column(name, justify="left" if not name else "right")
    for i, m in enumerate(measurements):
        cells = [_number(m.size[name]) if name in m.size else "" for name in sizes]
        table.add_row(m.what, *cells, _time_cell(m), *(cells[i] for _, cells in facts))
    return table


def _facts(measurements: Sequence[Measurement]) -> list[tuple[str, list[str]]]:
    """Rows or columns beside the times, without empty ones."""
    facts: dict[str, list[str]] = {
        "quartiles": [
            f"{_short(m.time.low)}–{_short(m.time.high)}" if m.time.repeats > 1 else "" for m in measurements
        ],
        "repeats": [str(m.time.repeats) for m in measurements],
        "CPU": ["" if m.cpu is None else _short(m.cpu.median) for m in measurements],
        "floor": ["" if not m.floor else _short(m.floor) for m in measurements],
        "peak memory, MB": ["" if m.peak_mb is None else f"{m.peak_mb:.0f}" for m in measurements],
        "before it, MB": ["" if m.start_mb is None else f"{m.start_mb:.0f}" for m in measurements],
    }
    for name in dict.fromkeys(name for m in measurements for name in m.more if name != "own draw"):
        values = (m.more.get(name, "") for m in measurements)
        facts[name] = [value if isinstance(value, str) else _short(value) for value in values]
    return [(label, cells) for label, cells in facts.items() if any(cells)]


def _phase_cell(m: Measurement, phase: str) -> str:
    if phase not in m.phases:
        return ""
    ratio = m.phase_ratio(phase)
    return f"{_short(m.phases[phase].median)}{'' if ratio is None else f' ({_ratio(ratio)})'}"


def _time_cell(m: Measurement) -> str:
    return f"{_short(m.time.median)}{'' if m.ratio is None else f' ({_ratio(m.ratio)})'}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _short(value: float) -> str:
    """Three digits after the point, or fewer of large numbers."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")
