"""The keys of a site: its signing key (identity), and the key with which its Flower SuperNode connects."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from dpfbo.checks import shown
from dpfbo.formats.bounded import read_plain
from dpfbo.formats.files import make_folder, replace_file, replace_text
from dpfbo.formats.journal import StateError
from runners.study import json_text

IDENTITY, SUPERNODE, PUBLIC = "identity.key", "supernode.key", "public.json"
_MOST_BYTES = 2**14  # the maximum size of a key's file
_WRONG = (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature)


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of a site.

    Args:
        identity: The Ed25519 key, 64 hexadecimal digits.
        supernode: The SuperNode's key on the curve P-384, a line in OpenSSH's format.
        proof: The signature of `supernode` by the identity, 128 hexadecimal digits.

    Raises:
        StateError: A key cannot be read, or the proof does not fit the keys.
    """

    identity: str
    supernode: str
    proof: str

    def __post_init__(self) -> None:
        try:
            identity = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.identity))
            identity.verify(bytes.fromhex(self.proof), _signed(self.supernode))
            key = serialization.load_ssh_public_key(self.supernode.encode())
            if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
                raise ValueError("it is on another curve")
        except _WRONG as error:
            raise StateError(
                f"the public keys must be an identity, a SuperNode's key on P-384 and their proof, as site-key writes "
                f"them, got identity={shown(self.identity)}"
            ) from error

    @property
    def fingerprint(self) -> str:
        """The first 32 digits of the SHA-256 of both keys, in groups of four."""
        digits = hashlib.sha256(f"{self.identity}\n{self.supernode}".encode()).hexdigest()[:32]
        return " ".join(digits[k : k + 4] for k in range(0, 32, 4))

    @property
    def supernode_pem(self) -> bytes:
        """The SuperNode's key in PEM format."""
        key = serialization.load_ssh_public_key(self.supernode.encode())
        return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    @staticmethod
    def of(entries: Any, path: Path) -> PublicKeys:
        """Return the keys in `entries`, the content of the JSON file `path`. Raises StateError if they are invalid."""
        if not isinstance(entries, dict) or set(entries) != {"identity", "supernode", "proof"}:
            raise StateError(f"{path} is not a file of public keys: python -m runners.deploy site-key writes one")
        return PublicKeys(**entries)


def make_keys(folder: Path) -> PublicKeys:
    """Make a site's keys and write them to its folder, the private keys with mode 600.

    Raises:
        StateError: The folder has keys already.
    """
    if (folder / PUBLIC).exists():
        raise StateError(f"{folder} has keys already: python -m runners.deploy status {folder} shows them")
    make_folder(folder, private=True)
    identity, supernode = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())
    for name, key in ((IDENTITY, identity), (SUPERNODE, supernode)):
        write_private(folder / name, key)
    line = supernode.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()  # fmt: skip
    raw = identity.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    keys = PublicKeys(raw.hex(), line, identity.sign(_signed(line)).hex())
    replace_text(folder / PUBLIC, json_text(asdict(keys)))
    return keys


def write_private(path: Path, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> None:
    """Write a private key in OpenSSH's format to a file with mode 600."""
    data = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )  # fmt: skip
    replace_file(path, lambda file: file.write(data), mode=0o600)


def read_identity(folder: Path) -> ed25519.Ed25519PrivateKey:
    """Read a site's signing key. Raises StateError if the file is missing, damaged or open to other users."""
    key = _private(folder / IDENTITY)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise StateError(f"{folder / IDENTITY} must hold an Ed25519 key: restore the file")
    return key


def read_supernode(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a site's SuperNode.

    Raises StateError if the file is missing, damaged or open to other users.
    """
    key = _private(folder / SUPERNODE)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StateError(f"{folder / SUPERNODE} must hold a key on P-384: restore the file")
    return key


def _private(path: Path) -> Any:
    try:
        data, mode = read_plain(path, _MOST_BYTES), stat.S_IMODE(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StateError(f"{path} is missing: python -m runners.deploy site-key makes it") from error
    if mode & 0o077:
        raise StateError(f"{path} must be readable by its owner alone (mode 600), got mode {mode:o}")
    try:
        return serialization.load_ssh_private_key(data, None)
    except _WRONG as error:
        raise StateError(f"{path} holds no private key: restore the file") from error


def _signed(supernode: str) -> bytes:
    return b"dpfbo supernode key\n" + supernode.encode()
