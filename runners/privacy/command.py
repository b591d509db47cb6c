"""python -m runners.privacy: epsilon of planned and finished runs; noise, sampling or length by a budget."""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dpfbo import checks
from dpfbo.privacy.accounting import accountant_names, check_delta, default_delta
from dpfbo.privacy.ledger import LedgerError
from runners.arguments import Parser, at_least
from runners.privacy import curves, ledgers, random_projection
from runners.privacy.planner import GIVEN, PlannedRun, solved
from runners.privacy.report import by_accountant, caption, grid, title
from runners.record.run_folder import ResultsError
from runners.record.terminal import say_error

CHECK_FAILED = 3  # exit code

HELP = """Privacy of runs, before and after them.

Examples
  python -m runners.privacy epsilon --agents 29 --rounds 60 --q 0.35 --z 1              what a run will cost
  python -m runners.privacy calibrate --agents 29 --rounds 60 --q 0.35 --epsilon 2      which z costs epsilon 2
  python -m runners.privacy table --agents 200 --rounds 40 --q 0.15,0.25,0.5 --z 1,2
  python -m runners.privacy plot --agents 29 --rounds 60 --q 0.35 --z 1 --out landmine.png
  python -m runners.privacy ledger results/single/*/0/ledger.jsonl --agents 29          what was spent
  python -m runners.privacy projection --problem grid_gp                                PO-GP-UCB: how large r may be
  python -m runners.privacy certificate results/single/SETTING/SEED                     a page to file about a release

Each has its own --help. For the composed settings of runs: python -m runners.sweep ... --dry-run.
Exit code: 0, 1 for a value that is refused, 2 for unknown options, 3 for a certificate with a check that fails."""

EXAMPLES = {
    "epsilon": """Examples (the second: noise calibrated as in the paper, charged at what it is worth)
  python -m runners.privacy epsilon --agents 29 --rounds 60 --q 0.35 --z 1
  python -m runners.privacy epsilon --agents 29 --rounds 60 --q 0.35 --z 1 \\
      --charge effective --regions 4 --hold 10 --steps 30
  python -m runners.privacy epsilon --agents 29 --rounds 60 --q 0.35 --zs 1,1,2 --json""",
    "calibrate": """Examples: give three of --epsilon, --q, --z and --rounds (the last: the one release of dp_prior)
  python -m runners.privacy calibrate --agents 29 --epsilon 2 --q 0.35 --rounds 60      z
  python -m runners.privacy calibrate --agents 29 --epsilon 2 --z 1 --rounds 60         q
  python -m runners.privacy calibrate --agents 29 --epsilon 2 --q 0.35 --z 1            T
  python -m runners.privacy calibrate --agents 29 --epsilon 1 --q 1 --rounds 1          z""",
    "table": """Example, with commas for several values
  python -m runners.privacy table --agents 200 --q 0.15,0.25,0.5 --z 1 --rounds 20,40""",
    "plot": """Example: epsilon against z, q and T, the other two as given
  python -m runners.privacy plot --agents 29 --rounds 60 --q 0.35 --z 1 --out landmine.png""",
    "ledger": """Examples; the second: all runs on the same data together
  python -m runners.privacy ledger results/single/0a1b2c3d4e5f/0/ledger.jsonl --agents 29
  python -m runners.privacy ledger results/*/*/*/ledger.jsonl --delta 0.001 --json

Was a ledger touched? and a damaged one made readable, never at a lower epsilon:
  python -m runners.privacy ledger results/single/0a1b2c3d4e5f/0 --verify
  python -m runners.privacy ledger results/single/0a1b2c3d4e5f/0 --repair""",
    "projection": random_projection.EXAMPLE,
    "certificate": """Examples; the second also attacks the server that the run's settings make, for minutes
  python -m runners.privacy certificate results/single/0a1b2c3d4e5f/0
  python -m runners.privacy certificate results/single/0a1b2c3d4e5f/0 --audit 10000 --out filed/tuning-2026""",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit code is 0, 1 for a value that is refused, 130 when interrupted."""
    args = _parser().parse_args(argv)
    try:
        return args.command(args) or 0
    except (ValueError, LedgerError, ResultsError, OSError) as error:
        say_error(str(error))
        return 1
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130


def epsilon(args: argparse.Namespace) -> None:
    """Epsilon of a run, before it starts."""
    run = _planned(args)
    with _progress("computing"):
        answer = run.answer()
    _show(args, answer, lambda: [title(answer), by_accountant(answer), *caption(answer)])


def calibrate(args: argparse.Namespace) -> None:
    """The noise, sampling probability or number of rounds that a privacy budget allows."""
    given = [name for name in GIVEN if getattr(args, name) is not None]
    if len(given) != 3:
        said = ", ".join(f"--{name}" for name in given) or "none"
        raise ValueError(f"three of --epsilon, --q, --z and --rounds must be given, got {said}")
    (unknown,) = set(GIVEN) - set(given)
    run = _planned(args, **({} if unknown == "epsilon" else {unknown: 1}))
    name = run.plan(args.accountant).chosen
    with _progress("searching"):
        if unknown != "epsilon":
            run = solved(run, unknown, args.epsilon, name)
        answer = run.answer()
    found = answer["epsilon"][name] if unknown == "epsilon" else getattr(run, unknown)
    answer = {"target": args.epsilon, "by": name, "found": {unknown: found}, **answer}
    most = {"z": "smallest noise multiplier", "q": "largest sampling probability", "rounds": "largest number of rounds"}
    words = f"{unknown} = {found:.6g}"
    if unknown != "epsilon":
        words += f": the {most[unknown]} at which {name} says at most epsilon {args.epsilon:g}"
    _show(args, answer, lambda: [words, "", title(answer), by_accountant(answer), *caption(answer)])


def table(args: argparse.Namespace) -> None:
    """Epsilon of many settings."""
    names = ("q", "z", "rounds")
    values = itertools.product(*(_numbers(name, getattr(args, name)) for name in names))
    runs = [_planned(args, **dict(zip(names, some, strict=True))) for some in values]
    answers = []
    with _progress("computing", len(runs)) as done:
        for run in runs:
            answers.append(run.answer())
            done()
    _show(args, answers, lambda: [grid(answers), *caption(answers[0])])


def plot(args: argparse.Namespace) -> None:
    """A picture of epsilon against z, q and T."""
    run = _planned(args)
    curves.check_writable(args.out)
    with _progress("computing", sum(map(len, curves.grids(run).values()))) as done:
        panels = curves.panels(run, done)
    answer = run.answer()
    files = [str(path) for path in curves.draw(panels, run, answer["relation"], args.out)]
    _show(args, {"files": files, "panels": [panel.as_json() for panel in panels], **answer}, lambda: files)


def ledger(args: argparse.Namespace) -> int | None:
    """Epsilon that runs have spent, from their ledgers, added up; or whether the ledgers are whole."""
    paths = list(dict.fromkeys(map(ledgers.ledger_of, args.files)))
    if args.verify or args.repair:
        if args.delta is not None or args.agents is not None:
            raise ValueError("--delta and --agents must be left out with --verify and --repair")
        return _each_ledger(args, paths, ledgers.verified if args.verify else ledgers.repaired)
    if (args.delta is None) == (args.agents is None):
        raise ValueError("one of --delta and --agents must be given, for delta or the N of N^-1.1")
    if args.agents is not None:
        checks.integer("--agents", args.agents, minimum=1, maximum=checks.MOST_AGENTS)
    delta = args.delta if args.agents is None else default_delta(args.agents)
    check_delta(delta, "--delta")
    with _progress("computing"):
        answer = ledgers.added_up(paths, delta)
    words = f"{answer['charges']} broadcasts in {len(paths)} ledger{'s' * (len(paths) > 1)}"
    if answer["repeated"]:
        words += f" ({answer['repeated']} of another ledger's releases, the same to the last bit, count once)"
    note = [f"note: {answer['note']}"] if answer["note"] else []
    _show(args, answer, lambda: [words, by_accountant(answer), *caption(answer), *note])
    return None


def _each_ledger(args: argparse.Namespace, paths: Sequence[Path], outcome_of: Callable[[Path], dict[str, Any]]) -> int:
    """Show the outcome for each ledger; the exit code is 1 if one of them is refused."""
    answers, refused = list[dict[str, Any]](), list[str]()
    for path in paths:
        try:
            answers.append(outcome_of(path))
        except (LedgerError, OSError) as error:
            refused.append(str(error))
    if answers:
        _show(args, answers, lambda: [answer["words"] for answer in answers])
    for sentence in refused:
        say_error(sentence)
    return 1 if refused else 0


def projection(args: argparse.Namespace) -> None:
    """PO-GP-UCB: the largest r of a random projection with sigma_min >= w."""
    epsilons = None if args.epsilon is None else _numbers("epsilon", args.epsilon)
    answer = random_projection.projection(args, epsilons)
    _show(args, answer, lambda: random_projection.shown(answer))


def certificate(args: argparse.Namespace) -> int:
    """One page about a finished release (privacy.rng=os): its events, epsilon, checks, digests; Markdown and JSON."""
    from dpfbo.audit.server.examine import CHECKS
    from runners.privacy import certificate as certificates  # it composes settings: the other commands need not wait

    facts = certificates.certificate(args.folder)
    if args.audit is not None:
        with _progress("auditing", len(CHECKS) + args.audit) as done:
            facts["audit"] = certificates.audited(args.folder, args.audit, done, args.allow)
    files = certificates.write(facts, args.out or args.folder / "certificate")
    _show(args, facts, lambda: [certificates.markdown(facts), *map(str, files)])
    return 0 if certificates.holds(facts) else CHECK_FAILED


def _planned(args: argparse.Namespace, **instead: Any) -> PlannedRun:
    """The run of the command line, with some of its values replaced."""
    values = {name: getattr(args, name, None) for name in PlannedRun.__dataclass_fields__} | instead
    if values["zs"] is not None:
        if values["z"] is not None:
            raise ValueError(f"--z must be left out where --zs gives the noise of each round, got {values['z']!r}")
        values["zs"], values["z"] = tuple(_numbers("zs", values["zs"])), 1.0
    for name in ("agents", "rounds", "q", "z"):
        if values[name] is None:
            raise ValueError(f"--{name} must be given")
    return PlannedRun(**{name: value for name, value in values.items() if value is not None})


def _number(text: str) -> float | str:
    """The text as int or float; text that is no number stays, and the setting's own check refuses it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _numbers(name: str, text: str | None) -> list[Any]:
    if text is None:
        raise ValueError(f"--{name} must be given")
    return [_number(part) for part in text.split(",")]


def _show(args: argparse.Namespace, answer: object, parts: Callable[[], Sequence[str | Table]]) -> None:
    """Print the answer as JSON, or its parts for people."""
    if args.json:
        print(json.dumps(answer, indent=1))
        return
    console = Console(highlight=False)
    for part in parts():
        console.print(part, markup=False, soft_wrap=isinstance(part, str) and not console.is_terminal)


@contextmanager
def _progress(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal while the block runs; yields the function to call after each step."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _parser() -> argparse.ArgumentParser:
    looks: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(prog="python -m runners.privacy", description=HELP, **looks)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (epsilon, calibrate, table, plot, ledger, projection, certificate):
        name, words = command.__name__, command.__doc__
        sub = commands.add_parser(name, help=words, description=words, epilog=EXAMPLES[name], **looks)
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="the answer for a program, on standard output")
        if command is certificate:
            _certificate_options(sub)
        elif command is projection:
            random_projection.add_options(sub, _number)
        else:
            _option(sub, "agents", "N", "agents")
            _option(sub, "delta", "D", "default: N^-1.1")
            _ledger_options(sub) if command is ledger else _plan_options(sub, name)
    return parser


def _option(
    parser: argparse._ActionsContainer, name: str, metavar: str, help: str, kind: Callable[[str], Any] = _number,
    default: object = None,
) -> None:  # fmt: skip
    parser.add_argument(f"--{name}", type=kind, metavar=metavar, default=default, help=help)


def _certificate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the run: results/EXPERIMENT/SETTING/SEED")
    _option(parser, "audit", "K", "audit with K trials (0: its checks alone)", _trials)
    parser.add_argument(
        "--allow", action="append", default=[], metavar="PACKAGE",
        help="with --audit: whose classes and functions the run's config.yaml may name; may be repeated",
    )  # fmt: skip
    _option(parser, "out", "NAME", "of NAME.md and NAME.json (default: in FOLDER)", Path)


def _ledger_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="ledger.jsonl of a run, or its folder")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--verify", action="store_true", help="say whether each is whole; exit code 1 if not")
    what.add_argument("--repair", action="store_true", help="make a damaged one readable, never at a lower epsilon")


def _plan_options(parser: argparse.ArgumentParser, command: str) -> None:
    kind, several = (str, ", or several: 0.15,0.25") if command == "table" else (_number, "")
    _option(parser, "rounds", "T", f"broadcasts{several}", kind)
    _option(parser, "q", "Q", f"sampling probability{several}", kind)
    _option(parser, "z", "Z", f"noise multiplier{several}", kind)
    if command == "epsilon":
        _option(parser, "zs", "Z0,Z1,..", "instead of --z: of each round; the last of all later ones", str)
    if command == "calibrate":
        _option(parser, "epsilon", "E", "what all rounds may cost")
        names = ", ".join(accountant_names())
        _option(parser, "accountant", "NAME", f"to plan by: {names} (default: pld, if it applies)", str)
    if command == "plot":
        _option(parser, "out", "FILE", "PNG and PDF (default: epsilon.png)", Path, Path("epsilon.png"))
    scheme = parser.add_argument_group("scheme", "as the settings privacy.* and weights.* of a run")
    _option(scheme, "sampling", "NAME", "poisson (default) or fixed_size", str)
    _option(scheme, "growth", "EXP", "z_t = z (t + 1)^EXP (default: 0)")
    _option(scheme, "charge", "NAME", "nominal (default): z; or effective", str)
    _option(scheme, "sensitivity", "NAME", "of the noise: paper (default) or tight; for effective", str)
    _option(scheme, "regions", "P", "sub-regions (default: 1); for effective")
    _option(scheme, "a", "A", "softmax weights: a (default: 15)")
    _option(scheme, "hold", "ROUNDS", "softmax weights: rounds before a_t falls")
    _option(scheme, "steps", "ROUNDS", "softmax weights: rounds in which a_t falls to 1")


def _trials(text: str) -> int:
    """The number of trials of an audit: none, or enough for a bound."""
    from dpfbo.audit import bounds

    value = at_least(0)(text)
    if 0 < value < bounds.FEWEST:
        raise argparse.ArgumentTypeError(f"must be 0 or at least {bounds.FEWEST}, got {text!r}")
    return value
