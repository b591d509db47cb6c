"""python -m runners.study: one site or the server of a study on the command line, with JSON and files in and out."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.formats.bounded import check_yaml, read_at_most, read_plain
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.formats.files import replace_file
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.ledger import LedgerError
from dpfbo.protocol.agent import Agent
from dpfbo.protocol.coordinator import Coordinator
from dpfbo.protocol.journal import StateError
from dpfbo.protocol.wire import WireError
from dpfbo.space.parameters import Space
from dpfbo.study.create import create_study
from dpfbo.study.presets import ALGORITHMS, Preset
from dpfbo.study.study import Study
from runners.arguments import Parser

HELP = """A study of several sites that share one noisy server, one process a call. Sites need no Python of their own:
what to evaluate next, and the result, are JSON; messages and broadcasts are files, carried as you like.

  python -m runners.study new study.json --space space.yaml --agents 8 --epsilon 1 --delta 1e-3
  everybody gets study.json; it is public
  python -m runners.study join site3 study.json --agent 3        a folder for each site, private to it
  python -m runners.study ask site3                              {"configuration": {"rate": 0.01, ..}, "round": 0, ..}
  python -m runners.study tell site3 '{"configuration": {..}, "value": 0.93}'         or {.., "failed": true}
  python -m runners.study ask site3 | ./evaluate | python -m runners.study tell site3   with a program that adds "value"
  python -m runners.study message site3 m3.bin                   when status says that a message is due
  python -m runners.study host server study.json                 a folder for the server, with the privacy ledger
  python -m runners.study collect server 3 m3.bin
  python -m runners.study release server broadcast.bin           noise is added and charged here
  python -m runners.study receive site3 broadcast.bin
  python -m runners.study status site3                           or server; best site3: the best configuration so far

Every call is on disk when it ends: after a crash give it again. `ask` gives a pending configuration again before a new
one; --another asks for one more, to be evaluated beside it. A space is a YAML or JSON file (docs/guides/spaces.md)."""

Answer = dict[str, Any]  # printed as JSON
_DESCRIPTION, _SITE = "study.json", "site.json"
_ERRORS = (
    SettingError, StateError, WireError, LedgerError, CheckpointError, UnsupportedEvent, OSError, ValueError,
)  # fmt: skip
_MOST_BYTES = 2**28  # of a file that is read
_INTEGERS = {
    "n_agents": (1, checks.MOST_AGENTS), "rounds": (1, checks.MOST_ROUNDS), "n_init": (1, checks.MOST_INITIAL),
    "seed": (0, checks.LARGEST_INTEGER),
}  # fmt: skip
_KEYS = ("space", "n_agents", "algorithm", "noise_multiplier", "delta", "rounds", "n_init", "seed", "rng")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line `argv` says; the exit code is 0, or 1 for an error, told in one sentence."""
    args = _parse(argv)
    try:
        answer = args.do(args)
    except _ERRORS as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


def _new(args: argparse.Namespace) -> Answer:
    check_yaml(args.space)
    space = Space(OmegaConf.to_container(OmegaConf.load(args.space)))  # type: ignore[arg-type]
    described = {
        "space": space.to_dict(), "n_agents": args.agents, "algorithm": args.algorithm, "noise_multiplier": 1.0,
        "delta": args.delta, "rounds": args.rounds, "n_init": args.n_init, "seed": args.seed, "rng": args.rng,
    }  # fmt: skip
    study = _study(described)
    if study.algorithm.private:
        study = study.calibrated(args.epsilon)
        described["noise_multiplier"] = study.mechanism.noise_multiplier
    if args.file.exists():
        raise StateError(f"{args.file} exists already: a study never changes")
    replace_file(args.file, lambda file: file.write(json.dumps(described, indent=1).encode() + b"\n"))
    return {"study": study.digest, "broadcasts": study.broadcasts, "privacy": study.promise}


def _join(args: argparse.Namespace) -> Answer:
    described = _described(args.study)
    with closing(_agent(args.folder, described, args.agent, not args.minimize)) as agent:
        privacy = _agreed(agent.study)
        entries = {"study": described, "agent": args.agent, "maximize": not args.minimize}
        replace_file(args.folder / _SITE, lambda file: file.write(json.dumps(entries).encode()), mode=0o600)
        return {**_site_status(agent), "privacy": privacy}


def _ask(agent: Agent, args: argparse.Namespace) -> Answer:
    waiting = agent.pending
    again = bool(waiting) and not args.another
    configuration = waiting[0] if again else agent.ask()
    return {"configuration": configuration, "round": agent.round, "asked_before": again}


def _tell(args: argparse.Namespace) -> Answer:
    text = sys.stdin.read() if args.result == "-" else args.result  # in a pipe: when `ask` has left the folder
    with closing(_opened_site(args.folder)) as agent:
        return _told(agent, text)


def _told(agent: Agent, text: str) -> Answer:
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    given = set(result) - {"round", "asked_before"} if isinstance(result, dict) else set()  # these are from `ask`
    if not {"configuration"} < given <= {"configuration", "value", "failed"}:
        example = '{"configuration": {..}, "value": 0.5}, or "failed": true in place of the value'
        raise StateError(f"a result must read {example}; got {text!r}")
    agent.tell(result["configuration"], result.get("value"), result.get("failed", False))
    return _site_status(agent)


def _message(agent: Agent, args: argparse.Namespace) -> Answer:
    data = agent.message(args.round)
    replace_file(args.file, lambda file: file.write(data), mode=0o600)
    return {"message": str(args.file), "bytes": len(data), "round": agent.round if args.round is None else args.round}


def _receive(agent: Agent, args: argparse.Namespace) -> Answer:
    agent.receive(_bytes_of(args.file))
    return _site_status(agent)


def _best(agent: Agent, args: argparse.Namespace) -> Answer:
    found = agent.best()
    if found is None:
        raise StateError("no value was told yet")
    return {"configuration": found[0], "value": found[1]}


def _host(args: argparse.Namespace) -> Answer:
    described = _described(args.study)
    with closing(Coordinator(_study(described), args.folder)) as coordinator:
        privacy = _agreed(coordinator.study)
        replace_file(args.folder / _DESCRIPTION, lambda file: file.write(json.dumps(described).encode()))
        return {**_server_status(coordinator), "privacy": privacy}


def _agreed(study: Study) -> str:
    """The promise of a study that somebody takes part in from now on; a simulation is also said on standard error."""
    if study.simulation:
        print("note: a simulation (rng=seeded): whoever has the study's file can remove the noise", file=sys.stderr)
    return study.promise


def _collect(server: Coordinator, args: argparse.Namespace) -> Answer:
    server.receive(args.agent, _bytes_of(args.file))
    return _server_status(server)


def _release(server: Coordinator, args: argparse.Namespace) -> Answer:
    data = server.release(args.round, args.missing_ok)
    replace_file(args.file, lambda file: file.write(data))
    return {"broadcast": str(args.file), "bytes": len(data), **_server_status(server)}


def _status(args: argparse.Namespace) -> Answer:
    if (args.folder / _SITE).exists():
        with closing(_opened_site(args.folder)) as agent:
            return {**_site_status(agent), "privacy": agent.study.promise}
    with closing(_opened_server(args.folder)) as server:
        return {**_server_status(server), "privacy": server.study.promise}


def _site_status(agent: Agent) -> Answer:
    return {
        "agent": agent.agent, "study": agent.study.digest, "round": agent.round, "pending": agent.pending,
        "message_due": agent.message_due,
    }  # fmt: skip


def _server_status(server: Coordinator) -> Answer:
    return {
        "study": server.study.digest, "round": server.round, "received": server.received,
        "waits_for": len(server.missing), "finished": server.finished,
        "epsilon": server.epsilon, "delta": server.study.plan.delta, "rng": server.study.rng,
        "charges": len(server.ledger.charges),
    }  # fmt: skip


def _bytes_of(path: Path) -> bytes:
    """A message or a broadcast, from a file or a pipe. Raises ValueError if it is too long to be one."""
    with path.open("rb") as file:
        return read_at_most(file, _MOST_BYTES)


def _described(path: Path) -> dict[str, Any]:
    """The description of a study in its file. Raises StateError for another file."""
    try:
        described = json.loads(read_plain(path, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is no description of a study: {error}") from error
    if not isinstance(described, dict) or set(described) != set(_KEYS):
        raise StateError(f"{path} is no description of a study: it must have {', '.join(_KEYS)}")
    return _checked(described, path)


def _checked(described: dict[str, Any], path: Path) -> dict[str, Any]:
    """A description whose values have their types, and numbers for which there is memory. Raises StateError."""
    try:
        for name, (least, most) in _INTEGERS.items():
            checks.integer(name, described[name], least, most)
        checks.real("noise_multiplier", described["noise_multiplier"])
        if described["delta"] is not None:
            checks.real("delta", described["delta"])
        checks.one_of("algorithm", described["algorithm"], ALGORITHMS)
        checks.one_of("rng", described["rng"], ("os", "seeded"))
    except (SettingError, OverflowError) as error:
        raise StateError(f"{path} is no description of a study: {error}") from error
    return described


def _study(described: dict[str, Any]) -> Study:
    others = {key: described[key] for key in ("n_agents", "algorithm", "delta", "rounds", "n_init", "seed", "rng")}
    preset = Preset(noise_multiplier=described["noise_multiplier"])
    return create_study(Space(described["space"]), epsilon=None, preset=preset, **others)


def _agent(folder: Path, described: dict[str, Any], agent: int, maximize: bool) -> Agent:
    return Agent(_study(described), agent, Space(described["space"]), folder, maximize)


def _opened_site(folder: Path) -> Agent:
    try:
        entries = json.loads(read_plain(folder / _SITE, _MOST_BYTES))
    except FileNotFoundError as error:
        raise StateError(f"{folder} is no site's folder: python -m runners.study join makes one") from error
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict) or set(entries) != {"study", "agent", "maximize"}:
        raise StateError(f"{folder / _SITE} cannot be read: restore the file")
    if not isinstance(entries["study"], dict) or set(entries["study"]) != set(_KEYS):
        raise StateError(f"{folder / _SITE} holds no description of a study: restore the file")
    study = _checked(entries["study"], folder / _SITE)
    return _agent(folder, study, entries["agent"], entries["maximize"])


def _opened_server(folder: Path) -> Coordinator:
    if not (folder / _DESCRIPTION).exists():
        raise StateError(f"{folder} is no folder of a site or a server: python -m runners.study join or host makes one")
    return Coordinator(_study(_described(folder / _DESCRIPTION)), folder)


def _at_site(call: Callable[[Agent, argparse.Namespace], Answer]) -> Callable[[argparse.Namespace], Answer]:
    def do(args: argparse.Namespace) -> Answer:
        with closing(_opened_site(args.folder)) as agent:
            return call(agent, args)

    return do


def _at_server(
    call: Callable[[Coordinator, argparse.Namespace], dict[str, Any]],
) -> Callable[[argparse.Namespace], Any]:
    def do(args: argparse.Namespace) -> Answer:
        with closing(_opened_server(args.folder)) as server:
            return call(server, args)

    return do


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.study", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, help: str, do: Callable[[argparse.Namespace], Any], *paths: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=help)
        for path in paths:
            made.add_argument(path, type=Path, metavar=path.upper())
        made.set_defaults(do=do)
        return made

    new = command("new", "describe a study", _new, "file")
    new.add_argument("--space", type=Path, required=True, help="YAML or JSON file of the parameters")
    new.add_argument("--agents", type=int, required=True, help="number of sites")
    new.add_argument("--algorithm", default="dp_prior", choices=ALGORITHMS)
    new.add_argument("--epsilon", type=float, default=1.0, help="of the whole study (default 1)")
    new.add_argument("--delta", type=float, default=None, help="default N^-1.1")
    new.add_argument("--rounds", type=int, default=20)
    new.add_argument("--n-init", type=int, default=5)
    new.add_argument("--seed", type=int, default=0, help="of what is public")
    new.add_argument("--rng", default="os", choices=("os", "seeded"), help="of the noise; seeded is a simulation")
    join = command("join", "make a site's folder", _join, "folder", "study")
    join.add_argument("--agent", type=int, required=True, help="the site's number, 0..N-1")
    join.add_argument("--minimize", action="store_true", help="small values are better")
    ask = command("ask", "the next configuration to evaluate", _at_site(_ask), "folder")
    ask.add_argument("--another", action="store_true", help="one more, beside those that wait for their value")
    tell = command("tell", "the value at a configuration", _tell, "folder")
    tell.add_argument("result", nargs="?", default="-", help="JSON; from standard input by default")
    message = command("message", "write the message that ends the round", _at_site(_message), "folder", "file")
    message.add_argument("--round", type=int, default=None, help="an earlier one, whose message was lost")
    command("receive", "take over a broadcast", _at_site(_receive), "folder", "file")
    command("best", "the best configuration so far", _at_site(_best), "folder")
    command("status", "where a site or the server stands", _status, "folder")
    command("host", "make the server's folder", _host, "folder", "study")
    collect = command("collect", "take a site's message", _at_server(_collect), "folder")
    collect.add_argument("agent", type=int, metavar="AGENT", help="who sent it")
    collect.add_argument("file", type=Path, metavar="FILE")
    says = "end the round: add noise, charge, write the broadcast"
    release = command("release", says, _at_server(_release), "folder", "file")
    release.add_argument("--missing-ok", action="store_true", help="without the messages that have not arrived")
    release.add_argument("--round", type=int, default=None, help="this one, and no other; an earlier one again")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
