"""The largest number of columns r at which PO-GP-UCB's projection raises no singular value: `sigma_min >= w(r)`."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from dpfbo import checks
from dpfbo.formats.words import delta_in_words
from dpfbo.outsourced.transforms.random_projection import singular_values, threshold
from dpfbo.privacy.accounting import check_delta

EXAMPLE = """Examples (the second takes epsilon and delta from the problem)
  python -m runners.privacy projection --sigma-min 1030.9 --epsilon 2.718,3.0042 --delta 1e-5
  python -m runners.privacy projection --problem grid_gp
  python -m runners.privacy projection --problem loans --epsilon 1,3 --r-max 30 --json"""
NOTES = (
    "sigma_min is computed from private data: no epsilon covers showing it, nor choosing r by it, "
    "nor the algorithm's own test sigma_min >= w",
    "the (epsilon, delta) in w is the published claim, and no guarantee when n > d + 1; the attack: "
    "python -m runners.audit transform=random_projection",
)
DELTA = 1e-5  # published for the synthetic problem
_MOST_COLUMNS = 1_000_000  # largest r searched
_MOST_ROWS = 1_000  # rows printed


def add_options(parser: argparse.ArgumentParser, number: Callable[[str], Any]) -> None:
    """Add the options of the command. number: the type of numeric options."""
    option = parser.add_argument
    option("--sigma-min", type=number, metavar="S", help="least singular value of the scaled, centred rows")
    option("--problem", metavar="NAME", help="instead: a problem with a table, whose sigma_min is computed")
    option("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the problem: problem.side=8")
    option("--epsilon", metavar="E", help="of the published claim, or several: 1,3 (default: the problem's)")
    option("--delta", type=number, metavar="D", help=f"default: the problem's, else {DELTA:g}")
    rows = f"rows of the table, at most {_MOST_ROWS} (default: 20)"
    option("--r-max", type=number, default=20, metavar="R", help=rows)


def projection(args: argparse.Namespace, epsilons: Sequence[float] | None) -> dict[str, Any]:
    """The largest r of each epsilon, and w(r) beside sigma_min for r up to `--r-max`.

    Raises ValueError for a value outside its range, or unless one of `--sigma-min` and `--problem` is given.
    """
    if (args.sigma_min is None) == (args.problem is None):
        raise ValueError("one of --sigma-min and --problem must be given")
    checks.integer("--r-max", args.r_max, minimum=1, maximum=_MOST_ROWS)
    for epsilon in epsilons or ():
        checks.positive("--epsilon", epsilon)
    if args.delta is not None:
        check_delta(args.delta, "--delta")
    if args.problem is not None:
        sigma_min, usual_epsilon, usual_delta = _of_problem(args.problem, args.overrides)
    elif args.overrides:
        raise ValueError(f"settings need --problem, got {args.overrides[0]!r}")
    elif not epsilons:
        raise ValueError("--epsilon must be given where --problem is not")
    else:
        checks.non_negative("--sigma-min", args.sigma_min)
        sigma_min, usual_epsilon, usual_delta = float(args.sigma_min), 0.0, DELTA
    delta = usual_delta if args.delta is None else args.delta
    claims = []
    for epsilon in epsilons or [usual_epsilon]:
        thresholds = [threshold(r, epsilon, delta) for r in range(1, args.r_max + 1)]
        rows = [{"r": r, "w": w, "reached": sigma_min >= w} for r, w in enumerate(thresholds, start=1)]
        claims.append({"epsilon": epsilon, "largest_r": largest_r(sigma_min, epsilon, delta), "rows": rows})
    return {
        "sigma_min": sigma_min, "problem": args.problem, "overrides": args.overrides, "delta": delta, "claims": claims,
        "notes": list(NOTES),
    }  # fmt: skip


def largest_r(sigma_min: float, epsilon: float, delta: float) -> int | None:
    """The largest r (up to a million) with `sigma_min >= w(r, epsilon, delta)`; None if r = 1 is too large.

    w grows with r.
    """
    low, high = 0, _MOST_COLUMNS + 1  # sigma_min reaches w(low), not w(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sigma_min >= threshold(middle, epsilon, delta) else (low, middle)
    return low or None


def shown(answer: dict[str, Any]) -> list[str | Table]:
    """The answer as a table and sentences."""
    origin = "" if answer["problem"] is None else f" of problem={answer['problem']}"
    table = Table(title=f"w(r) at {delta_in_words(answer['delta'])}, and sigma_min = {answer['sigma_min']:.5g}{origin}")
    table.add_column("r", justify="right")
    sentences = []
    for claim in answer["claims"]:
        name = f"epsilon {claim['epsilon']:.4g}"
        table.add_column(f"claimed {name}", justify="right")
        sentences.append(f"{name}: largest r with sigma_min >= w is {claim['largest_r'] or 'none'}")
    for row in zip(*(claim["rows"] for claim in answer["claims"]), strict=True):
        cells = (f"{one['w']:.1f} {'reached' if one['reached'] else 'raised '}" for one in row)
        table.add_row(str(row[0]["r"]), *cells)
    return [table, *sentences, *(f"note: {note}" for note in answer["notes"])]


def _of_problem(name: str, overrides: Sequence[str]) -> tuple[float, float, float]:
    """sigma_min of a problem's table, and the epsilon and delta of its settings."""
    from hydra.errors import HydraException  # here, because no other command needs settings of runs
    from omegaconf.errors import OmegaConfBaseException

    from runners.compose.composition import build
    from runners.compose.configuration import composed
    from runners.compose.outsourced import OutsourcedExperiment
    from runners.compose.overrides import one_sentence

    try:
        experiment = build(composed([f"problem={name}", "algorithm=po_gp_ucb", *overrides]))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_sentence(str(error))) from error
    if not isinstance(experiment, OutsourcedExperiment):
        raise ValueError(f"--problem needs an outsourced algorithm, got {experiment.settings.algorithm.name}")
    privacy = experiment.settings.privacy
    assert privacy.epsilon is not None and privacy.delta is not None  # checked by the settings
    return float(singular_values(experiment.problem.table.rows).min()), privacy.epsilon, privacy.delta
