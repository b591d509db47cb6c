"""Digits by writer, from miniature files in the upstream formats."""

import re
import sys

import numpy as np
import pytest

from dpfbo.extras import MissingPackage
from dpfbo.problems.readers.writers import load_federated_emnist, load_mnist_by_writer, load_pseudo_writers, split
from tests.helpers.data_files import write_compact, write_federated


def test_compact_file_gives_the_first_writers_in_order_of_their_ids(tmp_path):
    writers = load_mnist_by_writer(write_compact(tmp_path / "w.npz"), 2)
    assert [len(w.labels) for w in writers] == [12, 20]
    assert writers[0].images.dtype == np.float32
    assert writers[1].images[3].tolist() == np.full((28, 28), np.float32(13) / np.float32(255)).tolist()
    assert writers[1].labels.tolist() == [k % 10 for k in range(20)]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"writer": None}, "not a file of digits by writer"),
        ({"label": np.zeros(5, np.uint8)}, "equally long"),
        ({"label": np.full(47, 11, np.uint8)}, "writer 0 must be the digits 0 to 9, got 11 to 11"),
        ({"images": np.zeros((47, 8, 8), np.uint8)}, "28 x 28 pixels"),
        ({"images": np.full((47, 28, 28), 0.5, np.float32)}, "images must be uint8, got float32"),
    ],
)
def test_other_compact_files_are_refused(tmp_path, changed, says):
    with pytest.raises(ValueError, match=says):
        load_mnist_by_writer(write_compact(tmp_path / "w.npz", **changed), 2)


def test_files_of_another_kind_are_refused(tmp_path):
    pytest.importorskip("h5py")
    for content in (b"", b"no such format" * 50, b"PK\x03\x04 cut off"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match="not a file of digits by writer"):
            load_mnist_by_writer(tmp_path / "file", 1)
        with pytest.raises(ValueError, match="not a federated EMNIST file"):
            load_federated_emnist(tmp_path / "file", 1, 2)


def test_federated_emnist_takes_large_writers_in_sorted_order_and_turns_ink_to_one(tmp_path):
    path = write_federated(tmp_path / "f.h5", {"f0003_10": 30, "f0001_41": 25, "f0002_02": 9, "f0000_14": 26})
    writers = load_federated_emnist(path, 3, min_images=25)
    assert [len(w.labels) for w in writers] == [26, 25, 30]
    image = writers[0].images[4]
    assert image[3, 5] == 0.75
    assert image.sum() == 0.75
    assert writers[0].labels.tolist() == [k % 10 for k in range(26)]
    says = f"n_agents must be at most 2, the writers with at least 26 images in {path}, got 3"
    with pytest.raises(ValueError, match=re.escape(says)):
        load_federated_emnist(path, 3, min_images=26)


def test_federated_files_with_letters_or_without_examples_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with pytest.raises(ValueError, match="writer f0 must be the digits 0 to 9, got 0 to 29"):
        load_federated_emnist(write_federated(tmp_path / "all.h5", {"f0": 30}, label=lambda k: k), 1, 2)
    with pytest.raises(ValueError, match=r"pixels of writer f0 must lie in \[0, 1\]"):
        load_federated_emnist(write_federated(tmp_path / "bytes.h5", {"f0": 30}, ink=255), 1, 2)
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file["others"] = [1]
    with pytest.raises(ValueError, match="it needs examples/<writer>/pixels and label"):
        load_federated_emnist(tmp_path / "empty.h5", 1, 2)


def test_without_h5py_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingPackage) as caught:
        load_federated_emnist(tmp_path / "f.h5", 1, 2)
    assert str(caught.value) == "the federated EMNIST file needs h5py: pip install 'dpfbo[emnist]'"


def test_pseudo_writers_share_out_all_bundled_digits():
    writers = load_pseudo_writers(9, seed=0)
    assert sorted({len(w.labels) for w in writers}) == [199, 200]
    assert sum(len(w.labels) for w in writers) == 1797
    assert all(w.images.shape[1:] == (8, 8) and w.images.min() == 0 and w.images.max() == 1 for w in writers)
    from sklearn.datasets import load_digits

    whole = sorted(map(bytes, (load_digits().images / 16).astype(np.float32).reshape(1797, 64)))
    assert sorted(bytes(image.ravel()) for w in writers for image in w.images) == whole
    again, other = load_pseudo_writers(9, seed=0), load_pseudo_writers(9, seed=1)
    assert np.array_equal(writers[4].images, again[4].images)
    assert not np.array_equal(writers[4].labels[:199], other[4].labels[:199])
    with pytest.raises(ValueError, match="at most 89 for source=sklearn, got 90"):
        load_pseudo_writers(90, seed=0)


def test_split_takes_the_fraction_of_every_digit():
    labels = np.repeat([0, 1, 2, 3], [10, 7, 2, 1])
    training, validation = split(labels, 0.7, np.random.default_rng(0))
    assert sorted([*training, *validation]) == list(range(20))
    assert np.bincount(labels[training]).tolist() == [7, 5, 2, 1]
    assert np.bincount(labels[validation]).tolist() == [3, 2]
    other, _ = split(labels, 0.7, np.random.default_rng(1))
    assert not np.array_equal(training, other)
    assert len(split(np.zeros(20, int), 0.55, np.random.default_rng(0))[0]) == 11
