"""python -m runners.privacy projection: the largest r, and one sentence for every wrong input."""

import json
import math

import numpy as np
import pytest

from dpfbo.outsourced.transforms.random_projection import threshold
from runners.privacy import command
from runners.privacy.random_projection import largest_r

PUBLISHED = ["--problem", "grid_gp", "--epsilon", "3.004166", "--delta", "1e-5"]


def answer(capsys, *argv):
    assert command.main(["projection", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_published_setting(capsys):
    """The jump of the published regret between r = 10 and 15 is sigma_min crossing w."""
    found = answer(capsys, *PUBLISHED)
    assert found["sigma_min"] == pytest.approx(1030.88, abs=0.01), "published: 1030.9 after scaling and centring"
    (claim,) = found["claims"]
    by_r = {row["r"]: row for row in claim["rows"]}
    assert by_r[10]["w"] == pytest.approx(976.1, abs=0.05) and by_r[10]["reached"]
    assert by_r[15]["w"] == pytest.approx(1224.7, abs=0.05) and not by_r[15]["reached"]
    assert claim["largest_r"] == 11  # w(11) = 1029.6
    assert list(by_r) == list(range(1, 21))
    assert by_r[10]["C"] == 1 and by_r[15]["C"] == pytest.approx(1 + (1224.7 / 1030.88) ** 2, rel=1e-4)


def test_theorems(capsys):
    known = answer(capsys, "--problem", "grid_gp", "problem.side_points=12", "rounds=9")["theorems"]
    assert known["fewest_r"] == math.ceil(8 * math.log(144**2 / 0.05) / 0.5**2) and known["T"] == 9
    axis = np.linspace(-4, 4, 12) / 1.25
    K = np.exp(-0.5 * ((axis[:, None] - axis) ** 2))
    K, chosen = np.kron(K, K), []
    gain = lambda rows: 0.5 * np.linalg.slogdet(np.eye(len(rows)) + K[np.ix_(rows, rows)] / 1e-5)[1]
    for _ in range(9):
        chosen.append(max(range(144), key=lambda j: gain([*chosen, j])))
    beta = 2 * math.log(144 * 9**2 * math.pi**2 / (6 * 0.025))
    assert known["gamma_T"] == pytest.approx(gain(chosen), rel=1e-3) and known["beta_T"] == pytest.approx(beta)
    bound = math.sqrt(8 / math.log(1 + 1e5) * beta * known["gamma_T"] / 9)
    assert known["gp_ucb_regret"] == pytest.approx(bound)


def test_largest_r_is_where_the_threshold_crosses():
    for r in (1, 2, 7, 400):
        w = threshold(r, 2.0, 1e-4)
        assert largest_r(w, 2.0, 1e-4) == r
        assert largest_r(w * (1 - 1e-12), 2.0, 1e-4) == (r - 1 or None)
    assert largest_r(0.0, 2.0, 1e-4) is None


def test_several_epsilons_and_none_at_all(capsys):
    assert command.main(["projection", "--problem", "grid_gp", "--epsilon", "0.1,3.004166"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "epsilon 0.1: largest r with sigma_min >= w is none" in text
    assert "epsilon 3.004: largest r with sigma_min >= w is 11" in text
    assert "reached" in text and "raised, C' = " in text and "if r >= 686; of fewer columns it says nothing" in text
    assert "their constants are not known here" in text
    assert "sigma_min is computed from private data" in text and "no guarantee when n > d + 1" in text


def test_the_problem_has_an_epsilon_and_a_delta(capsys):
    found = answer(capsys, "--problem", "grid_gp")
    assert found["delta"] == 1e-5 and len(found["claims"]) == 1
    other = answer(capsys, "--problem", "grid_gp", "--delta", "1e-4", "privacy.epsilon=2")
    assert other["claims"][0]["epsilon"] == 2 and other["delta"] == 1e-4


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["grid_gp", "--epsilon", "1,0"], 1, "--epsilon must be a finite number above 0, got 0"),
        (["grid_gp", "--epsilon", "1", "--delta", "1"], 1, "--delta must lie in (0, 1), got 1"),
        (["grid"], 2, "unknown problem 'grid': choose one of"),
        (["synthetic"], 1, "needs a problem with a table of candidates"),
        (["synthetic", "algorithm=ts"], 1, "algorithm"),
    ],
)
def test_wrong_input_is_one_sentence(argv, code, says, capsys):
    assert command.main(["projection", "--problem", *argv]) == code
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and shown.err.count("\n") == 1
    assert says in shown.err
