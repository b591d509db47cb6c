"""python -m runners.audit: attack an experiment's real server or curator, and check its privacy claim."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from dpfbo.audit import bounds
from dpfbo.audit.release import two_tables
from runners.arguments import Parser, at_least
from runners.audit import files, server, table
from runners.audit.report import AuditReport
from runners.compose.composition import build
from runners.compose.configuration import composed
from runners.compose.federated import FederatedExperiment
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.overrides import quoted
from runners.executor.deployment import use_threads
from runners.user_errors import exit_code

TRIALS = 10_000
USUAL = {"rounds": 1, "trials": None, "thorough": False, "move": None}  # values of options that were not given
FOUND = 3  # exit code if a claim is violated or a check failed
SECONDS_BETWEEN_LINES = 5.0  # seconds between lines of progress where there is no terminal

HELP = """dpfbo: an audit of the privacy that a setting claims.

Runs the real server of the setting. If one agent's message changes, and the randomness does not, the release may
change by no more than the ledger states. Many runs with and without one agent's messages bound epsilon from below. The
claim is the epsilon that the accountant computes from the ledger of these runs.

Examples
  python -m runners.audit                                             the synthetic problem, one round
  python -m runners.audit problem=landmine privacy.q=1 privacy.z=1 --trials 20000
  python -m runners.audit privacy.sensitivity=tight --rounds 5 --out results/audit_tight
  python -m runners.audit --trials 0                                  the checks alone
  python -m runners.audit --trials 0 --thorough                       the checks alone, with far more draws
  python -m runners.audit --files problem=branin                      every file of a real run, with its objective
  python -m runners.audit transform=random_projection                 an outsourced table: attacks and checks

Overrides are those of python -m runners.run. Files: audit.json and audit.png in the folder --out.
Exit code: 0 nothing found, 1 bad input, 2 unknown options or overrides, 3 a claim is violated or a check failed,
130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    use_threads(1)  # the tensors are small
    return exit_code(lambda: _files(args) if args.files else _audit(args))


def _audit(args: argparse.Namespace) -> int:
    experiment = build(composed(table.completed(args.overrides)))
    if isinstance(experiment, OutsourcedExperiment):
        found = _of_table(experiment, args)
    else:
        found = _of_server(experiment, args)
    answer = found.as_json(overrides=args.overrides)
    written = found.write(answer, args.out)
    if args.json:
        print(json.dumps(answer, indent=1))
    else:
        found.show(written)
    return 0 if found.sound else FOUND


def _of_server(experiment: FederatedExperiment, args: argparse.Namespace) -> AuditReport:
    if args.move is not None:
        raise ValueError(f"--move needs an outsourced table such as algorithm=po_gp_ucb, got {args.move!r}")
    trials = TRIALS if args.trials is None else args.trials
    args.out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made stops the audit now, not after minutes
    with _progress("audit", server.n_checks(experiment) + trials) as step:
        return server.audit(experiment, args.rounds, trials, args.seed, step, args.thorough)


def _of_table(experiment: OutsourcedExperiment, args: argparse.Namespace) -> AuditReport:
    _refuse(args, ("rounds", "thorough"), "an outsourced table, which is released once")
    if args.trials == 0:
        raise ValueError(f"--trials must be at least {bounds.FEWEST} for an outsourced table, got 0")
    table.check_claims(experiment)
    trials = table.trials_of(experiment.transform) if args.trials is None else args.trials
    move = two_tables.MOVE if args.move is None else args.move
    attacks = two_tables.attacks(experiment.transform, experiment.problem.table, move)
    args.out.mkdir(parents=True, exist_ok=True)
    with _progress("audit", trials * len(attacks)) as step:
        return table.audit(experiment, attacks, trials, args.seed, step)


def _files(args: argparse.Namespace) -> int:
    _refuse(args, ("trials", "thorough", "move"), "--files, which makes two runs")
    rounds = max(args.rounds, files.ROUNDS)
    with _progress("two real runs", 2 * (rounds + 1)) as step:
        found = files.search(table.completed(args.overrides), rounds, step)
    if args.json:
        print(json.dumps({"sound": found.sound, "files": found.files, "findings": found.findings}, indent=1))
    else:
        files.show(found)
    return 0 if found.sound else FOUND


def _refuse(args: argparse.Namespace, names: Sequence[str], what: str) -> None:
    for name in names:
        if getattr(args, name) != USUAL[name]:
            raise ValueError(f"--{name} has no effect on {what}: leave it out")


@contextmanager
def _progress(title: str, steps: int) -> Iterator[Callable[[], None]]:
    """Show progress on standard error; yield a function that counts a step."""
    console, said, done = Console(stderr=True, highlight=False), time.monotonic(), 0
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=steps)

        def step() -> None:
            nonlocal said, done
            done += 1
            bar.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - said > SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                console.print(f"{title}: {done / steps:.0%}")

        yield step


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.audit", description=HELP)
    add: Any = parser.add_argument
    add("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="settings, as for python -m runners.run")
    add("--rounds", type=at_least(1), default=1, metavar="T", help="broadcasts of a replayed run (default: 1)")
    trials = f"runs in each world (default: {TRIALS}; outsourced: as needed; 0: the checks alone)"
    add("--trials", type=at_least(0), metavar="K", help=trials)
    add("--move", type=float, metavar="D", help=f"outsourced: move of a row of norm <= 25 (default: {two_tables.MOVE})")
    add("--seed", type=at_least(0), default=0, help="seed of the audit (default: 0); privacy.rng=os uses no seed")
    add("--out", type=Path, metavar="FOLDER", help="folder of the files (default: audit in the results folder)")
    add("--json", action="store_true", help="print the contents of audit.json")
    add("--thorough", action="store_true", help="far more draws of noise and S_t in the checks; takes 5 to 20 minutes")
    add("--files", action="store_true", help="make two small real runs, and search every file that they leave")
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    args = parser.parse_intermixed_args(argv)
    args.out = args.out or args.results_dir / "audit"
    if args.trials is not None and 0 < args.trials < bounds.FEWEST:
        parser.error(f"argument --trials: must be 0 or at least {bounds.FEWEST}, got {args.trials}")
    return args
