r"""The lines of a ledger file, each with a digest that is chained to all lines before it.

The first line of a run's ledger names the run (`LedgerCoverage`); every other line is the charge for one broadcast.

    chain_k = sha256(chain_{k-1} + entries_k),  chain_0 = sha256("dpfbo ledger\n")

where entries_k is the JSON text of line k without its chain. A line is valid only if its bytes are exactly as written.
The chain reveals accidents and edits, but neither lines missing at the end nor a chain that was rebuilt.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

from dpfbo.privacy.charge import Charge
from dpfbo.privacy.coverage import LedgerCoverage

FORMAT = 1  # the format number of a charge
COVERS_FORMAT = 2  # the format number of the line that names the run
LONGEST = 1 << 16  # bytes; longer lines are unreadable, and no charge is that long
START = hashlib.sha256(b"dpfbo ledger\n").hexdigest()  # chain_0
_FIELDS = {f.name for f in fields(Charge)}
_COVERS = {f.name for f in fields(LedgerCoverage)}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineFault(ValueError):
    """A ledger has an unreadable or modified line."""


@dataclass(frozen=True)
class LedgerLines:
    """The content of a ledger file.

    covers: the run that line 1 names; None if it names none. count: the number of complete lines. tip: the chained
    digest of the last complete line. torn: the bytes of an incomplete last line; empty if there is none.
    """

    charges: list[Charge]
    covers: LedgerCoverage | None
    count: int
    tip: str
    torn: bytes


def chained(entry: Charge | LedgerCoverage, before: str) -> tuple[bytes, str]:
    """Return the line of an entry, without newline, and its chained digest. before: the previous line's digest."""
    entries, charge = dict(vars(entry)), isinstance(entry, Charge)
    if charge and entry.relation is None:
        del entries["relation"]
    text = json.dumps({**entries, "format": FORMAT if charge else COVERS_FORMAT})
    chain = hashlib.sha256((before + text).encode()).hexdigest()
    return f'{text[:-1]}, "chain": "{chain}"}}'.encode(), chain


def read_lines(content: bytes) -> LedgerLines:
    """Parse and check the content of a ledger file.

    Raises LineFault for an unreadable or modified line, except for an incomplete last line from an interrupted write.
    """
    if content.startswith(_BYTE_ORDER_MARK):
        raise LineFault("line 1 begins with a byte order mark, which a text editor has added")
    lines, torn = content.split(b"\n"), b""
    if entries_of(lines[-1], len(lines)) is None and is_torn(lines[-1]):
        torn = lines.pop()
    charges, covers, tip = list[Charge](), None, START
    for number, line in enumerate(lines, start=1):
        found = entries_of(line, number)
        if found is None:
            raise LineFault(f"line {number} cannot be read")
        entry = entry_of(found, number)
        tip = _checked_chain(line, number, entry, found.get("chain"), tip)
        if isinstance(entry, Charge):
            charges.append(entry)
        else:
            covers = entry
    return LedgerLines(charges, covers, len(lines), tip, torn)


def entries_of(line: bytes, number: int) -> dict[str, Any] | None:
    """Return the JSON fields of a line; None if it cannot be read. Raises LineFault if its format is too new.

    The fields `format` and `chain` of a charge may be missing.
    """
    if len(line) > LONGEST:
        return None
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    newest = COVERS_FORMAT if is_coverage(found) else FORMAT
    if isinstance(form := found.get("format"), int) and form > newest:
        raise LineFault(f"line {number} is of format {form}, and this version reads {newest}")
    return found if is_coverage(found) or _FIELDS <= {*found, "relation"} <= {*_FIELDS, "format", "chain"} else None


def is_torn(line: bytes) -> bool:
    """Return True if an unreadable line may come from an interrupted write.

    The result is False if the line is longer than `LONGEST`, or if the line contains the text `"digest"` and a `}`. A
    complete charge contains this text and a single `}`, its last character. A line that contains both was therefore
    written in full and damaged later.
    """
    return len(line) <= LONGEST and not (b'"digest"' in line and b"}" in line)


def is_coverage(found: dict[str, Any]) -> bool:
    """Return True if `found`, the fields of a ledger's line, describe a `LedgerCoverage`."""
    return found.keys() == {*_COVERS, "format", "chain"}


def entry_of(found: dict[str, Any], number: int) -> Charge | LedgerCoverage:
    """Build the charge, or the identity of the ledger's run, from the JSON fields of a line.

    Raises LineFault if a field is invalid, or if a line other than line 1 names a run.
    """
    values = {name: value for name, value in found.items() if name not in ("format", "chain")}
    if isinstance(values.get("subset"), list):
        values["subset"] = tuple(values["subset"])
    covers = is_coverage(found)
    if covers and number != 1:
        raise LineFault(f"line {number} names the ledger's run, which only line 1 may do: were files joined?")
    try:
        return LedgerCoverage(**values) if covers else Charge(**values)
    except ValueError as error:
        raise LineFault(f"line {number} {'names no run' if covers else 'is no charge'} ({error})") from error


def _checked_chain(line: bytes, number: int, entry: Charge | LedgerCoverage, chain: object, before: str) -> str:
    """Return the chained digest of a line. Raises LineFault if any byte of the line is wrong."""
    written, right = chained(entry, before)
    if chain is None:
        raise LineFault(f"line {number} has no chain: somebody added or edited it")
    if chain != right:
        raise LineFault(
            f"line {number} does not follow from what is before it (a line was edited, moved, repeated or removed)"
        )
    if line != written:
        raise LineFault(f"line {number} is not as it was written (its line end or its spaces were changed)")
    return right
