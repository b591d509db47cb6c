"""Analyse the random projection of PO-GP-UCB, which maps a table to r columns.

The analysis compares sigma_min, the smallest singular value of the table's rows, with a threshold w(r). If sigma_min is
below w(r), PO-GP-UCB increases all singular values before the projection. The analysis also evaluates Theorems 2 and 3
about PO-GP-UCB. `dpfbo.outsourced.theory` states these theorems and their source.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dpfbo import checks
from dpfbo.federated.theory import greedy_information_gain, se_kernel
from dpfbo.formats.words import delta_in_words
from dpfbo.outsourced.modeler import beta
from dpfbo.outsourced.table import CandidateProblem
from dpfbo.outsourced.theory import fewest_columns, gp_ucb_regret, stretch
from dpfbo.outsourced.transforms.random_projection import singular_values, threshold
from dpfbo.privacy.accounting import check_delta

NOTES = (
    "sigma_min is computed from private data: no epsilon covers showing it, choosing r by it, "
    "or the algorithm's own test sigma_min >= w",
    "the (epsilon, delta) in w is the published claim, which is no guarantee when n > d + 1; the attack: "
    "python -m runners.audit transform=random_projection",
    "Theorem 3 adds terms in nu and C' to GP-UCB's regret, which are not computed: their constants are not known here",
)
_MOST_COLUMNS = 1_000_000  # largest r searched
_ROWS = 20  # largest r in the table
_NU, _MU = 0.5, 0.05  # Theorem 2: the loosest nu, and the probability that the theorem fails
_MOST_CANDIDATES = 2048  # most rows for gamma_T; a larger table is thinned evenly


def projection(
    problem: str, overrides: Sequence[str], epsilons: Sequence[float | None], delta: float | None
) -> dict[str, Any]:
    """Compute for each epsilon the largest r with `sigma_min >= w(r)`, and compare w(r) with sigma_min for small r.

    r: number of columns. w(r): threshold for singular values. sigma_min: smallest singular value of the problem's rows.

    epsilons, delta: parameters of the published claim; None stands for the configured value. Raises ValueError for
    a value outside its range, HydraException for overrides that do not compose.
    """
    # imported here, because no other command needs settings of runs
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
        how = getattr(experiment.transform, "inflation", "paper")
        rows = [
            {"r": r, "w": w, "reached": sigma_min >= w, "C": stretch(sigma_min, w, how)} for r, w in thresholds.items()
        ]
        claims.append({"epsilon": epsilon, "largest_r": largest_r(sigma_min, epsilon, delta), "rows": rows})
    return {
        "sigma_min": sigma_min, "problem": problem, "overrides": list(overrides), "delta": delta, "claims": claims,
        "theorems": theorems(experiment.problem, experiment.rounds, experiment.settings.algorithm.modeler.delta_ucb),
        "notes": list(NOTES),
    }  # fmt: skip


def theorems(problem: CandidateProblem, steps: int, delta_ucb: float) -> dict[str, float]:
    """Compute the least r that Theorem 2 requires, and GP-UCB's term in the bound of Theorem 3."""
    rows, prior = problem.table.rows, problem.prior
    n, noise = len(rows), prior.noise / prior.variance
    K = se_kernel(rows[:: math.ceil(n / _MOST_CANDIDATES)], prior.lengthscale)
    gain = float(greedy_information_gain(K, steps, noise)[-1])
    last = beta(steps, n, delta_ucb)
    return {
        "nu": _NU, "mu": _MU, "fewest_r": fewest_columns(n, _NU, _MU), "T": steps, "gamma_T": gain, "beta_T": last,
        "gp_ucb_regret": gp_ucb_regret(last, gain, noise, steps),
    }  # fmt: skip


def largest_r(sigma_min: float, epsilon: float, delta: float) -> int | None:
    """Return the largest r (up to a million) with `sigma_min >= w(r, epsilon, delta)`; None if r = 1 is too large.

    w, the threshold for singular values, grows with r.
    """
    columns = range(1, _MOST_COLUMNS + 1)
    return bisect_right(columns, sigma_min, key=lambda r: threshold(r, epsilon, delta)) or None


def raised(C: float | None) -> str:
    """Return the table cell `raised, C' = ...`, which says that the singular values are increased.

    C: the value of C', the largest factor by which the increase stretches a squared distance; None if unbounded.
    """
    return "raised, C' unbounded" if C is None else f"raised, C' = {C:.2f}"


def shown(answer: dict[str, Any]) -> list[str | Table]:
    """Return the answer as a table and sentences."""
    sigma = f"sigma_min = {answer['sigma_min']:.5g} of problem={answer['problem']}"
    claims = {f"epsilon {claim['epsilon']:.4g}": claim for claim in answer["claims"]}
    table = Table("r", *(f"claimed {name}" for name in claims))
    table.title = f"w(r) at {delta_in_words(answer['delta'])}, and {sigma}"
    for rows in zip(*(claim["rows"] for claim in claims.values()), strict=True):
        cells = (f"{one['w']:.1f} {'reached' if one['reached'] else raised(one['C'])}" for one in rows)
        table.add_row(str(rows[0]["r"]), *cells)
    largest = [
        f"{name}: largest r with sigma_min >= w is {claim['largest_r'] or 'none'}" for name, claim in claims.items()
    ]
    known = answer["theorems"]
    theorem = (
        "Theorem 2: with probability {:g} all squared distances change by factors between 1 - nu and (1 + nu) C', "
        "nu = {:g}, if r >= {}; of fewer columns it says nothing"
    ).format(1 - known["mu"], known["nu"], known["fewest_r"])
    regret = (
        "Theorem 3: GP-UCB's part of the regret after T = {T} is sqrt(C1 beta_T gamma_T / T) = {gp_ucb_regret:.3g} "
        "sigma_y, with gamma_T = {gamma_T:.3g} (greedy) and beta_T = {beta_T:.3g}"
    ).format(**known)
    return [table, *largest, theorem, regret, *(f"note: {note}" for note in answer["notes"])]
