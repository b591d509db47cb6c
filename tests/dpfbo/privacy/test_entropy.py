"""The server's randomness: seeded for simulation, the operating system's for real."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfbo.privacy.entropy import Entropy, SeededEntropy, SystemEntropy, gaussian
from dpfbo.privacy.noise import Gaussian
from dpfbo.rng import Streams

SOURCES = [SeededEntropy(Streams(0)), SystemEntropy()]


def test_seeded_entropy_repeats_itself() -> None:
    first, again = (SeededEntropy(Streams(5)).uniform("noise", 2, 50) for _ in range(2))
    assert torch.equal(first, again)
    assert SeededEntropy(Streams(5)).reproducible


@pytest.mark.parametrize(("seed", "purpose", "round"), [(6, "noise", 2), (5, "choice", 2), (5, "noise", 3)])
def test_seeded_entropy_differs_by_seed_purpose_and_round(seed: int, purpose: str, round: int) -> None:
    first = SeededEntropy(Streams(5)).uniform("noise", 2, 50)
    other = SeededEntropy(Streams(seed)).uniform(purpose, round, 50)
    assert not set(first.tolist()) & set(other.tolist())


def test_the_server_draws_nothing_that_an_agent_draws() -> None:
    """With one seed for both, the noise must not be readable off the agents' own numbers."""
    streams = Streams(5)
    server = set(SeededEntropy(streams).uniform("noise", 2, 400).tolist())
    agents = {
        u for p in ("noise", "choice", "message/noise") for u in streams.uniform(p, torch.arange(9), 2, 40).view(-1)
    }
    assert not server & {float(u) for u in agents}


def test_system_entropy_never_repeats_itself() -> None:
    entropy = SystemEntropy()
    assert not entropy.reproducible
    numbers = torch.cat([entropy.uniform("noise", 0, 1000) for _ in range(5)])
    assert len(numbers.unique()) == 5000  # 53 bits: a collision has probability 1e-9


def test_system_entropy_stores_nothing() -> None:
    entropy = SystemEntropy()
    before = dataclasses.asdict(entropy)
    entropy.uniform("noise", 0, 10)
    assert dataclasses.asdict(entropy) == before == {"reproducible": False}


@pytest.mark.parametrize("entropy", SOURCES, ids=["seeded", "system"])
def test_uniforms_are_uniform(entropy: Entropy) -> None:
    """The system's numbers cannot be fixed: 6 standard errors, wrong once in 1e9 runs."""
    n = 40_000
    u = entropy.uniform("noise", 0, n)
    assert u.dtype == torch.float64 and u.shape == (n,)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 1 / 2) < 6 * math.sqrt(1 / 12 / n)
    assert stats.kstest(u.numpy(), "uniform").statistic < 3.3 / math.sqrt(n)  # p = 7e-10


@pytest.mark.parametrize("entropy", SOURCES, ids=["seeded", "system"])
@pytest.mark.parametrize("shape", [(1,), (3,), (3, 5), (2, 4), (2, 3, 7)])
def test_gaussian_has_the_shape_that_was_asked_for(entropy: Entropy, shape: tuple[int, ...]) -> None:
    z = gaussian(entropy, "noise", 0, shape)
    assert z.shape == shape and z.dtype == torch.float64 and len(z.unique()) == z.numel()


@pytest.mark.parametrize("entropy", SOURCES, ids=["seeded", "system"])
def test_gaussian_is_standard_normal(entropy: Entropy) -> None:
    n = 199 * 201
    z = gaussian(entropy, "noise", 0, (199, 201))
    assert abs(z.mean()) < 6 / math.sqrt(n)
    assert abs(z.var() - 1) < 6 * math.sqrt(2 / n)
    assert stats.kstest(z.flatten().numpy(), "norm").statistic < 3.3 / math.sqrt(n)
    R = torch.corrcoef(z) - torch.eye(199, dtype=torch.float64)
    assert float(R.abs().max()) * math.sqrt(201) < 8  # 2e4 pairs of 201 numbers


class Recorded:
    """Entropy that notes what is asked of it."""

    reproducible = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def uniform(self, purpose: str, round: int, size: int) -> torch.Tensor:
        self.asked.append((purpose, round, size))
        return SeededEntropy(Streams(3)).uniform(purpose, round, size)


@pytest.mark.parametrize(("shape", "size"), [((2, 3), 6), ((5,), 6), ((1,), 2)])
def test_a_normal_costs_one_uniform_of_its_own_stream(shape: tuple[int, ...], size: int) -> None:
    entropy = Recorded()
    drawn = gaussian(entropy, "noise", 7, shape)
    assert entropy.asked == [("noise", 7, size)]
    total = torch.ones(shape, dtype=torch.float64)
    assert torch.equal(Gaussian().add(total, 0.5, 1.0, entropy, 7), total + 0.5 * drawn)
    assert entropy.asked == 2 * [("noise", 7, size)]
    assert not torch.equal(gaussian(entropy, "other", 7, shape), drawn)


def test_system_entropy_passes_on_every_word_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 65 536 words, in one call and over many, the uniforms are the system's words in order, 53 bits of each."""
    system, given = np.random.default_rng(0), []

    def urandom(size: int) -> bytes:
        given.append(system.bytes(size))
        return given[-1]

    monkeypatch.setattr("os.urandom", urandom)
    entropy = SystemEntropy()
    sizes = (3, 70_001, 1, *(9_999,) * 8)
    numbers = torch.cat([entropy.uniform("noise", 0, size) for size in sizes])
    words = np.frombuffer(b"".join(given), dtype=np.uint64)
    assert len(words) == len(numbers) == sum(sizes)
    assert numbers.tolist() == [(int(word) >> 11) * 2.0**-53 for word in words]
