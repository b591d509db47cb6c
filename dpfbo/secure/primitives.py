"""Cryptographic primitives of a secure sum, from maintained libraries."""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from dpfbo.extras import needing

with needing("secure", "a secure sum"):
    import shamirs
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SEED_BYTES, SHARE_BYTES, KEY_BYTES, SIGNATURE_BYTES = 16, 17, 32, 64
NONCE_BYTES, TAG_BYTES = 12, 16
_PRIME = 2**130 - 5  # Shamir's shares are numbers modulo this prime


class BadSignature(ValueError):
    """A signature, a public key, an encrypted share or the shares of a seed are not valid."""


def new_seed() -> bytes:
    """Draw 128 random bits from the operating system."""
    return os.urandom(SEED_BYTES)


def digest(*parts: bytes) -> bytes:
    """Compute SHA-256 of byte strings, each prefixed with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Derive a 256-bit key for one purpose by HKDF-SHA256."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def agreement_key(seed: bytes) -> bytes:
    """Derive a private X25519 key from a seed."""
    return derived(seed, b"dpfbo x25519")


def public_agreement_key(private: bytes) -> bytes:
    """Return the public key of a private X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Compute the key that two sites share for one purpose. Raises BadSignature for a public key of low order."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise BadSignature("a site's public key is not usable") from error
    return derived(secret, purpose)


def sealed(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate by ChaCha20-Poly1305; `context` is authenticated but not part of the result.

    The nonce is random because a key may be used twice: if a site's folder is replaced by an older copy, the site may
    encrypt different shares with the same key. A fixed nonce would then be used twice, too.
    """
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, context)


def opened(key: bytes, data: bytes, context: bytes) -> bytes:
    """Decrypt the result of `sealed`. Raises BadSignature if the bytes, the key or the context differ."""
    try:
        return ChaCha20Poly1305(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], context)
    except InvalidTag as error:
        raise BadSignature("an encrypted share cannot be opened: it was made for another site or sum") from error


def mask(key: bytes, size: int) -> np.ndarray:
    """Generate `size` uniform uint32 by ChaCha20; a key may be used only once."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * size)), "<u4")


def new_signing_key() -> bytes:
    """Generate a private Ed25519 key."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_signing_key(private: bytes) -> bytes:
    """Return the public key of a private Ed25519 key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signature(private: bytes, statement: bytes) -> bytes:
    """Sign a statement by Ed25519."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(statement)


def verify(public: bytes, signed: bytes, statement: bytes) -> None:
    """Raise BadSignature unless `signed` is the signature of the statement with this key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signed, statement)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature("a signature is not of the site in the roster") from error


def shares(seed: bytes, threshold: int, n: int) -> list[bytes]:
    """Split a seed into Shamir's shares for sites 0..n-1: `threshold` of them reveal it, fewer reveal nothing."""
    made = shamirs.shares(int.from_bytes(seed, "big"), n, _PRIME, threshold)
    return [share.value.to_bytes(SHARE_BYTES, "big") for share in made]


def coefficients(sites: Sequence[int]) -> dict[int, int]:
    """Return Lagrange's coefficients at 0 for `sites`.

    `sites` must have `threshold` elements (see `shares`). A seed is the sum of the sites' shares times the
    coefficients, modulo a prime. Site v has the share at x_v = v + 1, so its coefficient is the product of
    x_w / (x_w - x_v) over the other sites w.
    """
    return {v: math.prod((w + 1) * pow(w - v, -1, _PRIME) for w in sites if w != v) % _PRIME for v in sites}


def combined(shares: Mapping[int, bytes], coefficients: Mapping[int, int]) -> bytes:
    """Compute the seed from the shares of the sites in `coefficients`.

    Raises BadSignature if the seed exceeds 128 bits.
    """
    seed = sum(k * int.from_bytes(shares[site], "big") for site, k in coefficients.items()) % _PRIME
    if seed >= 2 ** (8 * SEED_BYTES):
        raise BadSignature("the shares are not of one seed")
    return seed.to_bytes(SEED_BYTES, "big")
