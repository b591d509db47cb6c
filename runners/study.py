"""python -m runners.study: act as a site or the server of a study from a shell."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dpfbo import lazy
from dpfbo.checks import SettingError
from dpfbo.formats.bounded import check_yaml, read_at_most, read_plain
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.formats.files import make_folder, replace_file
from dpfbo.formats.journal import StateError
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.ledger import LedgerError
from runners.arguments import Parser
from runners.record.terminal import say_error

with lazy.uncollected(for_good=True):  # these load torch
    from dpfbo.protocol.agent import Agent
    from dpfbo.protocol.coordinator import Coordinator
    from dpfbo.protocol.wire import WireError
    from dpfbo.space.parameters import Space
    from dpfbo.study.algorithm import ALGORITHMS
    from dpfbo.study.create import create_study
    from dpfbo.study.study import Study

HELP = """A study of several sites that share one noisy server. Every call is one process. Sites need no Python code:
configurations and results are JSON; messages and broadcasts are files, which you transfer as you like.

  python -m runners.study new study.json --space space.yaml --agents 8 --epsilon 1 --delta 1e-3
  give study.json, which is public, to every site and the server
  python -m runners.study join site3 study.json --agent 3        makes the site's private folder
  python -m runners.study ask site3                              {"configuration": {"rate": 0.01, ..}, "round": 0, ..}
  python -m runners.study tell site3 '{"configuration": {..}, "value": 0.93}'         or {.., "failed": true}
  python -m runners.study ask site3 | ./evaluate | python -m runners.study tell site3   if ./evaluate adds "value"
  python -m runners.study message site3 m3.bin                   when status says that a message is due
  python -m runners.study host server study.json                 makes the server's folder, with the privacy ledger
  python -m runners.study collect server 3 m3.bin
  python -m runners.study release server broadcast.bin           adds the noise, and charges the ledger
  python -m runners.study receive site3 broadcast.bin
  python -m runners.study status site3                           or status server; best site3: the best configuration

Without a trusted server (new --trust nobody) the sites mask their messages, and roster, requests and answers are files:
  python -m runners.study key site3.key                          prints the public key, and a fingerprint to compare
  python -m runners.study roster roster.json PUBLIC_KEY ..       keys of all sites, in the order of their numbers
  python -m runners.study join site3 study.json --roster roster.json --key site3.key
  python -m runners.study host server study.json --roster roster.json
  python -m runners.study requests server requests               a file for each site that has not answered
  python -m runners.study respond site3 requests/3.bin a3.bin    says "ready": false before the first evaluations
  python -m runners.study collect server 3 a3.bin
  python -m runners.study next server                            goes to the next step, and at last to the broadcast

Every call saves its effect on disk: after a crash, repeat it. `ask` repeats a pending configuration; --another asks for
one more, to be evaluated at the same time. A space is a YAML or JSON file (docs/guides/spaces.md)."""

Answer = dict[str, Any]  # printed as JSON
_KEY = "site.key"  # in a site's folder, if there is no trusted server
_ENTRIES = {"study", "agent", "maximize"}
_PARTY = "party.json"  # in a folder: study, number of the site (null: server), whether it maximizes
_SITE, _SERVER, _EITHER = "site's folder", "server's folder", "folder of a site or a server"
_MADE_BY = {_SITE: "join", _SERVER: "host", _EITHER: "join or host"}
_ERRORS = (
    SettingError, StateError, WireError, LedgerError, CheckpointError, UnsupportedEvent, OSError, ValueError,
)  # fmt: skip
_MOST_BYTES = 2**28  # largest file that is read
_KEYS = ("space", "n_agents", "algorithm", "noise_multiplier", "delta", "rounds", "n_init", "seed", "rng")
_NO_TRUST = ("trust", "max_dropouts", "colluders")  # further keys of a study without a trusted server


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; return 0, or 1 after an error."""
    args = _parse(argv)
    try:
        if getattr(args, "result", "") == "-":  # read before the folder is opened, which `ask` in a pipe may still hold
            args.result = sys.stdin.read()
        if args.kind is None:
            answer = args.do(args)
        else:
            with closing(_opened(args.folder, args.kind)) as party:
                answer = args.do(_fitting(party, args.do), args)
    except _ERRORS as error:
        say_error(str(error))
        return 1
    print(json.dumps(answer))
    return 0


def _fitting(party: Any, do: Callable[..., Answer]) -> Any:
    """Return the object on which a command's function `do` works: the party itself, or the party's agent.

    Raises StateError if the party's study has a trusted server but the command is for studies without one, or vice
    versa.
    """
    trusted = isinstance(party, Agent | Coordinator)
    if (do in (_respond, _requests, _next) and trusted) or (do is _release and not trusted):
        kind = "without a trusted server" if trusted else "with one"
        raise StateError(f"this command is for a study {kind}: see python -m runners.study --help")
    return party.agent if not trusted and do in (_ask, _tell, _best, _message, _receive) else party


def _new(args: argparse.Namespace) -> Answer:
    study, described = described_by(args)
    if args.file.exists():
        raise StateError(f"{args.file} exists already: a study never changes")
    _write(args.file, json_text(described).encode())
    return {"study": study.digest, "broadcasts": study.broadcasts, "privacy": study.promise}


def described_by(args: argparse.Namespace) -> tuple[Study, dict[str, Any]]:
    """Return the study that the command-line options describe, and the content of the study's file."""
    check_yaml(args.space)
    space = Space(OmegaConf.to_container(OmegaConf.load(args.space)))  # type: ignore[arg-type]
    others = {
        "n_agents": args.agents, "algorithm": args.algorithm, "delta": args.delta, "rounds": args.rounds,
        "n_init": args.n_init, "seed": args.seed, "rng": args.rng,
    }  # fmt: skip
    if args.trust == "nobody":  # the description of a study that trusts its server lacks these keys
        others |= {"trust": "nobody", "max_dropouts": args.max_dropouts, "colluders": args.colluders}
    elif args.max_dropouts or args.colluders:
        raise SettingError("max_dropouts and colluders", "are for --trust nobody")
    study = create_study(space, epsilon=args.epsilon, **others)
    z = study.mechanism.noise_multiplier if study.algorithm.private else None
    return study, {"space": space.to_dict(), "noise_multiplier": z, **others}


def _join(args: argparse.Namespace) -> Answer:
    entries = {"study": read_json(args.study), "agent": args.agent, "maximize": not args.minimize}
    if (args.roster is None) != (args.key is None) or (args.roster is None) == (args.agent is None):
        raise StateError("join takes --agent, or without a trusted server --roster and --key")
    if args.roster is not None:
        from dpfbo.secure import Roster, SiteKey

        roster, key = Roster.load(args.roster), SiteKey.load(args.key)
        make_folder(args.folder, private=True)
        entries |= {"agent": roster.number_of(key), "roster": list(roster.keys), "attempts": args.attempts}
        if not (args.folder / _KEY).exists():
            key.save(args.folder / _KEY)
        if SiteKey.load(args.folder / _KEY) != key:
            raise StateError(f"{args.folder} belongs to a site with another key")
    return _made(entries, args)


def _host(args: argparse.Namespace) -> Answer:
    entries: dict[str, Any] = {"study": read_json(args.study), "agent": None, "maximize": None}
    if args.roster is not None:
        from dpfbo.secure import Roster

        entries |= {"roster": list(Roster.load(args.roster).keys), "attempts": None}
    return _made(entries, args)


def _key(args: argparse.Namespace) -> Answer:
    from dpfbo.secure import SiteKey, fingerprint

    key = SiteKey.new()
    key.save(args.file)
    return {"public": key.public, "fingerprint": fingerprint(key.public)}


def _roster(args: argparse.Namespace) -> Answer:
    from dpfbo.secure import Roster

    if args.file.exists():
        raise StateError(f"{args.file} exists already: a roster never changes")
    roster = Roster(tuple(args.keys))
    roster.save(args.file)
    return {"sites": [{"agent": site, "fingerprint": shown} for site, shown in roster.shown()]}


def _made(entries: dict[str, Any], args: argparse.Namespace) -> Answer:
    with closing(_party(entries, args.study, args.folder)) as party:
        answer = _status(party, args)  # first, because it refuses a study without a privacy promise
        _write(args.folder / _PARTY, json.dumps(entries).encode(), private=True)
        return answer


def _ask(agent: Agent, args: argparse.Namespace) -> Answer:
    again = bool(agent.pending) and not args.another
    if not again:
        agent.ask()
    number = min(agent.pending) if again else max(agent.pending)
    return {
        "number": number, "configuration": agent.pending[number], "round": agent.round, "asked_before": again,
    }  # fmt: skip


def _tell(agent: Agent, args: argparse.Namespace) -> Answer:
    try:
        result = json.loads(args.result)
    except ValueError:
        result = None
    given = set(result) - {"round", "asked_before"} if isinstance(result, dict) else set()  # these are from `ask`
    places = given & {"number", "configuration"}
    if not places or not places < given <= {"number", "configuration", "value", "failed"}:
        example = '{"configuration": {..}, "value": 0.5}, or "failed": true in place of the value'
        raise StateError(f"a result must read {example}; got {args.result!r}")
    agent.tell(result.get("number", result.get("configuration")), result.get("value"), result.get("failed", False))
    return _state(agent)


def _message(agent: Agent, args: argparse.Namespace) -> Answer:
    data = agent.message(args.round)
    _write(args.file, data, private=True)
    return {"message": str(args.file), "bytes": len(data), "round": agent.round if args.round is None else args.round}


def _receive(agent: Agent, args: argparse.Namespace) -> Answer:
    agent.receive(_bytes_of(args.file))
    return _state(agent)


def _best(agent: Agent, args: argparse.Namespace) -> Answer:
    found = agent.best()
    if found is None:
        raise StateError("no value was told yet")
    return {"configuration": found[0], "value": found[1]}


def _respond(site: Any, args: argparse.Namespace) -> Answer:
    answer = site.respond(_bytes_of(args.request))
    _write(args.file, answer, private=True)
    return {"answer": str(args.file), "bytes": len(answer), "ready": bool(answer), **_state(site)}


def _requests(server: Any, args: argparse.Namespace) -> Answer:
    make_folder(args.directory)
    requests = server.requests()
    for site, data in requests.items():
        _write(args.directory / f"{site}.bin", data)
    return {"requests": str(args.directory), "sites": sorted(requests), **_state(server)}


def _next(server: Any, args: argparse.Namespace) -> Answer:
    server.begin_again() if args.again else server.close_step()
    return _state(server)


def _collect(server: Coordinator, args: argparse.Namespace) -> Answer:
    server.receive(args.agent, _bytes_of(args.file))
    return _state(server)


def _release(server: Coordinator, args: argparse.Namespace) -> Answer:
    data = server.release(args.round, args.missing_ok)
    _write(args.file, data)
    return {"broadcast": str(args.file), "bytes": len(data), **_state(server)}


def _status(party: Any, args: argparse.Namespace) -> Answer:
    if party.study.simulation:
        print("note: a simulation (rng=seeded): whoever has the study's file can remove the noise", file=sys.stderr)
    return {**_state(party), "privacy": party.study.promise}


def _state(party: Any) -> Answer:
    if not isinstance(party, Agent | Coordinator) and hasattr(party, "respond"):
        return {**_state(party.agent), "epsilon": party.epsilon, "charges": len(party.ledger.charges)}
    if not isinstance(party, Agent | Coordinator):
        state = {"phase": party.phase, "attempt": party.attempt, "answered": party.answered}
        return {"study": party.study.digest, **state, "finished": party.finished, "epsilon": party.epsilon}
    if isinstance(party, Agent):
        names = ("agent", "round", "pending", "message_due")
        return {"study": party.study.digest, **{name: getattr(party, name) for name in names}}
    return {
        "study": party.study.digest, "round": party.round, "received": party.received, "waits_for": len(party.missing),
        "finished": party.finished, "epsilon": party.epsilon, "delta": party.study.plan.delta, "rng": party.study.rng,
        "charges": len(party.ledger.charges),
    }  # fmt: skip


def _bytes_of(path: Path) -> bytes:
    """Read a message or a broadcast from a file or a pipe. Raises ValueError if it is too long."""
    with path.open("rb") as file:
        return read_at_most(file, _MOST_BYTES)


def _write(path: Path, data: bytes, private: bool = False) -> None:
    replace_file(path, lambda file: file.write(data), mode=0o600 if private else 0o644)


def json_text(content: Any) -> str:
    """Return `content` as indented JSON."""
    return json.dumps(content, indent=1) + "\n"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises StateError if the file is not JSON."""
    try:
        return json.loads(read_plain(path, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is no description of a study: {error}") from error


def described_study(described: Any, path: Path) -> Study:
    """Create a study from its description in the file `path`.

    Raises StateError if the description is invalid.
    """
    if not isinstance(described, dict) or set(described) not in (set(_KEYS), {*_KEYS, *_NO_TRUST}):
        raise StateError(f"{path} is no description of a study: it must have {', '.join(_KEYS)}")
    try:
        return _study(described)
    except (SettingError, TypeError, OverflowError) as error:
        raise StateError(f"{path} is no description of a study: {error}") from error


def _study(described: dict[str, Any]) -> Study:
    others = {key: value for key, value in described.items() if key != "space"}
    return create_study(Space(described["space"]), **others)


def _party(entries: dict[str, Any], path: Path, folder: Path) -> Any:
    """Create the server if the entry `agent` is None; otherwise create the site."""
    study = described_study(entries["study"], path)
    if (study.trust == "nobody") != ("roster" in entries):
        raise StateError("a study without a trusted server, and no other, needs --roster: see --help")
    if study.trust == "nobody":
        from dpfbo.secure import Roster, SecureCoordinator, SecureSite, SiteKey

        roster = Roster(tuple(entries["roster"]))
        if entries["agent"] is None:
            return SecureCoordinator(study, roster, folder)
        key = SiteKey.load(folder / _KEY)
        return SecureSite(study, roster, key, folder, entries["maximize"], entries["attempts"])
    if entries["agent"] is None:
        return Coordinator(study, folder)
    return Agent(study, entries["agent"], folder, entries["maximize"])


def _opened(folder: Path, kind: str) -> Any:
    path = folder / _PARTY
    if path.exists():
        try:
            entries = read_json(path)
        except StateError:
            entries = None
        if not isinstance(entries, dict) or set(entries) not in (_ENTRIES, _ENTRIES | {"roster", "attempts"}):
            raise StateError(f"{path} cannot be read: restore the file")
        if kind in (_EITHER, _SERVER if entries["agent"] is None else _SITE):
            return _party(entries, path, folder)
    raise StateError(f"{folder} is no {kind}: python -m runners.study {_MADE_BY[kind]} makes one")


# command: what it does, its function, the kind of its folder, its arguments that are paths
_COMMANDS: dict[str, tuple[str, Callable[..., Answer], str | None, str]] = {
    "new": ("describe a study", _new, None, "file"),
    "join": ("make a site's folder", _join, None, "folder study"),
    "ask": ("print the next configuration to evaluate", _ask, _SITE, "folder"),
    "tell": ("record the value at a configuration", _tell, _SITE, "folder"),
    "message": ("write the message that ends the round", _message, _SITE, "folder file"),
    "receive": ("read a broadcast", _receive, _SITE, "folder file"),
    "best": ("print the best configuration so far", _best, _SITE, "folder"),
    "status": ("print the state of a site or the server", _status, _EITHER, "folder"),
    "host": ("make the server's folder", _host, None, "folder study"),
    "key": ("make a site's key, without a trusted server", _key, None, "file"),
    "roster": ("write the public keys of all sites", _roster, None, "file"),
    "respond": ("answer a request of the server", _respond, _SITE, "folder request file"),
    "requests": ("write a request for each site that has not answered", _requests, _SERVER, "folder directory"),
    "next": ("end a step of the secure sum", _next, _SERVER, "folder"),
    "collect": ("read a site's message", _collect, _SERVER, "folder"),
    "release": ("end the round: add noise, charge, write the broadcast", _release, _SERVER, "folder file"),
}


def add_study_options(add: Callable[..., Any]) -> None:
    """Add the options that describe a study. add: the `add_argument` of a command's parser."""
    add("--space", type=Path, required=True, help="YAML or JSON file of the parameters")
    add("--agents", type=int, required=True, help="number of sites")
    add("--algorithm", default="dp_prior", choices=ALGORITHMS)
    add("--epsilon", type=float, help="epsilon of the whole study (default 1)")
    add("--delta", type=float, default=None, help="default N^-1.1; with --rng os at most .001")
    add("--rounds", type=int, default=20)
    add("--n-init", type=int, default=5)
    add("--seed", type=int, default=0, help="seed of all public random numbers")
    add("--trust", default="server", choices=("server", "nobody"), help="nobody: the sites mask messages and add noise")
    add("--max-dropouts", type=int, default=0, help="sites that may drop out of a sum, with --trust nobody")
    add("--colluders", type=int, default=0, help="sites that may help the server, with --trust nobody")
    add("--rng", default="os", choices=("os", "seeded"), help="source of the noise; seeded: a simulation")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.study", description=HELP)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add: dict[str, Callable[..., Any]] = {}
    for name, (help, do, kind, paths) in _COMMANDS.items():
        command = commands.add_parser(name, help=help)
        command.set_defaults(do=do, kind=kind)
        add[name] = command.add_argument
        for path in paths.split():
            add[name](path, type=Path, metavar=path.upper())
    add_study_options(add["new"])
    add["join"]("--agent", type=int, default=None, help="the site's number, 0..N-1")
    add["join"]("--roster", type=Path, default=None, help="public keys of all sites, without a trusted server")
    add["join"]("--key", type=Path, default=None, help="the site's private key, without a trusted server")
    add["join"]("--attempts", type=int, default=1, help="allowed attempts at the secure sum; each costs epsilon")
    add["host"]("--roster", type=Path, default=None, help="public keys of all sites, without a trusted server")
    add["roster"]("keys", nargs="+", metavar="PUBLIC_KEY")
    add["next"]("--again", action="store_true", help="abandon this attempt for a new one, which the sites must allow")
    add["join"]("--minimize", action="store_true", help="small values are better")
    add["ask"]("--another", action="store_true", help="ask for one more, while others wait for their values")
    add["tell"]("result", nargs="?", default="-", help="JSON; from standard input by default")
    add["message"]("--round", type=int, default=None, help="an earlier round, whose message was lost")
    add["collect"]("agent", type=int, metavar="AGENT", help="number of the site that sent the message")
    add["collect"]("file", type=Path, metavar="FILE")
    add["release"]("--missing-ok", action="store_true", help="release without the messages that have not arrived")
    add["release"]("--round", type=int, default=None, help="release only this round; an earlier one is written again")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
