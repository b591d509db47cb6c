"""python -m runners.privacy projection: the largest r, and one sentence for every wrong input."""

import json

import pytest

from dpfbo.outsourced.transforms.random_projection import threshold
from runners.privacy import command
from runners.privacy.random_projection import largest_r

PUBLISHED = ["--sigma-min", "1030.88", "--epsilon", "3.004166", "--delta", "1e-5"]


def answer(capsys, *argv):
    assert command.main(["projection", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_published_setting(capsys):
    """The jump of the published regret between r = 10 and 15 is sigma_min crossing w."""
    (claim,) = answer(capsys, *PUBLISHED)["claims"]
    by_r = {row["r"]: row for row in claim["rows"]}
    assert by_r[10]["w"] == pytest.approx(976.1, abs=0.05) and by_r[10]["reached"]
    assert by_r[15]["w"] == pytest.approx(1224.7, abs=0.05) and not by_r[15]["reached"]
    assert claim["largest_r"] == 11  # w(11) = 1029.6
    assert list(by_r) == list(range(1, 21))


def test_largest_r_is_where_the_threshold_crosses():
    for r in (1, 2, 7, 400):
        w = threshold(r, 2.0, 1e-4)
        assert largest_r(w, 2.0, 1e-4) == r
        assert largest_r(w * (1 - 1e-12), 2.0, 1e-4) == (r - 1 or None)
    assert largest_r(0.0, 2.0, 1e-4) is None


def test_several_epsilons_and_none_at_all(capsys):
    assert command.main(["projection", "--sigma-min", "300", "--epsilon", "1,3", "--r-max", "2"]) == 0
    text = capsys.readouterr().out
    assert "epsilon 1: largest r with sigma_min >= w is none" in text
    assert "epsilon 3: largest r with sigma_min >= w is 1" in text
    assert "reached" in text and "raised" in text
    assert "sigma_min is computed from private data" in text and "no guarantee when n > d + 1" in text


def test_problem_gives_sigma_min_and_what_is_not_given(capsys):
    """Published: 1030.9 after scaling to norm 25 and centring."""
    found = answer(capsys, "--problem", "grid_gp", "--r-max", "1")
    assert found["sigma_min"] == pytest.approx(1030.88, abs=0.01)
    assert found["delta"] == 1e-5 and len(found["claims"]) == 1
    other = answer(capsys, "--problem", "grid_gp", "privacy.epsilon=2", "--delta", "1e-4", "--r-max", "1")
    assert other["claims"][0]["epsilon"] == 2 and other["delta"] == 1e-4


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--sigma-min", "-1", "--epsilon", "1"], "--sigma-min must be a finite number of at least 0, got -1"),
        (["--sigma-min", "1", "--epsilon", "1,0"], "--epsilon must be a finite number above 0, got 0"),
        (["--sigma-min", "1", "--epsilon", "1", "--delta", "1"], "--delta must lie in (0, 1), got 1"),
        (["--sigma-min", "1", "--epsilon", "1", "--r-max", "0"], "--r-max must be an integer of at least 1, got 0"),
        (["--sigma-min", "1", "--epsilon", "1", "--r-max", "1001"], "--r-max must be at most 1000, got 1001"),
        (["--sigma-min", "1"], "--epsilon must be given where --problem is not"),
        (["--sigma-min", "1", "--problem", "grid_gp"], "one of --sigma-min and --problem must be given"),
        (["--epsilon", "1"], "one of --sigma-min and --problem must be given"),
        (["a=b", "--sigma-min", "1", "--epsilon", "1"], "settings need --problem, got 'a=b'"),
        (["--problem", "grid"], "unknown problem 'grid': choose one of"),
        (["--problem", "synthetic"], "needs a problem with a table of candidates"),
        (["--problem", "synthetic", "algorithm=ts"], "algorithm"),
    ],
)
def test_wrong_input_is_one_sentence(argv, says, capsys):
    assert command.main(["projection", *argv]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and shown.err.count("\n") == 1
    assert says in shown.err
