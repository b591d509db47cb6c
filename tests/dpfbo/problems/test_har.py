"""UCI HAR, from miniature files in both formats."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfbo.problems.readers.har import ACTIVITIES, FEATURES, Windows, load_subjects, read_windows
from tests.helpers.data_files import compact_file, some_windows, upstream_archive


def saved(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("nested", [False, True])
def test_the_upstream_archive_is_read_from_the_zip(tmp_path: Path, nested: bool) -> None:
    made = some_windows()
    read = read_windows(saved(tmp_path / "a.zip", upstream_archive(made, nested)))
    order = np.argsort(made.subject == 1, kind="stable")  # training rows first
    assert np.array_equal(read.subject, made.subject[order])
    assert np.array_equal(read.activity, made.activity[order])
    assert np.abs(read.X - made.X[order]).max() <= 1e-7  # eight digits


def test_the_compact_file_is_read_up_to_its_rounding(tmp_path: Path) -> None:
    made = some_windows()
    read = read_windows(saved(tmp_path / "a.npz", compact_file(made)))
    assert np.array_equal(read.subject, made.subject)
    assert np.array_equal(read.activity, made.activity)
    assert np.abs(read.X - made.X).max() <= 1.6e-5


def test_halves_are_stratified_and_standardised_on_the_training_half(tmp_path: Path) -> None:
    made = some_windows(subjects=2, each=5)
    made.X[:, 7] = 0.25  # a constant feature
    path = saved(tmp_path / "a.npz", compact_file(made))
    read, subjects = read_windows(path), load_subjects(path, 0)
    assert len(subjects) == 2
    for s, halves in enumerate(subjects, start=1):
        per_activity = 5 + s
        for y in (halves.y_train, halves.y_validation):
            assert set(np.bincount(y, minlength=ACTIVITIES)) <= {per_activity // 2, (per_activity + 1) // 2}
        assert abs(len(halves.y_train) - len(halves.y_validation)) <= 1
        varied = np.arange(FEATURES) != 7
        assert np.abs(halves.X_train.mean(0)).max() < 1e-9
        assert np.abs(halves.X_train.std(0)[varied] - 1).max() < 1e-9
        assert np.abs(halves.X_validation[:, 7]).max() < 1e-9
        # one affine map takes the subject's windows to both halves, each window to one row
        own = read.X[read.subject == s]
        both = np.concatenate([halves.X_train, halves.X_validation])[:, varied]
        rows = np.argsort(own[:, 0]), np.argsort(both[:, 0])
        spread = own[:, varied].std(0) / both.std(0)
        assert np.allclose(
            own[rows[0]][:, varied], both[rows[1]] * spread + own[:, varied].mean(0) - both.mean(0) * spread
        )


def test_the_split_is_fixed_by_its_seed(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", compact_file(some_windows()))
    first, other = load_subjects(path, 0)[0], load_subjects(path, 1)[0]
    load_subjects.cache_clear()
    assert np.array_equal(load_subjects(path, 0)[0].X_train, first.X_train)
    assert not np.array_equal(other.X_train, first.X_train)


def without(member: str) -> Callable[[Windows], bytes]:
    def content(windows: Windows) -> bytes:
        buffer = io.BytesIO()
        whole = zipfile.ZipFile(io.BytesIO(upstream_archive(windows)))
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in whole.namelist():
                if not name.endswith(member):
                    archive.writestr(name, whole.read(name))
        return buffer.getvalue()

    return content


def with_member(member: str, text: str) -> Callable[[Windows], bytes]:
    def content(windows: Windows) -> bytes:
        buffer = io.BytesIO(without(member)(windows))
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(f"UCI HAR Dataset/{member}", text)
        return buffer.getvalue()

    return content


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


ONE = np.zeros(1, dtype=np.int8)
FLAWED: dict[str, tuple[str, Callable[[Windows], bytes], str]] = {
    "no zip": ("a.zip", lambda windows: b"<html>not found</html>", "not a zip"),
    "cut off": ("a.zip", lambda windows: upstream_archive(windows)[:-50], "not a zip"),
    "nested, damaged": ("a.zip", lambda windows: nested_rubbish(), "not a zip"),
    "no features": ("a.zip", without("test/X_test.txt"), "X_test.txt"),
    "an empty file": ("a.zip", with_member("test/y_test.txt", ""), "No columns"),
    "words": ("a.zip", with_member("test/y_test.txt", "one\n" * 30), "one"),
    "too few labels": ("a.zip", with_member("test/y_test.txt", "1\n" * 29), "do not match"),
    "two columns of labels": ("a.zip", with_member("test/y_test.txt", "1 2\n" * 30), "dimension"),
    "a seventh activity": ("a.zip", with_member("test/y_test.txt", "7\n" * 30), "activities must be 6"),
    "no npz": ("a.npz", lambda windows: b"rubbish", "not a zip"),
    "other arrays": ("a.npz", lambda windows: npz(X=ONE), "X_u16"),
    "too few features": ("a.npz", lambda windows: npz(X_u16=np.zeros((1, 560)), y=ONE, subject=ONE), "561 columns"),
}


def nested_rubbish() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("UCI HAR Dataset.zip", b"rubbish")
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "content", "reason"), FLAWED.values(), ids=FLAWED)
def test_another_format_is_one_sentence(
    tmp_path: Path, name: str, content: Callable[[Windows], bytes], reason: str
) -> None:
    path = saved(tmp_path / name, content(some_windows()))
    with pytest.raises(ValueError, match=reason) as caught:
        load_subjects(path, 0)
    assert str(caught.value).startswith(f"{path} is not a file of UCI HAR (")
    assert len(str(caught.value).splitlines()) == 1


def test_an_activity_seen_once_cannot_be_split(tmp_path: Path) -> None:
    made = some_windows(subjects=1)
    keep = [*np.flatnonzero(made.activity != 3).tolist(), int(np.argmax(made.activity == 3))]
    path = saved(tmp_path / "a.npz", compact_file(Windows(made.X[keep], made.activity[keep], made.subject[keep])))
    with pytest.raises(ValueError, match="subject 1 has an activity in one window only"):
        load_subjects(path, 0)
