"""UCI HAR (Anguita et al. 2013): windows of smartphone signals as 561 features, 30 subjects, six activities.

Two files can be read. The archive of the UCI repository (`ARCHIVE`) holds the authors' features. The compact file
(`COMPACT`) holds features recomputed from the signals.
"""

import io
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from dpfbo.extras import needing
from dpfbo.formats.bounded import member, npz_arrays, opened_zip
from dpfbo.problems.readers.data_files import reading

ARCHIVE = "har/human+activity+recognition+using+smartphones.zip"
COMPACT = "har/har_features561.npz"
FEATURES = 561
ACTIVITIES = 6

MOST_BYTES = 128 * 2**20  # in each file of the archive, and in the arrays of a compact file
_MOST_ROWS, _LONGEST_ROW = 100_000, 64 * 2**10  # limits of a text file; the row's length is in bytes
_FOLDER = "UCI HAR Dataset"
_NESTED = "UCI HAR Dataset.zip"  # the archive of the new UCI site holds that of the old one


@dataclass(frozen=True)
class Windows:
    """The windows of all subjects; X: w x 561 features, float64; activity: w integers 0..5; subject: w integers."""

    X: np.ndarray
    activity: np.ndarray
    subject: np.ndarray

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.X.shape[1] != FEATURES or not len(self.X) or not np.isfinite(self.X).all():
            raise ValueError(f"features must be finite and have {FEATURES} columns, got shape {self.X.shape}")
        if not self.activity.shape == self.subject.shape == (len(self.X),):
            sizes = f"{len(self.X)} windows, {len(self.activity)} activities and {len(self.subject)} subjects"
            raise ValueError(f"{sizes} do not match")
        if self.activity.min() < 0 or self.activity.max() >= ACTIVITIES:
            raise ValueError(f"activities must be {ACTIVITIES}, got {np.unique(self.activity).tolist()} counted from 0")


@dataclass(frozen=True)
class Halves:
    """One subject's windows to train on and to validate on, both standardised by the training windows."""

    X_train: np.ndarray
    X_validation: np.ndarray
    y_train: np.ndarray
    y_validation: np.ndarray


def read_windows(path: Path) -> Windows:
    """Read all windows of the UCI archive (.zip) or the compact file (.npz); raise ValueError for another format."""
    with reading(path, "is not a file of UCI HAR"):
        return _from_archive(path) if path.suffix == ".zip" else _from_compact(path)


@lru_cache(maxsize=2)
def load_subjects(path: Path, split_seed: int) -> list[Halves]:
    """Read all subjects in ascending order, split in halves stratified by activity; ValueError for an unfit file."""
    windows = read_windows(path)
    return [_halves(windows, subject, split_seed) for subject in np.unique(windows.subject)]


def _halves(windows: Windows, subject: int, split_seed: int) -> Halves:
    with needing("problems", "the activity problem"):
        from sklearn.model_selection import train_test_split

    own = windows.subject == subject
    X, y = windows.X[own], windows.activity[own]
    counts = np.bincount(y)
    if counts[counts > 0].min() < 2:
        raise ValueError(f"subject {subject} has an activity in one window only: it cannot be split in halves")
    X_train, X_validation, y_train, y_validation = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=split_seed
    )
    mean, deviation = X_train.mean(0), X_train.std(0)
    deviation[deviation < 1e-10] = 1.0  # so that a feature that is constant but for rounding stays near zero
    return Halves((X_train - mean) / deviation, (X_validation - mean) / deviation, y_train, y_validation)


def _from_compact(path: Path) -> Windows:
    data = npz_arrays(path, MOST_BYTES, {"X_u16": ("uif", 2), "y": ("iu", 1), "subject": ("iu", 1)})
    X = data["X_u16"].astype(np.float64) / 65535 * 2 - 1
    return Windows(X, data["y"].astype(np.int64), data["subject"].astype(np.int64))


def _from_archive(path: Path) -> Windows:
    with opened_zip(path) as outer:
        if _NESTED not in outer.namelist():
            return _from_folder(outer)
        with opened_zip(io.BytesIO(member(outer, _NESTED, MOST_BYTES))) as inner:
            return _from_folder(inner)


def _from_folder(archive: zipfile.ZipFile) -> Windows:
    def table(name: str) -> np.ndarray:
        parts = [f"{_FOLDER}/{half}/{name}_{half}.txt" for half in ("train", "test")]
        return np.concatenate([_numbers(archive, part) for part in parts])

    activity, subject = (table(name).squeeze(1).astype(np.int64) for name in ("y", "subject"))
    return Windows(table("X"), activity - 1, subject)


def _numbers(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    content = member(archive, name, MOST_BYTES)
    rows = content.count(b"\n")
    if rows > _MOST_ROWS or max(map(len, io.BytesIO(content)), default=0) > _LONGEST_ROW:
        raise ValueError(f"{name} must have at most {_MOST_ROWS} rows of {_LONGEST_ROW} bytes, got {rows} rows")
    return pd.read_csv(io.BytesIO(content), sep=r"\s+", header=None, dtype=np.float64).to_numpy()
