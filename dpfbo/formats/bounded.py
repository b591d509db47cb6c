"""Read untrusted files up to a maximum size, without executing their content or unpickling objects."""

import bz2
import gzip
import json
import lzma
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dpfbo.formats.files import check_plain, open_file

if TYPE_CHECKING:
    import yaml  # imported where it is used: a study reads no YAML

MOST_YAML = 4 * 2**20  # bytes
MOST_RECORD = 2**30  # bytes of a file of records that is read at once
MOST_NODES = 100_000  # values in a YAML file
MOST_LEVELS = 100  # levels of nested values in a YAML file

_COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_NUMBERS = "biufSU"  # numpy's letters for booleans, integers, floats, bytes and text; objects would be unpickled


def plain(path: Path) -> Path:
    """Return `path` if it is a plain file. Raises NoFile, a ValueError, for a folder, pipe, socket or device."""
    check_plain(path)
    return path


def read_at_most(file: IO[bytes], most: int) -> bytes:
    """Read all bytes of an open file. Raises ValueError, without reading on, if there are more than `most`."""
    content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it must hold at most {most} bytes, unpacked")
    return content


def read_plain(path: Path, most: int = MOST_RECORD) -> bytes:
    """Read a file. Raises NoFile for a folder, pipe, socket or device, and ValueError for more than `most` bytes."""
    with open_file(path, "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(f"{path} must hold at most {most} bytes, got {size}")
        return read_at_most(file, most)


def read_object(path: Path, most: int = MOST_RECORD) -> dict[str, Any] | None:
    """Read the JSON object in a plain file; None if the file is absent or contains no object."""
    try:
        content = json.loads(read_plain(path, most))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def unpacked(path: Path, most: int) -> bytes:
    """Read a file, unpacked if it is .gz, .bz2, .xz, or a .zip of one file. Raises the errors of `read_plain`."""
    if path.suffix == ".zip":
        with opened_zip(path) as archive:
            if len(names := archive.namelist()) != 1:
                raise ValueError(f"a zip must hold one file, got {len(names)}")
            return member(archive, names[0], most)
    if path.suffix in _COMPRESSED:
        with _COMPRESSED[path.suffix](plain(path), "rb") as file:
            return read_at_most(file, most)
    return read_plain(path, most)


def check_yaml(path: Path) -> None:
    """Check the size and the nesting of a YAML file, but ignore syntax errors.

    Raises ValueError for more than `MOST_YAML` bytes, `MOST_LEVELS` levels or `MOST_NODES` values. An alias counts as
    all values that it repeats.
    """
    import yaml

    try:
        read_yaml(path, construct=False)
    except yaml.YAMLError:
        return


def read_yaml(path: Path, construct: bool = True) -> Any:
    """Read the value of a YAML file; if `construct` is False, only check the file and return None.

    Raises yaml.YAMLError if the file is not YAML, ValueError for more than `MOST_LEVELS` levels or `MOST_NODES` values.
    An alias counts as all values that it repeats.
    """
    import yaml

    loader_kind: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    begin, end = (yaml.MappingStartEvent, yaml.SequenceStartEvent), (yaml.MappingEndEvent, yaml.SequenceEndEvent)
    content, depth = read_plain(path, MOST_YAML), 0
    for event in yaml.parse(content, loader_kind):
        depth += isinstance(event, begin) - isinstance(event, end)
        if depth > MOST_LEVELS:
            raise ValueError(f"{path} must not nest its values more than {MOST_LEVELS} deep")
    loader = loader_kind(content)
    try:
        root = loader.get_single_node()
        if root is not None and _nodes(root, {}) > MOST_NODES:
            raise ValueError(f"{path} must hold at most {MOST_NODES} values, each alias counted as what it stands for")
        return loader.construct_document(root) if construct and root is not None else None
    finally:
        loader.dispose()


def _nodes(node: "yaml.Node", known: dict[int, float]) -> float:
    """Count the values in a tree; infinite for a tree that contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node.value, list) else []  # a list for a mapping or a sequence
        flat = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_nodes(part, known) for part in flat)
    return known[id(node)]


def opened_zip(file: Path | IO[bytes]) -> zipfile.ZipFile:
    """Open a zip for reading. Raises ValueError if a name in it leads out of the archive."""
    archive = zipfile.ZipFile(plain(file) if isinstance(file, Path) else file)
    for name in archive.namelist():
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in (*path.parts, "")[0]:
            archive.close()
            raise ValueError(f"a name in the archive must not lead out of it, got {name!r}")
    return archive


def member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read one file of a zip. Raises KeyError if it is absent, ValueError if it has more than `most` bytes."""
    with _opened_member(archive, name) as file:
        if archive.getinfo(name).file_size > most:
            raise ValueError(f"{name} must hold at most {most} bytes, got {archive.getinfo(name).file_size}")
        return read_at_most(file, most)


def npz_arrays(
    file: Path | IO[bytes], most: int, wanted: Mapping[str, tuple[str, int]] | None = None
) -> dict[str, np.ndarray]:
    """Read arrays of an npz file; check the shape and type of each before reading its numbers, and unpickle nothing.

    most: the maximum size of all arrays together in bytes. wanted: the names of the arrays to read, each with its
    permitted types (NumPy's kind letters) and its number of dimensions; None to read all arrays, which may hold
    booleans, numbers or text. Raises KeyError for a missing array, ValueError for one that is not permitted.
    """
    found: dict[str, np.ndarray] = {}
    with opened_zip(file) as archive:
        kinds = {name.removesuffix(".npy"): (_NUMBERS, None) for name in archive.namelist()}
        for name, (kind, ndim) in (kinds if wanted is None else wanted).items():
            found[name] = _array(archive, name, kind, ndim, most)
            most -= found[name].nbytes
    return found


def _array(archive: zipfile.ZipFile, name: str, kinds: str, ndim: int | None, most: int) -> np.ndarray:
    with _opened_member(archive, f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name} must be an array of format 1.0 or 2.0, got {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.kind not in kinds or (ndim is not None and len(shape) != ndim) or min(shape, default=0) < 0:
        dimensions = "" if ndim is None else f" with {ndim} dimensions"
        raise ValueError(f"{name} must be numbers of kind {kinds}{dimensions}, got {dtype} of shape {shape}")
    if math.prod(shape) * dtype.itemsize > most:
        raise ValueError(f"its further arrays must hold at most {most} bytes, got {name} of shape {shape}")
    with _opened_member(archive, f"{name}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _opened_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} must be stored or deflated")
    return archive.open(name)
