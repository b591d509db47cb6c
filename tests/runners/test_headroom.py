"""The headroom of a problem: the formulas, problems whose truth is known, and the command."""

import itertools
import json

import pytest
import torch

from runners.compose.composition import Composition
from runners.headroom import common_points, expected_best, headroom, main, shared_share, values_at
from tests.helpers.compose import compose


def mixed(alpha, seed=0):
    cfg = compose("problem=synthetic_heterogeneous", f"problem.alpha={alpha}", "algorithm=ts", f"seed={seed}")
    problem = Composition.of(cfg).experiment.problem
    return problem, values_at(problem, common_points(problem, 500), seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("v_h", [0.0, 0.25, 1.0, 9.0])
def test_the_share_is_that_of_the_model(v_h):
    """`c_n + g(x) + h_n(x)` with independent points; the standard error of the share is below 0.03 over 2000 points."""
    values = 5 * normal(20, 1) + normal(1, 2000, seed=1) + v_h**0.5 * normal(20, 2000, seed=2)
    assert shared_share(values) == pytest.approx(1 / (1 + v_h), abs=0.03)


def test_few_agents_that_share_nothing_are_not_said_to_share():
    """Without the correction for N, three agents would share a third."""
    assert abs(shared_share(normal(3, 5000))) < 0.03
    assert shared_share(torch.ones(3, 4, dtype=torch.float64)) == 0.0


@pytest.mark.parametrize(("alpha", "low", "high"), [(0, 1 - 1e-9, 1 + 1e-9), (0.5, 0.35, 0.65), (1, -0.05, 0.05)])
def test_synthetic_objectives_share_what_they_are_made_of(alpha, low, high):
    assert low <= shared_share(mixed(alpha)[1]) <= high


def test_the_best_shared_point_of_one_function_is_its_optimum():
    problem, values = mixed(0)
    found = headroom(values, problem.reference, 3)
    assert found["shared"] == found["best"] < found["few"] < found["random"]


def test_the_best_shared_point_is_no_better_than_a_random_one_where_nothing_is_shared():
    problem, values = mixed(1)
    found = headroom(values, problem.reference, 3)
    regrets = problem.reference[:, None] - values
    se = float(regrets.std(1).mean()) / problem.n_agents**0.5
    assert abs(found["shared"] - found["random"]) < 4 * se
    assert found["best"] < 0.01


def test_an_agent_does_not_choose_its_own_shared_point():
    """Agent 0 alone likes point 0, and its vote would decide."""
    values = torch.tensor([[9.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    reference = values.amax(1)
    at_shared = [9.0 - 0.0, 1.0 - 0.0, 1.0 - 0.0]  # agent 0 gets point 1, the others point 0
    assert headroom(values, reference, 1)["shared"] == pytest.approx(sum(at_shared) / 3)
    assert headroom(values, None, 1)["shared"] == pytest.approx(0.0)


def test_expected_best_by_enumeration():
    values = normal(2, 6)
    for n in (1, 3, 6):
        subsets = torch.tensor(list(itertools.combinations(range(6), n)))
        expected = values[:, subsets].amax(2).mean(1)
        assert torch.allclose(expected_best(values, n), expected)


@pytest.mark.parametrize(("shape", "n_init"), [((1, 5), 1), ((3, 1), 1), ((3, 4), 5)])
def test_too_little_is_refused(shape, n_init):
    with pytest.raises(ValueError, match="headroom needs at least 2 agents and"):
        headroom(torch.zeros(shape), None, n_init)


def test_points_are_common_and_inside():
    problem = Composition.of(compose("problem=branin", "algorithm=ts")).experiment.problem
    x = common_points(problem, 33)
    low, high = torch.tensor(problem.domain.lower), torch.tensor(problem.domain.upper)
    assert x.shape == (33, 2) and ((x >= low) & (x <= high)).all()
    assert values_at(problem, x, 0).shape == (problem.n_agents, 33)
    grid = Composition.of(compose("algorithm=ts")).experiment.problem
    assert len(common_points(grid, 100)) == 100 and len(common_points(grid, 999)) == 500


TINY = ["problem.n_agents=6", "problem.grid_size=60", "n_init=3", "--seeds", "0..2"]


def test_command_prints_a_row_and_writes_a_file_for_each_problem(tmp_path, capsys):
    assert main(["problem=synthetic_heterogeneous", "problem.alpha=0,1", *TINY, f"results_dir={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "alpha=1" in printed and "100 ± 0 %" in printed
    same, other = (json.loads(file.read_text()) for file in sorted((tmp_path / "headroom").iterdir()))
    assert same["title"] == "synthetic_heterogeneous alpha=0 n_agents=6 grid_size=60"
    assert same["share"]["mean"] == pytest.approx(1.0) and other["share"]["mean"] < 0.6
    assert same["seeds"] == [0, 1, 2] and same["n_init"] == 3
    assert other["shared"]["se"] > 0


def test_data_give_one_seed(tmp_path):
    assert main([*TINY, "problem.function_seed=4", f"results_dir={tmp_path}"]) == 0
    (file,) = (tmp_path / "headroom").iterdir()
    one = json.loads(file.read_text())
    assert one["seeds"] == [0] and one["share"]["se"] is None


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["problem=nothing"], 2, "nothing"),
        (["problem.n_agents=0"], 1, "n_agents must be an integer of at least 1"),
        (["problem.n_agents=1", "problem.grid_size=20"], 1, "at least 2 agents"),
        (["--seeds", "3..1"], 1, "seeds must be"),
        (["problem=grid_gp"], 1, "needs a problem with agents"),
    ],
)
def test_refusals_are_one_sentence(argv, code, words, tmp_path, capsys):
    assert main([*argv, f"results_dir={tmp_path}"]) == code
    error = capsys.readouterr().err
    assert words in error and error.startswith("error: ") and "Traceback" not in error
    assert not list(tmp_path.iterdir())
