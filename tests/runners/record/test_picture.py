"""The picture of one run: its axes, and its words where there is no epsilon."""

import json
import math
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest
from PIL import Image

from runners.record.picture import draw

PLAIN = """
import json
import sys
import runners.recorded_run
assert "matplotlib" not in sys.modules
from pathlib import Path
from runners.record.picture import draw
draw(json.loads(sys.argv[2]), [1.0, 2.0, 3.0], Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
"""


def summary(**changes: Any) -> dict[str, Any]:
    mean = [0.5, 0.25, 0.2, 0.1]
    return {
        "problem": "synthetic_heterogeneous",
        "algorithm": "dp_fts_de",
        "seed": 3,
        "n_agents": 20,
        "metric": "simple_regret",
        "lower_is_better": True,
        "curve": {"round": [0, 1, 2, 3], "mean": mean, "se": [0.02] * 4},
        "accountant": "pld",
        "epsilon": {"pld": 3.0, "moments": 5.0},
        "delta": 0.0371,
        "relation": "zero-out",
        "n_charges": 3,
    } | changes


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draw the picture; returns the saved figure."""
    saved: list[matplotlib.figure.Figure] = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure: matplotlib.figure.Figure, *args: Any, **settings: Any) -> None:
        saved.append(figure)
        save(figure, *args, **settings)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)

    def of(content: dict[str, Any], epsilons: list[float]) -> matplotlib.figure.Figure:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw(content, epsilons, tmp_path / "figure.png")
        return saved[-1]

    return of


def test_two_panels_of_a_private_run(drawn: Any, tmp_path: Path) -> None:
    figure = drawn(summary(), [1.0, 2.0, 3.0])
    by_round, by_epsilon = figure.axes
    mean = summary()["curve"]["mean"]
    assert by_round.lines[0].get_xydata().tolist() == [[t, m] for t, m in enumerate(mean)]
    assert by_epsilon.lines[0].get_xydata().tolist() == [
        [e, m] for e, m in enumerate(mean)
    ]  # 0, then before each round
    for axes in figure.axes:
        (band,) = axes.collections
        corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
        assert {(1.0, 0.23), (1.0, 0.27)} <= corners
    assert figure.get_suptitle() == "synthetic heterogeneous · dp_fts_de · seed 3 · 20 agents"
    assert by_round.get_ylabel().startswith("simple regret")
    for words in ("PLD", "δ = 0.0371", "zero-out", "user level"):
        assert words in by_epsilon.get_xlabel()
    assert Image.open(tmp_path / "figure.png").format == "PNG"


@pytest.mark.parametrize("more", [{}, {"published_claim": ""}])
def test_a_large_delta_is_in_words_that_stay_inside(drawn: Any, more: dict[str, Any]) -> None:
    figure = drawn(summary(**more), [3.0] * 3 if more else [0.02, 2.0, 3.0])
    label = figure.axes[-1].xaxis.label
    assert "(large: a chance of 4% that ε protects nobody; 0.001 is usual)" in " ".join(label.get_text().split())
    box = label.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0


@pytest.mark.parametrize(
    ("epsilon", "epsilons", "words"),
    [
        (None, [math.inf] * 3, "ε: none"),
        (None, [], "ε: none"),  # messages go between agents, without a server
        (0.0, [], "ε = 0: nothing is sent or released"),
        (1e-9, [1e-9], "ε = 1e-09, of 1 release"),  # a budget ended the releases
        (0.0, [0.0], "ε = 0, of 1 release"),
    ],
)
def test_one_panel_that_says_why(drawn: Any, epsilon: float | None, epsilons: list[float], words: str) -> None:
    (axes,) = drawn(summary(epsilon={"pld": epsilon}, n_charges=len(epsilons)), epsilons).axes
    assert axes.get_xlabel().partition("\n")[2].startswith(words)


@pytest.mark.parametrize(("epsilons", "scale"), [([1.0, 2.0, 3.0], "linear"), ([0.5, 5.0, 50.0], "log")])
def test_epsilon_that_grows_far_is_on_a_logarithmic_axis(drawn: Any, epsilons: list[float], scale: str) -> None:
    axes = drawn(summary(), epsilons).axes[1]
    assert axes.get_xscale() == scale
    assert axes.get_xlim()[0] < epsilons[0] and axes.get_xlim()[1] > epsilons[-1]
    assert axes.lines[0].get_xdata().tolist() == [0.0, *epsilons][scale == "log" :]
    assert ("round 0" in axes.get_xlabel()) == (scale == "log")


@pytest.mark.parametrize(
    ("mean", "lower_is_better", "scale"),
    [
        ([1.0, 0.1, 0.01, 0.001], True, "log"),
        ([0.4, 0.3, 0.3, 0.2], True, "linear"),
        ([1.0, 0.1, 0.01, 0.0], True, "linear"),  # the optimum is found
        ([0.001, 0.01, 0.1, 1.0], False, "linear"),
    ],
)
def test_scale_of_the_metric(drawn: Any, mean: list[float], lower_is_better: bool, scale: str) -> None:
    curve = {"round": [0, 1, 2, 3], "mean": mean, "se": [0.02] * 4}  # the band is wider than the last values
    figure = drawn(summary(curve=curve, lower_is_better=lower_is_better), [1.0, 2.0, 3.0])
    assert {axes.get_yscale() for axes in figure.axes} == {scale}


@pytest.mark.parametrize("epsilons", [[0.0] * 3, [0.0, 0.0, 1e-9]])
def test_hardly_any_epsilon(drawn: Any, epsilons: list[float]) -> None:
    assert len(drawn(summary(), epsilons).axes) == 2


def test_one_agent_has_no_standard_error(drawn: Any) -> None:
    figure = drawn(summary(n_agents=1, curve={"round": [0, 1], "mean": [0.5, 0.1], "se": [0.0, 0.0]}), [1.0])
    assert figure.axes[0].get_ylabel() == "simple regret"
    assert figure.get_suptitle().endswith("1 agent")


def test_threads_do_not_meet(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: draw(summary(), [1.0, 2.0, 3.0], path), paths))
    assert len({path.read_bytes() for path in paths}) == 1


def test_neither_a_run_nor_a_picture_needs_pyplot(tmp_path: Path) -> None:
    """A run without a tracker does not import matplotlib at all."""
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "figure.png"), json.dumps(summary())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
