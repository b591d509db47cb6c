"""The privacy ledger: an append-only record of every release, on disk before the release is sent."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dpfbo.formats.files import sync_folder
from dpfbo.privacy.charge import Charge, digest
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger_file import LedgerError, SeenFile, append, open_locked, opened, read_file

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from dpfbo.privacy.entropy import Entropy
    from dpfbo.privacy.release import Release


class Ledger:
    """Keeps the charges of all releases in their order, in a JSON-lines file or in memory.

    A release is charged only once: if the same bytes were charged before for the same round, no charge is added. So a
    run that is repeated or resumed with equal inputs and an equal seed is not charged twice. A release of other bytes
    is charged, even in the same round. An incomplete last line is ignored, because its broadcast was never sent.

    Threads, `Ledger` objects and processes may charge one file concurrently. If a file is deleted, an object that has
    read or recorded charges in it refuses any further charge.

    The field `chain` of every line is a digest of this line and all lines before it. The removal of lines at the end is
    detected only by a `Ledger` object, a checkpoint or a summary that has seen these lines. Rebuilding the whole chain
    goes undetected.

    Args:
        path: The file; None for a ledger in memory. A new file can be read and written only by its owner.
        held: The file at `path`, opened and locked by the caller (`locked_file`), who keeps the lock for a whole run.

    Attributes:
        covers: The run to which `bind` has bound the ledger. None for an unbound ledger, which several studies may
            share.
        carried_over: The number of charges that the file held when this object first read it.

    Raises:
        LedgerError: The folder is missing, a line is unreadable or modified, or the path is not a plain file.

    Example:
        >>> import dpfbo
        >>> ledger = dpfbo.Ledger()  # in memory; Ledger(path) keeps a file, which other processes can read
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: -x["x"], {"x": dpfbo.Float(0, 1)}, n_agents=5, delta=1e-3, rounds=2, ledger=ledger
        ... )
        >>> [(charge.round, charge.q, charge.z) for charge in ledger.charges]
        [(0, 1.0, 2.575)]
        >>> round(dpfbo.accountant_named("pld").epsilon(ledger.events(), delta=1e-3), 2)
        1.0
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, held: BinaryIO | None = None) -> None:
        self.path = None if path is None else Path(path).absolute()
        self.covers: LedgerCoverage | None = None
        self._charges: list[Charge] = []
        self._digests: dict[int, set[str]] = {}  # by round
        self._last_round = -1  # largest of the charges
        self._events: list[dp_accounting.DpEvent] = []  # of the first charges; `events` makes the others
        self._seen: SeenFile | None = None  # the file as it was last read or written
        self._synced = False  # True when all charges and the file's entry in its folder are on disk
        self._held = held
        self._file: BinaryIO | None = None  # the locked file, within `locked`
        self._thread_lock, self._process = threading.RLock(), os.getpid()
        if self.path is not None and not self.path.parent.is_dir():
            raise LedgerError(f"the folder of ledger {self.path} is missing: create {self.path.parent} first")
        self._follow()
        self.carried_over = len(self._charges)

    @property
    def charges(self) -> list[Charge]:
        """All charges, in the order in which they were recorded."""
        with self._alone:
            self._follow()
            return self._charges

    def check_covers(self, run: LedgerCoverage) -> None:
        """Raise LedgerError if this ledger is bound to another run; an unbound ledger fits any run."""
        with self._alone:
            self._follow()
            if self.covers is not None and (others := self.covers.differences(run)):
                raise LedgerError(
                    f"ledger {self.path} is of another run, with {' and '.join(others)}: restore the one that "
                    "belongs here, or start a new run in another folder; the epsilons of both runs then add up"
                )

    def bind(self, run: LedgerCoverage) -> None:
        """Bind the ledger to a run if the ledger is empty; the first line then describes the run.

        A ledger with charges stays as it is. Raises LedgerError if the ledger is bound to another run.
        """
        with self.locked():
            self.check_covers(run)
            if self.covers is None and not self._charges:
                self._append(run)

    def charge(self, entry: Charge) -> bool:
        """Record a charge and sync it to disk before returning; return False if this charge was recorded before."""
        with self.locked():
            known = entry.digest in self._digests.get(entry.round, ())
            if not (known and self._synced):
                # a charge that was read may not be on disk yet: its writer may have been killed before it synced
                self._append(None if known else entry)
            return not known

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Read all charges, then let only this thread charge the ledger until the block ends.

            with ledger.locked():
                if budget.allows(ledger.events(), [event]):
                    ledger.charge(entry)

        Raises LedgerError if another process keeps the file locked.
        """
        with self._alone:
            if self.path is None or self._file is not None:
                yield
                return
            file = open_locked(self.path, self._held)
            try:
                self._file = file
                self._read(self.path, file)
                yield
            finally:
                self._file = None
                if file is not self._held:
                    fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough if a process was forked meanwhile
                    file.close()

    def holds(self, round: int, values: Tensor) -> bool:
        """Return True if these released numbers are already charged for the round."""
        return digest(values) in self._charged(round)

    def holds_others(self, round: int, values: Tensor) -> bool:
        """Return True if a release with values other than `values` is charged for the round."""
        return bool(self._charged(round) - {digest(values)})

    def events(self, up_to_round: int | None = None) -> list[dp_accounting.DpEvent]:
        """Return the charged events, up to round `up_to_round` if it is given."""
        with self._alone:
            self._follow()
            self._events += [entry.event() for entry in self._charges[len(self._events) :]]
            if up_to_round is None or up_to_round >= self._last_round:
                return list(self._events)
            both = zip(self._events, self._charges, strict=True)
            return [event for event, entry in both if entry.round <= up_to_round]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_thread_lock": None, "_held": None, "_file": None, "_process": None}

    @property
    def _alone(self) -> threading.RLock:
        if self._process != os.getpid():  # after pickling or a fork: lock and file belong to the other process
            self._thread_lock, self._held, self._file = threading.RLock(), None, None
            self._process = os.getpid()
        return self._thread_lock

    def _charged(self, round: int) -> set[str]:
        with self._alone:
            self._follow()
            return self._digests.get(round, set())

    def _follow(self) -> None:
        """Read the lines that other processes have appended. If there is no file, the charges in memory are kept."""
        if self.path is None or self._file is not None:
            return
        try:
            if self._seen is not None and self._seen.is_now(os.stat(self.path)):
                return
            file = opened(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        with file:
            self._read(self.path, file)

    def _read(self, path: Path, file: BinaryIO) -> None:
        if self._seen is not None and self._seen.is_now(os.fstat(file.fileno())):
            return
        lines, self._seen = read_file(path, file, self._charges, self.covers)
        self._charges, self._digests, self._events = [], {}, []
        for entry in lines.charges:
            self._add(entry)
        self.covers, self._synced = lines.covers, False

    def _add(self, entry: Charge) -> None:
        self._charges.append(entry)
        self._digests.setdefault(entry.round, set()).add(entry.digest)
        self._last_round = max(self._last_round, entry.round)

    def _append(self, entry: Charge | LedgerCoverage | None) -> None:
        """Append an entry (None: nothing) to the locked file, and sync the file to disk."""
        if self._file is not None and self._seen is not None:
            self._seen = append(self._file, entry, self._seen)
        if isinstance(entry, Charge):
            self._add(entry)
        elif entry is not None:
            self.covers = entry
        if self.path is not None and not self._synced:
            sync_folder(self.path.parent)
        self._synced = True


def check_noise_is_new(ledger: Ledger, t: int, release: Release, entropy: Entropy, random: bool) -> None:
    """Raise LedgerError if an earlier release of round t added the same seeded noise to other numbers.

    random: True if the release contains noise or a random projection.
    """
    if entropy.reproducible and random and ledger.holds_others(t, release.values):
        raise LedgerError(
            f"ledger {ledger.path} holds another broadcast of round {t} with the same seeded noise (other "
            "data, code or settings?): delete the folder to simulate anew, or draw noise from the system (rng=os)"
        )
