"""privacy.rng=os: the noise is fresh and normal, and stored nowhere."""

import logging
import os

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.privacy import entropy, noise
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import SMALL

OFFLINE = ["tracker.wandb.mode=offline", "progress=false"]


@pytest.fixture
def drawn(monkeypatch):
    """The operating system's bytes and the standard normals made of them, in the order of drawing."""
    given, normals = [], []

    def urandom(size):
        given.append(os.urandom(size))
        return given[-1]

    def gaussian(*arguments):
        normals.append(entropy.gaussian(*arguments))
        return normals[-1]

    monkeypatch.setattr(entropy, "os", type("os", (), {"urandom": staticmethod(urandom)}))
    monkeypatch.setattr(noise, "gaussian", gaussian)
    return given, normals


def interrupted(cfg, after):
    def stop(done):
        if done.agents.round == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_configuration(cfg, stop)


def every_number(folder):
    """The numbers in all float columns of the Parquet files, whose bytes are compressed on disk."""
    for path in folder.rglob("*.parquet"):
        for _, column in pd.read_parquet(path).items():
            flat = column.explode() if column.dtype == object else column
            numbers = pd.to_numeric(flat, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
            yield from numbers[np.isfinite(numbers)]


def test_nothing_of_the_noise_stays(tmp_path, caplog, drawn):
    pytest.importorskip("wandb")
    given, normals = drawn
    caplog.set_level(logging.DEBUG)
    cfg = compose(*SMALL, *OFFLINE, "privacy.rng=os", "privacy.q=1", f"results_dir={tmp_path}")
    interrupted(cfg, 3)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.suffix == ".npz" for path in files)  # checkpoint, and the release of the round in progress
    _, folder = run_configuration(cfg)
    files.update({path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})
    assert any(path.suffix == ".wandb" for path in files)
    assert len(normals) >= 6

    words = [np.frombuffer(g, dtype=np.uint64) for g in given]
    uniforms = [(w >> np.uint64(11)).astype(np.float64) * 2.0**-53 for w in words]
    # scaled by sigma, as it was added, and as it was drawn
    sigma = pd.read_parquet(folder / "server.parquet")["sigma"].to_numpy()
    scaled = [s * n.numpy().ravel() for s, n in zip(sigma, normals[-len(sigma) :], strict=True)]
    secret = np.concatenate([*uniforms, *(n.numpy().ravel() for n in normals), *scaled])
    texts = {repr(float(value))[:10].encode() for value in secret}
    haystack = b"\n".join(files.values()) + caplog.text.encode()
    assert haystack
    windows = {haystack[i : i + 8] for i in range(len(haystack) - 7)}
    assert not windows & {value.tobytes() for value in [*np.concatenate(words), *secret]}
    assert not [text for text in texts if text in haystack]
    assert not set(every_number(tmp_path)) & set(secret.tolist())


def test_the_grep_finds_what_is_there(tmp_path, drawn):
    """With z huge and nothing to add, the release is the noise, and the checkpoint must hold it."""
    _, normals = drawn
    cfg = compose(*SMALL, "tracker.wandb.mode=disabled", "progress=false", "privacy.rng=os", "privacy.q=1e-9",
                  f"results_dir={tmp_path}")  # fmt: skip
    interrupted(cfg, 3)
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*.npz"))
    found = np.load(next(tmp_path.rglob("round-00000.npz")))["broadcast"]
    assert np.corrcoef(found.ravel(), normals[0].numpy().ravel())[0, 1] == pytest.approx(1.0)
    assert found.ravel()[0].tobytes() in content


def test_noise_of_the_operating_system_is_normal_fresh_and_of_the_stated_size():
    P, M = 3, 7
    mechanism, w = SubsampledGaussian(0.5, 1.3, 2.0), Softmax(Decay(10, 30))(0, torch.arange(12) % P, P)
    silent = [None] * w.shape[1]
    sample = torch.stack(
        [mechanism.release(silent, w, M, entropy.SystemEntropy(), 0)[0].values for _ in range(2000)]
    )  # one round again and again
    flat = (sample / mechanism.sigma(w)).flatten().numpy()
    assert sample.shape == (2000, P, M)
    assert stats.kstest(flat, "norm").pvalue > 1e-4
    assert stats.normaltest(flat).pvalue > 1e-4
    assert abs(flat.std() - 1) < 4.5 / np.sqrt(2 * len(flat))
    assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 4.5 / np.sqrt(len(flat))
    assert len(np.unique(flat)) == len(flat)
