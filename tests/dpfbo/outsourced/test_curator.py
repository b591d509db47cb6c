"""The curator: its release is made once and charged before it leaves; it measures the given candidates only."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfbo.checkpoint import ReleaseFile
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.transforms.cover import Cover
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.outsourced.transforms.plain import Plain
from dpfbo.outsourced.transforms.random_projection import RandomProjection
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError, digest
from dpfbo.privacy.release import Diagnostics
from dpfbo.problems.grid_gp import GridGP
from dpfbo.rng import Streams
from tests.dpfbo.recorded_streams import RecordedStreams

PROBLEM = GridGP(side_points=12)
NOISY = GridGP(side_points=12, noise_variance=0.25)
GAUSSIAN = GaussianNoise(3.0, 1e-5)
TRANSFORMS = {
    "projection": RandomProjection(4, 3.0, 1e-5),
    "gaussian": GAUSSIAN,
    "histogram": Histogram(3.0, 1e-5, cells=3),
    "plain": Plain(),
    "cover": Cover(cells=3),
}


def curator(
    transform=GAUSSIAN, problem=PROBLEM, ledger=None, rng="seeded", kept=None, seed=0, capacity=1000, streams=None
):
    streams = Streams(seed) if streams is None else streams
    event = transform.event(problem.table.public)
    epsilon = EpsilonCurve(AnalyticGaussian(transform.relation), [] if event is None else [event], 1e-5)
    entropy = SeededEntropy(streams) if rng == "seeded" else SystemEntropy()
    ledger = Ledger() if ledger is None else ledger
    return Curator(problem, transform, streams, entropy, ledger, epsilon, capacity, kept)


def released(*arguments, **more):
    some = curator(*arguments, **more)
    some.release()
    return some


# --- the release


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_release_is_made_once(transform):
    ledger = Ledger()
    some = curator(transform, ledger=ledger, rng="os")
    first, record, _ = some.release()
    again, same, _ = some.release()
    assert torch.equal(first.values, again.values) and record is same
    assert len(ledger.charges) == (0 if isinstance(transform, Cover) else 1)


def test_the_charge_is_in_the_file_before_the_release_is_returned(tmp_path, monkeypatch):
    path, charge, seen = tmp_path / "ledger.jsonl", Ledger.charge, []

    def watched(ledger, entry):
        seen.append(path.read_text())
        charge(ledger, entry)
        (line,) = path.read_text().splitlines()
        seen.append(json.loads(line))

    monkeypatch.setattr(Ledger, "charge", watched)
    table, record, _ = curator(ledger=Ledger(path)).release()
    before, line = seen
    assert before == ""
    assert line["digest"] == digest(table.values)
    assert line["round"] == 0 and line["q"] == 1.0
    assert line["z"] == pytest.approx(record.sigma)
    assert record.epsilon == pytest.approx(3.0, rel=1e-6) and record.epsilon <= 3.0


def test_nothing_leaves_when_the_charge_fails(monkeypatch):
    some = curator(rng="os")

    def broken(ledger, entry):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", broken)
        for _ in range(2):
            with pytest.raises(OSError, match="disk full"):
                some.release()
        with pytest.raises(ValueError, match="measures nothing before it has released"):
            some.measure(0, [1])
    table, record, _ = some.release()
    assert table is some.release()[0] and record.round == 0


def test_a_seeded_release_is_paid_once_and_other_data_are_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, _, _ = curator(ledger=Ledger(path)).release()
    same, record, _ = curator(ledger=Ledger(path)).release()
    assert torch.equal(first.values, same.values)
    assert len(Ledger(path).charges) == 1
    before = path.read_bytes()
    other = GridGP(side_points=12, side=8.001)
    for _ in range(2):
        with pytest.raises(LedgerError, match="another broadcast of round 0 with the same seeded noise"):
            curator(problem=other, ledger=Ledger(path)).release()
    assert path.read_bytes() == before
    assert record.epsilon <= 3.0


def test_fresh_noise_is_paid_every_time(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, one, _ = curator(ledger=Ledger(path), rng="os").release()
    second, two, _ = curator(ledger=Ledger(path), rng="os").release()
    assert not torch.equal(first.values, second.values)
    assert len(Ledger(path).charges) == 2
    both = AnalyticGaussian("any").epsilon(Ledger(path).events(), 1e-5)
    assert one.epsilon <= 3.0 < two.epsilon == pytest.approx(both)


@pytest.mark.parametrize(("rng", "counts"), [("seeded", 1), ("os", 2)])
def test_with_fresh_noise_a_charge_of_a_later_round_counts_too(rng, counts):
    """A seeded run would repeat the later round of an earlier run; fresh noise adds to it."""
    ledger, event = Ledger(), GAUSSIAN.event(PROBLEM.table.public)
    earlier = torch.ones(1, dtype=torch.float64)
    ledger.charge(Charge.of(3, event, 1.0, 1.0, earlier, GAUSSIAN.relation))
    _, record, _ = curator(ledger=ledger, rng=rng).release()
    assert record.epsilon == pytest.approx(AnalyticGaussian(GAUSSIAN.relation).epsilon([event] * counts, 1e-5))


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_release_that_was_kept_is_sent_after_a_kill_and_paid_once(tmp_path, monkeypatch, where):
    path, file, charge = tmp_path / "ledger.jsonl", ReleaseFile(tmp_path / "kept" / "release.npz"), Ledger.charge

    def killed(ledger, entry):
        assert file.load(0) is not None, "on disk before it is charged"
        if where == "after":
            charge(ledger, entry)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", killed)
        with pytest.raises(KeyboardInterrupt):
            curator(ledger=Ledger(path), rng="os", kept=file).release()
    kept, _ = file.load(0)
    some = curator(ledger=Ledger(path), rng="os", kept=file)
    table, record, _ = some.release()
    assert torch.equal(table.values, kept.values)
    assert [c.digest for c in Ledger(path).charges] == [digest(table.values)]
    assert record.epsilon <= 3.0
    assert len(some.measure(0, [5]).y) == 1


# --- measurements


@pytest.mark.parametrize(
    "index", [144, -1, 10**30, True, False, 3.0, np.int64(3), np.float64(3), "3", None, torch.tensor(3), [3], math.nan]
)
def test_an_index_that_is_none_is_one_sentence_and_changes_nothing(index):
    """A modeler sends Python integers; all other types, numpy's included, are refused."""
    some, untouched = released(), released()
    for indices in ([index], [1, index]):
        with pytest.raises(ValueError, match="the modeler's index must be an integer from 0 to 143, got") as refusal:
            some.measure(0, indices)
        assert "\n" not in str(refusal.value)
    assert some.measure(0, [1]) == untouched.measure(0, [1])
    assert some.measure(1, [143]) == untouched.measure(1, [143])


def test_an_index_is_one_of_the_candidates_not_of_the_rows():
    some = released(Cover(cells=3))
    assert some.n_candidates == 9
    with pytest.raises(ValueError, match="an integer from 0 to 8, got 9"):
        some.measure(0, [9])


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_nothing_is_measured_before_the_release(transform):
    with pytest.raises(ValueError, match="measures nothing before it has released"):
        curator(transform).measure(0, [0])


def test_rounds_come_in_order_and_the_last_may_be_asked_again():
    some = released(Cover(cells=3), problem=NOISY)
    first = some.measure(0, [4, 4])
    assert some.measure(0, [4, 4]) == first
    second = some.measure(1, [4])
    assert some.measure(1, [4]) == second
    for t in (0, 3, -1):
        with pytest.raises(ValueError, match=f"the curator is at round 2, got {t}"):
            some.measure(t, [4])
    plain = released(Cover(cells=3), problem=NOISY)
    assert [plain.measure(0, [4, 4]), plain.measure(1, [4])] == [first, second], (
        "what is asked again is not drawn again"
    )


@pytest.mark.parametrize("transform", ["projection", "gaussian", "plain"])
def test_a_candidate_is_its_row(transform):
    some = released(TRANSFORMS[transform])
    assert type(some.release()[2]) in (Diagnostics, type(None)), "nobody else needs to know the order"
    order = TRANSFORMS[transform].release(PROBLEM.table, SeededEntropy(Streams(0)))[1].order
    assert (order is None) is (transform != "gaussian")
    for t, index in enumerate((0, 77, 143)):
        measured = some.measure(t, [index])
        row = index if order is None else order[index]
        assert measured.rows == [row]
        assert measured.y[0] == pytest.approx(float(PROBLEM.table.values[row]), abs=4.5 * math.sqrt(1e-5))


def test_a_cell_gives_other_rows_of_it_while_there_are_any_uniformly():
    first = []
    for seed in range(160):
        some = released(Cover(cells=3), seed=seed)
        rows = [some.measure(t, [4]).rows[0] for t in range(20)]
        assert sorted(rows[:16]) == sorted(set(rows)), "16 rows lie in each of the 3 x 3 cells"
        assert set(rows) == {12 * i + j for i in range(4, 8) for j in range(4, 8)}
        first.append(rows[0])
    assert stats.chisquare(np.unique(first, return_counts=True)[1]).pvalue > 1e-4
    assert len(set(first)) == 16


def test_a_round_is_asked_again_with_the_same_candidates_or_not_at_all():
    some = released(Cover(cells=3))
    first = some.measure(0, [3])
    with pytest.raises(ValueError, match=r"the curator is at round 1, got 0 with \[7\]"):
        some.measure(0, [7])
    assert some.measure(0, [3]) == first


def test_no_more_is_measured_than_was_agreed():
    some = released(Cover(cells=3), capacity=3)
    some.measure(0, [1, 2])
    with pytest.raises(ValueError, match="the curator makes at most 3 measurements"):
        some.measure(1, [3, 4])
    assert len(some.measure(1, [3]).y) == 1
    with pytest.raises(ValueError, match="at most 3"):
        some.measure(2, [3])


@pytest.mark.parametrize("transform", ["projection", "gaussian", "histogram"])
def test_a_release_of_another_table_is_not_sent(tmp_path, transform):
    """A killed curator kept the release, and then the data changed."""
    file = ReleaseFile(tmp_path / "release.npz")
    curator(TRANSFORMS[transform], rng="os", kept=file).release()
    other = curator(Histogram(3.0, 1e-5, cells=4) if transform == "histogram" else TRANSFORMS[transform],
                    problem=GridGP(side_points=11), rng="os", kept=file, ledger=(ledger := Ledger()))  # fmt: skip
    with pytest.raises(ValueError, match="the release that was kept has"):
        other.release()
    assert not ledger.charges
    with pytest.raises(ValueError, match="measures nothing before it has released"):
        other.measure(0, [0])


def test_rows_that_were_measured_first_together_are_different():
    some = released(Cover(cells=3))
    assert len(set(some.measure(0, [4] * 16).rows)) == 16


@pytest.mark.parametrize("transform", ["projection", "cover"])
def test_noise_of_measurements(transform):
    """The noise has the stated variance, and is new each time the same candidate is measured."""
    some = released(TRANSFORMS[transform], problem=NOISY)
    off = []
    for t in range(800):
        measured = some.measure(t, [3])
        off.append(measured.y[0] - float(NOISY.table.values[measured.rows[0]]))
    assert abs(np.mean(off)) < 4.5 * 0.5 / math.sqrt(800)
    assert abs(np.var(off) / 0.25 - 1) < 4.5 * math.sqrt(2 / 800)
    assert len(set(off)) == 800


def test_measurements_of_a_round_draw_numbers_of_that_round():
    streams = RecordedStreams(0)
    some = curator(TRANSFORMS["cover"], NOISY, streams=streams)
    some.release()
    for t in range(4):
        streams.asked.clear()
        some.measure(t, [4, 5])
        assert streams.asked == [("curator/row", t), ("observation", t)]


def test_a_curator_that_goes_on_knows_what_was_released(tmp_path):
    whole = released(TRANSFORMS["histogram"])
    table, _, _ = whole.release()
    again = curator(TRANSFORMS["histogram"])
    again.resume(table.values)
    with pytest.raises(ValueError, match="the repeated release differs from the checkpoint"):
        curator(TRANSFORMS["histogram"]).resume(table.values + 1)
    with pytest.raises(ValueError, match="the repeated release differs from the checkpoint"):
        curator(rng="os", kept=ReleaseFile(tmp_path / "gone.npz")).resume(table.values)
    assert again.n_candidates == whole.n_candidates
    for t in range(3):
        assert again.measure(t, [t]) == whole.measure(t, [t])
