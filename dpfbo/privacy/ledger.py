"""The privacy ledger: an append-only record of every broadcast, durable before the broadcast leaves."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpfbo.files import sync_folder
from dpfbo.privacy.accounting.events import round_event, round_parameters
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release

if TYPE_CHECKING:
    import dp_accounting


class LedgerError(RuntimeError):
    """The ledger cannot be read, or contradicts what is to be released; nothing may be released on top of it."""


@dataclass(frozen=True)
class Charge:
    """One broadcast.

    q, z: parameters of its event (z = None: not private). sensitivity: None if it is infinite. digest: sha256 of the
    released numbers. subset: [k, N] where S_t was a subset of fixed size k of N agents. relation: the neighbours that
    an outsourced release compares; None for a federated one, where the accountant has it, and if nothing is claimed.
    """

    round: int
    q: float
    z: float | None
    sigma: float
    sensitivity: float | None
    digest: str
    subset: tuple[int, int] | None = None
    relation: str | None = None

    @staticmethod
    def of(
        round: int, event: dp_accounting.DpEvent, sigma: float, sensitivity: float | None, values: Tensor,
        relation: str | None = None,
    ) -> Charge:  # fmt: skip
        """The charge of released numbers `values` at the cost of `event`."""
        q, z, subset = round_parameters(event)
        return Charge(round, q, z, sigma, sensitivity, digest(values), subset, relation)

    def event(self) -> dp_accounting.DpEvent:
        """The event to account for, at its noise multiplier z."""
        return round_event(self.q, self.z, None if self.subset is None else (self.subset[0], self.subset[1]))

    def line(self) -> str:
        """This charge as JSON, without a relation that is None."""
        entries = dict(self.__dict__)
        if self.relation is None:
            del entries["relation"]
        return json.dumps(entries)


def digest(values: Tensor) -> str:
    """sha256 of a released tensor's float64 bytes."""
    return hashlib.sha256(values.to(torch.float64).contiguous().numpy().tobytes()).hexdigest()


class Ledger:
    """Charges in the order they were made, in a JSON-lines file (or in memory when `path` is None).

    A charge with the same round and digest as an earlier one is not made again: a run that is repeated or resumed with
    the same inputs and seed releases the same bytes, which cost nothing twice. Other bytes are a new release and are
    charged, whatever the round. An incomplete last line is ignored: its writing was interrupted, and its broadcast
    never left. A complete one counts, with a newline or without.

    Raises LedgerError if an earlier line cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = path = None if path is None else Path(path)
        self.charges: list[Charge] = _read(path) if path is not None and path.exists() else []
        self.carried_over = len(self.charges)  # number of charges that earlier runs made in the same file
        self._synced = False  # True when the file and its entry in the folder are on disk
        self._known = {(c.round, c.digest) for c in self.charges}

    def charge(self, entry: Charge) -> bool:
        """Record a charge durably (written and synced when this returns). False if it was recorded before."""
        known = (entry.round, entry.digest) in self._known
        if self.path is not None and not (known and self._synced):
            # a charge that was read may not be on disk yet: its writer may have been killed before it synced
            _append(self.path, None if known else entry.line(), len(self.charges))
            if not self._synced:
                sync_folder(self.path.parent)
                self._synced = True
        if known:
            return False
        self.charges.append(entry)
        self._known.add((entry.round, entry.digest))
        return True

    def holds(self, round: int, values: Tensor) -> bool:
        """True if these released numbers of a round are charged already."""
        return (round, digest(values)) in self._known

    def events(self, up_to_round: int | None = None) -> list[dp_accounting.DpEvent]:
        """The charged events, those of later rounds than `up_to_round` left out, for an accountant."""
        return [c.event() for c in self.charges if up_to_round is None or c.round <= up_to_round]


def check_noise_is_new(ledger: Ledger, t: int, release: Release, entropy: Entropy, random: bool) -> None:
    """Raise LedgerError if the same noise was added to other numbers before: their difference would have no noise.

    random: True if the release draws random numbers.
    """
    others = [c for c in ledger.charges if c.round == t and c.digest != digest(release.values)]
    if entropy.reproducible and random and others:
        raise LedgerError(
            f"ledger {ledger.path} holds another broadcast of round {t} with the same seeded noise (other "
            "data, code or settings?): delete the folder to simulate anew, or draw noise from the system (rng=os)"
        )


def _read(path: Path) -> list[Charge]:
    *lines, tail = path.read_bytes().split(b"\n")
    charges = []
    for number, line in enumerate(lines, start=1):
        charge = _parse(line)
        if charge is None:
            raise LedgerError(f"ledger {path} line {number} cannot be read, refusing to release anything more")
        charges.append(charge)
    last = _parse(tail)
    return charges if last is None else [*charges, last]


def _parse(line: bytes) -> Charge | None:
    """The charge of a line; None if the line is incomplete."""
    try:
        return Charge(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None


def _append(path: Path, line: str | None, n_before: int) -> None:
    """Append a line (None: nothing) to at least n_before complete ones, and sync the whole file to disk."""
    with open(path, "ab+") as file:
        file.seek(0)
        content = file.read()
        tail = content[content.rfind(b"\n") + 1 :]
        whole = _parse(tail) is not None
        if content.count(b"\n") + whole < n_before:
            raise LedgerError(f"ledger {path} has lost charges, refusing to release anything more")
        if tail and not whole:
            file.truncate(len(content) - len(tail))
        elif tail:
            file.write(b"\n")
        if line is not None:
            file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
