"""The lines of a ledger file, each with a digest that is chained to all lines before it.

The first line says which run the ledger is of (`LedgerCoverage`); ledgers of earlier versions are unbound, they have no
such line. Every other line is a charge.

    chain_k = sha256(chain_{k-1} + entries_k),  chain_0 = sha256("dpfbo ledger", all bytes before the first such line)

entries_k: the JSON text of line k without its chain. Lines of earlier versions have no chain; the first line that has
one covers them. A line counts only if it is byte for byte as it was written.

The chain shows that a line was edited, moved, repeated, put in, or removed from the middle. It cannot show that whole
lines are missing at the end, and it has no secret: whoever may write the file can build another chain. It finds
accidents and edits, not forgers.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from dpfbo.privacy.charge import Charge
from dpfbo.privacy.coverage import LedgerCoverage

FORMAT = 1  # of a charge
COVERS_FORMAT = 2  # of the line that says which run the ledger is of: earlier versions refuse it
LONGEST = 1 << 16  # bytes of a line; no charge has so many
_LONGEST_SAID = 200  # characters of a value's fault
_START = hashlib.sha256(b"dpfbo ledger\n")
_FIELDS = {f.name for f in fields(Charge)}
_NEEDED = _FIELDS - {"subset", "relation"}  # the first version wrote neither for lack of them
_COVERS = {f.name for f in fields(LedgerCoverage)}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineFault(ValueError):
    """A line that is none, or was touched: `line 3 cannot be read`."""


@dataclass(frozen=True)
class LedgerLines:
    """The whole lines of a part of a file.

    covers: the run of the ledger, if the part has that line. count: the lines up to its end, those before the part
    included. unchained: the lines of the part without a chain. tip: the last chain; None for a file without lines that
    have one. torn: bytes of an incomplete last line.
    """

    charges: list[Charge]
    covers: LedgerCoverage | None
    count: int
    unchained: int
    tip: str
    torn: bytes


def chained(entry: Charge | LedgerCoverage, before: str) -> tuple[bytes, str]:
    """The line of an entry, without its newline, and its chain. before: the chain of the line before it."""
    entries, charge = dict(vars(entry)), isinstance(entry, Charge)
    if charge and entry.relation is None:
        del entries["relation"]
    text = json.dumps({**entries, "format": FORMAT if charge else COVERS_FORMAT})
    chain = hashlib.sha256((before + text).encode()).hexdigest()
    return f'{text[:-1]}, "chain": "{chain}"}}'.encode(), chain


def chain_of_bytes(earlier: bytes) -> str:
    """The chain that the first line with one follows. earlier: all bytes before it."""
    start = _START.copy()
    start.update(earlier)
    return start.hexdigest()


def read_lines(content: bytes, count: int = 0, tip: str | None = None) -> LedgerLines:
    """The lines of a part of a file that begins after `count` lines, the last of them with the chain `tip`.

    An incomplete last line is no fault: its writing was interrupted. A whole one counts without its newline.

    Raises LineFault.
    """
    *lines, tail = content.split(b"\n")
    if count == 0 and content.startswith(_BYTE_ORDER_MARK):
        raise LineFault("line 1 begins with a byte order mark, which an editor has put there")
    charges, earlier, unchained, covers = list[Charge](), _START.copy(), 0, None
    for number, line in _numbered(lines, tail, count + 1):
        found = entries_of(line, number)
        if found is None:
            raise LineFault(f"line {number} cannot be read")
        if is_coverage(found):
            covers = coverage_of(found, number)
            tip = _followed(line, number, covers, found["chain"], earlier.hexdigest())
            continue
        charge, chain = charge_of(found, number)
        if chain is None:
            if tip is not None:
                raise LineFault(f"line {number} has no chain, and a line before it has one: somebody put or edited it")
            earlier.update(line + b"\n")
            unchained += 1
        else:
            tip = _followed(line, number, charge, chain, tip or earlier.hexdigest())
        charges.append(charge)
    known = len(charges) + (covers is not None)
    torn = tail if known == len(lines) else b""
    return LedgerLines(charges, covers, count + known, unchained, tip or earlier.hexdigest(), torn)


def entries_of(line: bytes, number: int) -> dict[str, Any] | None:
    """The entries of a line that is one, None for an incomplete one. Raises LineFault for one of a newer format."""
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
    return found if is_coverage(found) or _NEEDED <= found.keys() <= {*_FIELDS, "format", "chain"} else None


def is_coverage(found: dict[str, Any]) -> bool:
    """True for the entries of a line that says which run the ledger is of."""
    return found.keys() == {*_COVERS, "format", "chain"}


def coverage_of(found: dict[str, Any], number: int) -> LedgerCoverage:
    """The run that a line's entries name, every field checked. Raises LineFault."""
    if number != 1:
        raise LineFault(f"line {number} says which run the ledger is of, as line 1 alone may: files were joined")
    try:
        return LedgerCoverage(**{name: found[name] for name in _COVERS})
    except ValueError as error:
        raise LineFault(f"line {number} names no run ({_said(error)})") from error


def charge_of(found: dict[str, Any], number: int) -> tuple[Charge, object]:
    """The charge of a line's entries, every field of it checked, and the line's chain, None if it has none.

    Raises LineFault.
    """
    values = {name: value for name, value in found.items() if name in _FIELDS}
    if isinstance(values.get("subset"), list):
        values["subset"] = tuple(values["subset"])
    try:
        charge = Charge(**values)
    except ValueError as error:
        raise LineFault(f"line {number} is no charge ({_said(error)})") from error
    return charge, found.get("chain") or "" if {"chain", "format"} & found.keys() else None


def _said(error: ValueError) -> str:
    said = str(error)  # a line may hold anything
    return said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]}.."


def _numbered(lines: list[bytes], tail: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, and the tail if it is a line that lacks its newline. Raises LineFault."""
    yield from enumerate(lines, start=first)
    number = first + len(lines)
    if entries_of(tail, number) is not None:
        yield number, tail
    elif len(tail) > LONGEST or (b'"digest"' in tail and b"}" in tail):  # a torn write ends before its only "}"
        raise LineFault(f"line {number} cannot be read")


def _followed(line: bytes, number: int, entry: Charge | LedgerCoverage, chain: object, before: str) -> str:
    """The chain of a line. Raises LineFault if it does not follow from the chain `before`."""
    written, right = chained(entry, before)
    if chain != right:
        raise LineFault(
            f"line {number} does not follow from what is before it (a line was edited, moved, repeated or removed)"
        )
    if line != written:
        raise LineFault(f"line {number} is not as it was written (its line end or its spaces were changed)")
    return right
