"""The format of messages and broadcasts as bytes. Reading them never executes code.

8 bytes   DPFBO + version (3 digits)
4 bytes   length of the header, big-endian
header    JSON: kind, study, round, agent (null for a broadcast), and the name and shape of each array
arrays    float64, little-endian, one after the other; nothing may follow
"""

import json
import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from dpfbo.federated.broadcast import AgentVectors, Broadcast, Points, RegionVectors, SharedPrior
from dpfbo.federated.prior import symmetric

_VERSION = b"DPFBO001"
_LONGEST_HEADER = 4096  # bytes
_ROUNDING = 1e-6  # most that an eigenvalue of a broadcast covariance may lie below 0, relative to the largest
LARGEST = 1e100  # largest number in a message or broadcast; its square is finite
_BROADCASTS = {c.__name__: c for c in (RegionVectors, AgentVectors, Points, SharedPrior)}


class WireError(ValueError):
    """The bytes are not a valid message or broadcast of this study."""


@dataclass(frozen=True)
class Packet:
    """A message or a broadcast.

    kind: `message` for a message, the class name for a broadcast, `nothing` for a round without a broadcast. agent: the
    sender of a message; None for the other kinds.
    """

    kind: str
    study: str
    round: int
    agent: int | None
    arrays: dict[str, Tensor]

    def encoded(self) -> bytes:
        shapes = {name: list(values.shape) for name, values in self.arrays.items()}
        text = json.dumps({**vars(self), "arrays": shapes}).encode()
        body = b"".join(values.contiguous().numpy().astype("<f8").tobytes() for values in self.arrays.values())
        return _VERSION + len(text).to_bytes(4, "big") + text + body


def is_packet(data: bytes) -> bool:
    """Return True if the bytes begin like a message or a broadcast."""
    return data[: len(_VERSION)] == _VERSION


def decoded(data: bytes, study: str, largest: int) -> Packet:
    """Decode a message or a broadcast. Raises WireError for anything else.

    study: the digest of the expected study. largest: the maximum number of entries of all arrays together.
    """
    if not isinstance(data, bytes | bytearray) or data[: len(_VERSION)] != _VERSION:
        raise WireError(f"the bytes must begin with {_VERSION.decode()}: they are of another program or version")
    start = len(_VERSION) + 4
    length = int.from_bytes(data[len(_VERSION) : start], "big")
    if length > _LONGEST_HEADER or len(data) < start + length:
        raise WireError("the bytes are cut off, or their header is too long")
    kind, found, round, agent, shapes = _header(bytes(data[start : start + length]))
    if found != study:
        raise WireError(f"the bytes are of study {found!r}, and this one is {study!r}: do both have the same settings?")
    sizes = [math.prod(shape) for shape in shapes.values()]
    if sum(sizes) > largest:
        raise WireError(f"the bytes must hold at most {largest} numbers, got {sum(sizes)}")
    if len(data) != start + length + 8 * sum(sizes):
        raise WireError(f"the bytes must be {start + length + 8 * sum(sizes)} long, got {len(data)}")
    numbers = torch.from_numpy(np.frombuffer(data, "<f8", offset=start + length).astype(np.float64))
    parts = numbers.split(sizes)
    arrays = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
    return Packet(kind, found, round, agent, arrays)


def _header(text: bytes) -> tuple[str, str, int, int | None, dict[str, tuple[int, ...]]]:
    try:
        header = json.loads(text)
        kind, study, round, agent, arrays = (header[key] for key in ("kind", "study", "round", "agent", "arrays"))
        shapes = {name: tuple(shape) for name, shape in arrays.items()}
        counts = [round, *([] if agent is None else [agent]), *(n for shape in shapes.values() for n in shape)]
        good = isinstance(kind, str) and isinstance(study, str) and all(len(shape) <= 2 for shape in shapes.values())
        good = good and all(type(n) is int and 0 <= n < 2**31 for n in counts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError("the header of the bytes cannot be read") from error
    if not good:
        raise WireError("the header of the bytes cannot be read")
    return kind, study, round, agent, shapes


def check_fits(sent: Broadcast, M: int, N: int, P: int, D: int, L: int = 0) -> None:
    """Raise WireError unless a broadcast has the right shapes and valid numbers.

    M: the length of a message. N, P, D: the numbers of agents, sub-regions and axes. L: the number of length-scales of
    a private prior.
    """
    if isinstance(sent, SharedPrior):
        shapes: dict[str, tuple[int, ...]] = {
            "values": (1, M), "mean": (M,), "covariance": (M * (M + 1) // 2,), "evidence": (L,), "shared": (),
            "explained": (),
        }  # fmt: skip
    else:
        shapes = {"values": (P, M) if isinstance(sent, RegionVectors) else (N, D if isinstance(sent, Points) else M)}
    for name, shape in shapes.items():
        values = getattr(sent, name)
        if tuple(values.shape) != shape:
            raise WireError(f"the broadcast must have {name} of shape {list(shape)}, got {list(values.shape)}")
        if not (values.abs() <= LARGEST).all():
            raise WireError(f"the broadcast must have {name} of numbers up to {LARGEST:g}, got larger ones or NaN")
    if isinstance(sent, Points) and not ((sent.values >= 0) & (sent.values <= 1)).all():
        raise WireError("the broadcast must have points of the unit cube, got one outside")
    if isinstance(sent, SharedPrior):
        shares = torch.cat([sent.evidence, sent.shared[None], sent.explained[None]])
        if not ((shares >= 0) & (shares <= 1)).all():
            raise WireError("the broadcast must have probabilities and shares of variance in [0, 1], got one outside")
        variances = torch.linalg.eigvalsh(symmetric(sent.covariance, M))
        if not variances[0] >= -_ROUNDING * variances[-1]:
            raise WireError("the broadcast must have a covariance matrix, got one with negative eigenvalues")


def message(study: str, round: int, agent: int, values: Tensor) -> bytes:
    """Encode an agent's message of M numbers as bytes."""
    return Packet("message", study, round, agent, {"values": values}).encoded()


def broadcast(study: str, round: int, sent: Broadcast | None) -> bytes:
    """Encode a broadcast as bytes. sent: None for a notice that the round has no broadcast."""
    arrays = {} if sent is None else {f.name: getattr(sent, f.name) for f in fields(sent)}
    return Packet("nothing" if sent is None else type(sent).__name__, study, round, None, arrays).encoded()


def read_message(data: bytes, study: str, size: int) -> tuple[int, int, Tensor]:
    """Decode a message of `size` numbers to (round, agent, values). Raises WireError for anything else."""
    packet = decoded(data, study, size)
    if packet.kind != "message" or packet.agent is None or list(packet.arrays) != ["values"]:
        raise WireError(f"the bytes must be an agent's message, got a {packet.kind}")
    values = packet.arrays["values"]
    if values.shape != (size,):
        raise WireError(f"the message must hold {size} numbers, got {list(values.shape)}")
    return packet.round, packet.agent, values


def read_broadcast(data: bytes, study: str, largest: int) -> tuple[int, Broadcast | None]:
    """Read (round, broadcast) from the bytes of a server.

    If the bytes are a notice that the round has no broadcast, the result is (round, None). study: the digest of the
    expected study. largest: the maximum number of entries of all arrays together. Raises WireError if there are more
    than `largest` entries. Also raises WireError for bytes that are neither a broadcast nor a notice of this study,
    such as an agent's message or damaged bytes.
    """
    packet = decoded(data, study, largest)
    if packet.kind == "nothing":
        return packet.round, None
    kind = _BROADCASTS.get(packet.kind)
    if kind is None or set(packet.arrays) != {f.name for f in fields(kind)}:
        raise WireError(f"the bytes must be a server's broadcast, got a {packet.kind}")
    return packet.round, kind(**packet.arrays)
