"""python -m runners.deploy: run a study over Flower, with a server, sites on their own machines, TLS and keys."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from dpfbo.checks import SettingError, integer, positive
from dpfbo.extras import MissingPackage, needing
from dpfbo.formats.bounded import read_object, read_plain
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.formats.files import locked_file, make_folder, replace_text
from dpfbo.formats.journal import StateError
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.ledger import LedgerError
from dpfbo.protocol.wire import WireError
from runners.arguments import Parser
from runners.record.terminal import say_error
from runners.study import add_study_options, json_text, read_json

with needing("flower", "dpfbo deploy"):
    from runners.deploy.exchange import Pace
    from runners.deploy.flower.superlink import running_superlink, set_environment
    from runners.deploy.keys import PublicKeys, make_keys
    from runners.deploy.project import FOR_SITES, ROSTER, Project, is_project, make_project
    from runners.deploy.secure import MaskingServer
    from runners.deploy.site_folder import ATTEMPTS, DONE, EVALUATED, SiteFolder, read_public

HELP = """Run a study with a server, and sites on their own machines, over Flower (https://flower.ai).

The operator, on the server's machine:
  python -m runners.deploy init PROJECT --space space.yaml --agents 5 --epsilon 1 --host bo.example.org
  python -m runners.deploy roster add PROJECT --agent 0 --keys public.json     the file that a site has sent
  python -m runners.deploy server PROJECT                                   runs until all sites have the last broadcast
Each site, on its own machine, which needs only outgoing HTTPS:
  python -m runners.deploy site-key FOLDER                                     then send FOLDER/public.json
  python -m runners.deploy site FOLDER                                         with the files of PROJECT/for_sites in it
  python -m runners.deploy status FOLDER                                       or result FOLDER: neither sends anything

PROJECT/README.md and PROJECT/for_sites/README.md list all steps. After a crash give the same command again."""

Answer = dict[str, Any]  # printed as JSON
_ERRORS = (
    SettingError, StateError, WireError, LedgerError, CheckpointError, UnsupportedEvent, MissingPackage, OSError,
    ValueError,
)  # fmt: skip
_LOOK = 1.0  # seconds between checks of the server's state, or for a site's next evaluation
_PATIENCE = 5.0  # seconds to wait until the ServerApp of a killed server releases the lock
_MOST_RESTARTS = 5  # of a ServerApp that ends without an error


def main(argv: Sequence[str] | None = None) -> int:
    """Execute the command line `argv`; return 0, or 1 after an error."""
    args = _parse(argv)
    try:
        answer = args.do(args)
    except _ERRORS as error:
        say_error(str(error))
        return 1
    except KeyboardInterrupt:
        say_error("stopped; the same command continues")
        return 1
    print(json.dumps(answer))
    return 0


def _init(args: argparse.Namespace) -> Answer:
    project = make_project(args)
    study = project.shared.study
    return {
        "project": str(project.folder), "study": study.digest, "address": project.shared.address,
        "broadcasts": study.broadcasts, "privacy": study.promise,
    }  # fmt: skip


def _site_key(args: argparse.Namespace) -> Answer:
    keys = make_keys(args.folder)
    return {"identity": keys.identity, "supernode": keys.supernode, "fingerprint": keys.fingerprint}


def _roster_add(args: argparse.Namespace) -> Answer:
    shared = Project.read(args.project).shared
    keys = PublicKeys.of(read_json(args.keys), args.keys)
    roster = shared.roster.added(args.agent, keys, args.name)
    roster.write(args.project / FOR_SITES / ROSTER)
    missing = [n for n in range(roster.n_agents) if n not in roster.sites]
    return {"agent": args.agent, "fingerprint": keys.fingerprint, "missing": missing}


def _roster_show(args: argparse.Namespace) -> Answer:
    roster = Project.read(args.project).shared.roster
    return {
        "sites": [
            {"agent": n, "name": roster.names[n], "fingerprint": roster.sites[n].fingerprint}
            for n in sorted(roster.sites)
        ],
        "missing": [n for n in range(roster.n_agents) if n not in roster.sites],
    }  # fmt: skip


def _server(args: argparse.Namespace) -> Answer:
    project = Project.read(args.project)
    if args.min_sites is not None:
        integer("min_sites", args.min_sites, minimum=1, maximum=project.shared.study.n_agents)
    if args.new_attempt:
        _begin_again(project)
    if args.step_timeout is not None:
        positive("step_timeout", args.step_timeout)
    positive("ask_again", args.ask_again)
    positive("lost", args.lost)
    pace = Pace(again=args.ask_again, lost=args.lost, step_timeout=args.step_timeout)
    set_environment(project.server / "flwr")
    with needing("flower", "dpfbo deploy server"):
        from runners.deploy.flower.server_app import SETTINGS, ServerSettings
    os.environ[SETTINGS] = ServerSettings(str(project.folder), args.min_sites, pace).encoded()
    signal.signal(signal.SIGTERM, _interrupt)
    with _only_server(project), running_superlink(project, args.bind) as link:
        project.failure.unlink(missing_ok=True)
        _say(f"the server listens at {project.shared.address}; {project.shared.study.promise}")
        run, restarts, shown = link.submit(), 0, None
        while True:
            if (state := read_object(project.state)) is not None and state != shown:
                _say(_in_words(state))
                shown = state
            if not link.running(run):
                if project.failure.exists():
                    raise StateError(read_plain(project.failure).decode())
                if (read_object(project.state) or {}).get("finished"):
                    return _project_status(project)
                if restarts == _MOST_RESTARTS:
                    raise StateError(f"the ServerApp has ended {restarts + 1} times without an error: {project.log}")
                run, restarts = link.submit(), restarts + 1
            link.register()  # sites that were added to the roster since
            time.sleep(_LOOK)


def _begin_again(project: Project) -> None:
    """Begin another attempt at the secure sum.

    Raises StateError if the sum is known already, or if the study trusts its server and thus has no secure sum.
    """
    study = project.shared.study
    if study.trust == "server":
        raise StateError("new-attempt is for a study without a trusted server: a trusted one waits for its sites")
    with closing(MaskingServer(study, project.shared.roster, project.server, None)) as server:
        server.begin_again()


def _only_server(project: Project) -> BinaryIO:
    """Lock a project against other servers until the returned file is closed or this process ends."""
    make_folder(project.server, private=True)
    try:
        return locked_file(project.running, _PATIENCE)
    except BlockingIOError as error:
        raise StateError(f"another server runs the project in {project.folder}: stop it") from error


def _site(args: argparse.Namespace) -> Answer:
    site = SiteFolder.read(args.folder)
    if args.attempts is not None:
        integer("attempts", args.attempts, minimum=1)
        replace_text(args.folder / ATTEMPTS, json_text(args.attempts))
    evaluate = site.objective()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("runners.deploy").setLevel(logging.INFO)
    set_environment(args.folder.absolute() / "flwr")
    with needing("flower", "dpfbo deploy site"):
        from runners.deploy.flower.supernode import running_supernode
    signal.signal(signal.SIGTERM, _interrupt)
    with site.running(), running_supernode(site) as node:
        shown = ""
        while (phase := site.evaluate_next(evaluate)) != DONE:
            if phase != shown and phase != EVALUATED:
                _say(f"the site {phase}")
            shown = phase
            if phase != EVALUATED:
                time.sleep(_LOOK)
        _say("the site is done, and stays until the server ends the study")
        node.wait_for_the_end()
    return site.status()


def _status(args: argparse.Namespace) -> Answer:
    if is_project(args.folder):
        return _project_status(Project.read(args.folder))
    keys = read_public(args.folder)
    if not (args.folder / ROSTER).exists():
        return {"phase": "has keys, and waits for the operator's for_sites", "fingerprint": keys.fingerprint}
    return {**SiteFolder.read(args.folder).status(), "fingerprint": keys.fingerprint}


def _result(args: argparse.Namespace) -> Answer:
    if is_project(args.folder):  # the server has no result: it may only show the phases of the sites
        return _project_status(Project.read(args.folder))
    return SiteFolder.read(args.folder).result()


def _project_status(project: Project) -> Answer:
    state = read_object(project.state) or {"awaited": [], "connected": [], "finished": False}
    n, roster = project.shared.study.n_agents, project.shared.roster
    phases = {
        "not in the roster": [k for k in range(n) if k not in roster.sites],
        "awaited": state["awaited"], "connected": state["connected"],
    }  # fmt: skip
    return {"study": project.shared.study.digest, "finished": state["finished"], **phases}


def _in_words(state: Answer) -> str:
    if state["finished"]:
        return "the study has ended"
    awaited = ", ".join(map(str, state["awaited"]))
    return f"waits for the sites {awaited}; connected: {', '.join(map(str, state['connected'])) or 'none'}"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


# the help, the function and the path arguments of each command
_COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], Answer], str]] = {
    "init": ("make the operator's project", _init, "project"),
    "site-key": ("make a site's keys, in its folder", _site_key, "folder"),
    "server": ("run the server to the end of the study", _server, "project"),
    "site": ("run a site to the end of the study", _site, "folder"),
    "status": ("the state of a site, or the phases of all sites at the server", _status, "folder"),
    "result": ("a site's best configuration, its epsilon and its ledger", _result, "folder"),
}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.deploy", description=HELP)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add: dict[str, Callable[..., Any]] = {}
    for name, (help, do, paths) in _COMMANDS.items():
        command = commands.add_parser(name, help=help)
        command.set_defaults(do=do)
        add[name] = command.add_argument
        for path in paths.split():
            add[name](path, type=Path, metavar=path.upper())
    add_study_options(add["init"])
    add["init"]("--minimize", action="store_true", help="small values are better")
    add["init"]("--host", action="append", help="name or address of the server; sites use the first (localhost)")
    add["init"]("--port", type=int, default=9092)
    add["init"]("--certificate", type=Path, help="your own, in PEM format; without it a trial authority signs one")
    add["init"]("--certificate-key", type=Path)
    add["init"]("--authority", type=Path, help="certificate of its signer, if the sites' systems do not trust it")
    add["server"]("--bind", default="0.0.0.0", help="the address at which it listens (all)")
    add["server"]("--step-timeout", type=float, default=None, metavar="SECONDS",
                  help="without an answer, after which it goes on without the missing sites (never)")  # fmt: skip
    add["server"]("--min-sites", type=int, default=None,
                  help="fewest answers that end a step; with a trusted server only (more than half)")  # fmt: skip
    add["server"]("--ask-again", type=float, default=5.0, metavar="SECONDS", help="until it asks a site again")
    add["server"]("--lost", type=float, default=60.0, metavar="SECONDS", help="after which an answer counts as lost")
    add["server"]("--new-attempt", action="store_true",
                  help="give up a secure sum that cannot end, and begin another attempt, if sites allow")  # fmt: skip
    add["site"]("--attempts", type=int, default=None, help="allowed attempts at a secure sum; each costs epsilon (1)")
    roster = commands.add_parser("roster", help="the sites' keys: add, show")
    actions = roster.add_subparsers(required=True, metavar="add|show", parser_class=Parser)
    for name, do in (("add", _roster_add), ("show", _roster_show)):
        action = actions.add_parser(name)
        action.set_defaults(do=do)
        action.add_argument("project", type=Path, metavar="PROJECT")
        add[name] = action.add_argument
    add["add"]("--agent", type=int, required=True, help="the site's number, 0..N-1")
    add["add"]("--keys", type=Path, required=True, help="the site's public.json")
    add["add"]("--name", default="", help="a name of the site, for people")
    args = parser.parse_args(argv)
    if getattr(args, "host", "") is None:
        args.host = ["localhost"]
    return args


if __name__ == "__main__":
    sys.exit(main())
