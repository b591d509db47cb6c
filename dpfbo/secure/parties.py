"""The sites and the server of a study without a trusted server."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.messages import clip
from dpfbo.federated.prior import DesignSums
from dpfbo.federated.prior_server import prior_after
from dpfbo.formats.journal import Journal, broadcast_file
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.accounting.events import round_parameters
from dpfbo.privacy.charge import Charge
from dpfbo.privacy.distributed import quantised
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.protocol import wire
from dpfbo.protocol.agent import Agent
from dpfbo.protocol.coordinator import check_same_code
from dpfbo.secure.messages import SumTerms
from dpfbo.secure.roster import Roster, SiteKey
from dpfbo.secure.server import SumServer
from dpfbo.secure.site import SumSite
from dpfbo.study.study import Study

NOT_READY, RECEIVED = b"", b"received"  # a site does not sign these two answers
_ROUND = 0  # the round of the only release


class SecureSite:
    """One site of a study without a trusted server; it sends its message only with noise and masks.

    Call `agent.ask` and `agent.tell` as for any `Agent`; `respond` answers the server's requests, over any transport.

    Args:
        study: The study, with `trust="nobody"`, the same for all sites and the server.
        roster: The public keys of all sites. The sites have compared them without the server.
        key: The site's private key.
        folder: The folder of state, secrets and ledger; None keeps them in memory, for a simulation (rng `seeded`).
        maximize: False if small values are better.
        attempts: The maximum number of attempts in which the site takes part. A study has one secure sum, and the
            server may attempt this sum more than once. Each attempt in which the site masks its vector is charged.

    Guarantee:
        Relation: this site's message is replaced by zero (zero-out). `study.views["server"]` is the epsilon of one
        attempt; the adversary is the server together with up to `study.mechanism.colluders` other sites. The site
        charges its own ledger, on disk, before its masked vector leaves. Not covered: timing, who took part, and sites
        that lie about their values.

    Raises:
        SettingError: The study has a trusted server, the roster does not have one key for each site, or folder is None
            and the study's rng is `os`.
        StateError: The roster lacks the key, or the folder belongs to another site, study or version of the mechanism.
        LedgerError: A charge of this site is missing from the ledger.

    Example:
        >>> import dpfbo
        >>> study = dpfbo.create_study(
        ...     {"x": dpfbo.Float(0, 1)}, n_agents=3, delta=1e-3, rounds=2, n_init=2, rng="seeded", trust="nobody"
        ... )
        >>> keys = [SiteKey.new() for _ in range(3)]
        >>> roster = Roster(tuple(key.public for key in keys))  # exchanged outside of the server
        >>> server, sites = SecureCoordinator(study, roster), [SecureSite(study, roster, key) for key in keys]
        >>> for site in sites:
        ...     for _ in range(study.n_init):
        ...         x = site.agent.ask()
        ...         site.agent.tell(x, -x["x"])
        >>> while not server.finished:
        ...     for number, request in server.requests().items():
        ...         server.receive(number, sites[number].respond(request))
        ...     server.close_step()
        >>> [round(site.epsilon, 2) for site in sites], 0 <= sites[0].agent.ask()["x"] <= 1
        ([1.0, 1.0, 1.0], True)
    """

    def __init__(
        self, study: Study, roster: Roster, key: SiteKey, folder: str | os.PathLike[str] | None = None,
        maximize: bool = True, attempts: int = 1,
    ) -> None:  # fmt: skip
        terms = _terms(study, roster, folder)
        self.study, self._folder = study, None if folder is None else Path(folder).absolute()
        self.agent = Agent(study, roster.number_of(key), folder, maximize)
        who = {"event": "secure site", "study": study.digest, "roster": roster.digest.hex(), "key": key.public}
        try:
            self._journal = Journal(folder, "secure-site.jsonl", who)
        except BaseException:
            self.agent.close()
            raise
        try:
            check_same_code(self._journal)
            self.ledger = Ledger(None if self._folder is None else self._folder / "ledger.jsonl")
            self.ledger.check_covers(study.coverage())
            self.ledger.bind(study.coverage())
            self._sum = SumSite(terms, key, self._journal, self._vector, self._charge, attempts)
            if len(self.ledger.charges) < self._sum.masked:
                raise LedgerError(f"ledger {self.ledger.path} lacks a charge of this site: restore the ledger")
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The site's number in the roster."""
        return self._sum.site

    @property
    def epsilon(self) -> float:
        """Epsilon of all charges if the server and up to `colluders` sites pool what they see."""
        return self.study.plan.epsilon(self.ledger.events())

    def respond(self, request: bytes) -> bytes:
        """Answer a request of the server.

        A repeated request gets the same answer, unless the first answer was empty.

        Args:
            request: A request of the secure sum, or the broadcast.

        Returns:
            The answer; empty if the site has not finished its initial evaluations.

        Raises:
            SumError: The bytes are not a request of this sum, or an honest server would not send them.
            WireError: The bytes are not a broadcast of this study.
            StateError: The request contradicts an earlier one, is out of order, or asks for more attempts than allowed.
        """
        if wire.is_packet(request):
            self.agent.receive(request)
            return RECEIVED
        if not self.agent.message_due and self.agent.awaited is None and not self._sum.attempt:
            return NOT_READY
        return self._sum.respond(request)

    def close(self) -> None:
        """Unlock the folder for other processes."""
        self.agent.close()
        self._journal.close()

    def _vector(self) -> Tensor:
        """Return the site's clipped message, rounded to integer steps, plus a share of the noise."""
        study, mechanism = self.study, _mechanism(self.study)
        M = study.agents.message_size
        message = wire.read_message(self.agent.unmasked_message(_ROUND), study.digest, M)[2]
        norm = mechanism.message_norm(1)
        steps = quantised(clip(message[None], norm)[0], norm)[0]
        entropy = SeededEntropy(study.streams) if study.rng == "seeded" else SystemEntropy()
        return steps + mechanism.share(self.agent.agent, study.n_agents, M, entropy, _ROUND)

    def _charge(self, masked: bytes) -> None:
        sensitivity = _mechanism(self.study).sum_sensitivity(self.study.n_agents, self.study.agents.message_size)
        q, z, _ = round_parameters(self.study.events[_ROUND])
        assert z is not None
        self.ledger.charge(Charge(_ROUND, q, z, z * sensitivity, sensitivity, hashlib.sha256(masked).hexdigest()))


class SecureCoordinator:
    """The untrusted server of a study: it leads the sites through a secure sum, and broadcasts the private prior.

    Args:
        study: The study, with `trust="nobody"`.
        roster: The public keys of all sites.
        folder: Each call writes its changes to this folder before it returns; None keeps the state in memory, for a
            simulation.

    Guarantee:
        Privacy does not depend on the server: see `SecureSite`. The server's ledger has only the charge of the release;
        a site's ledger has a charge for each attempt in which the site masked its vector.

    Raises:
        SettingError: The study trusts its server, or folder is None although releases are real (rng `os`).
        StateError: The folder belongs to another study or roster.
    """

    def __init__(self, study: Study, roster: Roster, folder: str | os.PathLike[str] | None = None) -> None:
        terms = _terms(study, roster, folder)
        self.study, self.roster = study, roster
        who = {"event": "secure server", "study": study.digest, "roster": roster.digest.hex()}
        self._journal = Journal(folder, "secure-server.jsonl", who)
        try:
            self.ledger = Ledger(None if folder is None else Path(folder).absolute() / "ledger.jsonl")
            self.ledger.check_covers(study.coverage())
            self.ledger.bind(study.coverage())
            self._sum = SumServer(terms, self._journal)
            events = self._journal.events
            self._sent = any(event["event"] == "sent" for event in events)
            self._closed = any(event["event"] == "over" for event in events)
            self._received = {event["site"] for event in events if event["event"] == "received"}
            if self._sum.step is None and not self._sent:
                self._release()
        except BaseException:
            self._journal.close()
            raise

    @property
    def phase(self) -> str:
        """The current step of the sum. After the sum: `broadcast` while sites wait for the broadcast, then `over`."""
        return self._sum.step or ("over" if self.finished else "broadcast")

    @property
    def answered(self) -> list[int]:
        """The sites that have answered in the current phase."""
        return sorted(self._received) if self._sent else self._sum.answered

    @property
    def attempt(self) -> int:
        """The number of the current attempt, from 1."""
        return self._sum.attempt

    @property
    def broadcast(self) -> bytes | None:
        """The broadcast; None until the sum is known."""
        return self._journal.need(broadcast_file(_ROUND)) if self._sent else None

    @property
    def finished(self) -> bool:
        """True if all sites have received the broadcast, or `close_step` ended the wait for them."""
        return self._sent and (self._closed or len(self._received) == self.study.n_agents)

    @property
    def epsilon(self) -> float | None:
        """Epsilon against the server and up to `colluders` sites together; None if infinite."""
        return finite_or_none(self.study.plan.epsilon(self.ledger.events()))

    def requests(self) -> dict[int, bytes]:
        """Return the bytes to send, by site: the requests of the current phase that have no answer yet."""
        sent = self.broadcast
        if sent is not None:
            return {site: sent for site in range(self.study.n_agents) if site not in self._received}
        return {site: self._sum.request(site) for site in self._sum.waits_for}

    def receive(self, site: int, data: bytes) -> None:
        """Take a site's answer. Repeated, late and empty answers change nothing.

        Args:
            site: The sender, known from the connection, not from the bytes.
            data: The answer.

        Raises:
            SumError: The bytes are not an answer of this sum, or the signature is invalid.
            StateError: The signature is valid, but it is another site's. Or `site` has already sent a different answer
                to this step.
        """
        if data == NOT_READY:
            return
        if data != RECEIVED:
            self._sum.receive(site, data)
        elif self._sent and 0 <= site < self.study.n_agents and site not in self._received:
            self._journal.append({"event": "received", "site": site})
            self._received.add(site)

    def close_step(self) -> None:
        """Go on to the next phase with the sites that have answered.

        Raises StateError if too few have answered, or if a site has sent wrong shares.
        """
        if self._sent:
            self._journal.append({"event": "over"})
            self._closed = True
            return
        self._sum.close_step()
        if self._sum.step is None:
            self._release()

    def begin_again(self) -> None:
        """Give up the current attempt at the sum and begin another one.

        A site refuses an attempt if the attempt's number exceeds the `attempts` of its `SecureSite`. Raises StateError
        if the sum is known.
        """
        self._sum.begin_again()

    def close(self) -> None:
        """Unlock the folder for other processes."""
        self._journal.close()

    def _release(self) -> None:
        study, taking_part = self.study, len(self._sum.survivors)
        release = _mechanism(study).released(self._sum.total[None], study.n_agents, taking_part, _ROUND)
        event = study.events[_ROUND]
        self.ledger.charge(Charge.of(_ROUND, event, release.sigma, release.sensitivity, release.values))
        features = study.agents.features
        assert isinstance(features, NystromFeatures)
        sums = DesignSums.of(study.agents.design, features, study.n_agents)
        prior = prior_after(release.values, release.sigma, sums, features)
        self._journal.keep(broadcast_file(_ROUND), wire.broadcast(study.digest, _ROUND, prior))
        self._journal.append({"event": "sent"})
        self._sent = True


def _mechanism(study: Study) -> DistributedGaussian:
    mechanism = study.mechanism
    if not isinstance(mechanism, DistributedGaussian):
        raise SettingError("trust", "must be 'nobody' for a secure sum, got 'server': use Agent and Coordinator")
    return mechanism


def _terms(study: Study, roster: Roster, folder: object) -> SumTerms:
    noise = _mechanism(study).noise_of(study.n_agents)
    if folder is None and study.rng == "os":
        raise SettingError("folder", "must be given where releases are real (rng os): the ledger must not be lost")
    if len(roster.keys) != study.n_agents:
        raise SettingError("roster", f"must have the keys of all {study.n_agents} sites, got {len(roster.keys)}")
    return SumTerms(study.digest, _ROUND, study.agents.message_size, noise, roster)
