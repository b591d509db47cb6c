"""The server of a secure sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpfbo.formats.journal import Journal, StateError
from dpfbo.privacy.distributed import modular
from dpfbo.secure import messages, primitives
from dpfbo.secure.messages import STEPS, Advert, ServerRequest, SiteAnswer, SumError, SumTerms
from dpfbo.secure.site import SEALED, Masks, commitment


class SumServer:
    """The server that leads all sites through one secure sum, in the steps that `dpfbo.secure.messages` describes.

    Args:
        terms: The public parameters of the sum.
        journal: The server's state, which is on disk before a call returns.

    Guarantee:
        The server need not be trusted: the guarantee of `SumSite` holds whatever the server does. The server keeps all
        answers: public keys, encrypted shares, masked vectors, signatures, and the shares that unmask the sum.
    """

    def __init__(self, terms: SumTerms, journal: Journal) -> None:
        self._terms, self._journal = terms, journal
        self.attempt = 1
        self._answers: dict[str, dict[int, SiteAnswer]] = {step: {} for step in STEPS}
        self._signatures: dict[str, dict[int, bytes]] = {step: {} for step in STEPS}
        self._closed: list[str] = []
        self._sum: Tensor | None = None
        for event in journal.events:
            if event.get("round") != terms.round:
                continue
            if event["event"] == "attempt":
                self._begin(event["attempt"])
            elif event["event"] == "answered" and event["attempt"] == self.attempt:
                self._take(journal.need(self._file(event["step"], event["site"])))
            elif event["event"] == "closed" and event["attempt"] == self.attempt:
                self._closed.append(event["step"])

    @property
    def step(self) -> str | None:
        """The step in progress; None when the sum is known."""
        return STEPS[len(self._closed)] if len(self._closed) < len(STEPS) else None

    @property
    def answered(self) -> list[int]:
        """The sites that have answered the current step; once the sum is known, the sites in it."""
        return sorted(self._answers[self.step or "masked"])

    @property
    def waits_for(self) -> list[int]:
        """The sites that have not answered the current step."""
        if self.step is None:
            return []
        return [site for site in self._left(self.step) if site not in self._answers[self.step]]

    def request(self, site: int) -> bytes:
        """Return the current request to a site. Raises StateError if the site missed a step or the sum is known."""
        step = self.step
        if step is None or site not in self._left(step):
            raise StateError(f"site {site} is not asked in step {step} of attempt {self.attempt}")
        return ServerRequest(self.attempt, step, getattr(self, f"_for_{step}")(site)).encoded(self._terms)

    def receive(self, site: int, data: bytes) -> None:
        """Take a site's answer. An answer to another step, or a repeated answer, changes nothing.

        Args:
            site: The sender, known from the connection.
            data: The answer.

        Raises:
            SumError: The bytes are not an answer of this sum, the signature is invalid, or a field of the answer is
                missing or wrong.
            StateError: Another site signed the answer, or the site has already sent a different answer to this step.
        """
        answer, _ = SiteAnswer.decoded(data, self._terms)
        if answer.site != site:
            raise StateError(f"the answer is of site {answer.site}, and site {site} sent it")
        if answer.attempt != self.attempt or answer.step != self.step or site not in self._left(answer.step):
            return
        known = self._answers[answer.step].get(site)
        if known is not None:
            if known != answer:
                raise StateError(f"site {site} has sent another answer to step {answer.step}")
            return
        self._check(answer)
        self._journal.keep(self._file(answer.step, site), data)
        event = {"event": "answered", "round": self._terms.round, "attempt": self.attempt, "step": answer.step}
        self._journal.append({**event, "site": site})
        self._take(data)

    def close_step(self) -> None:
        """Go on to the next step with the sites that have answered.

        Raises StateError if too few have answered, if sites have sent wrong shares, or if no step is left because the
        sum is known already.
        """
        step = self.step
        if step is None:
            raise StateError("the sum is known already")
        least, found = self._terms.enough[step], len(self._answers[step])
        if found < least:
            raise StateError(
                f"{found} of {self._terms.noise.n_sites} sites have answered step {step} and the sum needs {least}: "
                "wait for others, or begin another attempt, which costs epsilon again at each site that has masked"
            )
        if step == STEPS[-1]:
            self._sum = self._unmasked()  # raises for wrong shares, before the step is closed
        self._journal.append({"event": "closed", "round": self._terms.round, "attempt": self.attempt, "step": step})
        self._closed.append(step)

    def begin_again(self) -> None:
        """Give up the attempt and begin another one. Raises StateError if the sum is known."""
        if self.step is None:
            raise StateError("the sum is known already")
        self._journal.append({"event": "attempt", "round": self._terms.round, "attempt": self.attempt + 1})
        self._begin(self.attempt + 1)

    @property
    def total(self) -> Tensor:
        """The noisy sum, M integers. Raises StateError before the last step is closed."""
        if self.step is not None:
            raise StateError(f"the sum is not known in step {self.step}")
        if self._sum is None:
            self._sum = self._unmasked()
        return self._sum

    @property
    def survivors(self) -> list[int]:
        """The sites whose vectors are in the sum; U3 in `dpfbo.secure.messages`."""
        return sorted(self._answers["masked"])

    def _begin(self, attempt: int) -> None:
        self.attempt, self._closed = attempt, []
        self._answers, self._signatures = ({step: {} for step in STEPS} for _ in range(2))  # type: ignore[assignment]

    def _take(self, data: bytes) -> None:
        answer, signature = SiteAnswer.decoded(data, self._terms)
        self._answers[answer.step][answer.site], self._signatures[answer.step][answer.site] = answer, signature

    def _left(self, step: str) -> list[int]:
        position = STEPS.index(step)
        if position == 0:
            return list(range(self._terms.noise.n_sites))
        return sorted(self._answers[STEPS[position - 1]])

    @property
    def _adverts(self) -> dict[int, Advert]:
        return {site: Advert.of(answer.payload) for site, answer in sorted(self._answers["keys"].items())}

    # the payload of the server's request in each step

    def _for_keys(self, site: int) -> dict[str, object]:
        return {}

    def _for_shares(self, site: int) -> dict[str, object]:
        signatures = self._signatures["keys"]
        return {"adverts": {str(v): [ad.payload(), messages.text(signatures[v])] for v, ad in self._adverts.items()}}

    def _for_masked(self, site: int) -> dict[str, object]:
        sent = {v: answer.payload["shares"][str(site)] for v, answer in self._answers["shares"].items() if v != site}
        return {"shares": {str(v): sent[v] for v in sorted(sent)}}

    def _for_survivors(self, site: int) -> dict[str, object]:
        return {"survivors": sorted(self._answers["masked"])}

    def _for_unmask(self, site: int) -> dict[str, object]:
        return {"signatures": messages.keyed(dict(sorted(self._signatures["survivors"].items())))}

    def _check(self, answer: SiteAnswer) -> None:
        """Raise SumError unless the answer contains everything that later steps need."""
        payload, N, step = answer.payload, self._terms.noise.n_sites, answer.step
        if step == "keys":
            Advert.of(payload)
        elif step == "shares":
            sent = messages.by_site(payload, "shares", N)
            if set(sent) != set(self._adverts) - {answer.site}:
                raise SumError(f"site {answer.site} must send a share to every other site")
            for part in sent.values():
                messages.raw(part, SEALED)
        elif step == "masked":
            messages.raw(payload.get("masked"), 4 * self._terms.size)
        elif step == "survivors":
            wanted = messages.consent(messages.view(self._adverts), sorted(self._answers["shares"]), self.survivors)
            if payload != wanted:
                raise SumError(f"site {answer.site} must sign the keys, shares and survivors that it was shown")
        else:
            survivors = set(self.survivors)
            for name, sites in (("self", survivors), ("pair", set(self._answers["shares"]) - survivors)):
                shares = messages.by_site(payload, name, N)
                if set(shares) != sites:
                    raise SumError(f"site {answer.site} must send a share for every site of {name}")
                for share in shares.values():
                    messages.raw(share, primitives.SHARE_BYTES)

    def _unmasked(self) -> Tensor:
        """Remove all masks from the sum. Raises StateError if a site sent a wrong share."""
        terms, adverts, survivors = self._terms, self._adverts, self.survivors
        revealing = primitives.coefficients(sorted(self._answers["unmask"])[: terms.noise.threshold])
        shared = sorted(self._answers["shares"])
        masks = Masks(terms, self.attempt, messages.view(adverts), tuple(shared))
        total = np.zeros(terms.size, np.uint32)
        for site in survivors:
            masked = messages.raw(self._answers["masked"][site].payload["masked"], 4 * terms.size)
            total = total + np.frombuffer(masked, "<u4")
            seed = self._seed("self", site, revealing)
            if commitment(terms, self.attempt, site, seed) != adverts[site].commitment:
                raise StateError(f"the shares for the mask of site {site} are wrong: nothing is released")
            total = total - masks.own(site, seed)
        for gone in sorted(set(shared) - set(survivors)):
            private = primitives.agreement_key(self._seed("pair", gone, revealing))
            if primitives.public_agreement_key(private) != adverts[gone].mask:
                raise StateError(f"the shares for the key of site {gone} are wrong: nothing is released")
            for site in survivors:  # cancels the survivors' masks for this pair
                total = total + masks.of_pair(gone, site, private, adverts[site].mask)
        return modular(torch.from_numpy(total.astype(np.int64)))

    def _seed(self, name: str, site: int, coefficients: Mapping[int, int]) -> bytes:
        entries = {v: self._answers["unmask"][v].payload[name][str(site)] for v in coefficients}
        try:
            shares = {v: messages.raw(entry, primitives.SHARE_BYTES) for v, entry in entries.items()}
            return primitives.combined(shares, coefficients)
        except primitives.BadSignature as error:
            raise StateError(f"the shares for site {site} are wrong: nothing is released") from error

    def _file(self, step: str, site: int) -> str:
        return f"sum-{self._terms.round:05d}-{self.attempt:03d}-{step}-{site:05d}.bin"
