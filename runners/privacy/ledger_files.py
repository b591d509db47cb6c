"""Ledger files on disk: told whole from touched ones, beside the files that know what was released; and repaired."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dpfbo.bounded import MOST_RECORD, plain, read_plain
from dpfbo.checkpoint import Checkpoint, check_charged
from dpfbo.checkpoint_files import CheckpointError
from dpfbo.files import is_file_at, replace_file
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.privacy.ledger_file import opened
from dpfbo.privacy.ledger_lines import LineFault
from dpfbo.privacy.ledger_repair import RepairedLedger
from dpfbo.privacy.ledger_repair import repaired as whole_of
from runners.privacy import ledgers
from runners.record.finished import check_ledger
from runners.record.run_folder import ResultsError, RunFolder

LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class CheckedLedger:
    """A ledger that is whole, or was made whole.

    covers: the run that it says it is of; None for an unbound one. facts: what was changed, by name. words: the same in
    a sentence.
    """

    path: str
    charges: int
    unchained: int
    words: str
    covers: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def ledger_of(path: Path) -> Path:
    """The ledger of a run's or a server's folder; a path that is no folder stays."""
    if not path.is_dir():
        return path
    return next((p for p in (path / LEDGER, path / "server" / LEDGER) if p.exists()), path / LEDGER)


def verified(path: Path) -> CheckedLedger:
    """A ledger that is whole, by its own lines and by the records beside it.

    Records are a checkpoint, summaries and server.parquet of a run, and the journal of a server. Raises LedgerError.
    """
    ledger = ledgers.opened(path)
    if path.name == LEDGER:
        try:
            _check_records(path, ledger)
        except (ResultsError, CheckpointError) as error:
            raise LedgerError(str(error)) from error
    n, old = len(ledger.charges), ledger.unchained
    how = "no line was edited, moved or removed from the middle"
    if old:
        lines = "all lines are" if old == n else f"the first {old} lines are"
        how = f"{lines} of an earlier version, without a chain of digests, and edits of them do not show"
    words = f"ledger {path} is whole: {n} charges; {how}; {_covers_in_words(ledger)}"
    return CheckedLedger(str(path), n, old, words, _covers(ledger))


def _covers_in_words(ledger: Ledger) -> str:
    if ledger.covers is not None:
        return f"it covers {ledger.covers.words}"
    return "it is unbound: no line says which run it is of" if ledger.charges else "it covers nothing yet"


def _covers(ledger: Ledger) -> dict[str, Any] | None:
    return None if ledger.covers is None else asdict(ledger.covers)


def _check_records(path: Path, ledger: Ledger) -> None:
    """Raise LedgerError or ResultsError if a record in the ledger's folder tells of a broadcast that it lacks."""
    folder = RunFolder(path.parent)
    summary = _entries(folder.path / "summary.json")
    check_ledger(folder, len(ledger.charges), summary.get("rng", "seeded") == "seeded")
    if ledger.covers is not None and ledger.covers.seed not in (None, summary.get("seed", ledger.covers.seed)):
        raise LedgerError(
            f"ledger {path} is of seed {ledger.covers.seed} and summary.json of seed {summary['seed']}: restore the "
            "ledger that belongs here"
        )
    check_charged(Checkpoint(folder.checkpoint_path).rounds(), ledger)
    known = {charge.round for charge in ledger.charges}
    for name, rounds in (("server.parquet", _rows(folder.path)), ("coordinator.jsonl", _sent(folder.path))):
        if lacking := sorted(set(rounds) - known):
            raise LedgerError(
                f"ledger {path} lacks the broadcast of round {lacking[0]} that {name} tells of: restore the ledger"
            )


def _entries(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_plain(path, MOST_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rows(folder: Path) -> list[int]:
    """The rounds of the broadcasts of a run that has ended."""
    try:
        found: list[int] = pq.read_table(plain(folder / "server.parquet"), columns=["round"])["round"].to_pylist()
        return found
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return []


def _sent(folder: Path) -> list[int]:
    """The rounds that a server has sent with noise, from the whole lines of its journal."""
    try:
        lines = read_plain(folder / "coordinator.jsonl", MOST_RECORD).split(b"\n")[:-1]
        events = [event for event in map(json.loads, lines) if event["event"] == "sent"]
        return [event["round"] for event in events if event["sigma"] is not None]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def repaired(path: Path) -> CheckedLedger:
    """A whole ledger in the place of a damaged one, which is kept beside it under a new name.

    The charges and their costs are those of `dpfbo.privacy.ledger_repair`. A whole ledger stays as it is. Raises
    LedgerError if no intact line says what the damaged ones cost, or a run is writing to the ledger.
    """
    if not path.is_file():
        raise LedgerError(f"ledger {path} is not there, or no file")
    with _held(path) as file:
        content = file.read()
        try:
            whole = whole_of(content)
        except LineFault as fault:
            raise LedgerError(f"ledger {path} {fault}") from fault
        if whole is None:
            ledger = Ledger(path)
            n = len(ledger.charges)
            words = f"ledger {path} is whole, {n} charges: nothing to repair"
            return CheckedLedger(str(path), n, ledger.unchained, words, _covers(ledger))
        mode = os.fstat(file.fileno()).st_mode & 0o777
        aside = _put_beside(path, content, mode)
        replace_file(path, lambda new: new.write(whole.content), mode=mode)
    ledger = Ledger(path)
    n = len(ledger.charges)
    facts = {
        "raised": whole.raised, "unreadable": whole.unreadable, "missing_rounds": whole.missing,
        "unbound": whole.unbound, "torn": whole.torn, "original": str(aside),
    }  # fmt: skip
    words = f"ledger {path} is repaired, {n} charges: {'; '.join(_said(whole))}; the damaged one is {aside.name}"
    return CheckedLedger(str(path), n, 0, words, _covers(ledger), facts)


@contextmanager
def _held(path: Path) -> Iterator[BinaryIO]:
    """Open a ledger that no run writes to, and keep runs from it. Raises LedgerError."""
    with opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LedgerError(f"a server is writing to ledger {path}: wait for it") from error
        if not is_file_at(file, path):
            raise LedgerError(f"ledger {path} was replaced meanwhile: start again")
        if RunFolder(path.parent).busy():
            raise LedgerError(f"a run is writing to ledger {path}: wait for it")
        yield file


def _put_beside(path: Path, content: bytes, mode: int) -> Path:
    """Keep the damaged file under a name that is free, on disk when this returns."""
    k = 1
    while (aside := path.with_name(f"{path.stem}.damaged-{k}{path.suffix}")).exists():
        k += 1
    replace_file(aside, lambda new: new.write(content), mode=mode)
    return aside


def _said(whole: RepairedLedger) -> list[str]:
    """Each kind of change in words."""
    said = []
    if whole.raised:
        said.append(f"{_lines(whole.raised)} touched and now counted as the most expensive one")
    if whole.unreadable:
        said.append(f"{_lines(whole.unreadable)} unreadable and counted as the most expensive one")
    if whole.missing:
        said.append(f"rounds without a line, {_some(whole.missing)}, were counted likewise")
    if whole.unbound:
        said.append("the line that says which run it is of was touched and is left out")
    if whole.torn:
        said.append("an incomplete last line was left out, its broadcast never left")
    return said or ["its line ends were restored"]


def _lines(numbers: list[int]) -> str:
    return f"line{'s' * (len(numbers) > 1)} {_some(numbers)} {'were' if len(numbers) > 1 else 'was'}"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f", .. ({len(numbers)})" if len(numbers) > 5 else "")
