"""Hostile data files: each is refused in one sentence, in little time and memory."""

import bz2
import gzip
import lzma
import os
import shutil
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dpfbo.checks import SettingError
from dpfbo.problems.landmine import Landmine
from dpfbo.problems.objectives.svm import load_fields
from dpfbo.problems.readers import csv_table
from dpfbo.problems.readers.csv_table import read_columns
from dpfbo.problems.readers.data_files import MissingData, data_file
from dpfbo.problems.readers.har import read_windows
from dpfbo.problems.readers.writers import load_federated_emnist, load_mnist_by_writer
from dpfbo.problems.school import load_schools
from tests.helpers.data_files import some_windows, upstream_archive, write_mini_landmine
from tests.hostile import files as hostile

READERS = {
    "digits.npz": lambda path: load_mnist_by_writer(path, 2),
    "digits.h5": lambda path: load_federated_emnist(path, 2, 2),
    "har.npz": read_windows,
    "har.zip": read_windows,
    "landmine.mat": lambda path: load_fields(path, 0),
    "school.mat": lambda path: load_schools(path, 0),
    "table.csv": lambda path: read_columns(path, ("a", "b")),
    "table.csv.gz": lambda path: read_columns(path, ("a", "b")),
    "table.csv.zip": lambda path: read_columns(path, ("a", "b")),
}
RUBBISH = (b"\0" * 5000, b"\xff" * 5000, b"<html>", b"PK\5\6" + bytes(18), b"MATLAB 5.0", b"\x89HDF\r\n\x1a\n")
MOST_MEMORY = 700 * 2**20  # bytes that a refusal may allocate; the bombs unpack to several gigabytes


class Evil:
    """An object whose unpickling would be seen."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


PICKLE = np.array([Evil()], dtype=object)
IMAGES, SOME = np.zeros((4, 28, 28), np.uint8), np.array([1, 1, 2, 2])


def refused(path, why=""):
    """The reader of this file's kind raises ValueError, one sentence that names the file."""
    tracemalloc.start()
    begin = time.monotonic()
    try:
        with pytest.raises((ValueError, MissingData), match=why or None) as caught:
            READERS[path.name](path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begin < 10 and peak < MOST_MEMORY, f"{peak / 2**20:.0f} MiB"
    sentence = str(caught.value)
    assert "\n" not in sentence and path.name in sentence and len(sentence) < 600
    return sentence


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_a_folder_and_an_empty_file_are_refused(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    refused(path, "must be a plain file, got a pipe")
    path.unlink()
    path.mkdir()
    refused(path, "must be a plain file, got a folder")
    path.rmdir()
    path.write_bytes(b"")
    refused(path)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", RUBBISH)
def test_rubbish_is_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    refused(path)


def test_a_pipe_in_the_place_of_a_data_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "file.csv")
    with pytest.raises(MissingData, match="must be a plain file, and is a pipe, a socket or a device"):
        data_file(tmp_path, "file.csv", None)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"images": hostile.npy((10**9, 28, 28), "|u1"), "label": SOME, "writer": SOME}, "arrays must hold at most"),
        ({"images": hostile.npy((10**30,), "|u1"), "label": SOME, "writer": SOME}, "with 3 dimensions, got"),
        ({"images": hostile.npy((-4, 28, 28), "|u1"), "label": SOME, "writer": SOME}, "images must be numbers"),
        ({"images": hostile.npy((4, 28, 28), "|u1"), "label": SOME, "writer": SOME}, ""),
        ({"images": hostile.npy((4, 28, 28), "|O"), "label": SOME, "writer": SOME}, "images must be numbers"),
        ({"images": IMAGES, "label": PICKLE, "writer": SOME}, "label must be numbers"),
        ({"images": IMAGES, "label": np.array(list("abcd")), "writer": SOME}, "label must be numbers"),
        ({"images": IMAGES, "label": np.array([1, 2, np.nan, 3]), "writer": SOME}, "labels of writer 2"),
        ({"images": IMAGES, "label": SOME.reshape(2, 2), "writer": SOME}, "with 1 dimensions"),
        ({"images": IMAGES.astype(float), "label": SOME, "writer": SOME}, "images must be uint8"),
        ({"images": IMAGES, "label": np.array(3), "writer": SOME}, "with 1 dimensions"),
        ({"images": IMAGES[:, :5], "label": SOME, "writer": SOME}, "28 x 28"),
        ({"images": IMAGES[:0], "label": SOME[:0], "writer": SOME[:0]}, "n_agents must be at most 0"),
        ({"images": IMAGES, "label": SOME}, "writer"),
    ],
)
def test_digits_in_arrays_of_other_shapes_and_types(tmp_path, monkeypatch, arrays, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.npz").write_bytes(hostile.npz(**arrays))
    refused(tmp_path / "digits.npz", why)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/x", "a/../../x", "..\\x", "C:\\x"])
def test_a_name_that_leads_out_of_an_archive_is_refused(tmp_path, name):
    content = {"har.zip": upstream_archive(some_windows(2, 2)), "digits.npz": hostile.npz(images=IMAGES)}
    for file, whole in content.items():
        (tmp_path / file).write_bytes(whole)
        with zipfile.ZipFile(tmp_path / file, "a") as archive:
            archive.writestr(name, "x")
        refused(tmp_path / file, "must not lead out of it")


def test_archives_that_unpack_to_gigabytes_are_refused(tmp_path):
    member = "UCI HAR Dataset/train/y_train.txt"
    (tmp_path / "har.zip").write_bytes(hostile.zip_bomb(member, 200 * 2**20))
    refused(tmp_path / "har.zip", "must hold at most 134217728 bytes")
    (tmp_path / "har.zip").write_bytes(hostile.zip_bomb("UCI HAR Dataset.zip", 200 * 2**20))
    refused(tmp_path / "har.zip", "must hold at most 134217728 bytes")
    (tmp_path / "table.csv.zip").write_bytes(hostile.zip_bomb("x.csv", 200 * 2**20))
    refused(tmp_path / "table.csv.zip", "must hold at most 134217728 bytes")
    (tmp_path / "table.csv.gz").write_bytes(hostile.gzip_bomb(hostile.GIGABYTES, b"a,b\n"))
    refused(tmp_path / "table.csv.gz", "must hold at most 134217728 bytes")
    (tmp_path / "school.mat").write_bytes(hostile.compressed_mat(200 * 2**20, "X"))
    refused(tmp_path / "school.mat", "must hold at most 67108864 bytes")
    (tmp_path / "har.npz").write_bytes(hostile.npz(zipfile.ZIP_LZMA, X_u16=np.zeros((2, 561), np.uint16)))
    refused(tmp_path / "har.npz", "must be stored or deflated")


def test_a_zip_that_lies_about_a_size_is_refused(tmp_path):
    content = bytearray(hostile.zip_bomb("x.csv", 160 * 2**20))
    for mark, at in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        place = content.find(mark) + at
        content[place : place + 4] = struct.pack("<I", 100)
    (tmp_path / "table.csv.zip").write_bytes(content)
    refused(tmp_path / "table.csv.zip")


def test_long_rows_are_refused_before_they_are_parsed(tmp_path):
    members = {"UCI HAR Dataset__train__y_train.txt": "1 " * 40_000_000}
    (tmp_path / "har.zip").write_bytes(hostile.zip_of(**members))
    refused(tmp_path / "har.zip", "must have at most 100000 rows of 65536 bytes")
    (tmp_path / "table.csv").write_bytes(b"a," * 3_000_000)
    refused(tmp_path / "table.csv", "at most 10000 columns")
    (tmp_path / "table.csv").write_bytes(b'"' + b"a\n" * 3_000_000)
    refused(tmp_path / "table.csv", "csv")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,two\n", "column b, row 1: must be a finite number"),
        ("a,b\n1,inf\n", "column b, row 1: must be a finite number"),
        ("a,b\n1,1e999\n", "column b, row 1"),
        ("a,b\n1,2,3\n", "is not a csv file"),
        ("a,c\n1,2\n", "must have a column 'b'"),
        ("a,b,b\n1,2,3\n", "must have one column 'b'"),
        ("a\0,b\n1,2\n", ""),
        ("\n\n\n", ""),
    ],
)
def test_tables_with_text_and_other_columns(tmp_path, text, why):
    (tmp_path / "table.csv").write_text(text)
    refused(tmp_path / "table.csv", why)


def test_a_table_of_a_header_alone_is_empty_and_compressed_tables_are_equal(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")
    assert len(read_columns(tmp_path / "table.csv", ("a", "b"))) == 0
    plain = b"a,b\n1,2\n,0.5\n"
    tables = []
    for name, content in (
        ("t.csv", plain), ("t.csv.zip", hostile.zip_of(x=plain)), ("t.csv.gz", gzip.compress(plain)),
        ("t.csv.bz2", bz2.compress(plain)), ("t.csv.xz", lzma.compress(plain)),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        tables.append(read_columns(tmp_path / name, ("a", "b")))
    assert all(table.equals(tables[0]) for table in tables) and tables[0]["b"].tolist() == [2, 0.5]
    assert csv_table.MOST_BYTES == 2**27


MATRIX = hostile.matrix(6, "", hostile.element(9, struct.pack("<d", 1.0)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (hostile.deep_cells(20_000, ("X", "Y")), "cells of X must be matrices of numbers, got one of class 1"),
        (hostile.HEADER + hostile.matrix(6, "X", hostile.element(9, bytes(8))), "X must be a cell array"),
        (hostile.HEADER + hostile.matrix(1, "X", MATRIX, shape=(1, 2**31 - 1)), ""),
        (hostile.HEADER + hostile.matrix(1, "X", MATRIX, shape=(-1, 1)), ""),
        (hostile.HEADER + hostile.matrix(1, "X", hostile.matrix(6, "", shape=(2**30, 2**30))), ""),
        (hostile.HEADER + hostile.matrix(1, "X", hostile.matrix(17, "")), "class 17"),
        (hostile.HEADER + hostile.matrix(1, "Z", MATRIX), "'X'"),
        (hostile.HEADER + struct.pack("<II", 14, 2**32 - 1), "cut off"),
        (hostile.HEADER + struct.pack("<II", 15, 40) + b"x" * 40, ""),
        (hostile.HEADER + bytes(8 * 30_000), "element"),
    ],
    ids=range(10),
)  # fmt: skip
def test_cells_that_are_deep_or_declare_too_much(tmp_path, content, why):
    path = tmp_path / "school.mat"
    path.write_bytes(content)
    refused(path, why)


def landmine_with(tmp_path, change):
    shutil.rmtree(tmp_path / "landmine", ignore_errors=True)
    path = write_mini_landmine(tmp_path) / "landmine" / "LandmineData.mat"
    feature, label = (np.empty((1, 3), dtype=object) for _ in range(2))
    for n in range(3):
        feature[0, n], label[0, n] = np.ones((8, 9)), np.arange(8)[:, None] % 2
    change(feature, label)
    savemat(tmp_path / "landmine.mat", {"feature": feature, "label": label})
    shutil.copy(tmp_path / "landmine.mat", path)
    return tmp_path / "landmine.mat"


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (0, np.full((8, 9), np.nan), "finite features"),
        (0, np.ones((7, 9)), "a label for each row"),
        (0, np.ones((8, 0)), "finite features"),
        (0, np.ones((8, 9), complex), "real numbers"),
        (0, "text", "matrices of numbers"),
        (1, np.zeros((8, 1)), "each of them at least twice"),
        (1, np.full((8, 1), 2.0), "labels 0 and 1"),
        (1, np.full((8, 1), np.nan), "labels 0 and 1"),
    ],
)
def test_landmine_fields_with_other_content(tmp_path, place, value, why):
    def change(*cells):
        cells[place][0, 1] = value

    refused(landmine_with(tmp_path, change), why)


def test_a_landmine_file_with_fewer_fields_serves_fewer_agents(tmp_path):
    landmine_with(tmp_path, lambda *cells: None)
    assert Landmine(n_agents=3, data_dir=str(tmp_path)).n_agents == 3
    with pytest.raises(SettingError, match="n_agents must be at most 3, the fields in .*LandmineData.mat, got 29"):
        Landmine(data_dir=str(tmp_path))


class TestHdf5:
    @pytest.fixture
    def file(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "digits.h5", "w") as file:
            yield file

    def refused(self, file, why):
        path = file.filename
        file.close()
        return refused(Path(path), why)

    def test_a_declared_shape_beyond_all_memory(self, file):
        file.create_dataset("examples/w/label", shape=(10**13,), chunks=(1000,), dtype="i4")
        self.refused(file, "label must be a list of at most")

    def test_a_chunk_beyond_all_memory(self, file):
        file["examples/w/label"] = np.zeros(3, np.int32)
        pixels = {"shape": (3, 28, 28), "maxshape": (None, 28, 28), "chunks": (10**6, 28, 28), "dtype": "f4"}
        file.create_dataset("examples/w/pixels", compression="gzip", **pixels)
        self.refused(file, "pixels must be a list of at most")

    def test_links_out_of_the_file_and_loops(self, file):
        h5py = pytest.importorskip("h5py")
        file["examples/w/label"] = np.zeros(3, np.int32)
        file["examples/w/pixels"] = h5py.ExternalLink("/etc/passwd", "/x")
        self.refused(file, "pixels must be a dataset in the file")

    def test_numbers_from_another_file(self, file, tmp_path):
        (tmp_path / "secret").write_bytes(bytes(3 * 784 * 4))
        file["examples/w/label"] = np.zeros(3, np.int32)
        outside = [(str(tmp_path / "secret"), 0, 3 * 784 * 4)]
        file.create_dataset("examples/w/pixels", shape=(3, 28, 28), dtype="f4", external=outside)
        self.refused(file, "pixels must be numbers in the file")

    @pytest.mark.parametrize(
        ("label", "pixels", "why"),
        [
            (np.float64(3), np.zeros((3, 28, 28)), "label must be a list"),
            (np.zeros(3), np.zeros((2, 28, 28)), "a label for each"),
            (np.zeros(3), np.full((3, 28, 28), np.nan), "pixels of writer w must lie"),
            (np.zeros(3), np.full((3, 28, 28), b"x"), "must be numbers"),
            (np.zeros(3), np.zeros((3, 5)), "28 x 28"),
            (np.full(3, np.nan), np.zeros((3, 28, 28)), "labels of writer w"),
        ],
    )
    def test_other_shapes_and_types(self, file, label, pixels, why):
        for name in ("w", "x"):
            file[f"examples/{name}/label"], file[f"examples/{name}/pixels"] = label, pixels
        self.refused(file, why)


def test_too_little_memory_is_one_sentence(tmp_path, monkeypatch):
    def starved(*arguments):
        raise MemoryError

    monkeypatch.setattr(csv_table, "unpacked", starved)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    refused(tmp_path / "table.csv", "needs more memory than there is")
