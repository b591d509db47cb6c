"""The roster of a study: the public keys of its sites."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from dpfbo.checks import shown
from dpfbo.formats.files import replace_text
from dpfbo.formats.journal import StateError
from runners.deploy.keys import PublicKeys
from runners.study import json_text, read_json

_KEYS = ("identity", "supernode", "proof")
_LONGEST_NAME = 100


@dataclass(frozen=True)
class SiteRoster:
    """The public keys and names of a study's sites, as far as the operator has added them.

    Args:
        n_agents: The number of sites of the study.
        sites: The public keys by number, 0..N-1.
        names: Readable names of the sites, by number.

    Raises:
        StateError: A number lies outside 0..N-1, two sites have a key in common, or a name is not one short line.
    """

    n_agents: int
    sites: dict[int, PublicKeys] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for n, keys in self.sites.items():
            if type(n) is not int or not 0 <= n < self.n_agents:
                raise StateError(f"agent must be a number from 0 to {self.n_agents - 1}, got {shown(n)}")
            for other, others in self.sites.items():
                same = {keys.identity, _bare(keys)} & {others.identity, _bare(others)}
                if same and other != n:
                    raise StateError(
                        f"agents {min(n, other)} and {max(n, other)} have the same key: each needs its own"
                    )
        for name in self.names.values():
            if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
                raise StateError(f"name must be a line of at most {_LONGEST_NAME} characters, got {shown(name)}")

    def added(self, agent: int, keys: PublicKeys, name: str = "") -> SiteRoster:
        """Return this roster with one more site. Raises StateError if the number or one of the keys is taken."""
        if agent in self.sites:
            raise StateError(
                f"agent {agent} is in the roster already, with fingerprint {self.sites[agent].fingerprint}"
            )
        return SiteRoster(self.n_agents, {**self.sites, agent: keys}, {**self.names, agent: name})

    def number_of(self, identity: str) -> int | None:
        """Return the number of the site with this identity; None if the roster lacks it."""
        return next((n for n, keys in self.sites.items() if keys.identity == identity), None)

    def by_supernode(self) -> dict[bytes, int]:
        """Return each site's number, by the public key of its SuperNode in PEM format."""
        return {keys.supernode_pem: n for n, keys in self.sites.items()}

    def write(self, path: Path) -> None:
        """Write the roster, which is public, to a file."""
        entries = [{"agent": n, "name": self.names.get(n, ""), **asdict(self.sites[n])} for n in sorted(self.sites)]
        replace_text(path, json_text({"sites": entries}))

    @staticmethod
    def read(path: Path, n_agents: int) -> SiteRoster:
        """Read a roster from its file. Raises StateError if the file is not a roster."""
        content = read_json(path)
        entries = content.get("sites") if isinstance(content, dict) else None
        wanted = {"agent", "name", *_KEYS}
        if not isinstance(entries, list) or not all(isinstance(e, dict) and set(e) == wanted for e in entries):
            raise StateError(f"{path} is not a roster: python -m runners.deploy roster add writes it")
        if len({e["agent"] for e in entries if isinstance(e["agent"], int)}) != len(entries):
            raise StateError(f"{path} must name each agent once, by its number: restore the file")
        sites = {e["agent"]: PublicKeys(*(e[key] for key in _KEYS)) for e in entries}
        return SiteRoster(n_agents, sites, {e["agent"]: e["name"] for e in entries})


def _bare(keys: PublicKeys) -> str:
    return " ".join(keys.supernode.split()[:2])
