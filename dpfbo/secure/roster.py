"""Signing keys of the sites, and the roster of their public keys. Sites exchange the roster without the server."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfbo.checks import SettingError
from dpfbo.formats.bounded import read_plain
from dpfbo.formats.files import replace_file
from dpfbo.formats.journal import StateError
from dpfbo.secure import primitives

_HEX = 2 * primitives.KEY_BYTES
_MOST_BYTES = 10**7  # the maximum size of a roster's file
_GROUP = 4  # digits in a group of a fingerprint


@dataclass(frozen=True)
class SiteKey:
    """A site's private Ed25519 key, which signs its answers in a secure sum.

    Example:
        >>> key = SiteKey.new()
        >>> Roster((key.public, SiteKey.new().public)).number_of(key)
        0
    """

    private: bytes

    @staticmethod
    def new() -> SiteKey:
        """Make a key from the operating system's randomness."""
        return SiteKey(primitives.new_signing_key())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SiteKey:
        """Read a key from its file. Raises StateError if the file does not hold a key."""
        try:
            private = bytes.fromhex(read_plain(Path(path), _HEX + 1).decode().strip())
        except ValueError as error:
            raise StateError(f"{path} must hold a site's private key, {_HEX} hexadecimal digits") from error
        if len(private) != primitives.KEY_BYTES:
            raise StateError(f"{path} must hold a site's private key, {_HEX} hexadecimal digits")
        return SiteKey(private)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read. Raises StateError if the file exists."""
        path = Path(path)
        if path.exists():
            raise StateError(f"{path} exists already: a site keeps its key")
        replace_file(path, lambda file: file.write(self.private.hex().encode() + b"\n"), mode=0o600)

    @property
    def public(self) -> str:
        """The public key, 64 hexadecimal digits."""
        return primitives.public_signing_key(self.private).hex()

    def __repr__(self) -> str:
        return f"SiteKey({fingerprint(self.public)})"


def fingerprint(public: str) -> str:
    """Return a public key's fingerprint, 32 hexadecimal digits in groups, for people to compare."""
    letters = primitives.digest(b"dpfbo site key", bytes.fromhex(public)).hex()[:32]
    return " ".join(letters[i : i + _GROUP] for i in range(0, len(letters), _GROUP))


@dataclass(frozen=True)
class Roster:
    """The public keys of sites 0..N-1, 64 hexadecimal digits each.

    Raises:
        SettingError: A key is not 64 hexadecimal digits, or two sites have the same key.
    """

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        for site, key in enumerate(self.keys):
            good = isinstance(key, str) and len(key) == _HEX and all(letter in "0123456789abcdef" for letter in key)
            if not good:
                raise SettingError("roster", f"must have {_HEX} hexadecimal digits for site {site}, got {key!r}")
            if self.keys.index(key) != site:
                raise SettingError("roster", f"must have a key of its own for site {site}, got that of site "
                                             f"{self.keys.index(key)}")  # fmt: skip

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Roster:
        """Read a roster from its file. Raises StateError if the file is not a roster."""
        try:
            keys = json.loads(read_plain(Path(path), _MOST_BYTES))["sites"]
            return Roster(tuple(keys))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(f"{path} must be a roster, {{'sites': [public keys]}}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the roster to a file."""
        text = json.dumps({"sites": self.keys}, indent=1).encode() + b"\n"
        replace_file(Path(path), lambda file: file.write(text))

    @property
    def digest(self) -> bytes:
        """The SHA-256 digest of all keys in the order of sites."""
        return primitives.digest(b"dpfbo roster", *map(bytes.fromhex, self.keys))

    def number_of(self, key: SiteKey) -> int:
        """Return the number of the site with this key. Raises StateError if the roster lacks the key."""
        if key.public not in self.keys:
            raise StateError(f"the roster has no site with the key {fingerprint(key.public)}: ask the operator")
        return self.keys.index(key.public)

    def verify(self, site: int, signed: bytes, statement: bytes) -> None:
        """Raise BadSignature unless the site has signed the statement."""
        primitives.verify(bytes.fromhex(self.keys[site]), signed, statement)

    def shown(self) -> Sequence[tuple[int, str]]:
        """Return the number and the fingerprint of each site."""
        return [(site, fingerprint(key)) for site, key in enumerate(self.keys)]
