"""python -m runners.privacy: epsilon of planned and finished runs; noise, sampling or rounds for a given epsilon."""

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfbo import checks
from dpfbo.privacy.accounting import accountant_names, check_delta, default_delta
from dpfbo.privacy.ledger import LedgerError
from runners.arguments import Parser
from runners.privacy import ledgers
from runners.privacy.planner import PlannedRun, solved
from runners.privacy.report import by_accountant, by_setting, caption
from runners.record.terminal import say_error
from runners.user_errors import exit_code

# A command imports within its function what it alone needs, such as torch, so that other commands and --help are fast.

CHECK_FAILED = 3  # exit code if a check of a certificate fails
_FOUND = {  # the value that `calibrate` looks for, in words
    "epsilon": "epsilon", "q": "largest sampling probability", "z": "smallest noise multiplier",
    "rounds": "largest number of rounds",
}  # fmt: skip

HELP = """The privacy of planned and finished runs.

Examples
  python -m runners.privacy epsilon --agents 29 --rounds 60 --q 0.35 --z 1              what a run will cost
  python -m runners.privacy calibrate --agents 29 --rounds 60 --q 0.35 --epsilon 2      which z costs epsilon 2
  python -m runners.privacy calibrate --agents 29 --q 0.35 --z 1 --epsilon 2            how many rounds
  python -m runners.privacy prior --agents 8 --epsilon 1 --delta 1e-3 --n-init 3 --dim 3  is dp_prior worth it?
  python -m runners.privacy table --agents 200 --rounds 40 --q 0.15,0.25,0.5 --z 1,2
  python -m runners.privacy plot --agents 29 --rounds 60 --q 0.35 --z 1 --out landmine.png
  python -m runners.privacy ledger results/single/*/0/ledger.jsonl --agents 29          what was spent
  python -m runners.privacy ledger results/single/SETTING/0 --verify                    was it modified?
  python -m runners.privacy ledger results/single/SETTING/0 --repair                    make it readable again
  python -m runners.privacy projection --problem grid_gp                                PO-GP-UCB: how large r may be
  python -m runners.privacy certificate results/single/SETTING/SEED                     a page to file about a release

Each command has its own --help. For epsilon of any run settings, including schedules and effective charges:
python -m runners.sweep ... --dry-run.
Exit code: 0, 1 for a value that is refused, 2 for unknown options, 3 for a certificate with a check that fails."""


@dataclass(frozen=True)
class Answer:
    """The answer of a command: `facts` as JSON, and `parts` as text and tables."""

    facts: object
    parts: Sequence[str | Table]
    code: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code.

    0: success. 1: a value or a ledger is refused. 2: overrides do not compose. 3: a check of a certificate fails.
    130: interrupted.
    """
    args = _parser().parse_args(argv)
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    with Console(stderr=True).status("computing"):
        answer: Answer = args.command(args)
    if args.json:
        print(json.dumps(answer.facts, indent=1))
        return answer.code
    console = Console(highlight=False)
    for part in answer.parts:
        console.print(part, markup=False, soft_wrap=isinstance(part, str) and not console.is_terminal)
    return answer.code


def epsilon(args: argparse.Namespace) -> Answer:
    """Compute epsilon of a run before it starts."""
    facts = _planned(args).answer()
    return Answer(facts, _in_words(facts))


def calibrate(args: argparse.Namespace) -> Answer:
    """Compute the noise, sampling probability or number of rounds that a privacy budget allows."""
    given = [name for name in _FOUND if getattr(args, name) is not None]
    if len(given) != 3:
        said = ", ".join(f"--{name}" for name in given) or "none"
        raise ValueError(f"three of --epsilon, --q, --z and --rounds must be given, got {said}")
    (unknown,) = set(_FOUND) - set(given)
    run = _planned(args, **({} if unknown == "epsilon" else {unknown: 1}))
    by = run.plan(args.accountant).chosen
    if unknown != "epsilon":
        run = solved(run, unknown, args.epsilon, by)
    facts = run.answer()
    found = facts["epsilon"][by] if unknown == "epsilon" else getattr(run, unknown)
    words = f"{unknown} = {found:.6g}"
    if unknown != "epsilon":
        words += f": the {_FOUND[unknown]} with epsilon at most {args.epsilon:g} by {by}"
    return Answer(
        {"target": args.epsilon, "by": by, "found": {unknown: found}, **facts}, [words, "", *_in_words(facts)]
    )


def prior(args: argparse.Namespace) -> Answer:
    """Compute the expected signal of dp_prior's release (`SharingPlan.signal`) from public numbers alone."""
    for name in ("agents", "epsilon", "n_init", "dim"):
        if getattr(args, name) is None:
            raise ValueError(f"--{name.replace('_', '-')} must be given")
        if name != "epsilon":
            checks.integer(f"--{name}", getattr(args, name), minimum=1, maximum=checks.MOST_AGENTS)
    from dpfbo.space.domain import Box
    from dpfbo.study import sharing_plan

    box = Box((0.0,) * args.dim, (1.0,) * args.dim)
    found = sharing_plan.plan(box, args.agents, args.epsilon, n_init=args.n_init, delta=args.delta)
    return Answer(asdict(found), [str(found)])


def table(args: argparse.Namespace) -> Answer:
    """Compute epsilon of many settings."""
    names = ("q", "z", "rounds")
    values = itertools.product(*(_numbers(getattr(args, name)) for name in names))
    runs = [_planned(args, **dict(zip(names, some, strict=True))) for some in values]
    facts = [run.answer() for run in runs]
    return Answer(facts, [by_setting(facts), *caption(facts[0])])


def plot(args: argparse.Namespace) -> Answer:
    """Plot epsilon against z, q and T."""
    from runners.privacy import curves

    run, out = _planned(args), args.out or Path("epsilon")
    if out.is_dir() or not out.name:
        raise ValueError(f"--out must name a file, got the folder {str(out)!r}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be where a file can be written, got {str(out)!r}: {error.strerror}") from error
    panels, facts = curves.panels(run), run.answer()
    files = [str(path) for path in curves.draw(panels, run, facts["relation"], out)]
    numbers = {
        name: json.loads(epsilon.to_json(orient="split", double_precision=15)) for name, epsilon in panels.items()
    }
    return Answer({"files": files, "panels": numbers, **facts}, files)


def ledger(args: argparse.Namespace) -> Answer:
    """Add up the epsilon that runs have spent, from their ledgers; or verify or repair the ledgers."""
    paths = list(dict.fromkeys(map(ledgers.ledger_of, args.files)))
    if args.verify or args.repair:
        if args.delta is not None or args.agents is not None or (args.verify and args.repair):
            raise ValueError("--verify and --repair must be given alone, without --delta and --agents")
        return _each_ledger(paths, ledgers.verified if args.verify else ledgers.repaired)
    if (args.delta is None) == (args.agents is None):
        raise ValueError("one of --delta and --agents must be given: delta, or the N of delta = N^-1.1")
    if args.agents is not None:
        checks.integer("--agents", args.agents, minimum=1, maximum=checks.MOST_AGENTS)
    delta = args.delta if args.agents is None else default_delta(args.agents)
    check_delta(delta, "--delta")
    facts = ledgers.added_up(paths, delta)
    words = f"{facts['charges']} broadcasts in {len(paths)} ledger{'s' * (len(paths) > 1)}"
    if facts["repeated"]:
        words += f" ({facts['repeated']} further charges are of the same releases, bit for bit, and count once)"
    note = [f"note: {facts['note']}"] if facts["note"] else []
    return Answer(facts, [words, by_accountant(facts), *caption(facts), *note])


def _each_ledger(paths: Sequence[Path], sentence_on: Callable[[Path], str]) -> Answer:
    said, code = [], 0
    for path in paths:
        try:
            said.append(sentence_on(path))
        except (LedgerError, OSError) as error:
            say_error(str(error))
            code = 1
    return Answer(said, said, code)


def projection(args: argparse.Namespace) -> Answer:
    """Find the largest r for which PO-GP-UCB projects a table to r columns without increasing its singular values."""
    from runners.privacy import random_projection

    facts = random_projection.projection(args.problem, args.overrides, _numbers(args.epsilon), args.delta)
    return Answer(facts, random_projection.shown(facts))


def certificate(args: argparse.Namespace) -> Answer:
    """Write a privacy certificate in Markdown and JSON for a finished run, which must have used privacy.rng=os."""
    from runners.privacy import certificate as certificates

    facts = certificates.certificate(args.folder)
    if args.audit is not None:
        facts["audit"] = certificates.audited(args.folder, args.audit, args.allow)
    files = certificates.write(facts, args.out or args.folder / "certificate")
    code = 0 if certificates.holds(facts) else CHECK_FAILED
    return Answer(facts, [certificates.markdown(facts), *map(str, files)], code)


def _planned(args: argparse.Namespace, **instead: Any) -> PlannedRun:
    values = {name: getattr(args, name) for name in PlannedRun.__dataclass_fields__} | instead
    for name in ("agents", "rounds", "q", "z"):
        if values[name] is None:
            raise ValueError(f"--{name} must be given")
    return PlannedRun(**values)


def _in_words(answer: dict[str, Any]) -> list[str | Table]:
    k = f", {answer['subset'][0]} of them a round" if answer["subset"] else ""
    title = "{agents} agents{k}, {rounds} rounds, q = {q:g}, z = {z:g}".format(**answer, k=k)
    return [title, by_accountant(answer), *caption(answer)]


def _number(text: str) -> float | str:
    """Return the text as int or float; other text is returned unchanged."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _numbers(given: float | str | None) -> list[Any]:
    return [None] if given is None else [_number(part) for part in str(given).split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m runners.privacy", description=HELP)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, names in _COMMANDS.items():
        sub = commands.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        sub.set_defaults(command=command)
        for name in (*names.split(), "--json"):
            sub.add_argument(name, **_OPTIONS[name])
    return parser


def _value(metavar: str, help: str, type: Callable[[str], Any] = _number) -> dict[str, Any]:
    return {"metavar": metavar, "help": help, "type": type}


_OPTIONS: dict[str, dict[str, Any]] = {
    "--agents": _value("N", "number of agents"),
    "--rounds": _value("T", "number of broadcasts; `table` takes several: 20,40"),
    "--q": _value("Q", "sampling probability; `table` takes several: 0.15,0.25"),
    "--z": _value("Z", "noise multiplier; `table` takes several: 1,2"),
    "--delta": _value("D", "delta (default: N^-1.1, or the problem's delta)"),
    "--sampling": {"default": "poisson", **_value("NAME", "poisson (default) or fixed_size", str)},
    "--epsilon": _value("E", "epsilon of all rounds together; for `projection`, the published claims: 1,3"),
    "--dim": _value("D", "number of parameters in the search space"),
    "--n-init": _value("K", "initial points of each agent"),
    "--accountant": _value("NAME", f"one of {', '.join(accountant_names())} (default: pld, if it applies)", str),
    "--out": _value("FILE", "name of the two files (default: epsilon, or certificate in FOLDER)", Path),
    "--json": {"action": "store_true", "help": "print the answer as JSON"},
    "files": {"nargs": "+", **_value("FILE", "ledger.jsonl of a run, or its folder", Path)},
    "--verify": {"action": "store_true", "help": "check that each ledger is whole; exit code 1 if one is not"},
    "--repair": {"action": "store_true", "help": "make damaged ledgers readable, at the worst readable q and z"},
    "--problem": {"required": True, **_value("NAME", "a problem with a table", str)},
    "overrides": {"nargs": "*", **_value("KEY=VALUE", "settings of the problem: problem.side=8", str)},
    "folder": _value("FOLDER", "folder of the run: results/EXPERIMENT/SETTING/SEED", Path),
    "--audit": _value("K", "audit with K trials (0: its checks alone)"),
    "--allow": {
        "action": "append", "default": [],
        **_value("PACKAGE", "with --audit: a package whose classes config.yaml may name; may be repeated", str),
    },
}  # fmt: skip
_PLAN = "--agents --rounds --q --z --delta --sampling"
_COMMANDS: dict[Callable[[argparse.Namespace], Answer], str] = {
    epsilon: _PLAN,
    calibrate: f"{_PLAN} --epsilon --accountant",
    prior: "--agents --epsilon --delta --n-init --dim",
    table: _PLAN,
    plot: f"{_PLAN} --out",
    ledger: "files --agents --delta --verify --repair",
    projection: "--problem --epsilon --delta overrides",
    certificate: "folder --audit --allow --out",
}
