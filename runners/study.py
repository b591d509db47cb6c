"""python -m runners.study: one site or the server of a study on the command line, with JSON and files in and out."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
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
from dpfbo.study.algorithm import ALGORITHMS, Preset
from dpfbo.study.create import create_study
from dpfbo.study.study import Study
from runners.arguments import Parser
from runners.record.terminal import say_error

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
        if getattr(args, "result", "") == "-":  # read before the folder is opened: in a pipe, `ask` still has it
            args.result = sys.stdin.read()
        if args.opened is None:
            answer = args.do(args)
        else:
            with closing(args.opened(args.folder)) as party:
                answer = args.do(party, args)
    except _ERRORS as error:
        say_error(str(error))
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
    _write(args.file, json.dumps(described, indent=1).encode() + b"\n")
    return {"study": study.digest, "broadcasts": study.broadcasts, "privacy": study.promise}


def _join(args: argparse.Namespace) -> Answer:
    described, maximize = _described(args.study), not args.minimize
    with closing(Agent(_study(described), args.agent, args.folder, maximize)) as agent:
        answer = _status(agent, args)  # before it is written: a study without a promise is refused
        _warn_of_simulation(agent.study)
        entries = {"study": described, "agent": args.agent, "maximize": maximize}
        _write(args.folder / _SITE, json.dumps(entries).encode(), private=True)
        return answer


def _host(args: argparse.Namespace) -> Answer:
    described = _described(args.study)
    with closing(Coordinator(_study(described), args.folder)) as server:
        answer = _status(server, args)
        _warn_of_simulation(server.study)
        _write(args.folder / _DESCRIPTION, json.dumps(described).encode())
        return answer


def _warn_of_simulation(study: Study) -> None:
    if study.simulation:
        print("note: a simulation (rng=seeded): whoever has the study's file can remove the noise", file=sys.stderr)


def _ask(agent: Agent, args: argparse.Namespace) -> Answer:
    again = bool(agent.pending) and not args.another
    configuration = agent.pending[0] if again else agent.ask()
    return {"configuration": configuration, "round": agent.round, "asked_before": again}


def _tell(agent: Agent, args: argparse.Namespace) -> Answer:
    try:
        result = json.loads(args.result)
    except ValueError:
        result = None
    given = set(result) - {"round", "asked_before"} if isinstance(result, dict) else set()  # these are from `ask`
    if not {"configuration"} < given <= {"configuration", "value", "failed"}:
        example = '{"configuration": {..}, "value": 0.5}, or "failed": true in place of the value'
        raise StateError(f"a result must read {example}; got {args.result!r}")
    agent.tell(result["configuration"], result.get("value"), result.get("failed", False))
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


def _collect(server: Coordinator, args: argparse.Namespace) -> Answer:
    server.receive(args.agent, _bytes_of(args.file))
    return _state(server)


def _release(server: Coordinator, args: argparse.Namespace) -> Answer:
    data = server.release(args.round, args.missing_ok)
    _write(args.file, data)
    return {"broadcast": str(args.file), "bytes": len(data), **_state(server)}


def _status(party: Agent | Coordinator, args: argparse.Namespace) -> Answer:
    return {**_state(party), "privacy": party.study.promise}


def _state(party: Agent | Coordinator) -> Answer:
    """The state of a site or of the server."""
    if isinstance(party, Agent):
        return {
            "agent": party.agent, "study": party.study.digest, "round": party.round, "pending": party.pending,
            "message_due": party.message_due,
        }  # fmt: skip
    return {
        "study": party.study.digest, "round": party.round, "received": party.received, "waits_for": len(party.missing),
        "finished": party.finished, "epsilon": party.epsilon, "delta": party.study.plan.delta, "rng": party.study.rng,
        "charges": len(party.ledger.charges),
    }  # fmt: skip


def _bytes_of(path: Path) -> bytes:
    """A message or a broadcast, from a file or a pipe. Raises ValueError if it is too long to be one."""
    with path.open("rb") as file:
        return read_at_most(file, _MOST_BYTES)


def _write(path: Path, data: bytes, private: bool = False) -> None:
    replace_file(path, lambda file: file.write(data), mode=0o600 if private else 0o644)


def _described(path: Path) -> dict[str, Any]:
    """The description of a study in its file. Raises StateError for another file."""
    try:
        return _checked(json.loads(read_plain(path, _MOST_BYTES)), path)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is no description of a study: {error}") from error


def _checked(described: Any, path: Path) -> dict[str, Any]:
    """A description whose values have their types, and numbers for which there is memory. Raises StateError."""
    if not isinstance(described, dict) or set(described) != set(_KEYS):
        raise StateError(f"{path} is no description of a study: it must have {', '.join(_KEYS)}")
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


def _opened_site(folder: Path) -> Agent:
    try:
        entries = json.loads(read_plain(folder / _SITE, _MOST_BYTES))
    except FileNotFoundError as error:
        raise StateError(f"{folder} is no site's folder: python -m runners.study join makes one") from error
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict) or set(entries) != {"study", "agent", "maximize"}:
        raise StateError(f"{folder / _SITE} cannot be read: restore the file")
    described = _checked(entries["study"], folder / _SITE)
    return Agent(_study(described), entries["agent"], folder, entries["maximize"])


def _opened_server(folder: Path) -> Coordinator:
    if not (folder / _DESCRIPTION).exists():
        raise StateError(f"{folder} is no folder of a site or a server: python -m runners.study join or host makes one")
    return Coordinator(_study(_described(folder / _DESCRIPTION)), folder)


def _opened(folder: Path) -> Agent | Coordinator:
    return _opened_site(folder) if (folder / _SITE).exists() else _opened_server(folder)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m runners.study", description=HELP, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def command(
        name: str, help: str, do: Callable[..., Answer], *paths: str, opened: Callable[[Path], Any] | None = None
    ) -> argparse.ArgumentParser:  # fmt: skip
        made: argparse.ArgumentParser = commands.add_parser(name, help=help)
        for path in paths:
            made.add_argument(path, type=Path, metavar=path.upper())
        made.set_defaults(do=do, opened=opened)
        return made

    site, server = partial(command, opened=_opened_site), partial(command, opened=_opened_server)
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
    ask = site("ask", "the next configuration to evaluate", _ask, "folder")
    ask.add_argument("--another", action="store_true", help="one more, beside those that wait for their value")
    tell = site("tell", "the value at a configuration", _tell, "folder")
    tell.add_argument("result", nargs="?", default="-", help="JSON; from standard input by default")
    message = site("message", "write the message that ends the round", _message, "folder", "file")
    message.add_argument("--round", type=int, default=None, help="an earlier one, whose message was lost")
    site("receive", "take over a broadcast", _receive, "folder", "file")
    site("best", "the best configuration so far", _best, "folder")
    command("status", "where a site or the server stands", _status, "folder", opened=_opened)
    command("host", "make the server's folder", _host, "folder", "study")
    collect = server("collect", "take a site's message", _collect, "folder")
    collect.add_argument("agent", type=int, metavar="AGENT", help="who sent it")
    collect.add_argument("file", type=Path, metavar="FILE")
    release = server("release", "end the round: add noise, charge, write the broadcast", _release, "folder", "file")
    release.add_argument("--missing-ok", action="store_true", help="without the messages that have not arrived")
    release.add_argument("--round", type=int, default=None, help="this one, and no other; an earlier one again")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
