"""The files of a deployment: the operator's project folder, and the public files that sites get."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpfbo.checks import SettingError, integer
from dpfbo.formats.bounded import read_plain
from dpfbo.formats.files import make_folder, replace_file, replace_text, sync_folder
from dpfbo.formats.journal import StateError
from dpfbo.study.study import Study
from runners.deploy import templates
from runners.deploy.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from runners.deploy.roster import SiteRoster
from runners.study import described_by, described_study, json_text, read_json

FOR_SITES, STUDY, ROSTER, PROJECT, OBJECTIVE = "for_sites", "study.json", "roster.json", "project.json", "objective.py"
_ENTRIES = {"host", "port", "minimize", "own_authority"}
_MOST_BYTES = 2**20  # the maximum size of a certificate


@dataclass(frozen=True)
class Shared:
    """The public files of a deployment, which the operator and all sites have.

    Args:
        folder: The project's folder `for_sites`, or a site's folder with copies of the files in `for_sites`.
        host: The name or the address of the server.
        port: The port of the server.
        minimize: True if small values are better.
        own_authority: True if the authority in `ca.crt` signed the server's certificate; False if a public authority
            signed it.
    """

    folder: Path
    host: str
    port: int
    minimize: bool
    own_authority: bool

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> Path | None:
        """The certificate of the authority that the sites trust; None if they trust their system's authorities."""
        return self.folder / AUTHORITY if self.own_authority else None

    @cached_property
    def study(self) -> Study:
        path = self.folder / STUDY
        return described_study(read_json(path), path)

    @property
    def roster(self) -> SiteRoster:
        """The roster, read anew at each access."""
        return SiteRoster.read(self.folder / ROSTER, self.study.n_agents)

    @staticmethod
    def read(folder: Path) -> Shared:
        """Read the files in a folder. Raises StateError if they are damaged or missing."""
        path = folder / PROJECT
        if not path.exists():
            raise StateError(f"{path} is missing: copy it from the operator's for_sites, which deploy init makes")
        entries = read_json(path)
        if not isinstance(entries, dict) or set(entries) != _ENTRIES:
            raise StateError(f"{path} must have {', '.join(sorted(_ENTRIES))}: restore the file")
        shared = Shared(folder, **entries)
        kinds = {"host": str, "port": int, "minimize": bool, "own_authority": bool}
        if any(type(entries[name]) is not kind for name, kind in kinds.items()):
            raise StateError(f"{path} must have a host, a port and two truth values: restore the file")
        return shared


@dataclass(frozen=True)
class Project:
    """The operator's folder of a deployment, made by the command `init`. shared: the public files."""

    folder: Path
    shared: Shared

    @property
    def server(self) -> Path:
        """The folder of the server's state."""
        return self.folder / "server"

    @property
    def state(self) -> Path:
        """The file that lists the awaited and the connected sites."""
        return self.server / "state.json"

    @property
    def running(self) -> Path:
        """The file that the server's process keeps locked as long as it lives."""
        return self.server / "running"

    @property
    def failure(self) -> Path:
        """The file with the error that ended Flower's ServerApp."""
        return self.server / "failure.txt"

    @property
    def log(self) -> Path:
        """The file with the ServerApp's warnings."""
        return self.server / "server.log"

    @property
    def app(self) -> Path:
        """The folder of the Flower app."""
        return self.folder / "app"

    @property
    def certificate(self) -> tuple[Path, Path]:
        """The files of the server's certificate and of its key."""
        return self.folder / "tls" / CERTIFICATE, self.folder / "tls" / KEY

    @staticmethod
    def read(folder: Path) -> Project:
        """Read the project in a folder. Raises StateError if there is none."""
        folder = folder.absolute()
        if not is_project(folder):
            raise StateError(f"{folder} is not a project: python -m runners.deploy init makes one")
        return Project(folder, Shared.read(folder / FOR_SITES))


def is_project(folder: Path) -> bool:
    return (folder / FOR_SITES / PROJECT).exists()


def make_project(args: argparse.Namespace) -> Project:
    """Make a project from the options of the command `init`; the folder appears complete or not at all.

    Raises:
        SettingError: An option is invalid, or the agents of the algorithm send no messages.
        StateError: The folder exists already.
    """
    study, described = described_by(args)
    if not study.algorithm.sends:
        raise SettingError("algorithm", f"must be one whose agents send messages, got {args.algorithm!r}")
    integer("port", args.port, minimum=1, maximum=65535)
    if (args.certificate is None) != (args.certificate_key is None):
        raise SettingError("certificate", "must come with certificate-key, got one of them")
    folder: Path = args.project.absolute()
    if folder.exists():
        raise StateError(f"{folder} exists already: a study never changes")
    make_folder(folder.parent)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write(part, args, study, described)
        os.rename(part, folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return Project.read(folder)


def _write(folder: Path, args: argparse.Namespace, study: Study, described: dict[str, Any]) -> None:
    shared, tls, app = folder / FOR_SITES, folder / "tls", folder / "app"
    for each in (shared, app):
        make_folder(each)
    make_folder(tls, private=True)
    own = _write_certificates(tls, shared, args.host, args)
    entries = {"host": args.host[0], "port": args.port, "minimize": args.minimize, "own_authority": own}
    names = ", ".join(repr(name) for name in described["space"])
    objective = templates.OBJECTIVE.format(better="smaller" if args.minimize else "larger", names=names)
    site = templates.SITE.format(evaluations=study.n_init + study.rounds, n_init=study.n_init)
    trust = templates.TRUSTED if study.trust == "server" else templates.UNTRUSTED
    operator = templates.OPERATOR.format(project=args.project, host=args.host[0], port=args.port, trust=trust)
    for path, text in (
        (shared / STUDY, json_text(described)), (shared / OBJECTIVE, objective), (shared / "README.md", site),
        (shared / PROJECT, json_text(entries)), (app / "pyproject.toml", templates.APP),
        (folder / "README.md", operator),
    ):  # fmt: skip
        replace_text(path, text)
    SiteRoster(study.n_agents).write(shared / ROSTER)


def _write_certificates(tls: Path, shared: Path, hosts: Sequence[str], args: argparse.Namespace) -> bool:
    """Write the server's certificate and key to `tls`, and the authority's certificate, if any, to `shared`.

    Returns True if an authority's certificate was written for the sites. The sites need none if a public authority
    signed the server's certificate.
    """
    if args.certificate is None:
        make_certificates(tls, hosts)
        os.replace(tls / AUTHORITY, shared / AUTHORITY)
        return True
    given = [(args.certificate, tls / CERTIFICATE, 0o644), (args.certificate_key, tls / KEY, 0o600)]
    given += [(args.authority, shared / AUTHORITY, 0o644)] if args.authority is not None else []
    for source, path, mode in given:
        content = read_plain(source, _MOST_BYTES)
        if not content.startswith(b"-----BEGIN "):
            raise SettingError("certificate", f"must be a file in PEM format, got {source}")
        replace_file(path, lambda file, content=content: file.write(content), mode=mode)  # type: ignore[misc]
    return args.authority is not None
