"""Two neighbouring tables, one of them released: attacks on a curator that say which.

The adversary knows both tables and all settings. Column space: `random_projection` releases `Z = X_c W` for some W, so
that Z lies in the column space of the rows, which a neighbour does not share. Likelihood ratio: noise on a statistic
that both tables give exactly. The released values are those of the transform's own `release`, with randomness of its
own in every trial; bounds from the scores (`dpfbo.audit.bounds`) are valid whatever a release does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.audit.bounds import FEWEST, Claim, Verdict, verdict
from dpfbo.audit.target import seeded
from dpfbo.audit.tradeoff import Profile
from dpfbo.entropy import Entropy, SystemEntropy
from dpfbo.outsourced import Transform, centred
from dpfbo.outsourced.gaussian import GaussianNoise
from dpfbo.outsourced.histogram import Histogram
from dpfbo.outsourced.random_projection import RandomProjection
from dpfbo.outsourced.table import Table

MOVE = 1e-3  # of a row in the column-space test, where the longest row has norm 25
FARTHEST = 1.0  # that neighbours are apart
PUBLISHED = "one row moved by a norm of at most 1 of 25"
_ROUNDING = 1e-10  # of a release's norm
_GAP = 1e3
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class ColumnSpace:
    """`log |Z - Q Q^T Z| - log |Z - Q' Q'^T Z|`: above 0 where Z fits the neighbour's column space better.

    own, other: orthonormal bases of the centred columns of the table and of its neighbour, n x d (a thin QR). The
    scale that the curator chose is of no consequence: it does not change a column space.
    """

    own: Tensor
    other: Tensor

    @staticmethod
    def of(rows: Tensor, neighbour: Tensor) -> "ColumnSpace":
        own, other = (torch.linalg.qr(centred(r)).Q for r in (rows, neighbour))
        return ColumnSpace(own, other)

    def __call__(self, values: Tensor) -> float:
        own, other = (max(_outside(values, Q), _TINY) for Q in (self.own, self.other))
        return math.log(own) - math.log(other)

    def contains(self, values: Tensor, neighbours: bool) -> bool:
        """Whether a release lies in the table's column space, or in the neighbour's, up to rounding."""
        return _outside(values, self.other if neighbours else self.own) <= _ROUNDING * float(values.norm())


@dataclass(frozen=True)
class LikelihoodRatio:
    """`<z - (m + m') / 2, m' - m> / sigma^2`, the optimal score where Gaussian noise is added to m, or to m'.

    own, other: what the table and its neighbour would release without noise, both of one shape.
    """

    own: Tensor
    other: Tensor
    sigma: float

    def __call__(self, values: Tensor) -> float:
        middle, apart = (self.own + self.other) / 2, self.other - self.own
        return float(((values - middle) * apart).sum()) / self.sigma**2


@dataclass(frozen=True)
class Attack:
    """A neighbour of the released table, and a score that is larger where that was released instead."""

    name: str
    words: str
    neighbour: Table
    score: Callable[[Tensor], float]


@dataclass(frozen=True)
class Told:
    """How well an attack tells the two tables apart. without, with_message: scores where the table, or the neighbour,
    was released. within: every release lay in the column space of its own table, up to rounding."""

    attack: Attack
    without: np.ndarray
    with_message: np.ndarray
    within: bool
    verdict: Verdict

    @property
    def accuracy(self) -> float:
        """Share of the releases for which the sign of the score is right."""
        signs = np.concatenate([-np.sign(self.without), np.sign(self.with_message)])
        return float((1 + signs.mean()) / 2)  # a score of 0 is right half of the time

    @property
    def disjoint(self) -> bool:
        """Whether every release lay in the column space of its own table, up to rounding, and a thousand times farther
        outside the other's: then their laws share nothing, and delta is 1 for every epsilon."""
        return self.within and bool(min(-self.without.max(), self.with_message.min()) > math.log(_GAP))

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the claim."""
        return self.verdict.holds and not self.disjoint


class Silent:
    """No noise at all: what a transform would release without."""

    def check(self, sigma: float, sensitivity: float) -> None:
        pass

    def inflation(self, size: int) -> float:
        return 1.0

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total


def claim_of(transform: Transform, table: Table) -> Claim:
    """What the transform claims of one release: by the accountant of what it is charged at, or what was published.

    Raises ValueError for one that claims nothing.
    """
    if isinstance(transform, RandomProjection):
        epsilon, delta = transform.epsilon, transform.delta
        profile = Profile(np.array([epsilon]), np.array([delta]))
        return Claim((transform.event(table.public),), AnalyticGaussian(PUBLISHED), delta, epsilon, profile, None)
    if isinstance(transform, GaussianNoise | Histogram):
        return Claim.of([transform.event(table.public)], AnalyticGaussian(transform.relation), transform.delta)
    raise ValueError(f"an audit needs a transform that claims something, got {type(transform).__name__}")


def attacks(transform: Transform, table: Table, move: float = MOVE) -> list[Attack]:
    """What can be tried on a transform. move: how far a row moves in the column-space test, of 25.

    Raises ValueError for a move that is not above 0 or farther than neighbours are apart.
    """
    checks.positive("move", move)
    if move > FARTHEST:
        raise ValueError(f"move must be at most {FARTHEST:g}, as far as neighbours are apart, got {move!r}")
    found = []
    if not isinstance(transform, Histogram):
        near = _moved(table, move / transform.scale(table))
        words = f"row moved by {move:g}"
        found.append(Attack("column space", words, near, ColumnSpace.of(table.rows, near.rows)))
    if isinstance(transform, GaussianNoise):
        far = _moved(table, FARTHEST / transform.scale(table))
        found.append(_likelihood(transform, table, far, f"row moved by {FARTHEST:g}"))
    if isinstance(transform, Histogram):
        found.append(_likelihood(transform, table, _mirrored(table), "row mirrored"))
    return found


def told_apart(
    transform: Transform,
    table: Table,
    attack: Attack,
    trials: int,
    seed: int = 0,
    repetition: int = 0,
    confidence: float = 0.95,
    system: bool = False,
    on_trial: Callable[[], None] = lambda: None,
) -> Told:
    """Release the table and its neighbour `trials` times each and bound epsilon from below by the attack's scores.

    system: randomness from the operating system instead of a seed. on_trial: called after each trial of both.

    Raises ValueError for fewer than 20 trials or a transform that claims nothing.
    """
    checks.integer("trials", trials, minimum=FEWEST)
    claim, scores = claim_of(transform, table), np.zeros((2, trials))
    within = isinstance(attack.score, ColumnSpace)
    with torch.inference_mode():
        for trial in range(trials):
            for world, released in enumerate((table, attack.neighbour)):
                label = ("outsourced", attack.name, seed, repetition, world, trial)
                values = transform.release(released, SystemEntropy() if system else seeded(*label)).values
                scores[world, trial] = attack.score(values)
                within = within and attack.score.contains(values, world == 1)  # type: ignore[attr-defined]
            on_trial()
    without, with_message = scores
    return Told(attack, without, with_message, within, verdict(without, with_message, claim, confidence))


def most_shown(claim: Claim, trials: int, confidence: float = 0.95) -> float:
    """The largest lower bound of epsilon that so many trials of each table can give: that of a test without errors."""
    error = (1 - confidence) / (2 if claim.family is None else 4)
    rate = 1 - error ** (1 / (trials - trials // 2))
    return max(0.0, math.log(max(1 - claim.delta - rate, _TINY) / rate))


def _outside(values: Tensor, Q: Tensor) -> float:
    """Norm of what lies outside the column space of an orthonormal basis."""
    Z = centred(values)
    return float((Z - Q @ (Q.T @ Z)).norm())


def _likelihood(transform: GaussianNoise | Histogram, table: Table, neighbour: Table, words: str) -> Attack:
    silent = replace(transform, noise=Silent())
    own, other = (silent.release(t, SystemEntropy()).values for t in (table, neighbour))
    score = LikelihoodRatio(own, other, transform.sigma(table.public))
    return Attack("likelihood ratio", words, neighbour, score)


def _moved(table: Table, distance: float) -> Table:
    """The same table with its most central row moved along the public box's longest axis, across the centre: neither
    the box nor the longest row notices, so that nothing but the move differs."""
    which = int(table.rows.square().sum(1).argmin())
    axis = max(range(len(table.names)), key=lambda k: table.upper[k] - table.lower[k])
    rows = table.rows.clone()
    rows[which, axis] -= math.copysign(distance, float(rows[which, axis]))
    return replace(table, rows=rows)


def _mirrored(table: Table) -> Table:
    """The same table with its longest row mirrored at the centre of the public box: in another cell."""
    which = int(table.rows.square().sum(1).argmax())
    rows = table.rows.clone()
    centre = torch.tensor([table.lower, table.upper], dtype=rows.dtype).mean(0)
    rows[which] = 2 * centre - rows[which]
    return replace(table, rows=rows)
