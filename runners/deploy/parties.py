"""The interface between a protocol and its transport: bytes in both directions, for a site and for the server."""

from __future__ import annotations

from typing import Protocol

from runners.deploy.project import Project
from runners.deploy.secure import MaskedSite, MaskingServer
from runners.deploy.site_folder import SiteFolder
from runners.deploy.trusted import TrustedServer, TrustedSite


class SiteParty(Protocol):
    """The protocol's part at a site. Its state lives in the site's folder: any process may answer the next request."""

    def respond(self, request: bytes) -> bytes:
        """Answer a request of the server; the same request gets the same bytes again, or those of a later state.

        What the answer reveals is charged, and on disk, before this returns.

        Raises:
            WireError: The bytes are no request of this protocol.
            StateError: The request does not fit the site's state.
        """
        ...


class ServerParty(Protocol):
    """The protocol's part at the server. The effect of a call is on disk when the call returns."""

    @property
    def finished(self) -> bool:
        """True if no site is asked anything any more."""
        ...

    def requests(self) -> dict[int, bytes]:
        """The bytes for each site that has not answered the step in progress, by the site's number."""
        ...

    def receive(self, site: int, data: bytes) -> None:
        """Take an answer. An answer that was received before, or says that the site is not ready, changes nothing.

        Args:
            site: The number of the sender, known from its key, never from the bytes.
            data: What the site's `respond` returned.

        Raises:
            WireError: The bytes are no answer of this protocol.
            StateError: The answer does not fit the step, or comes too late.
        """
        ...

    def close_step(self) -> None:
        """End the step in progress without the sites that have not answered.

        Raises:
            StateError: Those that have answered are too few.
        """
        ...

    def close(self) -> None:
        """Unlock the folder for other processes."""
        ...


def site_party(site: SiteFolder) -> SiteParty:
    """The site's part of the protocol of its study."""
    return MaskedSite(site) if site.shared.study.trust == "nobody" else TrustedSite(site.opened)


def server_party(project: Project, min_sites: int | None) -> ServerParty:
    """The server's part of the protocol of a project's study.

    min_sites: the least number with which a step ends; None for more than half, or for what a secure sum needs.
    """
    study = project.shared.study
    if study.trust == "nobody":
        return MaskingServer(study, project.shared.roster, project.server, min_sites)
    return TrustedServer(study, project.server, study.n_agents // 2 + 1 if min_sites is None else min_sites)
