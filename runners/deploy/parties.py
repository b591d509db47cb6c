"""The interface between a protocol and the transport of its messages."""

from __future__ import annotations

from typing import Protocol

from runners.deploy.project import Project
from runners.deploy.secure import MaskedSite, MaskingServer
from runners.deploy.site_folder import SiteFolder
from runners.deploy.trusted import TrustedServer, TrustedSite


class SiteParty(Protocol):
    """A site's part of a protocol. All state is in the site's folder."""

    def respond(self, request: bytes) -> bytes:
        """Answer a request of the server.

        A repeated request gets the same bytes, unless the earlier answer was that the site is not ready. The answer,
        and any charge for it in the site's ledger, are on disk before the call returns.

        Raises:
            WireError: The bytes are not a request of this protocol.
            StateError: The request does not fit the site's state.
        """
        ...


class ServerParty(Protocol):
    """The server's part of a protocol. The effect of a call is on disk when the call returns."""

    @property
    def finished(self) -> bool:
        """True if there will be no further requests."""
        ...

    def requests(self) -> dict[int, bytes]:
        """Return, by site number, the requests to the sites that have not answered in the current step."""
        ...

    def receive(self, site: int, data: bytes) -> None:
        """Take a site's answer. A repeated answer, or one that says that the site is not ready, changes nothing.

        Args:
            site: The sender's number. It follows from the sender's key, never from `data`.
            data: The bytes of the answer.

        Raises:
            WireError: The bytes are not an answer of this protocol.
            StateError: The answer does not fit the step, or comes too late.
        """
        ...

    def close_step(self) -> None:
        """End the current step without the sites that have not answered.

        Raises:
            StateError: Too few sites have answered.
        """
        ...

    def close(self) -> None:
        """Unlock the server's folder for other processes."""
        ...


def site_party(site: SiteFolder) -> SiteParty:
    """Return the site's part of its study's protocol."""
    return MaskedSite(site) if site.shared.study.trust == "nobody" else TrustedSite(site.opened)


def server_party(project: Project, min_sites: int | None) -> ServerParty:
    """Return the server's part of the protocol that a project's study uses.

    min_sites: for a trusted server, the least number of answers with which a step may end. If `min_sites` is None, more
    than half of the sites must answer. For a secure sum, `min_sites` must be None.
    """
    study = project.shared.study
    if study.trust == "nobody":
        return MaskingServer(study, project.shared.roster, project.server, min_sites)
    return TrustedServer(study, project.server, study.n_agents // 2 + 1 if min_sites is None else min_sites)
