"""The largest number of columns r at which PO-GP-UCB's projection raises no singular value: `sigma_min >= w(r)`."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dpfbo import checks
from dpfbo.formats.words import delta_in_words
from dpfbo.outsourced.transforms.random_projection import singular_values, threshold
from dpfbo.privacy.accounting import check_delta

NOTES = (
    "sigma_min is computed from private data: no epsilon covers showing it, nor choosing r by it, "
    "nor the algorithm's own test sigma_min >= w",
    "the (epsilon, delta) in w is the published claim, and no guarantee when n > d + 1; the attack: "
    "python -m runners.audit transform=random_projection",
)
_MOST_COLUMNS = 1_000_000  # largest r searched
_ROWS = 20  # values of r in the table


def projection(
    problem: str, overrides: Sequence[str], epsilons: Sequence[float | None], delta: float | None
) -> dict[str, Any]:
    """The largest r of each epsilon, and w(r) beside the problem's sigma_min for small r.

    epsilons, delta: of the published claim; None for those of the problem. Raises ValueError for a value outside its
    range, HydraException for overrides that do not compose.
    """
    # here, because no other command needs settings of runs
    from runners.compose.composition import build
    from runners.compose.configuration import composed
    from runners.compose.outsourced import OutsourcedExperiment

    experiment = build(composed([f"problem={problem}", "algorithm=po_gp_ucb", *overrides]))
    if not isinstance(experiment, OutsourcedExperiment):
        raise ValueError(f"--problem needs an outsourced algorithm, got {experiment.settings.algorithm.name}")
    privacy = experiment.settings.privacy
    assert privacy.epsilon is not None and privacy.delta is not None  # checked by the settings
    sigma_min = float(singular_values(experiment.problem.table.rows).min())
    delta = privacy.delta if delta is None else delta
    check_delta(delta, "--delta")
    claims = []
    for epsilon in (privacy.epsilon if epsilon is None else epsilon for epsilon in epsilons):
        checks.positive("--epsilon", epsilon)
        thresholds = {r: threshold(r, epsilon, delta) for r in range(1, _ROWS + 1)}
        rows = [{"r": r, "w": w, "reached": sigma_min >= w} for r, w in thresholds.items()]
        claims.append({"epsilon": epsilon, "largest_r": largest_r(sigma_min, epsilon, delta), "rows": rows})
    return {
        "sigma_min": sigma_min, "problem": problem, "overrides": list(overrides), "delta": delta, "claims": claims,
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
    sigma = f"sigma_min = {answer['sigma_min']:.5g} of problem={answer['problem']}"
    claims = {f"epsilon {claim['epsilon']:.4g}": claim for claim in answer["claims"]}
    table = Table("r", *(f"claimed {name}" for name in claims))
    table.title = f"w(r) at {delta_in_words(answer['delta'])}, and {sigma}"
    for rows in zip(*(claim["rows"] for claim in claims.values()), strict=True):
        cells = (f"{one['w']:.1f} {'reached' if one['reached'] else 'raised '}" for one in rows)
        table.add_row(str(rows[0]["r"]), *cells)
    largest = [
        f"{name}: largest r with sigma_min >= w is {claim['largest_r'] or 'none'}" for name, claim in claims.items()
    ]
    return [table, *largest, *(f"note: {note}" for note in answer["notes"])]
