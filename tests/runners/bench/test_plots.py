"""The pictures of suites: their curves and rows, without a look at pixels."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from runners.bench import plots
from runners.bench.measurement import BenchPanel, Findings, Measurement, Spread
from tests.helpers.bench import FINDINGS, ONE, PANEL

COMPARED = BenchPanel("agents", "beside its peers", "ms")


def axes() -> Axes:
    return Figure().subplots()


def sizes(found: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(found)).size


def grown(*N: int) -> list[Measurement]:
    return [replace(ONE, size={"N": n}, time=Spread(n / 10, n / 20, n / 5, 3), more={}) for n in N]


def test_every_panel_and_its_memory_is_drawn() -> None:
    one, two = (sizes(plots.png(replace(FINDINGS, panels=[replace(PANEL, memory=m)]))) for m in (False, True))
    assert two[0] == 2 * one[0] and two[1] == one[1]


@pytest.mark.parametrize("panel", [PANEL, COMPARED], ids=["growth", "comparison"])
def test_a_suite_that_found_nothing_has_a_picture(panel: BenchPanel) -> None:
    assert sizes(plots.png(Findings("agents", {}, [panel], [])))[0] > 100


def test_growth_has_medians_quartiles_and_floors() -> None:
    ax = axes()
    plots._growth(ax, PANEL, grown(10, 100, 1000))
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "log", "agents N", "ms")
    (bars,) = ax.containers
    line = bars[0]
    assert list(line.get_xdata()) == [10, 100, 1000] and list(line.get_ydata()) == [1, 10, 100]
    (segments,) = [bar.get_segments() for bar in bars[2]]
    assert [list(segment[:, 1]) for segment in segments] == [[0.5, 2], [5, 20], [50, 200]]
    dashed = [other for other in ax.get_lines() if other.get_linestyle() == "--" and len(other.get_xdata())]
    assert [list(other.get_ydata()) for other in dashed] == [[1.0, 1.0, 1.0]]
    legend = ax.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"floor, in the same colour", "dp_fts_de"}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["10", "100", "1 000"]


def test_comparison_has_a_row_for_each_phase_that_took_time() -> None:
    ax = axes()
    plots._comparison(ax, COMPARED, [ONE, replace(ONE, what="plain loop", floors={})])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["objective", "message", "everything but\nthe objective"]
    assert len(ax.containers) == 2


def test_measurements_without_phases_are_rows() -> None:
    ax = axes()
    plain = replace(ONE, phases={}, floors={})
    plots._list(ax, COMPARED, [plain, replace(plain, what="another")])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["dp_fts_de", "another"]


def test_memory_has_its_floor() -> None:
    ax = axes()
    known = [replace(m, more={"memory before it and records, MB": 310.0}) for m in grown(10, 100)]
    plots._memory(ax, PANEL, known)
    peak, least = ax.get_lines()
    assert list(peak.get_ydata()) == [400.0, 400.0] and list(least.get_ydata()) == [310.0, 310.0]
