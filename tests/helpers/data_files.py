"""Miniature data files in the formats of the upstream sites."""

import io
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from dpfbo.problems.readers.har import ACTIVITIES, FEATURES, Windows


def write_mini_landmine(folder, n_fields=29, rows=40):
    """Write a file in the upstream format: cells `feature` and `label`, one for each field."""
    rng = np.random.default_rng(0)
    feature, label = np.empty((1, n_fields), dtype=object), np.empty((1, n_fields), dtype=object)
    for n in range(n_fields):
        y = np.arange(rows) % 4 == 0
        feature[0, n] = rng.normal(size=(rows, 9)) + 0.8 * y[:, None]
        label[0, n] = y[:, None].astype(np.uint8)
    (folder / "landmine").mkdir()
    savemat(folder / "landmine" / "LandmineData.mat", {"feature": feature, "label": label})
    return folder


def write_compact(path, counts=(12, 20, 15), **changed):
    """Write a compact file: writer 7 * i has counts[i] images, and the pixels of its image k are 10 i + k."""
    writer = np.repeat(7 * np.arange(len(counts)), counts).astype(np.int32)
    within = np.concatenate([np.arange(n) for n in counts])
    images = np.broadcast_to((10 * (writer // 7) + within)[:, None, None], (len(writer), 28, 28)).astype(np.uint8)
    arrays = {"images": images, "label": (within % 10).astype(np.uint8), "writer": writer, **changed}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def write_federated(path, counts, ink=0.25, label=lambda k: k % 10):
    """Write a file in TensorFlow Federated's layout: paper is 1.0, a stroke is `ink`."""
    h5py = pytest.importorskip("h5py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, n in counts.items():
            pixels = np.ones((n, 28, 28), dtype=np.float32)
            pixels[:, 3, 5] = ink
            file[f"examples/{name}/pixels"] = pixels
            file[f"examples/{name}/label"] = np.array([label(k) for k in range(n)], dtype=np.int32)
    return path


def some_windows(subjects: int = 3, each: int = 4, seed: int = 0) -> Windows:
    """`each` + s windows of every activity by subject s = 1, 2, ..., with features that separate most activities."""
    rng = np.random.default_rng(seed)
    pairs = [(s, a) for s in range(1, subjects + 1) for a in range(ACTIVITIES) for _ in range(each + s)]
    subject, activity = np.array(pairs).T
    centre = 0.02 * rng.normal(size=(ACTIVITIES, FEATURES))
    X = centre[activity] + 0.2 * rng.normal(size=(len(pairs), FEATURES))
    return Windows(X.clip(-1, 1), activity, subject)


def upstream_archive(windows: Windows, nested: bool = False) -> bytes:
    """Write the zip of the UCI site, whose test half is the first subject. nested: inside another zip, as today."""
    buffer, test = io.BytesIO(), windows.subject == 1
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__MACOSX/UCI HAR Dataset/train/._X_train.txt", b"\0\5\x16\7")
        for half, rows in (("train", ~test), ("test", test)):
            columns = {"X": windows.X, "y": windows.activity[:, None] + 1, "subject": windows.subject[:, None]}
            for name, table in columns.items():
                form = "%16.7e" if name == "X" else "%d"
                text = "\n".join("".join(form % v for v in row) for row in table[rows]) + "\n"
                archive.writestr(f"UCI HAR Dataset/{half}/{name}_{half}.txt", text)
    if not nested:
        return buffer.getvalue()
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("UCI HAR Dataset.names", "about")
        archive.writestr("UCI HAR Dataset.zip", buffer.getvalue())
    return outer.getvalue()


def compact_file(windows: Windows) -> bytes:
    buffer = io.BytesIO()
    X = np.round((windows.X + 1) / 2 * 65535).astype(np.uint16)
    np.savez_compressed(buffer, X_u16=X, y=windows.activity.astype(np.int8), subject=windows.subject.astype(np.int8))
    return buffer.getvalue()
