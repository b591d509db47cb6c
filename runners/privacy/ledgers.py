"""Add up, verify or repair the ledgers of runs."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpfbo.formats.bounded import MOST_RECORD, plain, read_object, read_plain
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.formats.files import locked_file, replace_file
from dpfbo.formats.run_folder import ResultsError, RunFolder
from dpfbo.formats.words import neighbours
from dpfbo.privacy import ledger_file, ledger_repair
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.accounting.calibrate import SMALLEST_NOISE
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError
from dpfbo.privacy.ledger_lines import LineFault
from dpfbo.privacy.ledger_repair import RepairedLedger
from dpfbo.privacy.plan import PrivacyPlan, analysing
from runners.identity.finished import check_ledger
from runners.privacy.report import facts

LEDGER = "ledger.jsonl"
NO_RELATION = "no relation of tables (messages of agents, or a release without a claim)"
COVERS = (
    "the broadcasts in these ledgers; not settings chosen by comparing runs on the same private data, nor runs whose "
    "ledgers are not given"
)
COVERS_RELEASES = (
    "the tables released in these ledgers, for neighbours of one table in the same public box; not measurements, nor "
    "settings chosen by comparing runs on the same private data, nor runs whose ledgers are not given"
)
SEVERAL = (
    "several ledgers add up if their runs drew their noise independently; runs with one seed and privacy.rng=seeded "
    "share their noise, and then no epsilon covers them together (a ledger does not say how its noise was drawn)"
)
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException)


def ledger_of(path: Path) -> Path:
    """Return the path of the ledger in a run's or server's folder; a path that is no folder is returned unchanged."""
    if not path.is_dir():
        return path
    return next((p for p in (path / LEDGER, path / "server" / LEDGER) if p.exists()), path / LEDGER)


def opened(path: Path) -> Ledger:
    """Open a ledger file. Raises LedgerError if it is damaged, or has a charge that no accountant can analyse."""
    if not path.is_file():
        raise LedgerError(f"ledger {path} does not exist, or is not a file")
    try:
        ledger = Ledger(path)
        if not ledger.charges and ledger.covers is None and path.read_bytes().strip():
            raise LedgerError(f"ledger {path} holds no whole charge: it is no ledger, or its first line is incomplete")
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be read: {error.strerror}") from error
    for number, charge in enumerate(ledger.charges, start=1):
        if charge.z is not None and charge.z < SMALLEST_NOISE:
            raise LedgerError(
                f"ledger {path} charge {number}: z must be null or at least {SMALLEST_NOISE}, got {charge.z!r}"
            )
    return ledger


def added_up(paths: Sequence[Path], delta: float) -> dict[str, Any]:
    """Compute epsilon of all charges in these files, by every accountant that applies.

    Charges of one release (same round, same digest) count once, with the least noise that any of them states.

    Raises LedgerError for a missing or damaged file, or for ledgers that cannot be added up.
    """
    files = {str(path): opened(path).charges for path in paths}
    once: dict[tuple[int, str], Charge] = {}
    for charge in sorted(chain.from_iterable(files.values()), key=lambda c: (c.z or 0.0, -c.q), reverse=True):
        once[charge.round, charge.digest] = charge
    plan = _plan(files, list(once.values()), delta)
    return {
        "files": [{"path": path, "charges": len(charges)} for path, charges in files.items()],
        "charges": len(once),
        "repeated": sum(map(len, files.values())) - len(once),
        **facts(plan),
        "note": SEVERAL if len(files) > 1 else None,
    }


def _plan(files: dict[str, list[Charge]], charges: Sequence[Charge], delta: float) -> PrivacyPlan:
    """Return the charges as a privacy plan. Raises LedgerError if they cannot be added up."""
    relations = {charge.relation: path for path, found in files.items() for charge in found}
    if len(relations) > 1:
        said = "; ".join(f"{path}: {NO_RELATION if r is None else neighbours(r)}" for r, path in relations.items())
        raise LedgerError(f"ledgers must have one relation to be added up, got {said}")
    events, relation = [charge.event() for charge in charges], next(iter(relations), None)
    if relation is not None:
        name = "analytic_gaussian"
        return PrivacyPlan(events, delta, {name: AnalyticGaussian(relation)}, name, COVERS_RELEASES)
    able = analysing(events)
    if not able:
        raise LedgerError(
            f"{', '.join(files)}: some charges are for Poisson sampling and some for subsets of a fixed size, "
            "and no accountant covers both under one relation"
        )
    return PrivacyPlan(events, delta, able, next(iter(able)), COVERS)


def verified(path: Path) -> str:
    """Check the lines of a ledger, and return a sentence about the ledger.

    A file named ledger.jsonl is also compared with the records in its folder. In the folder of a run, the records are
    the checkpoint, the summaries and server.parquet. In the folder of a server, the record is the server's journal.
    Raises LedgerError if the ledger is damaged or contradicts a record.
    """
    ledger = opened(path)
    if path.name == LEDGER:
        try:
            _check_records(path, ledger)
        except (ResultsError, CheckpointError) as error:
            raise LedgerError(str(error)) from error
    if ledger.covers is not None:
        covers = f"it covers {ledger.covers.words}"
    else:
        covers = "it is unbound: no line names its run" if ledger.charges else "it covers nothing yet"
    whole = f"ledger {path} is whole: {len(ledger.charges)} charges"
    return f"{whole}; no line was edited, moved or removed from the middle; {covers}"


def _check_records(path: Path, ledger: Ledger) -> None:
    folder = RunFolder(path.parent)
    summary = read_object(folder.path / "summary.json") or {}
    check_ledger(folder, len(ledger.charges), summary.get("rng", "seeded") == "seeded")
    if ledger.covers is not None and ledger.covers.seed not in (None, summary.get("seed", ledger.covers.seed)):
        raise LedgerError(
            f"ledger {path} is of seed {ledger.covers.seed} and summary.json of seed {summary['seed']}: restore the "
            "ledger that belongs here"
        )
    if folder.checkpoint_path.exists():
        from dpfbo.checkpoint import Checkpoint, check_charged  # imported here: it loads torch, for few runs

        check_charged(Checkpoint(folder.checkpoint_path).rounds(), ledger)
    known = {charge.round for charge in ledger.charges}
    for name, rounds in _broadcasts(folder.path):
        if lacking := sorted(set(rounds) - known):
            raise LedgerError(
                f"ledger {path} lacks the broadcast of round {lacking[0]} that {name} lists: restore the ledger"
            )


def _broadcasts(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each readable record in the folder, and the rounds of its broadcasts."""
    with suppress(*_UNREADABLE):
        table = pq.read_table(plain(folder / "server.parquet"), columns=["round"])
        yield "server.parquet", table["round"].to_pylist()
    with suppress(*_UNREADABLE):
        lines = read_plain(folder / "coordinator.jsonl", MOST_RECORD).split(b"\n")[:-1]
        sent = [event for event in map(json.loads, lines) if event["event"] == "sent"]
        yield "coordinator.jsonl", [event["round"] for event in sent if event["sigma"] is not None]


def repaired(path: Path) -> str:
    """Replace a damaged ledger by a whole one; return a sentence about the changes.

    The damaged ledger is kept in the same folder under a new name. A whole ledger is left unchanged. Raises LedgerError
    if the ledger cannot be repaired (see `ledger_repair.repaired`), or if a run or a server is writing to it.
    """
    if not path.is_file():
        raise LedgerError(f"ledger {path} does not exist, or is not a file")
    try:
        lock = locked_file(path, 0)
    except BlockingIOError as error:
        raise LedgerError(f"a server is writing to ledger {path}: wait for it") from error
    with lock:
        if RunFolder(path.parent).busy():
            raise LedgerError(f"a run is writing to ledger {path}: wait for it")
        with ledger_file.opened(path) as file:
            content = file.read()
        try:
            whole = ledger_repair.repaired(content)
        except LineFault as fault:
            raise LedgerError(f"ledger {path} {fault}") from fault
        if whole is None:
            return f"ledger {path} is whole, {len(Ledger(path).charges)} charges: nothing to repair"
        mode, k = path.stat().st_mode & 0o777, 1
        while (aside := path.with_name(f"{path.stem}.damaged-{k}{path.suffix}")).exists():
            k += 1
        replace_file(aside, lambda new: new.write(content), mode=mode)
        replace_file(path, lambda new: new.write(whole.content), mode=mode)
    words = f"ledger {path} is repaired, {len(whole.charges)} charges"
    return f"{words}; {'; '.join(_changes(whole))}; the damaged one is {aside.name}"


def _changes(whole: RepairedLedger) -> list[str]:
    numbered = {
        "modified lines, charged at the largest q and smallest z": whole.raised,
        "unreadable lines, charged at the largest q and smallest z": whole.unreadable,
        "rounds without a line, charged at the largest q and smallest z": whole.missing,
    }
    said = []
    for words, numbers in numbered.items():
        if numbers:
            more = f", .. ({len(numbers)})" if len(numbers) > 5 else ""
            said.append(f"{words}: {', '.join(map(str, numbers[:5]))}{more}")
    if whole.unbound:
        said.append("the line that names its run was modified and is left out")
    if whole.torn:
        said.append("an incomplete last line was left out; its broadcast was never sent")
    return said or ["its line ends were restored"]
