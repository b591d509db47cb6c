"""A damaged ledger made readable again, without a lower epsilon."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpfbo.privacy.charge import Charge
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger_lines import (
    LineFault,
    chain_of_bytes,
    chained,
    charge_of,
    coverage_of,
    entries_of,
    is_coverage,
    read_lines,
)

MOST_MISSING = 1_000_000  # rounds that are filled in
_ENDS = re.compile(rb"\r\n|\n|\r")
_ROUND, _DIGEST = re.compile(rb'"round": ?(\d{1,15})\b'), re.compile(rb'"digest": ?"([0-9a-f]{64})"')


@dataclass(frozen=True)
class RepairedLedger:
    """A whole ledger in place of a damaged one, and the lines of that one by number.

    charges: those of the new ledger. raised: lines that were touched, or follow one that was; they now cost as much as
    the most expensive line. unreadable: lines that are counted at that cost. missing: rounds
    without a line, likewise. torn: True if an incomplete last line was left out; its broadcast never left. unbound:
    True if the line that says which run the ledger is of was touched: it is left out.
    """

    content: bytes
    charges: list[Charge]
    raised: list[int]
    unreadable: list[int]
    missing: list[int]
    torn: bool
    unbound: bool


@dataclass(frozen=True)
class _ReadLine:
    """A line as it is found. charge: None if it cannot be read. intact: its chain follows from the line before."""

    number: int
    content: bytes
    charge: Charge | None
    intact: bool


def repaired(content: bytes) -> RepairedLedger | None:
    """A whole ledger from the lines of a damaged one; None if it is whole.

    Every charge that can be read stays, with its digest. A line that cannot be read, that was touched, or is missing
    between two rounds costs as much as the most expensive readable line: the largest q and the smallest z of them all.
    A line that was removed and left no gap between the rounds cannot be counted.

    Raises LineFault if no intact line says what a damaged one may have cost, or a line is of a newer format.
    """
    try:
        read_lines(content)
        return None
    except LineFault:
        pass
    lines, torn, covers = _found(content.removeprefix(b"\xef\xbb\xbf"))
    run = next(iter(covers)) if len(covers) == 1 else None
    known = [line.charge for line in lines if line.charge is not None] if any(line.intact for line in lines) else []
    charges = list[Charge]()
    names = {(line.charge.round, line.charge.digest) for line in lines if line.charge is not None}
    for line in lines:
        if line.charge is not None:
            charges.append(line.charge if line.intact else worst(line.charge, known))
            continue
        name = _name(line.content, charges[-1].round + 1 if charges else 0)
        if name in names:
            name = name[0], hashlib.sha256(b"%d %s" % (line.number, line.content)).hexdigest()
        names.add(name)
        charges.append(worst(_like(known, *name), known))
    missing = _missing(charges)
    for t in missing:
        digest = hashlib.sha256(b"missing round %d of " % t + content).hexdigest()
        charges.append(worst(_like(known, t, digest), known))
    return RepairedLedger(
        _written(charges, run),
        charges,
        [line.number for line in lines if line.charge is not None and not line.intact],
        [line.number for line in lines if line.charge is None],
        missing,
        torn,
        bool(covers) and run is None,
    )


def worst(charge: Charge, others: Sequence[Charge]) -> Charge:
    """A charge at the largest q and the smallest z of itself and others.

    Raises LineFault if there are no others, or they are of another kind: no order tells which of them costs more.
    """
    if not others:
        raise LineFault("has no intact line that says what its damaged ones may have cost: restore it")
    everything = [charge, *others]
    if len({(one.relation, None if one.subset is None else one.subset[1]) for one in everything}) > 1:
        raise LineFault("holds charges of several kinds, which have no order: restore it")
    noises = [one.z for one in everything if one.z is not None]
    if len(noises) < len(everything):
        return replace(charge, q=1.0, z=None, subset=None)
    q, subset = max(one.q for one in everything), charge.subset
    if subset is not None:
        subset = max(one.subset[0] for one in everything if one.subset is not None), subset[1]
    return replace(charge, q=q, z=min(noises), subset=subset)


def _found(content: bytes) -> tuple[list[_ReadLine], bool, set[LedgerCoverage | None]]:
    """The charges as they are, True if an incomplete last one was left out, and the runs that lines name.

    None stands for a run whose line was touched.
    """
    *parts, tail = _ENDS.split(content)
    try:
        torn = bool(read_lines(tail, count=len(parts), tip="").torn)
    except LineFault:
        torn = False
    if tail and not torn:
        parts.append(tail)
    lines, before, earlier, covers = list[_ReadLine](), None, b"", set[LedgerCoverage | None]()
    for number, part in enumerate(parts, start=1):
        found, charge, chain = entries_of(part, number), None, None
        if _names_a_run(part, found):
            run, before = _run(found)
            covers.add(run)
            continue
        if found is not None:
            try:
                charge, chain = charge_of(found, number)
            except LineFault:
                chain = found.get("chain")
        if chain is None and before is None:
            lines.append(_ReadLine(number, part, charge, charge is not None))
            earlier += part + b"\n"
            continue
        at = chain_of_bytes(earlier) if before is None else before
        intact = charge is not None and chain == chained(charge, at)[1]
        if before is None and not intact:  # one of the lines before the first chain, or that one, was touched
            lines = [replace(line, intact=False) for line in lines]
        lines.append(_ReadLine(number, part, charge, intact))
        before = chain if isinstance(chain, str) else ""
    return lines, torn, covers


def _names_a_run(line: bytes, found: dict[str, Any] | None) -> bool:
    """True for the line that says which run a ledger is of, or what is left of it: no charge has a setting."""
    return is_coverage(found) if found is not None else b'"setting"' in line and b'"digest"' not in line


def _run(found: dict[str, Any] | None) -> tuple[LedgerCoverage | None, str]:
    """The run of a line's entries, None if it was touched, and the chain of the line, "" if it has none."""
    if found is None:
        return None, ""
    chain = found["chain"] if isinstance(found["chain"], str) else ""
    try:
        run = coverage_of(found, 1)
    except LineFault:
        return None, chain
    return (run if chain == chained(run, chain_of_bytes(b""))[1] else None), chain


def _name(line: bytes, round: int) -> tuple[int, str]:
    """Round and digest of a line that cannot be read, as far as they can be."""
    t, digest = _ROUND.search(line), _DIGEST.search(line)
    name = hashlib.sha256(line).hexdigest() if digest is None else digest[1].decode()
    return (round if t is None else int(t[1])), name


def _like(others: Sequence[Charge], round: int, digest: str) -> Charge:
    """A charge with the parameters of another one. Raises LineFault if there is none."""
    if not others:
        raise LineFault("has no intact line that says what its damaged ones may have cost: restore it")
    return replace(others[0], round=round, digest=digest)


def _missing(charges: Sequence[Charge]) -> list[int]:
    """The rounds between the first and the last that have no charge. Raises LineFault if there are too many."""
    rounds = {charge.round for charge in charges}
    last = max(rounds, default=-1)
    if last + 1 - len(rounds) > MOST_MISSING:
        raise LineFault(f"has a charge of round {last}, and {last + 1 - len(rounds)} before it are missing: restore it")
    return [t for t in range(last + 1) if t not in rounds]


def _written(charges: Sequence[Charge], run: LedgerCoverage | None) -> bytes:
    lines, before = list[bytes](), chain_of_bytes(b"")
    entries: list[Charge | LedgerCoverage] = [*charges] if run is None else [run, *charges]
    for entry in entries:
        line, before = chained(entry, before)
        lines.append(line + b"\n")
    return b"".join(lines)
