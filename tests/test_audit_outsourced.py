"""Attacks on an outsourced release: certain on the published transform, bounded on the private ones, and no worse than
they should be where something is wrong."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpfbo.accounting.analytic_gaussian import noise_multiplier
from dpfbo.audit import reconstruction
from dpfbo.audit.bounds import verdict
from dpfbo.audit.outsourced import Silent, attacks, claim_of, most_shown, told_apart
from dpfbo.audit.target import seeded
from dpfbo.noise import Gaussian
from dpfbo.outsourced.gaussian import GaussianNoise
from dpfbo.outsourced.histogram import Histogram
from dpfbo.outsourced.plain import Plain
from dpfbo.outsourced.random_projection import RandomProjection
from dpfbo.outsourced.table import Table
from runners import audit

EPSILON, DELTA = math.exp(1.1), 1e-5


def table(n=200, d=2, seed=0):
    draw = np.random.Generator(np.random.PCG64(seed)).uniform(-1, 1, (n, d))
    rows = torch.from_numpy(draw) * torch.tensor([4.0, 3.0, 2.0])[:d]
    box = (4.0, 3.0, 2.0)[:d]
    names = ("a", "b", "c")[:d]
    return Table(rows, rows, torch.zeros(n, dtype=torch.float64), names, tuple(-b for b in box), box)


def told(transform, trials, name=None, **more):
    found = {a.name: a for a in attacks(transform, table())}
    return told_apart(transform, table(), found[name] if name else next(iter(found.values())), trials, **more)


class TestRandomProjection:
    @pytest.mark.parametrize("inflation", ["paper", "authors"])
    @pytest.mark.parametrize(("r", "epsilon"), [(1, EPSILON), (3, EPSILON), (10, EPSILON), (3, 1e3)])
    def test_every_release_gives_its_table_away(self, r, epsilon, inflation):
        """At epsilon 1000 the singular values are large enough, else they are raised."""
        transform, rows = RandomProjection(r, epsilon, DELTA, inflation), table()
        for move in (1e-6, 1e-3, 1.0):
            (attack,) = attacks(transform, rows, move)
            found = told_apart(transform, rows, attack, 20)
            assert found.accuracy == 1.0 and found.disjoint and not found.holds

    def test_bound_exceeds_the_published_epsilon(self):
        found = told(RandomProjection(3, EPSILON, DELTA), 400).verdict
        assert found.epsilon > EPSILON == found.claim.epsilon
        assert not found.holds and found.broken == (EPSILON, DELTA)

    def test_has_nothing_to_go_by_where_all_tables_share_one_column_space(self):
        """n = d + 1 centred rows span all centred vectors: the attack is not one on every n."""
        rows = table(n=3)
        (attack,) = attacks(RandomProjection(3, EPSILON, DELTA), rows)
        found = told_apart(RandomProjection(3, EPSILON, DELTA), rows, attack, 200)
        assert found.holds and not found.disjoint

    @pytest.mark.parametrize("epsilon", [EPSILON, 1e3])
    @pytest.mark.parametrize("d", [2, 3])
    def test_few_rows_give_all_others(self, d, epsilon):
        rows, transform = table(d=d), RandomProjection(d + 2, epsilon, DELTA)
        truth = transform.scale(rows) * rows.rows
        values = transform.release(rows, seeded("rows", d)).values
        found = reconstruction.from_known_rows(values, truth)
        assert len(found.known) == d + 1 and found.largest < 1e-10
        assert float(truth.norm(dim=1).max()) == pytest.approx(25)
        assert reconstruction.best_affine(values, truth).largest < 1e-10
        assert reconstruction.blind(truth).rms > 5

    def test_rows_stay_unknown_in_directions_that_are_not_released(self):
        rows, transform = table(d=3), RandomProjection(1, EPSILON, DELTA)
        truth = transform.scale(rows) * rows.rows
        values = transform.release(rows, seeded("one")).values
        assert 1 < reconstruction.best_affine(values, truth).rms < reconstruction.from_known_rows(values, truth).rms


class TestGaussian:
    def test_column_space_says_nothing(self):
        found = told(GaussianNoise(EPSILON, DELTA), 400, "column space")
        assert found.accuracy == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 800))
        assert found.holds and found.verdict.epsilon == 0

    @pytest.mark.parametrize("epsilon", [1.0, EPSILON, 20.0])
    def test_likelihood_ratio_is_optimal_and_stays_below_the_claim(self, epsilon):
        """Accuracy Phi(mu / 2) of the best test of N(0, 1) against N(mu, 1); the bounds have power."""
        found = told(GaussianNoise(epsilon, DELTA), 2000, "likelihood ratio")
        best = norm.cdf(1 / noise_multiplier(epsilon, DELTA) / 2)
        assert found.accuracy == pytest.approx(best, abs=4 * math.sqrt(best * (1 - best) / 4000))
        assert found.holds and 0.1 * epsilon < found.verdict.fit_epsilon < found.verdict.claim.epsilon

    def test_rows_are_no_better_known_than_the_noise_allows(self):
        rows, transform = table(), GaussianNoise(EPSILON, DELTA)
        truth, sigma = transform.scale(rows) * rows.rows, transform.sigma(rows.public)
        values = transform.release(rows, seeded("rows")).values
        # the best affine map shrinks towards the mean: 1 / (1 / sigma^2 + 1 / variance) of each coordinate
        share = (truth.var(0) / (truth.var(0) + sigma**2)).mean().sqrt()
        best = reconstruction.best_affine(values, truth)
        assert best.per_sigma(sigma) == pytest.approx(float(share), abs=4 * math.sqrt(0.5 / (2 * len(truth))))
        assert reconstruction.from_known_rows(values, truth).rms > best.rms


def test_histogram_counts_differ_in_two_cells_and_hold():
    transform = Histogram(EPSILON, DELTA)
    (attack,) = attacks(transform, table())
    apart = attack.score.other - attack.score.own
    assert sorted(apart[apart != 0].tolist()) == [-1.0, 1.0]
    found = told_apart(transform, table(), attack, 2000)
    best = norm.cdf(1 / noise_multiplier(EPSILON, DELTA) / 2)
    assert found.accuracy == pytest.approx(best, abs=4 * math.sqrt(best * (1 - best) / 4000))
    assert found.holds and found.verdict.fit_epsilon > 0.3 * EPSILON


@dataclass(frozen=True)
class Less(Gaussian):
    """Noise of another size than it is told."""

    factor: float = 0.5

    def add(self, total, sigma, sensitivity, entropy, round):
        return super().add(total, self.factor * sigma, sensitivity, entropy, round)


class HalfSensitivity(GaussianNoise):
    def sigma(self, public):
        return super().sigma(public) / 2


class Classic(GaussianNoise):
    """`sqrt(2 ln(1.25 / delta)) / eps`, which is proved for eps <= 1 and too small at 20."""

    def sigma(self, public):
        return math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon


class ScaledByData(GaussianNoise):
    """The longest row is taken to norm 25, in a table that fills a part of the public box only."""

    def release(self, table, entropy):
        return super().release(replace(table, rows=table.rows * 2), entropy)


class OneCell(Histogram):
    """Calibrated as if one count changed, not two."""

    def sigma(self, public):
        return super().sigma(public) / math.sqrt(2)


@pytest.mark.parametrize(
    "faulty",
    [
        GaussianNoise(EPSILON, DELTA, Less()), GaussianNoise(EPSILON, DELTA, Silent()), HalfSensitivity(1.0, DELTA),
        HalfSensitivity(EPSILON, DELTA), Classic(20.0, DELTA), ScaledByData(EPSILON, DELTA),
        Histogram(EPSILON, DELTA, noise=Less()), OneCell(EPSILON, DELTA),
    ],
    ids=lambda t: f"{type(t).__name__} {type(t.noise).__name__} {t.epsilon:.0f}",
)  # fmt: skip
def test_planted_faults_are_found(faulty):
    found = told(faulty, 2500, "likelihood ratio")
    assert not found.holds
    assert found.verdict.fit_epsilon > found.verdict.claim.epsilon


def test_no_noise_at_all_is_told_from_little_noise_in_the_column_space():
    assert told(GaussianNoise(EPSILON, DELTA, Silent()), 20, "column space").disjoint
    little = told(GaussianNoise(EPSILON, DELTA, Less(factor=1e-9)), 20, "column space")
    assert little.accuracy == 1.0 and not little.disjoint


def test_neighbours_differ_in_one_row_that_neither_box_nor_scale_notices():
    rows, transform = table(), GaussianNoise(EPSILON, DELTA)
    for attack, distance in zip(attacks(transform, rows, 0.01), (0.01, 1.0), strict=True):
        moved = (attack.neighbour.rows - rows.rows).norm(dim=1) * transform.scale(rows)
        assert float(moved.max()) == pytest.approx(distance) and int((moved > 0).sum()) == 1
        assert transform.release(attack.neighbour, seeded(0)).n_clipped == 0
        assert RandomProjection(3, 1.0, DELTA).scale(attack.neighbour) == RandomProjection(3, 1.0, DELTA).scale(rows)


def test_repetitions_and_seeds_have_randomness_of_their_own():
    transform = GaussianNoise(EPSILON, DELTA)
    first, again = (told(transform, 20, "likelihood ratio", seed=1) for _ in range(2))
    assert (first.without == again.without).all() and (first.with_message == again.with_message).all()
    for more in ({"seed": 2}, {"seed": 1, "repetition": 1}, {"seed": 1, "system": True}):
        assert not set(first.without) & set(told(transform, 20, "likelihood ratio", **more).without)


@pytest.mark.parametrize("transform", [RandomProjection(2, 1.0, DELTA), GaussianNoise(1.0, DELTA)])
def test_most_shown_is_the_bound_of_a_test_without_errors(transform):
    claim = claim_of(transform, table())
    for trials in (20, 41, 400):
        found = verdict(np.full(trials, -1.0), np.full(trials, 1.0), claim)
        assert found.epsilon == pytest.approx(most_shown(claim, trials))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: attacks(GaussianNoise(1.0, DELTA), table(), 0.0), "move must be a finite number above 0, got 0.0"),
        (lambda: attacks(GaussianNoise(1.0, DELTA), table(), 1.5), "move must be at most 1, as far as neighbours"),
        (lambda: told(GaussianNoise(1.0, DELTA), 5), "trials must be an integer of at least 20, got 5"),
        (lambda: claim_of(Plain(), table()), "needs a transform that claims something, got Plain"),
    ],
)
def test_bad_input_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


class TestCommand:
    @staticmethod
    def run(folder, *more):
        return audit.main([*more, "problem.side_points=20", "--out", str(folder)])

    def test_published_transform_violates_its_claim(self, tmp_path, capsys):
        assert self.run(tmp_path, "transform=random_projection") == 3
        text = capsys.readouterr().out
        for words in ("VIOLATED", "100.0%", "not a guarantee when n > d + 1", "d + 1 rows known", "does NOT hold"):
            assert words in text
        found = json.loads((tmp_path / "audit.json").read_text())
        assert (found["algorithm"], found["sound"], found["sigma"]) == ("po_gp_ucb", False, 0.0)
        (attack,) = found["told_apart"]
        assert attack["accuracy"] == 1.0 and attack["bound"] > found["claimed_epsilon"] and attack["disjoint"]
        few = found["reconstruction"][0]
        assert few["largest_error"] < 1e-9 and len(few["known_rows"]) == 3
        assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")

    def test_private_transforms_hold_theirs(self, tmp_path, capsys):
        arguments = ["transform=gaussian", "--trials", "60", "--repetitions", "2", "--move", "0.5", "--json"]
        assert self.run(tmp_path, *arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == json.loads((tmp_path / "audit.json").read_text())
        assert [t["attack"] for t in found["told_apart"]] == ["column space"] * 2 + ["likelihood ratio"] * 2
        assert found["told_apart"][0]["neighbour"] == "row moved by 0.5"
        assert found["reconstruction"][0]["in_sigma"] > 0.5
        assert self.run(tmp_path / "h", "transform=histogram", "--trials", "20") == 0
        text = capsys.readouterr().out
        assert "no row is released" in text and "nothing found" in text

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["transform=none"], "algorithm=gp_ucb claims no privacy: there is nothing to audit"),
            (["transform=cover"], "algorithm=cover_gp_ucb releases nothing of the table: there is nothing to audit"),
            (["transform=gaussian", "--move", "2"], "move must be at most 1"),
            (["transform=gaussian", "--rounds", "2"], "--rounds has no effect on an outsourced table"),
            (["transform=gaussian", "--others", "random"], "--others has no effect on an outsourced table"),
            (["transform=gaussian", "--trials", "0"], "--trials must be at least 20 for an outsourced table, got 0"),
        ],
    )
    def test_bad_input_is_one_sentence(self, arguments, says, tmp_path, capsys):
        assert self.run(tmp_path / "out", *arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
        assert says in captured.err and not (tmp_path / "out").exists()

    def test_a_move_needs_a_table(self, tmp_path, capsys):
        assert audit.main(["--move", "0.1", "--out", str(tmp_path / "out")]) == 1
        assert "--move needs an outsourced table such as algorithm=po_gp_ucb, got 0.1" in capsys.readouterr().err
