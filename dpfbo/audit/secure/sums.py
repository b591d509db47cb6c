"""Secure sums that are run to audit the sites.

The audit's code acts as the server, and can also read the sites' journals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpfbo import checks
from dpfbo.audit.findings import ClaimBroken, require
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.formats.journal import Journal, StateError
from dpfbo.privacy.distributed import BITS, DistributedNoise
from dpfbo.secure.messages import ServerRequest, SiteAnswer, SumError, SumTerms, raw
from dpfbo.secure.roster import Roster, SiteKey
from dpfbo.secure.server import SumServer
from dpfbo.secure.site import SumSite, secret_file

Charge = Callable[[bytes], None]


@dataclass(frozen=True)
class SumTarget:
    """The sites of the secure sum under audit.

    Args:
        mechanism: The mechanism that draws each site's share of the noise.
        n_sites: The number of sites, N.
        size: The number of integers in a site's vector, M.
        site: Makes a site from the arguments of `SumSite`.
        terms: Makes the terms of a sum from the arguments of `SumTerms`.

    Raises:
        SettingError: The mechanism does not work with this number of sites.
    """

    mechanism: DistributedGaussian
    n_sites: int
    size: int
    site: Callable[..., SumSite] = SumSite
    terms: Callable[..., SumTerms] = SumTerms

    def __post_init__(self) -> None:
        checks.integer("size", self.size, minimum=1)
        self.mechanism.noise_of(self.n_sites)

    @property
    def noise(self) -> DistributedNoise:
        return self.mechanism.noise_of(self.n_sites)

    def size_for(self, numbers: int) -> int:
        """Return `self.size`, increased if necessary so that all N sites together send at least `numbers` integers."""
        return max(self.size, -(-numbers // self.n_sites))


class SumRun:
    """One secure sum in one process, of vectors that the audit chooses.

    The attribute `vectors` contains each site's vector of M integers, by (attempt, site). The attribute `answers`
    contains the sites' answers to honest requests, by (attempt, step, site).

    The constructor's argument `numbers` sets the vector of each site, for all attempts. If `numbers` is None, the
    integers are random, from -2^16 to 2^16.
    """

    def __init__(
        self, target: SumTarget, size: int | None = None, attempts: int = 1,
        numbers: Mapping[int, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self.target, self.attempts, self._numbers = target, attempts, numbers
        self.keys = [SiteKey.new() for _ in range(target.n_sites)]
        roster = Roster(tuple(key.public for key in self.keys))
        self.terms = target.terms("audit", 0, size or target.size, target.noise, roster)
        self._random = np.random.default_rng(0)
        self.vectors: dict[tuple[int, int], np.ndarray] = {}
        self.journals = [Journal(None, "", {"event": "begin"}) for _ in self.keys]
        self.sites = [self.site(n, self.journals[n]) for n in range(target.n_sites)]
        self.server = SumServer(self.terms, Journal(None, "", {"event": "begin"}))
        self.answers: dict[tuple[int, str, int], SiteAnswer] = {}

    def site(self, n: int, journal: Journal, charge: Charge = lambda answer: None) -> SumSite:
        """Return site n after a restart with this journal."""
        return self.target.site(self.terms, self.keys[n], journal, lambda: self._vector(n), charge, self.attempts)

    def restored(self, n: int, charge: Charge = lambda answer: None) -> SumSite:
        """Return site n as restored from a copy of its folder."""
        return self.site(n, self.journals[n].copied(), charge)

    def _vector(self, n: int) -> torch.Tensor:
        if self._numbers is None:
            made = self._random.integers(-(2**BITS), 2**BITS + 1, self.terms.size)
        else:
            made = self._numbers[n]
        self.vectors[self.server.attempt, n] = made
        return torch.from_numpy(made)

    def request(self, step: str, payload: dict[str, Any]) -> bytes:
        """Return the encoded request of a step of the present attempt."""
        return ServerRequest(self.server.attempt, step, payload).encoded(self.terms)

    def payload(self, n: int) -> dict[str, Any]:
        """Return the payload of an honest request to site n in the present step; empty after the last step."""
        step = self.server.step
        return ServerRequest.decoded(self.server.request(n), self.terms).payload if step else {}

    def read(self, answer: bytes) -> SiteAnswer:
        """Decode a site's answer. Raises ClaimBroken if it cannot be read."""
        try:
            return SiteAnswer.decoded(answer, self.terms)[0]
        except SumError as error:
            raise ClaimBroken(f"a site's answer cannot be read: {error}") from error

    def masked(self, answer: SiteAnswer) -> np.ndarray:
        """Return the masked vector in an answer, M uint32."""
        return np.frombuffer(raw(answer.payload["masked"], 4 * self.terms.size), "<u4")

    def until(self, step: str | None, absent: Collection[int] = ()) -> SumRun:
        """Run the sum up to the beginning of `step`, or to the end of the sum if `step` is None.

        The sites in `absent` do not answer. Raises ClaimBroken if the sum fails.
        """
        try:
            while self.server.step != step:
                for n in self.server.waits_for:
                    if n not in absent:
                        self._ask(n)
                self.server.close_step()
        except (SumError, StateError) as error:
            raise ClaimBroken(f"an honest sum fails in step {self.server.step}: {error}") from error
        return self

    def _ask(self, n: int) -> None:
        answer = self.sites[n].respond(self.server.request(n))
        self.answers[self.server.attempt, str(self.server.step), n] = self.read(answer)
        self.server.receive(n, answer)

    def secret(self, n: int) -> dict[str, Any]:
        """Return the seeds and other secrets that site n's journal contains for the present attempt of the sum."""
        found: dict[str, Any] = json.loads(self.journals[n].need(secret_file(self.terms, self.server.attempt)))
        return found

    def answer(self, n: int, step: str, payload: dict[str, Any], site: SumSite | None = None) -> bytes | None:
        """Return the answer of site n to a request; None if the site raises SumError or StateError.

        site: a copy of site n that gives the answer in its place.
        """
        try:
            return (site or self.sites[n]).respond(self.request(step, payload))
        except (SumError, StateError):
            return None
        except (LookupError, TypeError, ValueError, AssertionError) as error:
            raise ClaimBroken(f"site {n} ends step {step} with {type(error).__name__}: {error}") from error

    def must_refuse(self, n: int, step: str, payload: dict[str, Any], words: str) -> None:
        """Raise ClaimBroken if site n answers the request that `words` describe."""
        require(self.answer(n, step, payload) is None, f"site {n} does not refuse {words}")
