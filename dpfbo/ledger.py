"""The privacy ledger: an append-only record of every broadcast, durable before the broadcast leaves."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import dp_accounting
import torch
from torch import Tensor


class LedgerError(RuntimeError):
    """The ledger on disk cannot be read; nothing may be released on top of it."""


@dataclass(frozen=True)
class Charge:
    """One broadcast.

    q, z: of its event (z = None: not private). sensitivity: None where there is no finite one. digest: sha256 of
    the released numbers.
    """

    round: int
    q: float
    z: float | None
    sigma: float
    sensitivity: float | None
    digest: str

    def event(self) -> dp_accounting.DpEvent:
        """The event to account for, at its noise multiplier z."""
        if self.z is None:
            return dp_accounting.NonPrivateDpEvent()
        return dp_accounting.PoissonSampledDpEvent(self.q, dp_accounting.GaussianDpEvent(self.z))


def digest(values: Tensor) -> str:
    """sha256 of a released tensor's float64 bytes."""
    return hashlib.sha256(values.to(torch.float64).contiguous().numpy().tobytes()).hexdigest()


class Ledger:
    """Charges in the order they were made, in a JSON-lines file (or in memory when `path` is None).

    A charge that is already there with the same round and the same digest is not made again: the same bytes
    cost nothing twice, so a run that is repeated or resumed with the same seed keeps its epsilon. Other bytes
    are a new release and are charged, whatever the round. A torn last line is a charge whose broadcast never
    left, and is ignored.

    Raises LedgerError if an earlier line cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.charges: list[Charge] = _read(path) if path is not None and path.exists() else []
        self.carried_over = len(self.charges)  # from earlier runs into the same file
        self._known = {(c.round, c.digest) for c in self.charges}

    def charge(self, entry: Charge) -> bool:
        """Record a charge durably (written and synced when this returns). False if it was already there."""
        if (entry.round, entry.digest) in self._known:
            return False
        if self.path is not None:
            _append(self.path, json.dumps(entry.__dict__))
        self.charges.append(entry)
        self._known.add((entry.round, entry.digest))
        return True

    def events(self) -> list[dp_accounting.DpEvent]:
        """All charged events, for an accountant."""
        return [c.event() for c in self.charges]


def _read(path: Path) -> list[Charge]:
    *lines, _torn = path.read_bytes().split(b"\n")  # what has no newline behind it was never finished
    charges = []
    for number, line in enumerate(lines, start=1):
        try:
            charges.append(Charge(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise LedgerError(
                f"ledger {path} line {number} cannot be read, refusing to release anything more"
            ) from error
    return charges


def _append(path: Path, line: str) -> None:
    created = not path.exists()
    with open(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                _cut_torn_line(file)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if created:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _cut_torn_line(file) -> None:  # type: ignore[no-untyped-def]
    """Remove an unfinished last line: its broadcast never left."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
