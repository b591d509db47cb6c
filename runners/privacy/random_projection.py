"""The largest number of columns r at which PO-GP-UCB's projection raises no singular value: `sigma_min >= w(r)`."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from dpfbo import checks
from dpfbo.outsourced.transforms.random_projection import singular_values, threshold
from dpfbo.privacy.accounting import check_delta, delta_in_words

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
    parser.add_argument(
        "--sigma-min", type=number, metavar="S", help="least singular value of the scaled, centred rows"
    )
    parser.add_argument(
        "--problem", metavar="NAME", help="instead: a problem with a table, whose sigma_min is computed"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the problem: problem.side=8")
    parser.add_argument(
        "--epsilon", metavar="E", help="of the published claim, or several: 1,3 (default: the problem's)"
    )
    parser.add_argument("--delta", type=number, metavar="D", help=f"default: the problem's, else {DELTA:g}")
    parser.add_argument(
        "--r-max", type=number, default=20, metavar="R", help=f"rows of the table, at most {_MOST_ROWS} (default: 20)"
    )


def projection(
    sigma_min: float | None, problem: str | None, overrides: Sequence[str], epsilons: Sequence[float] | None,
    delta: float | None, r_max: int,
) -> dict[str, Any]:  # fmt: skip
    """The largest r of each epsilon, and w(r) beside sigma_min for r up to r_max.

    Raises ValueError for a value outside its range, or unless one of sigma_min and problem is given.
    """
    if (sigma_min is None) == (problem is None):
        raise ValueError("one of --sigma-min and --problem must be given")
    checks.integer("--r-max", r_max, minimum=1)
    if r_max > _MOST_ROWS:
        raise ValueError(f"--r-max must be at most {_MOST_ROWS}, got {r_max}")
    for epsilon in epsilons or ():
        checks.positive("--epsilon", epsilon)
    if delta is not None:
        check_delta(delta, "--delta")
    if problem is not None:
        least, usual_epsilon, usual_delta = _of_problem(problem, overrides)
    elif overrides:
        raise ValueError(f"settings need --problem, got {overrides[0]!r}")
    elif not epsilons:
        raise ValueError("--epsilon must be given where --problem is not")
    else:
        checks.non_negative("--sigma-min", sigma_min)
        least, usual_epsilon, usual_delta = float(sigma_min), 0.0, DELTA  # type: ignore[arg-type]
    delta = usual_delta if delta is None else delta
    claims = [_claim(least, epsilon, delta, r_max) for epsilon in epsilons or [usual_epsilon]]
    return {
        "sigma_min": least, "problem": problem, "overrides": list(overrides), "delta": delta, "claims": claims,
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
    for claim in answer["claims"]:
        table.add_column(f"claimed epsilon {claim['epsilon']:.4g}", justify="right")
    for row in zip(*(claim["rows"] for claim in answer["claims"]), strict=True):
        cells = (f"{one['w']:.1f} {'reached' if one['reached'] else 'raised '}" for one in row)
        table.add_row(str(row[0]["r"]), *cells)
    found = [
        f"epsilon {claim['epsilon']:.4g}: largest r with sigma_min >= w is {claim['largest_r'] or 'none'}"
        for claim in answer["claims"]
    ]
    return [table, *found, *(f"note: {note}" for note in answer["notes"])]


def _claim(sigma_min: float, epsilon: float, delta: float, r_max: int) -> dict[str, Any]:
    thresholds = [threshold(r, epsilon, delta) for r in range(1, r_max + 1)]
    rows = [{"r": r, "w": w, "reached": sigma_min >= w} for r, w in enumerate(thresholds, start=1)]
    return {"epsilon": epsilon, "largest_r": largest_r(sigma_min, epsilon, delta), "rows": rows}


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
