"""The problem `activity` and the batched training behind it."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dpfbo.problems import activity
from dpfbo.problems.activity import Activity
from dpfbo.problems.objectives.softmax_regression import DataSets, Settings, data_sets, fit, validation_accuracy
from dpfbo.problems.readers.data_files import MissingData
from dpfbo.problems.readers.har import ARCHIVE, COMPACT, load_subjects
from dpfbo.rng import Streams
from runners.compose.composition import build
from tests.helpers.compose import compose
from tests.helpers.data_files import compact_file, some_windows, upstream_archive
from tests.helpers.devices import same_elsewhere

STREAMS = Streams(3)
SUBJECTS = 5


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five subjects of 135 to 147 training rows: some batch sizes cut them in two, some do not."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "har").mkdir()
    (folder / COMPACT).write_bytes(compact_file(some_windows(SUBJECTS, each=44)))
    return str(folder)


@pytest.fixture
def problem(data_dir: str) -> Activity:
    return Activity(n_agents=SUBJECTS, epochs=8, data_dir=data_dir)


def some_points(problem: Activity, k: int, seed: int = 0) -> Tensor:
    """Each agent has k points; every second one has the smallest batches, two for each subject."""
    u = torch.rand(problem.n_agents, k, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    u[..., 0] *= (torch.arange(problem.n_agents)[:, None] + torch.arange(k)) % 2
    return problem.domain.to_natural(u)


def gaussian_data(rows: list[int], d: int = 12, classes: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, d)), rng.integers(classes, size=n)) for n in rows]


def ordinary_sgd(
    X: np.ndarray, y: np.ndarray, classes: int, size: int, l2: float, rate: float, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and intercepts of one model, step by step, in the features themselves; float64."""
    W, b = np.zeros((classes, X.shape[1])), np.zeros(classes)
    for u in order:
        permutation = np.argsort(u[: len(y)])
        rank = np.argsort(permutation)
        for start in range(0, len(y), size):
            batch = (rank >= start) & (rank < start + size)
            odds = np.exp(X[batch] @ W.T + b)
            residual = odds / odds.sum(1, keepdims=True) - np.eye(classes)[y[batch]]
            W = W - rate * (residual.T @ X[batch] / batch.sum() + l2 * W)
            b = b - rate * residual.mean(0)
    return W, b


def test_the_batched_training_is_ordinary_sgd() -> None:
    """Different rows, batch sizes (one to five batches an epoch), penalties and rates in one call."""
    rows, epochs, classes = [50, 37, 44], 6, 4
    training, validation = gaussian_data(rows), gaussian_data([9, 20, 11])
    sizes = torch.tensor([[10, 64], [37, 36], [20, 13]])
    l2, rate = (
        torch.tensor([[0.1, 1e-6], [2.0, 0.01], [0.0, 0.5]]),
        torch.tensor([[0.3, 0.05], [0.1, 1.0], [0.2, 0.02]]),
    )
    order = torch.rand(3, 2, epochs, max(rows), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = data_sets(training, validation, classes)
    A, b = fit(data, Settings(sizes, l2, rate), epochs, order)
    accuracy = validation_accuracy(data, A, b)
    for i, (X, y) in enumerate(training):
        for j in range(2):
            settings = int(sizes[i, j]), float(l2[i, j]), float(rate[i, j])
            W, intercept = ordinary_sgd(X, y, classes, *settings, order[i, j].numpy())
            assert np.allclose(A[i, j, :, : len(y)].double().numpy() @ X, W, atol=2e-5)
            assert np.allclose(b[i, j, :, 0], intercept, atol=2e-6)
            assert (A[i, j, :, len(y) :] == 0).all()
            X_v, y_v = validation[i]
            assert float(accuracy[i, j]) == pytest.approx(np.mean((X_v @ W.T + intercept).argmax(1) == y_v))


def test_batches_of_one_row_or_of_all_rows() -> None:
    data = data_sets(gaussian_data([7]), gaussian_data([5]), 4)
    order = torch.rand(1, 1, 3, 7, generator=torch.Generator().manual_seed(0))

    def trained(size: int, order: Tensor) -> Tensor:
        settings = Settings(torch.tensor([[size]]), torch.tensor([[0.1]]), torch.tensor([[0.2]]))
        return fit(data, settings, 3, order)[0]

    assert torch.equal(trained(7, order), trained(500, order))
    assert torch.equal(trained(7, order), trained(7, 1 - order))  # the order does not matter
    assert not torch.equal(trained(1, order), trained(1, 1 - order))
    X, y = gaussian_data([7])[0]
    W, _ = ordinary_sgd(X, y, 4, 1, 0.1, 0.2, order[0, 0].numpy())
    assert np.allclose(trained(1, order)[0, 0].numpy() @ X, W, atol=2e-5)


@pytest.mark.parametrize("k", [1, 3])
def test_any_shard_of_the_agents_gives_the_same_bits(problem: Activity, k: int) -> None:
    everyone, x = torch.arange(SUBJECTS), some_points(problem, k)
    y = problem.evaluate(everyone, x, STREAMS, 1)
    assert y.shape == (SUBJECTS, k)
    assert y.dtype == torch.float64
    assert len(y.unique()) > 1
    for shard in ([0], [3], [1, 4], [4, 1, 2], [0, 1, 2, 3]):
        assert torch.equal(problem.evaluate(torch.tensor(shard), x[shard], STREAMS, 1), y[shard])


def test_any_shard_trains_the_same_weights_to_the_bit() -> None:
    """Accuracies could hide a difference in the last bit."""
    rows = [150, 131, 90, 204, 77, 180, 160]
    data = data_sets(gaussian_data(rows, d=30), gaussian_data(rows, d=30), 4)
    u = torch.rand(7, 2, 3, generator=torch.Generator().manual_seed(2))
    settings = Settings((60 + 200 * u[..., 0]).long(), 0.1 * u[..., 1], u[..., 2])
    order = torch.rand(7, 2, 10, 204, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    A, b = fit(data, settings, 10, order)
    for shard in ([0], [6], [2, 5], [3, 4, 6], [0, 1, 2, 4, 5, 6]):
        i = torch.tensor(shard)
        part: tuple[DataSets, Settings] = (data[i], settings[i])
        A_part, b_part = fit(*part, 10, order[i])
        assert torch.equal(A_part, A[i])
        assert torch.equal(b_part, b[i])


def test_the_number_of_agents_changes_nothing_for_the_others(problem: Activity, data_dir: str) -> None:
    fewer = Activity(n_agents=2, epochs=8, data_dir=data_dir)
    x, two = some_points(problem, 1)[:2], torch.arange(2)
    assert torch.equal(fewer.evaluate(two, x, STREAMS, 0), problem.evaluate(two, x, STREAMS, 0))


def test_small_batches_are_drawn_anew_in_every_round(data_dir: str) -> None:
    """With a large learning rate the order of the rows shows; gradient descent on all rows has none."""
    problem, agents = Activity(n_agents=SUBJECTS, epochs=3, data_dir=data_dir), torch.arange(SUBJECTS)

    def values(size: float, round: int) -> Tensor:
        x = torch.tensor([size, -3.0, 0.0], dtype=torch.float64).expand(SUBJECTS, 1, 3)
        return problem.evaluate(agents, x, STREAMS, round)

    assert torch.equal(values(128, 1), values(128, 1))
    assert not torch.equal(values(128, 1), values(128, 2))
    assert torch.equal(values(512, 1), values(512, 2))


def test_every_round_has_an_order_of_its_own(problem: Activity, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training's random numbers, of 4 rounds, 5 agents and 2 points: no two are the same."""
    orders = []

    def noted(data: DataSets, settings: Settings, epochs: int, order: Tensor) -> tuple[Tensor, Tensor]:
        orders.append(order)
        return fit(data, settings, 1, order[:, :, :1])

    monkeypatch.setattr(activity, "fit", noted)
    for t in range(4):
        problem.evaluate(torch.arange(SUBJECTS), some_points(problem, 2), STREAMS, t)
    numbers = torch.stack(orders)
    assert numbers.shape[:4] == (4, SUBJECTS, 2, 8)
    assert len(numbers.unique()) == numbers.numel()


def test_training_that_diverges_counts_as_all_wrong(problem: Activity) -> None:
    problem = Activity(n_agents=2, epochs=60, data_dir=problem.data_dir)
    x = torch.tensor([[[128, 1.0, 0.0], [128, -2, -2]]], dtype=torch.float64).expand(2, 2, 3)
    y = problem.evaluate(torch.arange(2), x, STREAMS, 0)
    assert (y[:, 0] == 0).all()
    assert (y[:, 1] > 0.25).all()
    assert torch.equal(problem.true_value(torch.arange(2), x, y), y)
    assert problem.reference.tolist() == [1, 1]


def test_the_linear_axes_hold_the_same_settings(problem: Activity, data_dir: str) -> None:
    linear = Activity(n_agents=SUBJECTS, scale="linear", epochs=8, data_dir=data_dir)
    x, agents = some_points(problem, 2), torch.arange(SUBJECTS)
    natural = torch.cat([x[..., :1], 10 ** x[..., 1:]], -1)
    assert torch.equal(linear.evaluate(agents, natural, STREAMS, 1), problem.evaluate(agents, x, STREAMS, 1))
    corner = torch.stack([torch.zeros(3), torch.ones(3)]).double()
    assert torch.allclose(linear.domain.to_natural(corner), torch.tensor([[128, 1e-6, 1e-6], [512, 10, 1]]).double())
    assert torch.equal(problem.domain.to_natural(corner), torch.tensor([[128, -6, -6], [512, 1, 0]]).double())


def test_it_answers_on_the_device_it_was_asked_on(problem: Activity) -> None:
    x, agents = some_points(problem, 2), torch.arange(SUBJECTS)
    same_elsewhere(lambda: (problem.evaluate(agents, x, STREAMS, 1), problem.reference))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_agents": 0}, "n_agents must be an integer of at least 1, got 0"),
        ({"n_agents": 6}, "n_agents must be at most 5, the subjects in"),
        ({"scale": "cubic"}, "scale must be one of 'log', 'linear', got 'cubic'"),
        ({"epochs": 1.5}, "epochs must be an integer of at least 1, got 1.5"),
        ({"split_seed": -1}, "split_seed must be an integer of at least 0, got -1"),
        ({"features": "raw"}, "features must be one of 'auto', 'official', 'recomputed', got 'raw'"),
    ],
)
def test_bad_settings_are_refused(data_dir: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Activity(**{"n_agents": 2, "data_dir": data_dir, **settings})  # type: ignore[arg-type]


def test_missing_files_say_what_to_run(tmp_path: Path) -> None:
    for features in ("auto", "official"):
        with pytest.raises(MissingData, match=r"har/human.*python -m runners\.fetch har data_dir="):
            Activity(features=features, data_dir=str(tmp_path))
    with pytest.raises(MissingData, match=r"har_features561\.npz is missing: point data_dir"):
        Activity(features="recomputed", data_dir=str(tmp_path))


def test_the_archive_comes_before_the_compact_file(tmp_path: Path) -> None:
    (tmp_path / "har").mkdir()
    (tmp_path / COMPACT).write_bytes(compact_file(some_windows(3)))
    assert Activity(n_agents=3, data_dir=str(tmp_path)).name == "activity_recomputed"
    (tmp_path / ARCHIVE).write_bytes(upstream_archive(some_windows(2), nested=True))
    assert Activity(n_agents=2, data_dir=str(tmp_path)).name == "activity_official"
    with pytest.raises(ValueError, match="at most 2"):
        Activity(n_agents=3, data_dir=str(tmp_path))
    assert Activity(n_agents=3, features="recomputed", data_dir=str(tmp_path)).name == "activity_recomputed"


def test_the_preset(data_dir: str) -> None:
    cfg = compose("problem=activity", "algorithm=dp_fts_de", f"problem.n_agents={SUBJECTS}", f"data_dir={data_dir}")
    flat = {**cfg.algorithm, **cfg.privacy, "rounds": cfg.rounds, "n_init": cfg.n_init}
    expected = dict(P=4, S=22, q=0.35, z=1.0, M=100, lengthscale=0.01, rounds=60, n_init=10, follow="inverse")
    assert {key: flat[key] for key in expected} == expected
    assert build(cfg).problem == Activity(n_agents=SUBJECTS, data_dir=data_dir)


def test_real_subjects_agree_with_scikit_learn(real_data: Callable[[str], Path]) -> None:
    """Mean validation error of the 30 subjects, same halves: within 1 % of the penalised maximum likelihood."""
    file = real_data(COMPACT)
    problem, agents, l2 = Activity(features="recomputed"), torch.arange(30), 0.01
    x = torch.tensor([150, np.log10(l2), -1.0], dtype=torch.float64).expand(30, 1, 3)
    errors = 1 - problem.evaluate(agents, x, STREAMS, 0)[:, 0]
    expected = []
    for s in load_subjects(file, 0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence warnings
            model = LogisticRegression(C=1 / (len(s.y_train) * l2), max_iter=50).fit(s.X_train, s.y_train)
        expected.append(1 - model.score(s.X_validation, s.y_validation))
    assert abs(float(errors.mean()) - np.mean(expected)) < 0.01
    assert float(errors.mean()) < 0.03
    shard = torch.tensor([2, 11, 29])
    assert torch.equal(1 - problem.evaluate(shard, x[shard], STREAMS, 0)[:, 0], errors[shard])
