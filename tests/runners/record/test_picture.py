"""The picture of one run: its curve, and its words about epsilon."""

import json
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
draw(json.loads(sys.argv[2]), Path(sys.argv[1]))
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

    def of(content: dict[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw(content, tmp_path / "figure.png")
        (axes,) = saved[-1].axes
        return saved[-1], axes

    return of


def test_the_curve_and_the_words_of_a_private_run(drawn: Any, tmp_path: Path) -> None:
    figure, axes = drawn(summary())
    mean = summary()["curve"]["mean"]
    assert axes.lines[0].get_xydata().tolist() == [[t, m] for t, m in enumerate(mean)]
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
    assert {(1.0, 0.23), (1.0, 0.27)} <= corners
    assert figure.get_suptitle() == "synthetic heterogeneous · dp_fts_de · seed 3 · 20 agents"
    assert axes.get_ylabel().startswith("simple regret")
    for words in ("ε = 3.00 of 3 releases", "PLD", "δ = 0.0371", "zero-out", "user level"):
        assert words in " ".join(axes.get_xlabel().split())
    assert Image.open(tmp_path / "figure.png").format == "PNG"


@pytest.mark.parametrize("more", [{}, {"published_claim": None}])
def test_a_large_delta_is_in_words_that_stay_inside(drawn: Any, more: dict[str, Any]) -> None:
    figure, axes = drawn(summary(**more))
    label = axes.xaxis.label
    assert "(large: a chance of 4% that ε protects nobody; 0.001 is usual)" in " ".join(label.get_text().split())
    box = label.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0


@pytest.mark.parametrize(
    ("epsilon", "more", "words"),
    [
        (None, {}, "ε: none, what is shared is not protected by noise"),
        (None, {"n_charges": 0}, "ε: none"),  # messages go between agents, without a server
        (0.0, {"n_charges": 0}, "ε = 0: nothing is sent or released"),
        (1.0, {"published_claim": "a claim"}, "ε: none, the published claim is not a guarantee"),
        (0.002, {"n_charges": 1}, "ε = 0.002 of 1 release,"),
    ],
)
def test_words_about_epsilon(drawn: Any, epsilon: float | None, more: dict[str, Any], words: str) -> None:
    _, axes = drawn(summary(epsilon={"pld": epsilon}, **more))
    assert axes.get_xlabel().partition("\n")[2].startswith(words)


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
    _, axes = drawn(summary(curve=curve, lower_is_better=lower_is_better))
    assert axes.get_yscale() == scale


def test_one_agent_has_no_standard_error(drawn: Any) -> None:
    figure, axes = drawn(summary(n_agents=1, curve={"round": [0, 1], "mean": [0.5, 0.1], "se": [0.0, 0.0]}))
    assert axes.get_ylabel() == "simple regret"
    assert figure.get_suptitle().endswith("1 agent")


def test_threads_do_not_meet(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: draw(summary(), path), paths))
    assert len({path.read_bytes() for path in paths}) == 1


def test_neither_a_run_nor_a_picture_needs_pyplot(tmp_path: Path) -> None:
    """A run without a tracker does not import matplotlib at all."""
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "figure.png"), json.dumps(summary())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
