"""Files of results that anybody may have made: only a plain file is opened, and no more than a bound of it read."""

import math
import stat
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 256 * 2**20
_DEEPEST = 100  # values within values
_MOST_VALUES = 100_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BEGIN, _END = (yaml.MappingStartEvent, yaml.SequenceStartEvent), (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def check_plain(path: Path) -> None:
    """Raise ValueError unless `path` is a plain file: a read from a pipe may never end. OSError if absent."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it must be a plain file, and is a folder, a pipe or a device")


def plain_bytes(path: Path) -> bytes:
    """The content of a plain file. Raises ValueError for another one, or one of more than `MOST_BYTES`."""
    check_plain(path)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it must hold at most {MOST_BYTES} bytes")
    return path.read_bytes()


def plain_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises ValueError if it is nested so deeply that the reader would crash, or has more than `_MOST_VALUES` values,
    each alias counted as what it stands for.
    """
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, _BEGIN) - isinstance(event, _END)
        if depth > _DEEPEST:
            raise ValueError(f"its values must not be nested more than {_DEEPEST} deep")
    loader = _LOADER(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _values(root, {}) > _MOST_VALUES:
            raise ValueError(f"it must hold at most {_MOST_VALUES} values, each alias counted as what it stands for")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """The number of values in a tree; infinite for one that holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_values(part, known) for part in flat)
    return known[id(node)]
