"""Attacks on an outsourced release: certain on the published transform, bounded on private ones, strong on faults."""

import json
import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, norm, spearmanr

from dpfbo.audit.bounds import most_shown, verdict
from dpfbo.audit.findings import ClaimBroken
from dpfbo.audit.release.checks import examine, row_order
from dpfbo.audit.release.reconstruction import reconstructions
from dpfbo.audit.release.scores import Silent, in_table_order
from dpfbo.audit.release.two_tables import attacks, claim_of, told_apart
from dpfbo.audit.server.target import seeded
from dpfbo.outsourced.table import Table
from dpfbo.outsourced.transforms import NORM
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.outsourced.transforms.plain import Plain
from dpfbo.outsourced.transforms.random_projection import RandomProjection
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.noise import Gaussian
from runners.audit import command

EPSILON, DELTA = math.exp(1.1), 1e-5
MOVED, LONGEST = "row moved by 1", "longest row shortened by 1"


def table(n=200, d=2, seed=0):
    draw = np.random.Generator(np.random.PCG64(seed)).uniform(-1, 1, (n, d))
    rows = torch.from_numpy(draw) * torch.tensor([4.0, 3.0, 2.0])[:d]
    box = (4.0, 3.0, 2.0)[:d]
    names = ("a", "b", "c")[:d]
    return Table(rows, rows, torch.zeros(n, dtype=torch.float64), names, tuple(-b for b in box), box)


def attack_result(transform, trials, name=None, **more):
    """The result of the attack with this name or neighbour, else of the first attack."""
    found = [a for a in attacks(transform, table()) if name in (None, a.name, a.words)]
    return told_apart(transform, found[0], trials, **more)


class TestRandomProjection:
    @pytest.mark.parametrize("inflation", ["paper", "authors"])
    @pytest.mark.parametrize(("r", "epsilon"), [(1, EPSILON), (3, EPSILON), (10, EPSILON), (3, 1e3)])
    def test_every_release_gives_its_table_away(self, r, epsilon, inflation):
        """Singular values are raised, except at epsilon 1000, where they are large enough."""
        transform, rows = RandomProjection(r, epsilon, DELTA, inflation), table()
        for move in (1e-6, 1e-3, 1.0):
            (attack,) = attacks(transform, rows, move)
            found = told_apart(transform, attack, 20)
            assert found.accuracy == 1.0 and found.disjoint and not found.holds

    def test_bound_exceeds_the_published_epsilon(self):
        found = attack_result(RandomProjection(3, EPSILON, DELTA), 400).verdict
        assert found.epsilon > EPSILON == found.claim.epsilon
        assert not found.holds and found.broken == (EPSILON, DELTA)

    def test_has_nothing_to_go_by_where_all_tables_share_one_column_space(self):
        """The attack needs n > d + 1: n = d + 1 centred rows span all centred vectors."""
        rows = table(n=3)
        (attack,) = attacks(RandomProjection(3, EPSILON, DELTA), rows)
        found = told_apart(RandomProjection(3, EPSILON, DELTA), attack, 200)
        assert found.holds and not found.disjoint

    @pytest.mark.parametrize("epsilon", [EPSILON, 1e3])
    @pytest.mark.parametrize("d", [2, 3])
    def test_few_rows_give_all_others(self, d, epsilon):
        rows, transform = table(d=d), RandomProjection(d + 2, epsilon, DELTA)
        truth = transform.scale(rows) * rows.rows
        values = transform.release(rows, seeded("rows", d))[0].values
        found, best, blind = reconstructions(values, truth)
        assert len(found.known) == d + 1 and found.largest < 1e-10
        assert float(truth.norm(dim=1).max()) == pytest.approx(25)
        assert best.largest < 1e-10 and blind.rms > 5

    def test_rows_stay_unknown_in_directions_that_are_not_released(self):
        rows, transform = table(d=3), RandomProjection(1, EPSILON, DELTA)
        truth = transform.scale(rows) * rows.rows
        values = transform.release(rows, seeded("one"))[0].values
        found, best, _ = reconstructions(values, truth)
        assert 1 < best.rms < found.rms


class TestGaussian:
    def test_column_space_says_nothing(self):
        found = attack_result(GaussianNoise(EPSILON, DELTA), 400, "column space")
        assert found.accuracy == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 800))
        assert found.holds and found.verdict.epsilon == 0

    @pytest.mark.parametrize(("epsilon", "neighbour"), [(1.0, MOVED), (EPSILON, LONGEST), (20.0, MOVED)])
    def test_likelihood_ratio_is_optimal_and_stays_below_the_claim(self, epsilon, neighbour):
        """The best test of N(0, 1) against N(mu, 1) has accuracy Phi(mu / 2); the bounds have power."""
        found = attack_result(GaussianNoise(epsilon, DELTA), 2000, neighbour)
        best = norm.cdf(1 / noise_multiplier(epsilon, DELTA) / 2)
        assert found.accuracy == pytest.approx(best, abs=4 * math.sqrt(best * (1 - best) / 4000))
        assert found.holds and 0 < found.verdict.epsilon < found.verdict.claim.epsilon

    def test_rows_are_no_better_known_than_the_noise_allows(self):
        rows, transform = table(), GaussianNoise(EPSILON, DELTA)
        truth, sigma = transform.scale(rows) * rows.rows, transform.sigma(rows.public)
        values = in_table_order(*transform.release(rows, seeded("rows")))
        # the best affine map shrinks towards the mean: 1 / (1 / sigma^2 + 1 / variance) of each coordinate
        share = (truth.var(0) / (truth.var(0) + sigma**2)).mean().sqrt()
        found, best, _ = reconstructions(values, truth)
        assert best.per_sigma(sigma) == pytest.approx(float(share), abs=4 * math.sqrt(0.5 / (2 * len(truth))))
        assert found.rms > best.rms


def test_histogram_counts_differ_in_two_cells_and_hold():
    transform = Histogram(EPSILON, DELTA)
    (attack,) = attacks(transform, table())
    apart = attack.score.other - attack.score.own
    assert sorted(apart[apart != 0].tolist()) == [-1.0, 1.0]
    found = told_apart(transform, attack, 2000)
    best = norm.cdf(1 / noise_multiplier(EPSILON, DELTA) / 2)
    assert found.accuracy == pytest.approx(best, abs=4 * math.sqrt(best * (1 - best) / 4000))
    assert found.holds and 0.1 * EPSILON < found.verdict.epsilon < EPSILON


@dataclass(frozen=True)
class Less(Gaussian):
    """Noise of `factor` times the stated sigma."""

    factor: float = 0.5

    def add(self, total, sigma, sensitivity, entropy, round):
        return super().add(total, self.factor * sigma, sensitivity, entropy, round)


class HalfSensitivity(GaussianNoise):
    def sigma(self, public):
        return super().sigma(public) / 2


class Classic(GaussianNoise):
    """Noise of sigma `sqrt(2 ln(1.25 / delta)) / eps`, which is proved for eps <= 1 and too small at 20."""

    def sigma(self, public):
        return math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon


class ScaledByData(GaussianNoise):
    """Rows are scaled so that the longest has norm 25, not by the public box."""

    def scale(self, table):
        return NORM / float(table.rows.norm(dim=1).max())


class Enlarged(GaussianNoise):
    """Rows are scaled by twice the public factor that the sensitivity assumes."""

    def scale(self, table):
        return 2 * super().scale(table)


class OneCell(Histogram):
    """Noise is calibrated to a change of one count, not of two."""

    def sigma(self, public):
        return super().sigma(public) / math.sqrt(2)


@pytest.mark.parametrize(
    ("faulty", "neighbour"),
    [
        (GaussianNoise(EPSILON, DELTA, Less()), MOVED), (GaussianNoise(EPSILON, DELTA, Silent()), MOVED),
        (HalfSensitivity(1.0, DELTA), LONGEST), (HalfSensitivity(EPSILON, DELTA), MOVED), (Classic(20.0, DELTA), MOVED),
        (ScaledByData(EPSILON, DELTA), LONGEST), (Enlarged(EPSILON, DELTA), MOVED),
        (Histogram(EPSILON, DELTA, noise=Less()), None), (OneCell(EPSILON, DELTA), None),
    ],
    ids=lambda t: f"{type(t).__name__} {type(t.noise).__name__} {t.epsilon:.0f}" if hasattr(t, "noise") else "",
)  # fmt: skip
def test_planted_faults_are_found(faulty, neighbour):
    found = attack_result(faulty, 2500, neighbour)
    assert not found.holds


def test_a_scale_of_the_longest_row_is_found_even_where_several_are_as_long():
    """A grid's corners all have one norm, so that no single row of the table itself changes the maximum."""
    corners = torch.tensor([[a * 4.0, b * 3.0] for a in (-1, 1) for b in (-1, 1)], dtype=torch.float64)
    rows = table()
    rows = replace(rows, rows=torch.cat([corners, rows.rows[4:]]))
    for transform, holds in ((ScaledByData(EPSILON, DELTA), False), (GaussianNoise(EPSILON, DELTA), True)):
        attack = attacks(transform, rows)[-1]
        assert attack.words == LONGEST and told_apart(transform, attack, 1000).holds == holds


def released(table, transform, n, label="order"):
    return [transform.release(table, seeded(label, k)) for k in range(n)]


class OneRowBare(GaussianNoise):
    """Row 7 of the table gets no noise."""

    def release(self, table, entropy):
        release, private = super().release(table, entropy)
        values = in_table_order(release, private)
        values[7] = table.rows[7] * self.scale(table)
        return replace(release, values=values[list(private.order)]), private


def reordered(release, private, order):
    """The same release with row order[i] of the table in place i."""
    return replace(release, values=in_table_order(release, private)[order]), replace(private, order=order)


def in_place(release, private):
    return replace(release, values=in_table_order(release, private)), replace(private, order=None)


class InOrder(GaussianNoise):
    """Rows are released in the order of the table."""

    def release(self, table, entropy):
        return in_place(*super().release(table, entropy))


class Turned(GaussianNoise):
    """Rows are released in the order of the table, shifted by 50 in every release."""

    def release(self, table, entropy):
        return reordered(*super().release(table, entropy), [*range(50, len(table.rows)), *range(50)])


class Sorted(GaussianNoise):
    """Rows are sorted by their released first feature, so that every release has another order."""

    def release(self, table, entropy):
        release, private = super().release(table, entropy)
        places = release.values[:, 0].argsort().tolist()
        return reordered(release, private, [private.order[i] for i in places])


class _OneStream:
    """The order's uniforms are those of the noise."""

    reproducible = True

    def __init__(self, real):
        self.real = real

    def uniform(self, purpose, round, size):
        return self.real.uniform("noise", round, size)


class OrderOfTheNoise(GaussianNoise):
    """Rows are ordered by the uniforms that the noise is made of."""

    def release(self, table, entropy):
        return super().release(table, _OneStream(entropy))


class TestChecks:
    @pytest.mark.parametrize("n", [3, 200])
    def test_sound_transforms_pass(self, n):
        for transform, names in (
            (GaussianNoise(EPSILON, DELTA), ["noise in every entry", "row order"]),
            (Histogram(EPSILON, DELTA, cells=4), ["noise in every entry"]),
            (RandomProjection(2, EPSILON, DELTA), []),
        ):
            for seed in range(5):
                found = examine(transform, table(n), seed)
                assert [f.check for f in found] == names and all(f.holds for f in found)
        assert all(f.holds for f in examine(GaussianNoise(EPSILON, DELTA), table(n), system=True))

    @pytest.mark.parametrize(
        ("faulty", "check", "words"),
        [
            (OneRowBare(EPSILON, DELTA), "noise in every entry", "0.00 to"),
            (GaussianNoise(EPSILON, DELTA, Silent()), "noise in every entry", "0.00 to 0.00 sigma"),
            (GaussianNoise(EPSILON, DELTA, Less(factor=0.1)), "noise in every entry", "0.0"),
            (GaussianNoise(EPSILON, DELTA, Less(factor=10.0)), "noise in every entry", "sigma"),
            (Histogram(EPSILON, DELTA, noise=Silent()), "noise in every entry", "0.00 to 0.00 sigma"),
            (InOrder(EPSILON, DELTA), "row order", "in one order, that of the table"),
            (Turned(EPSILON, DELTA), "row order", "in one order"),
            (Sorted(EPSILON, DELTA), "row order", "standard errors"),
            (OrderOfTheNoise(EPSILON, DELTA), "row order", "standard errors"),
        ],
        ids=lambda t: type(t).__name__ if hasattr(t, "noise") else "",
    )
    def test_planted_faults_are_found(self, faulty, check, words):
        failed = [f for f in examine(faulty, table()) if not f.holds]
        assert [f.check for f in failed] == [check] and words in failed[0].words

    def test_an_order_that_leaves_rows_out_is_found(self):
        release, private = GaussianNoise(EPSILON, DELTA).release(table(), seeded(0))
        with pytest.raises(ClaimBroken, match="no permutation"):
            row_order([(release, private), (release, replace(private, order=[0] * 200))], table().rows)


class TestOrder:
    def test_a_sorted_table_cannot_be_told_from_the_place_in_the_release(self):
        """The rank correlations of 100 releases have mean 0 and deviation 1 / sqrt(n - 1)."""
        rows = table()
        rows = replace(rows, rows=rows.rows[rows.rows[:, 0].argsort()])
        transform, error = GaussianNoise(EPSILON, DELTA), 1 / math.sqrt(199)
        found = [spearmanr(range(200), rows.rows[private.order, 0])[0] for _, private in released(rows, transform, 100)]
        assert abs(np.mean(found)) < 4 * error / 10
        assert np.std(found, ddof=1) == pytest.approx(error, rel=4 / math.sqrt(2 * 99))
        kept, _ = InOrder(EPSILON, DELTA).release(rows, seeded("order"))
        assert spearmanr(range(200), kept.values[:, 0])[0] > 0.9

    def test_every_place_is_as_likely(self):
        """The 6 orders of 3 rows are equally frequent in 1200 releases."""
        seen = Counter(tuple(private.order) for _, private in released(table(3), GaussianNoise(EPSILON, DELTA), 1200))
        assert len(seen) == 6 and chisquare(list(seen.values())).pvalue > 1e-4

    def test_scores_undo_it(self):
        """The adversary knows the order and restores that of the table."""
        release, private = GaussianNoise(EPSILON, DELTA, Silent()).release(table(), seeded(0))
        exact = table().rows * GaussianNoise(EPSILON, DELTA).scale(table())
        assert torch.equal(in_table_order(release, private), exact) and not torch.equal(release.values, exact)
        assert torch.equal(in_table_order(release, replace(private, order=None)), release.values)


def test_no_noise_at_all_is_told_from_little_noise_in_the_column_space():
    assert attack_result(GaussianNoise(EPSILON, DELTA, Silent()), 20, "column space").disjoint
    little = attack_result(GaussianNoise(EPSILON, DELTA, Less(factor=1e-9)), 20, "column space")
    assert little.accuracy == 1.0 and not little.disjoint


def test_neighbours_differ_in_one_row_that_only_the_last_one_lets_a_maximum_notice():
    rows, transform = table(), GaussianNoise(EPSILON, DELTA)
    *central, longest = attacks(transform, rows, 0.01)
    for attack, distance in zip([*central, longest], (0.01, 1.0, 1.0), strict=True):
        moved = (attack.neighbour.rows - attack.table.rows).norm(dim=1) * transform.scale(rows)
        assert float(moved.max()) == pytest.approx(distance) and int((moved > 0).sum()) == 1
        for changed in (attack.table, attack.neighbour):
            assert transform.release(changed, seeded(0))[1].diagnostics.n_clipped == 0
        assert attack.table.public == attack.neighbour.public == rows.public
    published = RandomProjection(3, 1.0, DELTA).scale
    for attack in central:
        assert attack.table is rows and published(attack.neighbour) == published(rows)
    assert published(longest.neighbour) > 1.01 * published(longest.table) == pytest.approx(1.01 * published(rows))


def test_seeds_have_randomness_of_their_own():
    transform = GaussianNoise(EPSILON, DELTA)
    first, again = (attack_result(transform, 20, "likelihood ratio", seed=1).verdict for _ in range(2))
    assert (first.without == again.without).all() and (first.with_message == again.with_message).all()
    for more in ({"seed": 2}, {"seed": 1, "system": True}):
        assert not set(first.without) & set(attack_result(transform, 20, "likelihood ratio", **more).verdict.without)


@pytest.mark.parametrize("transform", [RandomProjection(2, 1.0, DELTA), GaussianNoise(1.0, DELTA)])
def test_most_shown_is_the_bound_of_a_test_without_errors(transform):
    claim = claim_of(transform, table())
    for trials in (20, 41, 400):
        found = verdict(np.full(trials, -1.0), np.full(trials, 1.0), claim)
        assert found.epsilon == pytest.approx(most_shown(claim, trials))


def far_out():
    """A table with all rows outside its public box, all at one side of it."""
    rows = table()
    return replace(rows, rows=rows.rows + 1000)


def one_side():
    """A table whose longest row lies at the centre of a box that the origin is far from."""
    rows = table().rows / 100
    rows[0] = 5.0
    return replace(table(), rows=rows, lower=(4.0, 4.0), upper=(6.0, 6.0))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: attacks(GaussianNoise(1.0, DELTA), table(), 0.0), "move must be a finite number above 0, got 0.0"),
        (lambda: attacks(GaussianNoise(1.0, DELTA), table(), 1.5), "at most 1, the distance of neighbours"),
        (lambda: attack_result(GaussianNoise(1.0, DELTA), 5), "trials must be an integer of at least 20, got 5"),
        (
            lambda: attacks(GaussianNoise(1.0, DELTA), far_out()),
            "with another release, got the same one, up to noise, with the "
            "row moved by 0.001: do all rows lie outside the public box",
        ),
        (lambda: attacks(Histogram(1.0, DELTA, cells=2), one_side()), "got the same one, .* longest row mirrored"),
        (lambda: claim_of(Plain(), table()), "needs a transform that claims something, got Plain"),
    ],
)
def test_bad_input_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


class TestCommand:
    @staticmethod
    def run(folder, *more):
        return command.main([*more, "problem.side_points=20", "--out", str(folder)])

    def test_published_transform_violates_its_claim(self, tmp_path, capsys):
        assert self.run(tmp_path, "transform=random_projection") == 3
        text = capsys.readouterr().out
        for words in ("VIOLATED", "100.0%", "not a guarantee when n > d + 1", "d + 1 rows known", "does NOT hold"):
            assert words in text
        found = json.loads((tmp_path / "audit.json").read_text())
        assert (found["algorithm"], found["sound"], found["sigma"]) == ("po_gp_ucb", False, 0.0)
        (attack,) = found["told_apart"]
        assert attack["accuracy"] == 1.0 and attack["bound"] > found["claimed_epsilon"] and attack["disjoint"]
        by_three = found["reconstruction"][0]
        assert by_three["largest_error"] < 1e-9 and len(by_three["known_rows"]) == 3
        assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")

    def test_a_failed_check_is_enough(self, tmp_path, capsys, monkeypatch):
        shuffled = GaussianNoise.release
        monkeypatch.setattr(GaussianNoise, "release", lambda *given: in_place(*shuffled(*given)))
        assert self.run(tmp_path, "transform=gaussian", "--trials", "20") == 3
        assert "FAILS" in (text := capsys.readouterr().out) and "does NOT hold" in text and "VIOLATED" not in text

    def test_private_transforms_hold_theirs(self, tmp_path, capsys):
        arguments = ["transform=gaussian", "--trials", "60", "--move", "0.5", "--json"]
        assert self.run(tmp_path, *arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == json.loads((tmp_path / "audit.json").read_text())
        assert [t["attack"] for t in found["told_apart"]] == ["column space"] + ["likelihood ratio"] * 2
        assert [t["neighbour"] for t in found["told_apart"]][1:] == [MOVED, LONGEST]
        assert [(c["check"], c["holds"]) for c in found["checks"]] == [
            ("noise in every entry", True), ("row order", True),
        ]  # fmt: skip
        assert found["told_apart"][0]["neighbour"] == "row moved by 0.5"
        assert found["reconstruction"][0]["in_sigma"] > 0.5
        assert self.run(tmp_path / "h", "transform=histogram", "--trials", "20") == 0
        text = capsys.readouterr().out
        assert "no row is released" in text and "nothing found" in text and "noise in every entry" in text

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["transform=none"], "algorithm=gp_ucb claims no privacy: there is nothing to audit"),
            (["transform=cover"], "algorithm=cover_gp_ucb releases nothing of the table: there is nothing to audit"),
            (["transform=indices"], "algorithm=random_rows releases nothing of the table: there is nothing to audit"),
            (["transform=gaussian", "--move", "2"], "move must be at most 1"),
            (["transform=gaussian", "--rounds", "2"], "--rounds has no effect on an outsourced table"),
            (["transform=gaussian", "--thorough"], "--thorough has no effect on an outsourced table"),
            (["transform=gaussian", "--trials", "0"], "--trials must be at least 20 for an outsourced table, got 0"),
        ],
    )
    def test_bad_input_is_one_sentence(self, arguments, says, tmp_path, capsys):
        assert self.run(tmp_path / "out", *arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
        assert says in captured.err and not (tmp_path / "out").exists()

    def test_a_move_needs_a_table(self, tmp_path, capsys):
        assert command.main(["--move", "0.1", "--out", str(tmp_path / "out")]) == 1
        assert "--move needs an outsourced table such as algorithm=po_gp_ucb, got 0.1" in capsys.readouterr().err
