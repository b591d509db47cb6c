"""Numerical bounds of PO-GP-UCB: Theorem 2 on distances, and the GP-UCB term of Theorem 3 on regret.

Theorem 2 (Kharkovskii, Dai, Low 2020): for nu in (0, 1/2], mu in (0, 1) and `r >= 8 ln(n^2 / mu) / nu^2`, with
probability at least 1 - mu, all pairs x, x' of the n rows and their images z, z' with r entries satisfy

    (1 - nu) |x - x'|^2 <= |z - z'|^2 <= (1 + nu) C' |x - x'|^2,    C' = 1 + (w / sigma_min)^2 if sigma_min < w, else 1.

sigma_min is the smallest singular value of the rows. If it is below the threshold w, the transform first raises all
singular values.

The theorem is restated from memory, not quoted. Proof: let u be the squared distance of two rows after the singular
values were raised, if at all. Then `|z - z'|^2 / u` is distributed as chi^2_r / r. It lies outside [1 - nu, 1 + nu]
with probability at most `2 exp(-r nu^2 / 8)`. There are fewer than n^2 / 2 pairs of rows. Raising never shrinks a
squared distance, and stretches it by a factor of at most C'.

Theorem 3 bounds the simple regret by GP-UCB's bound plus terms in nu and C'. `gp_ucb_regret` omits these terms, because
their constants are not known here. It bounds the regret only for exact distances (`transform=none`).
"""

import math

from dpfbo import checks
from dpfbo.checks import SettingError


def fewest_columns(n: int, nu: float, mu: float) -> int:
    """Return the least number r of released columns that Theorem 2 requires for n rows, `r >= 8 ln(n^2 / mu) / nu^2`.

    The module's docstring states the theorem. nu: the relative error of squared distances; mu: the probability of a
    larger error. Raises SettingError for n < 2, nu outside (0, 1/2], or mu outside (0, 1].
    """
    checks.integer("n", n, minimum=2)
    checks.probability("mu", mu)
    if not 0 < nu <= 0.5:
        raise SettingError("nu", f"must lie in (0, 0.5], got {nu!r}")
    return math.ceil(8 * math.log(n**2 / mu) / nu**2)


def stretch(sigma_min: float, w: float, inflation: str = "paper") -> float | None:
    """Return C', the largest factor by which the inflation of singular values stretches a squared distance.

    sigma_min is the smallest singular value of the rows, and w is the threshold. If sigma_min is at least w, nothing is
    inflated, and C' is 1. If sigma_min is below w, every singular value s is inflated. With `inflation="paper"`, s
    becomes sqrt(s^2 + w^2), and C' is `1 + (w / sigma_min)^2`. With `inflation="authors"`, s becomes s + w, and C' is
    `(1 + w / sigma_min)^2`. If sigma_min is 0, C' is unbounded, and the result is None.
    """
    if sigma_min >= w:
        return 1.0
    if sigma_min == 0:
        return None
    return 1 + (w / sigma_min) ** 2 if inflation == "paper" else (1 + w / sigma_min) ** 2


def gp_ucb_regret(beta: float, gain: float, noise: float, steps: int) -> float:
    """Return `sqrt(C1 beta_T gamma_T / T)`, `C1 = 8 / ln(1 + 1 / noise)`, a bound on GP-UCB's simple regret.

    The bound is that of Theorem 1 of Srinivas et al. (2010), divided by T. It is in units of the prior's standard
    deviation, and holds with probability at least 1 - delta' (see `dpfbo.outsourced.modeler`).

    beta: beta_T; gain: gamma_T, the maximal information gain; noise: the variance of the measurement noise divided by
    the variance of the objective; steps: T.
    """
    checks.positive("noise", noise)
    checks.integer("steps", steps, minimum=1)
    return math.sqrt(8 / math.log1p(1 / noise) * beta * gain / steps)
