"""Files in the formats of the upstream sites: fetched from a local server, interrupted, resumed, and loaded."""

import hashlib
import io
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfbo.problems.activity import Activity
from dpfbo.problems.readers import har, writers
from dpfbo.rng import Streams
from runners.fetch import command
from runners.fetch.command import main
from runners.fetch.data_files import DATA_FILES
from tests.helpers.data_files import some_windows, upstream_archive
from tests.helpers.servers import ATTEMPTS, Behaviour, hasten, serving

TRAIN, TEST = (f"fed_emnist_digitsonly_{part}.h5" for part in ("train", "test"))


def emnist_file(folder: Path) -> bytes:
    """examples/<writer>/{pixels, label}, as TensorFlow Federated writes it: 1 is the background."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with h5py.File(folder / "made.h5", "w") as file:
        for writer in ("f0000_14", "f0001_41"):
            group = file.create_group(f"examples/{writer}")
            group["pixels"] = 1 - rng.random((20, 28, 28)).astype(np.float32)
            group["label"] = (np.arange(20) % 10).astype(np.int32)
    return (folder / "made.h5").read_bytes()


def tar_bz2(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


Serve = Callable[[str, bytes], Behaviour]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Give the shipped entry `name` an address that sends `content`, and its checksum."""
    hasten(monkeypatch)
    behaviour = Behaviour()
    with serving(behaviour) as address:

        def entry(name: str, content: bytes) -> Behaviour:
            behaviour.content = content
            checksum, size = hashlib.sha256(content).hexdigest(), DATA_FILES[name].bytes and len(content)
            here = replace(DATA_FILES[name], url=f"{address}/{name}", sha256=checksum, bytes=size)
            monkeypatch.setattr(command, "DATA_FILES", {name: here})
            return behaviour

        yield entry


def run(root: Path, *arguments: str) -> int:
    return main([*arguments, f"data_dir={root}"])


def folder_of(root: Path, name: str) -> list[str]:
    return sorted(path.name for path in (root / DATA_FILES[name].path).parent.iterdir())


def test_activity_recognition_is_fetched_in_pieces_and_solved(serve: Serve, tmp_path: Path) -> None:
    assert DATA_FILES["har"].path == har.ARCHIVE
    made = some_windows()
    content = upstream_archive(made, nested=True)
    server = serve("har", content)
    server.drop_after = [len(content) // 4] * ATTEMPTS
    assert run(tmp_path, "har") == 1
    kept = ATTEMPTS * (len(content) // 4)
    assert folder_of(tmp_path, "har") == [Path(har.ARCHIVE).name + ".part"]
    assert run(tmp_path, "har") == 0
    assert server.asked[-1] == f"bytes={kept}-"
    assert folder_of(tmp_path, "har") == [Path(har.ARCHIVE).name]
    assert np.array_equal(np.sort(har.read_windows(tmp_path / har.ARCHIVE).subject), np.sort(made.subject))
    problem = Activity(n_agents=3, epochs=2, data_dir=str(tmp_path))
    x = torch.tensor([200.0, -2, -2], dtype=torch.float64).expand(3, 1, 3)
    assert torch.isfinite(problem.evaluate(torch.arange(3), x, Streams(0), 0)).all()


@pytest.mark.parametrize("folder", ["", "./", "datasets/", "../../"])
def test_federated_emnist_is_fetched_in_pieces_and_unpacked(serve: Serve, tmp_path: Path, folder: str) -> None:
    file = emnist_file(tmp_path)
    content = tar_bz2({folder + TEST: b"not this one", folder + TRAIN: file})
    server = serve("emnist", content)
    server.drop_after = [len(content) // 4] * ATTEMPTS
    assert run(tmp_path, "emnist") == 1
    assert folder_of(tmp_path, "emnist") == [TRAIN + ".part"]
    assert run(tmp_path, "emnist") == 0
    assert server.asked[-1] == f"bytes={ATTEMPTS * (len(content) // 4)}-"
    assert folder_of(tmp_path, "emnist") == [TRAIN]
    target = tmp_path / DATA_FILES["emnist"].path
    assert target.read_bytes() == file
    first, second = writers.load_federated_emnist(target, n_agents=2, min_images=20)
    assert first.images.shape == second.images.shape == (20, 28, 28)


def test_what_is_unpacked_is_fetched_again_only_by_force(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def state() -> str:
        return command.state_of(command.DATA_FILES["emnist"], tmp_path)

    server = serve("emnist", tar_bz2({TRAIN: b"one"}))
    assert state() == "missing"
    assert run(tmp_path, "emnist") == 0
    capsys.readouterr()
    assert state() == "present"
    serve("emnist", tar_bz2({TRAIN: b"two"}))
    asked = len(server.asked)
    assert run(tmp_path, "emnist") == 0
    assert "already there" in capsys.readouterr().out
    assert len(server.asked) == asked
    assert run(tmp_path, "emnist", "--force") == 0
    assert (tmp_path / DATA_FILES["emnist"].path).read_bytes() == b"two"
    (tmp_path / DATA_FILES["emnist"].path).write_bytes(b"")
    capsys.readouterr()
    assert state() == "different"
    assert run(tmp_path, "emnist") == 1
    assert "or replace it with --force" in capsys.readouterr().err


def test_the_beginning_of_another_download_costs_one_more_try(serve: Serve, tmp_path: Path) -> None:
    archive = tar_bz2({TRAIN: b"right"})
    serve("emnist", archive)
    target = tmp_path / DATA_FILES["emnist"].path
    target.parent.mkdir(parents=True)
    target.with_name(target.name + ".part").write_bytes(b"x" * (len(archive) // 2))
    assert run(tmp_path, "emnist") == 0
    assert target.read_bytes() == b"right"


def damaged(archive: bytes) -> bytes:
    return archive[:-50_000] + bytes(40_000) + archive[-10_000:]


LONG = {TRAIN: random.Random(0).randbytes(1_200_000)}  # bytes of several bz2 blocks


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: tar_bz2({TEST: b"another"}), "it is not in the archive"),
        (lambda: tar_bz2({TRAIN + "/other": b"a folder of that name"}), "it is not in the archive"),
        (lambda: tar_bz2(LONG)[:-1000], "ended before the end"),
        (lambda: damaged(tar_bz2(LONG)), "Invalid data stream"),
        (lambda: b"<html>moved</html>", "Invalid data stream"),
    ],
    ids=["another file", "a folder", "cut off", "damaged", "no archive"],
)
def test_an_archive_that_does_not_hold_it_is_one_sentence(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Callable[[], bytes], reason: str
) -> None:
    serve("emnist", content())
    assert run(tmp_path, "emnist") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: cannot fetch emnist from http://")
    assert f": {TRAIN} cannot be unpacked: " in error
    assert reason in error and error.endswith("the download was deleted")
    assert folder_of(tmp_path, "emnist") == []


def test_a_full_disk_while_unpacking_keeps_the_archive_and_no_half_file(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, out: io.BufferedWriter) -> None:
        out.write(b"half")
        raise OSError(28, "No space left on device")

    server = serve("emnist", tar_bz2({TRAIN: b"content"}))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        assert run(tmp_path, "emnist") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert folder_of(tmp_path, "emnist") == [TRAIN + ".part"]
    sent = server.sent_bytes
    assert run(tmp_path, "emnist") == 0
    assert server.sent_bytes == sent
    assert folder_of(tmp_path, "emnist") == [TRAIN]
