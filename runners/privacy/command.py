"""python -m runners.privacy: epsilon of planned and finished runs; noise, sampling or length by a budget."""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dpfbo import checks
from dpfbo.privacy.accounting import accountant_names, check_delta, default_delta
from dpfbo.privacy.ledger import LedgerError
from runners.arguments import Parser, at_least
from runners.privacy import curves, ledger_files, ledgers, random_projection
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
    _say(args, answer, lambda: [title(answer), by_accountant(answer), *caption(answer)])


def calibrate(args: argparse.Namespace) -> None:
    """The noise, sampling probability or number of rounds that a privacy budget allows."""
    given = [name for name in GIVEN if getattr(args, name) is not None]
    if len(given) != 3:
        said = ", ".join(f"--{name}" for name in given) or "none"
        raise ValueError(f"three of --epsilon, --q, --z and --rounds must be given, got {said}")
    unknown = next(name for name in GIVEN if name not in given)
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
    _say(args, answer, lambda: [words, "", title(answer), by_accountant(answer), *caption(answer)])


def table(args: argparse.Namespace) -> None:
    """Epsilon of many settings."""
    lists = {name: _several(name, getattr(args, name)) for name in ("q", "z", "rounds")}
    runs = [_planned(args, q=q, z=z, rounds=T) for q, z, T in itertools.product(*lists.values())]
    with _progress("computing", len(runs)) as done:
        answers = []
        for run in runs:
            answers.append(run.answer())
            done()
    _say(args, answers, lambda: [grid(answers), *caption(answers[0])])


def plot(args: argparse.Namespace) -> None:
    """A picture of epsilon against z, q and T."""
    run, out = _planned(args), Path(args.out)
    curves.check_writable(out)
    n = sum(len(values) for values in curves.grids(run).values())
    with _progress("computing", n) as done:
        data = curves.panels(run, done)
    answer = run.answer()
    files = [str(path) for path in curves.draw(data, run, answer["relation"], out)]
    _say(args, {"files": files, "panels": [panel.as_json() for panel in data], **answer}, lambda: files)


def ledger(args: argparse.Namespace) -> int | None:
    """Epsilon that runs have spent, from their ledgers, added up; or whether the ledgers are whole."""
    paths = list(dict.fromkeys(ledger_files.ledger_of(Path(file)) for file in args.files))
    if args.verify or args.repair:
        if args.delta is not None or args.agents is not None:
            raise ValueError("--delta and --agents must be left out with --verify and --repair")
        return _checked(args, paths, ledger_files.verified if args.verify else ledger_files.repaired)
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
    if n := sum(file["unchained"] for file in answer["files"]):
        note.append(f"note: {n} lines of an earlier version have no chain of digests: edits of them do not show")
    _say(args, answer, lambda: [words, by_accountant(answer), *caption(answer), *note])
    return None


def _checked(
    args: argparse.Namespace, paths: Sequence[Path], check: Callable[[Path], ledger_files.CheckedLedger]
) -> int:
    """Say the outcome of each ledger; the exit code is 1 if one of them is refused."""
    answers, refused = list[dict[str, Any]](), list[str]()
    for path in paths:
        try:
            answers.append(asdict(check(path)))
        except (LedgerError, OSError) as error:
            refused.append(str(error))
    if answers:
        _say(args, answers, lambda: [answer["words"] for answer in answers])
    for said in refused:
        say_error(said)
    return 1 if refused else 0


def projection(args: argparse.Namespace) -> None:
    """PO-GP-UCB: the largest r of a random projection with sigma_min >= w."""
    epsilons = None if args.epsilon is None else _several("epsilon", args.epsilon)
    answer = random_projection.projection(
        args.sigma_min, args.problem, args.overrides, epsilons, args.delta, args.r_max
    )
    _say(args, answer, lambda: random_projection.shown(answer))


def certificate(args: argparse.Namespace) -> int:
    """One page about a finished release (privacy.rng=os): its events, epsilon, checks, digests; Markdown and JSON."""
    from dpfbo.audit.server.examine import CHECKS
    from runners.privacy import certificate as certificates  # it composes settings: the other commands need not wait

    out = args.out or args.folder / "certificate"
    facts = certificates.certificate(args.folder)
    if args.audit is not None:
        with _progress("auditing", len(CHECKS) + args.audit) as done:
            facts["audit"] = certificates.audited(args.folder, args.audit, done, args.allow)
    files = certificates.write(facts, out)
    _say(args, facts, lambda: [certificates.markdown(facts), *map(str, files)])
    return 0 if certificates.holds(facts) else CHECK_FAILED


def _planned(args: argparse.Namespace, **instead: Any) -> PlannedRun:
    """The run of the command line, with some of its values replaced."""
    values = {name: getattr(args, name) for name in PlannedRun.__dataclass_fields__ if hasattr(args, name)} | instead
    if values.get("zs") is not None:
        if values["z"] is not None:
            raise ValueError(f"--z must be left out where --zs gives the noise of each round, got {values['z']!r}")
        values["zs"], values["z"] = tuple(_several("zs", values["zs"])), 1.0
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


def _several(name: str, text: str | None) -> list[Any]:
    if text is None:
        raise ValueError(f"--{name} must be given")
    return [_number(part) for part in text.split(",")]


def _say(args: argparse.Namespace, answer: object, shown: Callable[[], Sequence[str | Table]]) -> None:
    if args.json:
        print(json.dumps(answer, indent=1))
        return
    console = Console(highlight=False)
    for part in shown():
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
    looks: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = Parser(prog="python -m runners.privacy", description=HELP, **looks)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (epsilon, calibrate, table, plot, ledger, projection, certificate):
        name = command.__name__
        sub = commands.add_parser(
            name, help=command.__doc__, description=command.__doc__, epilog=EXAMPLES[name], **looks
        )
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="the answer for a program, on standard output")
        if command is certificate:
            sub.add_argument("folder", type=Path, metavar="FOLDER", help="of the run: results/EXPERIMENT/SETTING/SEED")
            sub.add_argument("--audit", type=_trials, metavar="K", help="audit with K trials (0: its checks alone)")
            sub.add_argument(
                "--allow", action="append", default=[], metavar="PACKAGE",
                help="with --audit: whose classes and functions the run's config.yaml may name; may be repeated",
            )  # fmt: skip
            sub.add_argument("--out", type=Path, metavar="NAME", help="of NAME.md and NAME.json (default: in FOLDER)")
            continue
        if command is projection:
            random_projection.add_options(sub, _number)
            continue
        sub.add_argument("--agents", type=_number, metavar="N", help="agents")
        sub.add_argument("--delta", type=_number, metavar="D", help="default: N^-1.1")
        if command is ledger:
            sub.add_argument("files", nargs="+", metavar="FILE", help="ledger.jsonl of a run, or its folder")
            what = sub.add_mutually_exclusive_group()
            what.add_argument("--verify", action="store_true", help="say whether each is whole; exit code 1 if not")
            what.add_argument(
                "--repair", action="store_true", help="make a damaged one readable, never at a lower epsilon"
            )
            continue
        kind, several = (str, ", or several: 0.15,0.25") if command is table else (_number, "")
        sub.add_argument("--rounds", type=kind, metavar="T", help=f"broadcasts{several}")
        sub.add_argument("--q", type=kind, metavar="Q", help=f"sampling probability{several}")
        sub.add_argument("--z", type=kind, metavar="Z", help=f"noise multiplier{several}")
        if command is epsilon:
            sub.add_argument(
                "--zs", metavar="Z0,Z1,..", help="instead of --z: of each round; the last of all later ones"
            )
        if command is calibrate:
            sub.add_argument("--epsilon", type=_number, metavar="E", help="what all rounds may cost")
            sub.add_argument(
                "--accountant",
                metavar="NAME",
                help=f"to plan by: {', '.join(accountant_names())} (default: pld, if it applies)",
            )
        if command is plot:
            sub.add_argument("--out", default="epsilon.png", metavar="FILE", help="PNG and PDF (default: epsilon.png)")
        _scheme_options(sub)
    return parser


def _trials(text: str) -> int:
    """The number of trials of an audit: none, or enough for a bound."""
    from dpfbo.audit import bounds

    value = at_least(0)(text)
    if 0 < value < bounds.FEWEST:
        raise argparse.ArgumentTypeError(f"must be 0 or at least {bounds.FEWEST}, got {text!r}")
    return value


def _scheme_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheme", "as the settings privacy.* and weights.* of a run")
    group.add_argument("--sampling", default="poisson", metavar="NAME", help="poisson (default) or fixed_size")
    group.add_argument("--growth", type=_number, default=0.0, metavar="EXP", help="z_t = z (t + 1)^EXP (default: 0)")
    group.add_argument("--charge", default="nominal", metavar="NAME", help="nominal (default): z; or effective")
    group.add_argument(
        "--sensitivity", default="paper", metavar="NAME", help="of the noise: paper (default) or tight; for effective"
    )
    group.add_argument(
        "--regions", type=_number, default=1, metavar="P", help="sub-regions (default: 1); for effective"
    )
    group.add_argument("--a", type=_number, default=15.0, metavar="A", help="softmax weights: a (default: 15)")
    group.add_argument("--hold", type=_number, metavar="ROUNDS", help="softmax weights: rounds before a_t falls")
    group.add_argument(
        "--steps", type=_number, metavar="ROUNDS", help="softmax weights: rounds in which a_t falls to 1"
    )
