"""Attacks on a curator by an adversary who must decide which of two neighbouring tables was released.

The adversary knows both tables, all settings and the secret order of released rows. Against `random_projection`, which
releases `Z = X_c W` with the centred rows X_c and a matrix W, the adversary chooses the table whose column space
contains the release. Against transforms that add Gaussian noise to a function of the table, the attack is a likelihood
ratio.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from dpfbo import checks
from dpfbo.audit.bounds import FEWEST, Claim, Verdict, verdict
from dpfbo.audit.release.scores import ColumnSpace, LikelihoodRatio, Silent, in_table_order
from dpfbo.audit.server.target import seeded
from dpfbo.audit.tradeoff import Profile
from dpfbo.outsourced.table import Table
from dpfbo.outsourced.transforms import NORM, Transform, centred, within
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.outsourced.transforms.random_projection import RandomProjection
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.entropy import SystemEntropy

MOVE = 1e-3  # distance that a row moves in the column-space attack, where the longest row has norm 25
FARTHEST = 1.0  # largest distance of neighbours, in the same unit
PUBLISHED = "one row moved by a norm of at most 1 of 25"
_GAP = 1e3  # least ratio of a release's distances from the two column spaces that shows disjoint distributions


@dataclass(frozen=True)
class Attack:
    """Two neighbouring tables, and a score that is larger if the neighbour was released.

    words: how the neighbour differs from the table. table: the curator's table, or a copy with rows scaled down so that
    one row has a larger L2 norm than all others. The neighbour of such a copy differs from the copy in this row.
    """

    words: str
    table: Table
    neighbour: Table
    score: ColumnSpace | LikelihoodRatio

    @property
    def name(self) -> str:
        """The name of the score."""
        return "column space" if isinstance(self.score, ColumnSpace) else "likelihood ratio"


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack on the privacy that is claimed for a release.

    verdict: the field `verdict.without` contains the scores of releases of the table. The field `verdict.with_message`
    contains the scores of releases of the neighbour. disjoint: True if every release lies, up to rounding, in the
    column space of its own table, and its distance from the column space of the other table is over 1000 times the
    distance from its own. If `disjoint` is True, the two distributions do not overlap, and delta is 1 for every
    epsilon.
    """

    attack: Attack
    verdict: Verdict
    disjoint: bool

    @property
    def accuracy(self) -> float:
        """The share of scores with the right sign: negative for the table, positive for its neighbour."""
        signs = np.concatenate([-np.sign(self.verdict.without), np.sign(self.verdict.with_message)])
        return float((1 + signs.mean()) / 2)  # a score of 0 counts half

    @property
    def holds(self) -> bool:
        """True if the attack contradicts none of the claimed (eps, delta) pairs."""
        return self.verdict.holds and not self.disjoint


def claim_of(transform: Transform, table: Table) -> Claim:
    """Return the claim of one release: the accountant's epsilon, or the published one for `random_projection`.

    Raises ValueError for a transform without a guarantee.
    """
    if isinstance(transform, RandomProjection):
        epsilon, delta = transform.epsilon, transform.delta
        profile = Profile(np.array([epsilon]), np.array([delta]))
        return Claim((transform.event(table.public),), AnalyticGaussian(PUBLISHED), delta, epsilon, profile)
    if isinstance(transform, GaussianNoise | Histogram):
        return Claim.of([transform.event(table.public)], AnalyticGaussian(transform.relation), transform.delta)
    raise ValueError(f"an audit needs a transform that claims something, got {type(transform).__name__}")


def attacks(transform: Transform, table: Table, move: float = MOVE) -> list[Attack]:
    """Return the attacks that apply to a transform.

    move: the distance that one row moves in the column-space attack, as a fraction of the largest distance between
    neighbouring tables. Raises ValueError if `move` is outside (0, 1]. With `Histogram` or `GaussianNoise`, also raises
    ValueError if a table and its neighbour have the same release without noise.
    """
    checks.positive("move", move)
    if move > FARTHEST:
        raise ValueError(f"move must be at most {FARTHEST:g}, the distance of neighbours, got {move!r}")
    if isinstance(transform, Histogram):
        return [_likelihood(transform, table, _mirrored(table), "longest row mirrored")]
    # in this unit, neighbours are 1 apart; it follows from the longest row, as published, or from the public box alone
    unit = transform.scale(table) if isinstance(transform, RandomProjection) else NORM / table.public.radius
    words, near = f"row moved by {move:g}", _moved(table, move / unit)
    bases = [torch.linalg.qr(centred(t.rows)).Q for t in (table, near)]
    found = [Attack(words, table, near, ColumnSpace(bases))]
    if isinstance(transform, GaussianNoise):
        _likelihood(transform, table, near, words)  # raises if both have the same noiseless release
        far, (longest, shortened) = _moved(table, FARTHEST / unit), _longest_row_pair(table, FARTHEST / unit)
        found.append(_likelihood(transform, table, far, f"row moved by {FARTHEST:g}"))
        found.append(_likelihood(transform, longest, shortened, f"longest row shortened by {FARTHEST:g}"))
    return found


def told_apart(
    transform: Transform, attack: Attack, trials: int, seed: int = 0, system: bool = False,
    on_trial: Callable[[], None] = lambda: None,
) -> AttackResult:  # fmt: skip
    """Release both tables of an attack `trials` times, and compute a lower bound on epsilon from the scores.

    system: True for randomness from the operating system instead of a seed. on_trial: called after every trial, which
    releases each table once. Raises ValueError for fewer than 20 trials or a transform without a guarantee.
    """
    checks.integer("trials", trials, minimum=FEWEST)
    claim, scores, score, contained = claim_of(transform, attack.table), np.zeros((2, trials)), attack.score, True
    with torch.inference_mode():
        for trial in range(trials):
            for world, released in enumerate((attack.table, attack.neighbour)):
                label = ("outsourced", attack.name, attack.words, seed, 0, world, trial)
                values = in_table_order(*transform.release(released, SystemEntropy() if system else seeded(*label)))
                scores[world, trial] = score(values)
                contained = contained and isinstance(score, ColumnSpace) and score.contains(values, world)
            on_trial()
    without, with_message = scores
    disjoint = contained and bool(min(-without.max(), with_message.min()) > math.log(_GAP))
    return AttackResult(attack, verdict(without, with_message, claim), disjoint)


def _likelihood(transform: GaussianNoise | Histogram, table: Table, neighbour: Table, words: str) -> Attack:
    silent = replace(transform, noise=Silent())
    own, other = (in_table_order(*silent.release(t, SystemEntropy())) for t in (table, neighbour))
    if torch.equal(own, other):
        raise ValueError(
            f"an audit needs a neighbour with another release, got the same one, up to noise, with the {words}: "
            "do all rows lie outside the public box?"
        )
    return Attack(words, table, neighbour, LikelihoodRatio(own, other, transform.sigma(table.public)))


def _moved(table: Table, distance: float) -> Table:
    """Return the table with its most central row moved along the longest axis of the public box."""
    which = int(table.rows.square().sum(1).argmin())
    axis = max(range(len(table.names)), key=lambda k: table.upper[k] - table.lower[k])
    rows = table.rows.clone()
    rows[which, axis] -= math.copysign(distance, float(rows[which, axis]))
    return replace(table, rows=rows)


def _longest_row_pair(table: Table, distance: float) -> tuple[Table, Table]:
    """Return two neighbouring tables; the row of largest norm in the first table is scaled down in the second."""
    lengths = table.rows.norm(dim=1)
    inside = (within(table.rows, table.public)[0] == table.rows).all(1)
    which = int(torch.where(inside, lengths, -1.0).argmax())
    longest = float(lengths[which])
    reach = max(longest - distance, longest / 2)
    rows = table.rows * (reach / lengths.clamp(min=reach))[:, None]
    shortened = replace(table, rows=rows.clone())
    rows[which] = table.rows[which]
    return replace(table, rows=rows), shortened


def _mirrored(table: Table) -> Table:
    """Return the table with its row of largest norm mirrored at the centre of the public box."""
    which = int(table.rows.square().sum(1).argmax())
    rows = table.rows.clone()
    rows[which] = torch.tensor([table.lower, table.upper], dtype=rows.dtype).sum(0) - rows[which]
    return replace(table, rows=rows)
