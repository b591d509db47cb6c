"""The protocol with a server that the sites need not trust: a secure sum, then the broadcast computed from it."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization

from dpfbo.checks import SettingError
from dpfbo.formats.journal import StateError
from dpfbo.secure.parties import SecureCoordinator, SecureSite
from dpfbo.secure.roster import Roster, SiteKey
from runners.deploy.keys import read_identity
from runners.deploy.roster import SiteRoster

if TYPE_CHECKING:
    from dpfbo.study.study import Study
    from runners.deploy.site_folder import SiteFolder


class MaskedSite:
    """A site's side of the secure sum protocol. The site's state is locked while a request is answered."""

    def __init__(self, site: SiteFolder) -> None:
        self._site = site

    def respond(self, request: bytes) -> bytes:
        site = self._site
        with site.alone(), closing(secure_site(site)) as party:
            return party.respond(request)


def secure_site(site: SiteFolder) -> SecureSite:
    """Create the `SecureSite` of a site whose study has no trusted server."""
    raw, none = serialization.Encoding.Raw, serialization.NoEncryption()
    private = read_identity(site.folder).private_bytes(raw, serialization.PrivateFormat.Raw, none)
    shared = site.shared
    return SecureSite(
        shared.study, signing_keys(shared.roster), SiteKey(private), site.state, not shared.minimize, site.attempts
    )


def signing_keys(roster: SiteRoster) -> Roster:
    """Return the public keys that verify the sites' signatures. Raises StateError if the roster is not complete."""
    missing = [n for n in range(roster.n_agents) if n not in roster.sites]
    if missing:
        raise StateError(f"the roster must have all {roster.n_agents} sites, got none for {missing}: a sum needs them")
    return Roster(tuple(roster.sites[n].identity for n in range(roster.n_agents)))


class MaskingServer(SecureCoordinator):
    """The server's part of a secure sum; it ends a step as soon as every site that it asked has answered.

    Args:
        study: The study, which has no trusted server.
        roster: The public keys of all sites.
        folder: The folder of the server's state.
        min_sites: Must be None: the study's `max_dropouts` determines how many sites a sum needs.

    Raises:
        SettingError: `min_sites` is given.
        StateError: The roster is not complete, or the folder belongs to another study.
    """

    def __init__(self, study: Study, roster: SiteRoster, folder: str | os.PathLike[str], min_sites: int | None) -> None:
        if min_sites is not None:
            rule = "must be left out without a trusted server: the study's max_dropouts determines it"
            raise SettingError("min_sites", f"{rule}, got {min_sites}")
        super().__init__(study, signing_keys(roster), folder)
        self._go_on()

    def requests(self) -> dict[int, bytes]:
        return {} if self.finished else super().requests()

    def receive(self, site: int, data: bytes) -> None:
        super().receive(site, data)
        self._go_on()

    def close_step(self) -> None:
        super().close_step()
        self._go_on()

    def _go_on(self) -> None:
        while not self.finished and not self.requests():
            super().close_step()
