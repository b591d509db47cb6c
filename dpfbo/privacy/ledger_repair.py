"""Repair of a damaged ledger.

Damaged lines are charged at the largest sampling probability and the smallest noise multiplier of all readable lines.
"""

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dpfbo.privacy.charge import Charge
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger_lines import START, LineFault, chained, entries_of, entry_of, is_coverage, is_torn, read_lines

MOST_MISSING = 1_000_000  # missing rounds that a repair fills in
_ENDS = re.compile(rb"\r\n|\n|\r")
_ROUND, _DIGEST = re.compile(rb'"round": ?(\d{1,15})\b'), re.compile(rb'"digest": ?"([0-9a-f]{64})"')


@dataclass(frozen=True)
class RepairedLedger:
    """A valid ledger that replaces a damaged one, and the changes.

    content, charges: the new file and its charges. raised: line numbers, in the damaged file, of readable charges whose
    chained digest is missing or wrong. unreadable: line numbers, in the damaged file, of unreadable lines. missing: the
    rounds without a line. In the new file, all these lines and rounds are charged at the worst case (see `repaired`).
    torn: True if the last line was incomplete and was left out. The broadcast of such a line was never sent. unbound:
    True if the damaged file named a run and the new file names none.
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
    """A line of the damaged file. charge: None if unreadable. intact: True if its chained digest is right."""

    number: int
    content: bytes
    charge: Charge | None
    intact: bool


def repaired(content: bytes) -> RepairedLedger | None:
    """Make a valid ledger from the lines of a damaged one; return None if `content` has no fault.

    Intact charges are copied. Modified charges, unreadable lines and rounds without a line are charged at the worst
    case: the largest sampling probability q and the smallest noise multiplier z of all readable charges. A modified
    charge keeps its round and its digest. A deleted line is charged only if it leaves a gap between the rounds. A
    deleted last line leaves no gap, so its charge stays lost.

    Raises LineFault if no line is intact, or if the charges have no worst case (see `worst`). Also raises LineFault if
    more than `MOST_MISSING` rounds are missing, or if a line has the format of a newer version.
    """
    try:
        read_lines(content)
        return None
    except LineFault:
        pass
    lines, torn, runs = _read(content.removeprefix(b"\xef\xbb\xbf"))
    if lines and not any(line.intact for line in lines):
        raise LineFault("has no intact line that bounds what its damaged ones may have cost: restore it")
    run = next(iter(runs)) if len(runs) == 1 else None
    known = [line.charge for line in lines if line.charge is not None]
    charges, names = list[Charge](), {(charge.round, charge.digest) for charge in known}
    for line in lines:
        if line.charge is not None:
            charges.append(line.charge if line.intact else worst(line.charge, known))
            continue
        t, name = _round_and_digest(line.content, charges[-1].round + 1 if charges else 0)
        if (t, name) in names:
            name = hashlib.sha256(b"%d %s" % (line.number, line.content)).hexdigest()
        names.add((t, name))
        charges.append(worst(replace(known[0], round=t, digest=name), known))
    missing = _missing(charges)
    for t in missing:
        name = hashlib.sha256(b"missing round %d of " % t + content).hexdigest()
        charges.append(worst(replace(known[0], round=t, digest=name), known))
    return RepairedLedger(
        _written(charges, run),
        charges,
        raised=[line.number for line in lines if line.charge is not None and not line.intact],
        unreadable=[line.number for line in lines if line.charge is None],
        missing=missing,
        torn=torn,
        unbound=bool(runs) and run is None,
    )


def worst(charge: Charge, others: Sequence[Charge]) -> Charge:
    """Copy `charge`, but with the largest sampling probability q and smallest noise multiplier z of all given charges.

    If the charges have a `subset` (k, N), the copy has the largest k. If one of the charges is not private (its z is
    None), the copy is not private either. Raises LineFault if the charges differ in `relation` or in N.
    """
    everything = [charge, *others]
    if len({(one.relation, None if one.subset is None else one.subset[1]) for one in everything}) > 1:
        raise LineFault("holds charges of several kinds, whose costs have no order: restore it")
    noises = [one.z for one in everything if one.z is not None]
    if len(noises) < len(everything):
        return replace(charge, q=1.0, z=None, subset=None)
    q, subset = max(one.q for one in everything), charge.subset
    if subset is not None:
        subset = max(one.subset[0] for one in everything if one.subset is not None), subset[1]
    return replace(charge, q=q, z=min(noises), subset=subset)


def _read(content: bytes) -> tuple[list[_ReadLine], bool, set[LedgerCoverage | None]]:
    """Return `(lines, torn, runs)` for the content of a damaged ledger.

    Every line is either a charge or names the ledger's run. lines: the charges, damaged ones included. torn: True if an
    incomplete last line was left out. runs: the named runs; the set contains None if a line that names a run is
    damaged.
    """
    parts, torn = _ENDS.split(content), False
    if entries_of(parts[-1], len(parts)) is None and is_torn(parts[-1]):
        torn = parts.pop() != b""
    lines, runs, before = list[_ReadLine](), set[LedgerCoverage | None](), START
    for number, part in enumerate(parts, start=1):
        entries = entries_of(part, number)
        chain = None if entries is None else entries.get("chain")
        # a line that names the run, or the rest of one: only such a line has a setting
        names_run = is_coverage(entries) if entries is not None else b'"setting"' in part and b'"digest"' not in part
        entry = None
        if entries is not None:
            with suppress(LineFault):
                entry = entry_of(entries, number=1)
        intact = entry is not None and chain == chained(entry, START if names_run else before)[1]
        if names_run:
            runs.add(entry if intact and isinstance(entry, LedgerCoverage) else None)
        else:
            lines.append(_ReadLine(number, part, entry if isinstance(entry, Charge) else None, intact))
        before = chain if isinstance(chain, str) else ""
    return lines, torn, runs


def _round_and_digest(line: bytes, round: int) -> tuple[int, str]:
    """Return the round and the digest in an unreadable line.

    Without a legible round, `round` is returned. Without a legible digest, the digest of the line itself is returned.
    """
    t, digest = _ROUND.search(line), _DIGEST.search(line)
    name = hashlib.sha256(line).hexdigest() if digest is None else digest[1].decode()
    return (round if t is None else int(t[1])), name


def _missing(charges: Sequence[Charge]) -> list[int]:
    rounds = {charge.round for charge in charges}
    last = max(rounds, default=-1)
    if last + 1 - len(rounds) > MOST_MISSING:
        raise LineFault(f"lacks {last + 1 - len(rounds)} rounds before its charge of round {last}: restore it")
    return [t for t in range(last + 1) if t not in rounds]


def _written(charges: Sequence[Charge], run: LedgerCoverage | None) -> bytes:
    lines, before = list[bytes](), START
    entries: list[Charge | LedgerCoverage] = [*charges] if run is None else [run, *charges]
    for entry in entries:
        line, before = chained(entry, before)
        lines.append(line + b"\n")
    return b"".join(lines)
