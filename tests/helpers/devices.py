"""The check that a piece of the library makes its tensors on the device of its inputs."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
Piece = Callable[[], Any]


def same_elsewhere(piece: Piece) -> None:
    """Assert that the piece gives the same bits on the CPU if new tensors are on another device by default."""
    expected = list(tensors_of(piece()))
    with torch.device("meta"):
        found = list(tensors_of(piece()))
    assert expected
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.device == b.device == CPU
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for v in value:
            yield from tensors_of(v)
    elif is_dataclass(value):
        yield from tensors_of([getattr(value, f.name) for f in fields(value)])
