"""One site's part in a secure sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from dpfbo import checks
from dpfbo.formats.journal import Journal, StateError
from dpfbo.secure import messages, primitives
from dpfbo.secure.messages import STEPS, Advert, ServerRequest, SiteAnswer, SumError, SumTerms
from dpfbo.secure.roster import SiteKey

# the size of two encrypted and authenticated shares in bytes
SEALED = primitives.NONCE_BYTES + 2 * primitives.SHARE_BYTES + primitives.TAG_BYTES


class SumSite:
    """A site that answers the server's requests in one secure sum; a repeated request gets the same bytes again.

    In each attempt the site draws its noisy vector and its keys once, and writes both to disk before it sends the
    public keys. So each key masks only one vector. This holds even if the site's folder is replaced by an older copy:
    if the copy has this attempt's vector and keys, the site uses them again. Otherwise, the site draws new ones. Masks
    also depend on the set of sites whose secret shares arrived. So if two copies of the site have the same keys but
    receive shares from different sets of sites, the copies use different masks.

    Args:
        terms: The public parameters of the sum.
        key: The site's signing key.
        journal: The site's state.
        vector: A function that returns the site's vector with its share of the noise, M integers; called once in each
            attempt.
        charge: A function that charges the site's ledger for an answer with a masked vector; called before the answer
            leaves.
        attempts: The site takes part in at most this many attempts. Each attempt with a masked vector costs epsilon.

    Guarantee:
        Everything that the server and colluding sites see of this site can be computed from a sum and from random
        numbers that do not depend on the site's data. The sum is over at least N - max_dropouts sites and contains the
        noise share of each of them. The site masks only with keys that the roster's sites signed. It reveals shares
        only for a list of survivors that `threshold` sites signed. From each site m, this site has a share of each of
        two seeds: the seed of the mask that only m adds, and the seed of m's key for pair masks (see
        `dpfbo.secure.messages`). If m is on the list, this site reveals its share of the first seed. Otherwise, it
        reveals its share of the second. It never reveals both. Not covered: if a site's folder is replaced by an older
        copy after the site signed a list of survivors, the site may sign another list. Such a site counts as a
        colluder.
    """

    new_seed = staticmethod(primitives.new_seed)  # an attribute, so that an audit can examine the source of all seeds

    def __init__(
        self, terms: SumTerms, key: SiteKey, journal: Journal, vector: Callable[[], Tensor],
        charge: Callable[[bytes], None], attempts: int = 1,
    ) -> None:  # fmt: skip
        checks.integer("attempts", attempts, minimum=1)
        self._terms, self._key, self._journal, self._attempts = terms, key, journal, attempts
        self._vector, self._charge = vector, charge
        self.site = terms.roster.number_of(key)
        self._done: dict[tuple[int, str], str] = {}  # digest of the answered request, by attempt and step
        for event in journal.events:
            if event["event"] == "answered" and event["round"] == terms.round:
                self._done[event["attempt"], event["step"]] = event["request"]
        self._forget_old_secrets()

    @property
    def attempt(self) -> int:
        """The latest attempt in which this site has answered; 0 if there is none."""
        return max((attempt for attempt, _ in self._done), default=0)

    @property
    def masked(self) -> int:
        """The number of attempts in which a masked vector may have left this site."""
        return sum(step == "masked" for _, step in self._done)

    def respond(self, data: bytes) -> bytes:
        """Return the signed answer to a request of the server; the answer is on disk before the call returns.

        Raises:
            SumError: The bytes are not a request of this sum, or an honest server would not send them.
            StateError: The request contradicts an earlier one, is out of order, or asks for more attempts than allowed.
        """
        request = ServerRequest.decoded(data, self._terms)
        place, asked = (request.attempt, request.step), hashlib.sha256(data).hexdigest()
        if place in self._done:
            if self._done[place] != asked:
                raise StateError(f"another request of step {request.step} of attempt {request.attempt} was answered")
            return self._journal.need(self._file(*place))
        self._check_order(request)
        try:
            payload = getattr(self, f"_{request.step}")(request)
        except primitives.BadSignature as error:
            raise SumError(f"the request of step {request.step} must come from honest sites: {error}") from error
        answer = SiteAnswer(request.attempt, request.step, payload, self.site).signed(self._terms, self._key)
        if request.step == "masked":
            self._charge(answer)
        self._journal.keep(self._file(*place), answer)
        self._journal.append(
            {"event": "answered", "round": self._terms.round, "attempt": request.attempt, "step": request.step,
             "request": asked}
        )  # fmt: skip
        self._done[place] = asked
        self._forget_old_secrets()
        return answer

    def _forget_old_secrets(self) -> None:
        over = self.attempt if (self.attempt, "unmask") in self._done else self.attempt - 1
        for attempt in range(1, over + 1):
            self._journal.forget(secret_file(self._terms, attempt))

    def _check_order(self, request: ServerRequest) -> None:
        if request.attempt < self.attempt:
            raise StateError(f"attempt {request.attempt} is over: this site is in attempt {self.attempt}")
        if request.step == STEPS[0]:
            if request.attempt > self._attempts:
                raise StateError(
                    f"the server asks for attempt {request.attempt}, and this site allows {self._attempts}: each one "
                    "costs epsilon; to allow more, raise attempts"
                )
            return
        before = STEPS[STEPS.index(request.step) - 1]
        if (request.attempt, before) not in self._done:
            raise StateError(
                f"step {request.step} of attempt {request.attempt} needs the answer to step {before}, which this "
                "folder does not have: the site takes part again in the next attempt"
            )

    # the five steps: each returns the payload of the answer

    def _keys(self, request: ServerRequest) -> dict[str, Any]:
        secret = {name: self.new_seed().hex() for name in ("cipher", "mask", "self")}
        numbers = self._vector().numpy().astype(np.int64)
        if numbers.shape != (self._terms.size,):
            raise StateError(f"the site's vector must have {self._terms.size} numbers, got shape {numbers.shape}")
        vector = (numbers % 2**32).astype("<u4").tobytes()
        self._keep_secret(request.attempt, {**secret, "vector": messages.text(vector)})
        return self._advert(request.attempt, self._secret(request.attempt)).payload()

    def _shares(self, request: ServerRequest) -> dict[str, Any]:
        terms, secret = self._terms, self._secret(request.attempt)
        adverts = self._adverts(request)
        U1, threshold, N = messages.view(adverts), terms.noise.threshold, terms.noise.n_sites
        of_key = primitives.shares(bytes.fromhex(secret["mask"]), threshold, N)
        of_mask = primitives.shares(bytes.fromhex(secret["self"]), threshold, N)
        own = (of_key[self.site] + of_mask[self.site]).hex()
        keys = {str(v): advert.payload() for v, advert in adverts.items()}
        self._keep_secret(request.attempt, {**secret, "own": own, "adverts": keys})
        sent = {
            v: primitives.sealed(
                self._pair_key(request.attempt, secret, adverts[v], self.site, v), of_key[v] + of_mask[v], U1
            )
            for v in adverts if v != self.site
        }  # fmt: skip
        return {"shares": messages.keyed(sent)}

    def _masked(self, request: ServerRequest) -> dict[str, Any]:
        terms, secret = self._terms, self._secret(request.attempt)
        adverts = {int(v): Advert.of(payload) for v, payload in secret["adverts"].items()}
        sealed = messages.by_site(request.payload, "shares", terms.noise.n_sites)
        U2 = sorted({*sealed, self.site})
        self._check_enough(self._terms.noise.survivors, U2, adverts, "sites whose shares came")
        U1 = messages.view(adverts)
        received = {
            str(v): primitives.opened(
                self._pair_key(request.attempt, secret, adverts[v], v, self.site), messages.raw(sealed[v], SEALED), U1
            ).hex()
            for v in U2 if v != self.site
        }  # fmt: skip
        masks = Masks(terms, request.attempt, U1, tuple(U2))
        total = np.frombuffer(messages.raw(secret["vector"], 4 * terms.size), "<u4") + masks.own(
            self.site, bytes.fromhex(secret["self"])
        )
        private = primitives.agreement_key(bytes.fromhex(secret["mask"]))
        for v in U2:
            if v != self.site:
                total = total + masks.of_pair(self.site, v, private, adverts[v].mask)
        self._keep_secret(request.attempt, {**secret, "received": received, "shared": U2})
        return {"masked": messages.text(total.astype("<u4").tobytes())}

    def _survivors(self, request: ServerRequest) -> dict[str, Any]:
        secret = self._secret(request.attempt)
        U3 = messages.site_list(request.payload, "survivors", self._terms.noise.n_sites)
        # each survivor adds a share of the noise, and fewer than N - max_dropouts shares are not enough
        self._check_enough(self._terms.noise.survivors, U3, secret["shared"], "survivors")
        self._keep_secret(request.attempt, {**secret, "survivors": U3})
        return self._consent(secret, U3)

    def _unmask(self, request: ServerRequest) -> dict[str, Any]:
        terms, secret = self._terms, self._secret(request.attempt)
        U3 = secret["survivors"]
        signed = messages.by_site(request.payload, "signatures", terms.noise.n_sites)
        self._check_enough(self._terms.noise.threshold, list(signed), U3, "signatures of survivors")
        payload = self._consent(secret, U3)
        for v, signature in signed.items():
            answer = SiteAnswer(request.attempt, "survivors", payload, v)
            answer.verify(terms, messages.raw(signature, primitives.SIGNATURE_BYTES))
        shares = {**secret["received"], str(self.site): secret["own"]}
        parts = {int(v): bytes.fromhex(share) for v, share in shares.items()}
        n, survivors = primitives.SHARE_BYTES, set(U3)
        return {
            "pair": messages.keyed({v: parts[v][:n] for v in secret["shared"] if v not in survivors}),
            "self": messages.keyed({v: parts[v][n:] for v in U3}),
        }

    def _consent(self, secret: dict[str, Any], U3: list[int]) -> dict[str, Any]:
        adverts = {int(v): Advert.of(payload) for v, payload in secret["adverts"].items()}
        return messages.consent(messages.view(adverts), secret["shared"], U3)

    def _adverts(self, request: ServerRequest) -> dict[int, Advert]:
        """Return the verified keys in a request. Raises SumError unless this site's own keys are among them."""
        terms, found = self._terms, {}
        for v, entry in messages.by_site(request.payload, "adverts", terms.noise.n_sites).items():
            if not isinstance(entry, list) or len(entry) != 2:
                raise SumError("the message must have adverts, each a site's keys and its signature")
            found[v] = Advert.of(entry[0])
            answer = SiteAnswer(request.attempt, "keys", found[v].payload(), v)
            answer.verify(terms, messages.raw(entry[1], primitives.SIGNATURE_BYTES))
        self._check_enough(terms.noise.survivors, list(found), range(terms.noise.n_sites), "signed keys")
        if found.get(self.site) != self._advert(request.attempt, self._secret(request.attempt)):
            raise SumError(
                "the server has other keys of this site: the site's folder is an older copy, or another process "
                "answers for the site; nothing is masked"
            )
        if len({key for advert in found.values() for key in (advert.cipher, advert.mask)}) < 2 * len(found):
            raise SumError("all keys of an attempt must differ")
        return found

    def _check_enough(self, least: int, sites: list[int], among: Any, what: str) -> None:
        if len(sites) < least or not set(sites) <= set(among):
            raise SumError(f"a sum needs {least} {what}, all from sites that took part before, got {len(sites)}")

    def _advert(self, attempt: int, secret: dict[str, Any]) -> Advert:
        cipher, mask = (
            primitives.public_agreement_key(primitives.agreement_key(bytes.fromhex(secret[name])))
            for name in ("cipher", "mask")
        )
        return Advert(cipher, mask, commitment(self._terms, attempt, self.site, bytes.fromhex(secret["self"])))

    def _pair_key(self, attempt: int, secret: dict[str, Any], advert: Advert, sender: int, receiver: int) -> bytes:
        """Compute the key that encrypts shares from `sender` to `receiver`; this site is one of the two."""
        private = primitives.agreement_key(bytes.fromhex(secret["cipher"]))
        return primitives.agreed(private, advert.cipher, self._terms.purpose(attempt, "shares", sender, receiver))

    def _file(self, attempt: int, step: str) -> str:
        return f"sum-{self._terms.round:05d}-{attempt:03d}-{step}.bin"

    def _keep_secret(self, attempt: int, secret: dict[str, Any]) -> None:
        self._journal.keep(secret_file(self._terms, attempt), json.dumps(secret).encode())

    def _secret(self, attempt: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._journal.need(secret_file(self._terms, attempt)))
        return found


def secret_file(terms: SumTerms, attempt: int) -> str:
    """Return the name under which a site's journal keeps the secrets of an attempt."""
    return f"sum-{terms.round:05d}-{attempt:03d}.secret"


def commitment(terms: SumTerms, attempt: int, site: int, seed: bytes) -> bytes:
    """Compute the commitment to the seed of a site's own mask."""
    return primitives.derived(seed, terms.purpose(attempt, "commitment", site))


@dataclass(frozen=True)
class Masks:
    """The masks of one attempt. U1: the digest of all public keys. U2: the sites whose shares have arrived.

    Every mask depends on U1 and U2. If masks did not depend on U2, two copies of a site could answer for different U2,
    and the difference of their answers would reveal pair masks to the server.
    """

    terms: SumTerms
    attempt: int
    U1: bytes
    U2: tuple[int, ...]

    def own(self, site: int, seed: bytes) -> np.ndarray:
        """Compute the mask that only `site` adds, M uint32."""
        return primitives.mask(primitives.derived(seed, self._purpose("own mask", site)), self.terms.size)

    def of_pair(self, site: int, other: int, private: bytes, other_public: bytes) -> np.ndarray:
        """Compute the mask that `site` adds and `other` subtracts, M uint32. private: the mask key of `site`."""
        purpose = self._purpose("pair mask", min(site, other), max(site, other))
        found = primitives.mask(primitives.agreed(private, other_public, purpose), self.terms.size)
        return found if site < other else np.uint32(0) - found

    def _purpose(self, *parts: object) -> bytes:
        return self.terms.purpose(self.attempt, *parts, self.U1.hex(), list(self.U2))
