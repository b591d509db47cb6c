"""Encode and decode the requests and answers of a secure sum. Decoding never executes code; every answer is signed.

8 bytes   DPFBOS and the version (2 digits)
64 bytes  in an answer only: the site's Ed25519 signature of all other bytes
the rest  JSON with sorted keys: study, roster, round, attempt, step, payload and, in an answer, site

A site hides its vector with masks of two kinds, for which the site draws two random seeds. The site's own mask comes
from the first seed, and only this site adds it. The site's mask key comes from the second seed. Each pair of sites has
a pair mask, which comes from the mask keys of both: one site adds the pair mask, the other subtracts it.

In each step the server sends a request to every site that answered the previous step. U1 to U4 are the sets of sites
that have answered the steps `keys`, `shares`, `masked` and `survivors`:

    step        the server's request to site s        the answer of site s
    keys                                              the public keys of s and a commitment to the seed of s's own mask
    shares      the signed public keys of U1          for each other site v in U1, encrypted for v: a share of the seed
                                                      of s's own mask, and a share of the seed of s's mask key
    masked      the shares for s, from the sites U2   the noisy vector of s plus all masks of s
    survivors   the list U3                           a signature of U1, U2 and U3 by s
    unmask      the signatures of U4                  for each site v in U3: s's share of the seed of v's own mask;
                                                      for each site v in U2 but not in U3: s's share of the seed of v's
                                                      mask key
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpfbo.privacy.distributed import DistributedNoise
from dpfbo.protocol.wire import WireError
from dpfbo.secure import primitives
from dpfbo.secure.roster import Roster, SiteKey

VERSION = b"DPFBOS01"
STEPS = ("keys", "shares", "masked", "survivors", "unmask")
_PER_SITE, _LONGEST = 600, 10_000  # in bytes; `SumTerms.longest` is the size limit of a message


class SumError(WireError):
    """The bytes are not a valid request or answer of this secure sum."""


@dataclass(frozen=True)
class SumTerms:
    """Public parameters of a secure sum.

    study: the study's digest. round: the broadcast's round. size: M, the length of a vector.
    """

    study: str
    round: int
    size: int
    noise: DistributedNoise
    roster: Roster

    def __post_init__(self) -> None:
        if len(self.roster.keys) != self.noise.n_sites:
            found = len(self.roster.keys)
            raise SumError(f"the roster must have the keys of all {self.noise.n_sites} sites, got {found}")

    @property
    def enough(self) -> dict[str, int]:
        """The minimum number of answers: N - max_dropouts in the first three steps, then `noise.threshold`."""
        late = ("survivors", "unmask")
        return {step: self.noise.threshold if step in late else self.noise.survivors for step in STEPS}

    @cached_property
    def context(self) -> dict[str, Any]:
        """The entries that all requests and answers share."""
        return {"study": self.study, "roster": self.roster.digest.hex(), "round": self.round}

    def purpose(self, attempt: int, *parts: object) -> bytes:
        """Return the HKDF `info` of a key, different for any two keys, attempts or sums."""
        return _canonical({**self.context, "attempt": attempt, "for": list(parts)})

    @property
    def longest(self) -> int:
        """The maximum number of bytes of a request or answer."""
        return _LONGEST + _PER_SITE * self.noise.n_sites + 8 * self.size


@dataclass(frozen=True)
class ServerRequest:
    """The server's request to a site in one step of an attempt."""

    attempt: int
    step: str
    payload: dict[str, Any]

    def encoded(self, terms: SumTerms) -> bytes:
        body = {**terms.context, "attempt": self.attempt, "step": self.step, "payload": self.payload}
        return VERSION + _canonical(body)

    @staticmethod
    def decoded(data: bytes, terms: SumTerms) -> ServerRequest:
        """Decode a request. Raises SumError if the bytes are not a request of this sum."""
        return ServerRequest(*_read(data, 0, terms)[:3])


@dataclass(frozen=True)
class SiteAnswer:
    """A site's answer to the server's request in one step of an attempt."""

    attempt: int
    step: str
    payload: dict[str, Any]
    site: int

    def statement(self, terms: SumTerms) -> bytes:
        """Return the answer as JSON. The site signs the version bytes followed by this JSON."""
        body = {**terms.context, "attempt": self.attempt, "step": self.step, "payload": self.payload}
        return _canonical({**body, "site": self.site})

    def signed(self, terms: SumTerms, key: SiteKey) -> bytes:
        statement = self.statement(terms)
        return VERSION + primitives.signature(key.private, VERSION + statement) + statement

    def verify(self, terms: SumTerms, signature: bytes) -> None:
        """Raise BadSignature unless the site has signed this answer."""
        terms.roster.verify(self.site, signature, VERSION + self.statement(terms))

    @staticmethod
    def decoded(data: bytes, terms: SumTerms) -> tuple[SiteAnswer, bytes]:
        """Return an answer and its verified signature.

        Raises SumError if the bytes are not an answer of this sum, or the site did not sign them.
        """
        attempt, step, payload, site = _read(data, primitives.SIGNATURE_BYTES, terms)
        if type(site) is not int or not 0 <= site < terms.noise.n_sites:
            raise SumError(f"the answer's site must be a number from 0 to {terms.noise.n_sites - 1}")
        answer = SiteAnswer(attempt, step, payload, site)
        signature = bytes(data[len(VERSION) : len(VERSION) + primitives.SIGNATURE_BYTES])
        try:
            answer.verify(terms, signature)
        except primitives.BadSignature as error:
            raise SumError(f"the answer of site {site} must have its signature: {error}") from error
        return answer, signature


def text(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(data).decode()


def raw(value: Any, length: int) -> bytes:
    """Decode base64 text. Raises SumError unless it encodes exactly `length` bytes."""
    try:
        data = base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise SumError("a part of the message must be base64 text") from error
    if len(data) != length or text(data) != value:
        raise SumError(f"a part of the message must be the base64 text of {length} bytes, got {len(data)}")
    return data


def by_site(payload: dict[str, Any], name: str, n_sites: int) -> dict[int, Any]:
    """Return the payload's entry `name`, a dict by site number. Raises SumError if a key is no site number."""
    value = payload.get(name)
    known = {str(site) for site in range(n_sites)}
    if not isinstance(value, dict) or not set(value) <= known:
        raise SumError(f"the message must have {name} by site number")
    return {int(site): value[site] for site in sorted(value, key=int)}


def site_list(payload: dict[str, Any], name: str, n_sites: int) -> list[int]:
    """Return the payload's entry `name`, a list of ascending site numbers. Raises SumError for anything else."""
    value = payload.get(name)
    good = isinstance(value, list) and all(type(site) is int and 0 <= site < n_sites for site in value)
    if not good or value != sorted(set(value)):  # type: ignore[arg-type]
        raise SumError(f"the message must have {name}, ascending site numbers")
    return value  # type: ignore[return-value]


def keyed(values: dict[int, bytes]) -> dict[str, str]:
    """Encode byte strings, one for each site, as an entry of a payload."""
    return {str(site): text(value) for site, value in values.items()}


@dataclass(frozen=True)
class Advert:
    """A site's public keys in one attempt, and the commitment to the seed of its own mask.

    cipher: the key for the encryption of shares. mask: the key for pair masks.
    """

    cipher: bytes
    mask: bytes
    commitment: bytes

    def payload(self) -> dict[str, Any]:
        return {name: text(value) for name, value in vars(self).items()}

    @staticmethod
    def of(payload: Any) -> Advert:
        """Decode an advert from a payload. Raises SumError if the payload is not an advert."""
        if not isinstance(payload, dict) or set(payload) != {"cipher", "mask", "commitment"}:
            raise SumError("the message must have a site's keys")
        return Advert(**{name: raw(value, primitives.KEY_BYTES) for name, value in payload.items()})


def view(adverts: dict[int, Advert]) -> bytes:
    """Return the digest of `adverts`."""
    return primitives.digest(b"dpfbo U1", *(_canonical({str(v): adverts[v].payload()}) for v in sorted(adverts)))


def consent(U1: bytes, U2: Sequence[int], U3: Sequence[int]) -> dict[str, Any]:
    """Return the payload that a site signs before it helps to unmask.

    U1: the digest from `view`. U2: the sites whose shares arrived. U3: the sites whose masked vectors arrived.
    """
    return {"keys": U1.hex(), "shared": list(U2), "survivors": list(U3)}


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read(data: bytes, skipped: int, terms: SumTerms) -> tuple[int, str, dict[str, Any], Any]:
    """Return attempt, step, payload and site. Raises SumError if the bytes are not a message of this sum.

    skipped: the number of bytes between the version and the JSON.
    """
    start = len(VERSION) + skipped
    if not isinstance(data, bytes | bytearray) or data[: len(VERSION)] != VERSION or len(data) < start:
        raise SumError(f"the bytes must begin with {VERSION.decode()}: they are of another program or version")
    if len(data) > terms.longest:
        raise SumError(f"the message must have at most {terms.longest} bytes, got {len(data)}")
    try:
        body = json.loads(data[start:])
        found = {name: body[name] for name in terms.context}
        attempt, step, payload = body["attempt"], body["step"], body["payload"]
        canonical = _canonical(body) == data[start:]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SumError("the message cannot be read") from error
    if not canonical:
        raise SumError("the message must have sorted keys and no blanks")
    for name, wanted in terms.context.items():
        if found[name] != wanted:
            raise SumError(f"the message must be of {name} {wanted!r}, got {str(found[name])[:70]!r}")
    if type(attempt) is not int or not 0 < attempt < 2**31 or step not in STEPS or not isinstance(payload, dict):
        raise SumError("the message cannot be read")
    return attempt, step, payload, body.get("site")
