"""The batched network against PyTorch's own layers and optimiser, and the problem that trains it."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from dpfbo.problems.digits import Digits
from dpfbo.problems.objectives import cnn
from dpfbo.problems.readers.data_files import MissingData
from dpfbo.rng import Streams
from runners.compose.composition import Composition, build
from tests.helpers.compose import compose, setting_hash
from tests.helpers.data_files import write_compact, write_federated

SIDE = 14


def image_sets(n=5, images=20, steps=6, side=SIDE):
    rng = np.random.default_rng(0)
    pixels = torch.rand(n * images, side, side, generator=torch.Generator().manual_seed(0))
    target = functional.one_hot(torch.arange(n * images) % 10, 10).float()
    rows = [np.arange(images) + i * images for i in range(n)]
    batches = torch.from_numpy(np.stack([cnn.batches_of(some[:12], steps, rng) for some in rows]))
    held_out = [torch.from_numpy(some[12 : 16 + i % 4]) for i, some in enumerate(rows)]
    validation = pad_sequence(held_out, batch_first=True, padding_value=-1)
    start = Streams(0).normal("start", torch.arange(n), 0, cnn.n_weights(side)).float()
    return pixels, cnn.ImageSets(cnn.patches_of(pixels), target, batches, validation, start)


def settings(n):
    unit = torch.rand(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return unit * torch.tensor([0.2, 0.2, 0.02])  # larger rates and decays than the problem's show more


def reference(parameters, images):
    """The same network for one image set, by PyTorch's convolutions."""
    W1, b1, W2, b2, W3, b3 = parameters
    first = functional.relu(functional.conv2d(images[:, None], W1.T.reshape(8, 1, 5, 5), b1[0], stride=2, padding=2))
    kernel = W2.T.reshape(16, 3, 3, 8).permute(0, 3, 1, 2)
    second = functional.relu(functional.conv2d(first, kernel, b2[0], stride=2, padding=1))
    return second.permute(0, 2, 3, 1).flatten(1) @ W3 + b3


@pytest.mark.parametrize("side", [8, 14])
def test_logits_and_gradient_are_those_of_convolutions(side):
    images, data = image_sets(2, side=side)
    h = math.isqrt(data.patches.shape[1])
    parameters = [p + 0.1 for p in cnn.start_parameters(data.start, h)]  # biases other than zero
    rows = torch.stack([torch.arange(0, 16), torch.arange(20, 36)])
    out = cnn.logits(parameters, data.patches[rows])
    gradient = cnn.gradient(parameters, data.patches[rows], data.target[rows])
    for i in range(2):
        own = [p[i].clone().requires_grad_() for p in parameters]
        expected = reference(own, images[rows[i]])
        assert torch.allclose(out[i], expected, rtol=1e-4, atol=1e-4)
        by_autograd = torch.autograd.grad(functional.cross_entropy(expected, data.target[rows[i]].argmax(1)), own)
        for ours, theirs in zip(gradient, by_autograd, strict=True):
            assert torch.allclose(ours[i], theirs, rtol=1e-3, atol=1e-5)


def test_training_is_that_of_a_torch_optimiser():
    images, data = image_sets(3)
    sets, x = torch.tensor([2, 0]), settings(2)
    trained = cnn.train(data, sets, x.float())
    accuracy = cnn.validation_accuracy(data, sets, x)
    for i, (own, (rate, decay, l2)) in enumerate(zip(sets.tolist(), x.tolist(), strict=True)):
        start = cnn.start_parameters(data.start[own][None], 7)
        parameters = [p[0].clone().requires_grad_() for p in start]
        optimiser = torch.optim.SGD(parameters, lr=rate, momentum=cnn.MOMENTUM)
        for step, rows in enumerate(data.batches[own]):
            optimiser.param_groups[0]["lr"] = rate / (1 + decay * step)
            loss = functional.cross_entropy(reference(parameters, images[rows]), data.target[rows].argmax(1))
            loss = loss + l2 * sum((w**2).sum() for w in parameters[::2])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        for ours, theirs, before in zip(trained, parameters, start, strict=True):
            assert torch.allclose(ours[i], theirs, rtol=1e-3, atol=1e-5)
            assert not torch.allclose(ours[i], before[0], atol=1e-3)
        rows = data.validation[own][data.validation[own] >= 0]
        right = reference(parameters, images[rows]).argmax(1) == data.target[rows].argmax(1)
        assert float(accuracy[i]) == float(right.double().mean())


def test_a_network_is_the_same_to_the_bit_whatever_else_is_trained():
    _, data = image_sets(70, steps=3)
    sets, x = torch.arange(70), settings(70).float()
    whole = cnn.train(data, sets, x)
    for some in ([3], [69, 0], [7, 1, 20], list(range(35, 70)), list(range(5))):
        fill = some if len(some) > 1 else some * 2
        part = cnn.train(data, sets[fill], x[fill])
        assert all(torch.equal(ours, theirs[fill]) for ours, theirs in zip(part, whole, strict=True))
    accuracy = cnn.validation_accuracy(data, sets, x)  # in more than one piece
    assert torch.equal(cnn.validation_accuracy(data, sets[[66]], x[[66]]), accuracy[[66]])
    assert len(cnn.validation_accuracy(data, sets[:0], x[:0])) == 0


def test_minibatches_pass_over_all_images_before_any_comes_again():
    rows = np.arange(100, 124)
    batches = cnn.batches_of(rows, 5, np.random.default_rng(0))
    assert batches.shape == (5, 16)
    for k in range(3):
        assert sorted(batches.ravel()[24 * k : 24 * (k + 1)]) == list(rows)
    assert not np.array_equal(batches.ravel()[:24], batches.ravel()[24:48])


@pytest.fixture(scope="module")
def pseudo():
    return Digits(n_agents=7, source="sklearn", steps=10)


def points(problem, k, seed=0):
    u = torch.rand(problem.n_agents, k, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return problem.domain.to_natural(u)


def test_contract_and_shards(pseudo):
    agents, x = torch.arange(7), points(pseudo, 3)
    y = pseudo.evaluate(agents, x, Streams(0), 1)
    assert y.shape == (7, 3)
    assert y.dtype == torch.float64
    assert ((y >= 0) & (y <= 1)).all()
    assert len(y.unique()) > 5
    assert torch.equal(y, pseudo.evaluate(agents, x, Streams(9), 2))  # deterministic, as noise_variance says
    assert pseudo.noise_variance == 0
    for some in ([5, 2], [6], [0, 1, 2]):
        assert torch.equal(pseudo.evaluate(torch.tensor(some), x[some], Streams(0), 1), y[some])
    assert torch.equal(pseudo.evaluate(agents, x[:, 1:2], Streams(0), 1), y[:, 1:2])
    assert torch.equal(pseudo.true_value(agents, x, y), y)
    assert pseudo.reference.tolist() == [1.0] * 7
    assert (pseudo.metric, pseudo.lower_is_better) == ("validation_error", True)


def test_network_seed_and_split_seed_give_other_objectives(pseudo):
    agents, x = torch.arange(7), points(pseudo, 3)
    y = pseudo.evaluate(agents, x, Streams(0), 1)
    for seed in ("network_seed", "split_seed"):
        other = dataclasses.replace(pseudo, **{seed: 1})
        assert not torch.equal(other.evaluate(agents, x, Streams(0), 1), y)


def test_in_logarithms_the_network_is_the_same(pseudo):
    log = dataclasses.replace(pseudo, scale="log")
    assert (pseudo.domain.lower, pseudo.domain.upper) == ((1e-7,) * 3, (0.02,) * 3)  # the paper's
    assert (log.domain.lower, log.domain.upper) == ((-7,) * 3, pytest.approx((-1.69897,) * 3, abs=1e-6))
    agents, x = torch.arange(7), points(log, 3)
    natural = torch.exp(math.log(10) * x)
    assert torch.equal(log.evaluate(agents, x, Streams(0), 1), pseudo.evaluate(agents, natural, Streams(0), 1))


def test_auto_prefers_the_federated_file_and_the_name_says_what_was_read(tmp_path):
    folder = tmp_path / "emnist_digits"
    write_compact(folder / "mnist_by_writer_50.npz", (22, 23))
    small = dict(n_agents=2, min_images=20, steps=1, data_dir=str(tmp_path))
    assert Digits(**small).name == "digits_mnist_by_writer"
    write_federated(folder / "fed_emnist_digitsonly_train.h5", {"a": 24, "b": 20, "c": 30})
    problem = Digits(**small)
    assert problem.name == "digits_federated_emnist"
    y = problem.evaluate(torch.arange(2), points(problem, 1), Streams(0), 0)
    assert torch.equal(y * 10, (y * 10).round())  # writer a: 10 of 24 images to judge by, 14 to train; b: 10 of 20
    assert Digits(**{**small, "source": "mnist_by_writer"}).name == "digits_mnist_by_writer"


def test_more_than_fifty_agents_need_the_larger_compact_file(tmp_path):
    write_compact(tmp_path / "emnist_digits" / "mnist_by_writer_50.npz", (20,) * 50)
    with pytest.raises(MissingData, match="mnist_by_writer_500.npz"):
        Digits(n_agents=51, data_dir=str(tmp_path))
    write_compact(tmp_path / "emnist_digits" / "mnist_by_writer_500.npz", (20,) * 51)
    many, few = (Digits(n_agents=n, steps=1, data_dir=str(tmp_path)) for n in (51, 2))
    x = points(few, 1)
    assert torch.equal(*(problem.evaluate(torch.arange(2), x, Streams(0), 0) for problem in (many, few)))


def test_five_hundred_real_writers_begin_with_the_fifty(real_data):
    real_data("emnist_digits/mnist_by_writer_500.npz")
    real_data("emnist_digits/mnist_by_writer_50.npz")
    many, few = (Digits(n_agents=n, source="mnist_by_writer", steps=5, scale="log") for n in (500, 50))
    x, agents = points(many, 1), torch.arange(500)
    y = many.evaluate(agents, x, Streams(0), 0)
    assert y.shape == (500, 1) and ((y >= 0) & (y <= 1)).all()
    assert torch.equal(few.evaluate(agents[:50], x[:50], Streams(0), 0), y[:50])
    with pytest.raises(ValueError, match="n_agents must be at most 500, the writers in"):
        Digits(n_agents=501, source="mnist_by_writer")


@pytest.mark.parametrize("source", ["auto", "federated_emnist", "mnist_by_writer"])
def test_missing_files_say_what_to_do_and_nothing_else_is_read(tmp_path, source):
    with pytest.raises(MissingData, match="point data_dir.*source=sklearn") as error:
        Digits(source=source, data_dir=str(tmp_path))
    assert ("python -m runners.fetch emnist" in str(error.value)) == (source != "mnist_by_writer")  # not fetched by us


def test_the_source_that_was_found_belongs_to_the_setting(tmp_path):
    write_compact(tmp_path / "emnist_digits" / "mnist_by_writer_50.npz", (20,) * 3)
    overrides = ["problem=digits", "problem.n_agents=3", f"data_dir={tmp_path}", "algorithm=ts"]
    found, named = compose(*overrides), compose(*overrides, "problem.source=mnist_by_writer")
    assert Composition.of(found).given.problem.source == "mnist_by_writer"
    assert setting_hash(Composition.of(found).given) == setting_hash(named) != setting_hash(found)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_agents": 0}, "n_agents must be an integer of at least 1, got 0"),
        ({"source": "mnist"}, "source must be one of 'auto', 'federated_emnist', 'mnist_by_writer', 'sklearn'"),
        ({"min_images": 1}, "min_images"),
        ({"train_fraction": 0}, "train_fraction must lie in (0, 1], got 0"),
        ({"train_fraction": 1.0}, "train_fraction must leave images for validation, got 1.0"),
        ({"steps": 0}, "steps"),
        ({"scale": "cubic"}, "scale must be one of 'linear', 'log', got 'cubic'"),
        ({"split_seed": -1}, "split_seed"),
        ({"network_seed": 0.5}, "network_seed"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Digits(**{"source": "sklearn", **settings})


def test_preset_is_the_papers():
    overrides = ("problem=digits", "problem.source=sklearn", "problem.n_agents=22", "problem.steps=1")
    cfg = compose(*overrides, "algorithm=dp_fts_de")
    experiment = build(cfg)
    assert isinstance(experiment.problem, Digits)
    assert (experiment.rounds, cfg.n_init, cfg.privacy.S, cfg.algorithm.P, cfg.algorithm.M) == (60, 10, 22, 4, 100)
    assert compose(*overrides, "algorithm=dp_fts").privacy.S == 11


def test_a_good_setting_reaches_less_than_a_tenth_for_most_writers(real_data):
    real_data("emnist_digits/mnist_by_writer_50.npz")
    problem = Digits(source="mnist_by_writer")
    agents = torch.arange(50)
    x = torch.tensor([0.02, 1e-7, 0.02], dtype=torch.float64).expand(50, 1, 3)
    error = 1 - problem.evaluate(agents, x, Streams(0), 0)
    assert (error < 0.1).double().mean() > 0.5
    slow = torch.full((5, 1, 3), 1e-7, dtype=torch.float64)
    assert (1 - problem.evaluate(agents[:5], slow, Streams(0), 0)).mean() > 0.5
