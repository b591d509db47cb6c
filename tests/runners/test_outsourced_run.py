"""Outsourced runs end to end: their records, resumption and refusals."""

import functools
import json
import math
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dpfbo.checkpoint import Checkpoint
from dpfbo.formats.record_tables import ROUNDS_SCHEMA, SERVER_SCHEMA
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.table import Table
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import Ledger, LedgerError, digest
from dpfbo.problems.grid_gp import GridGP
from runners import run, status
from runners.compose.composition import build
from runners.recorded_run import run_configuration
from runners.sweep.attempt import attempt
from runners.sweep.plan import plan
from runners.sweep.trials import write_plan
from runners.user_errors import user_errors
from tests.helpers.compose import compose, setting_hash, with_seed
from tests.helpers.small_runs import QUIET, Stop, charged, differences, folder_of, interrupted, records, undisturbed

T, EPSILON = 6, 3.0042
SMALL = ["problem.side_points=12", f"rounds={T}"]
ALGORITHMS = ["po_gp_ucb", "gp_ucb", "gaussian_gp_ucb", "histogram_gp_ucb", "cover_gp_ucb", "random_rows"]
PRIVATE = ["gaussian_gp_ucb", "histogram_gp_ucb"]
NOTHING = ("cover_gp_ucb", "random_rows")  # algorithms without a release


def settings(algorithm, *more):
    return [f"algorithm={algorithm}", *SMALL, "n_init=3", f"privacy.epsilon={EPSILON}", *more]


@functools.cache
def expected(algorithm, *more):
    """The records of the uninterrupted run, made once."""
    with tempfile.TemporaryDirectory() as folder:
        return undisturbed(Path(folder), *settings(algorithm, *more))


def configured(folder, algorithm, *more):
    return compose(*settings(algorithm, *more), *QUIET, f"results_dir={folder}")


def call(monkeypatch, *overrides):
    """Run the command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["runners.run", *QUIET, *overrides])
    try:
        run.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


# --- records


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_records_of_a_run(tmp_path, algorithm):
    cfg = configured(tmp_path, algorithm)
    table = GridGP(side_points=12, function_seed=0).table
    released = {}

    def note(done):
        if done.server is not None:
            released[done.server.round] = done.broadcast

    summary, folder = run_configuration(cfg, note)
    assert pq.read_schema(folder / "rounds.parquet").equals(ROUNDS_SCHEMA)
    assert pq.read_schema(folder / "server.parquet").equals(SERVER_SCHEMA)
    rounds, server = pd.read_parquet(folder / "rounds.parquet"), pd.read_parquet(folder / "server.parquet")
    assert rounds["round"].tolist() == [0, 0, 0, *range(1, T + 1)]
    assert rounds["source"].tolist() == ["initial"] * 3 + ["modeler"] * T
    assert set(rounds["agent"]) == set(rounds["region"]) == {0}

    x, y = np.stack(rounds["x"]), rounds["y"].to_numpy()
    at = np.abs(table.natural.numpy()[None] - x[:, None]).max(2)
    assert (at.min(1) < 1e-12).all(), "every query is a row as users know it"
    values = table.values.numpy()[at.argmin(1)]
    assert np.abs(y - values).max() < 5 * math.sqrt(1e-5)
    best = np.maximum.accumulate(values)
    assert np.abs(rounds["best"] - best).max() < 1e-12
    assert np.abs(rounds["regret"] - (float(table.values.max()) - best)).max() < 1e-12
    assert summary["curve"]["mean"] == pytest.approx(rounds.groupby("round")["regret"].last().tolist(), abs=1e-12)
    assert summary["curve"]["round"] == list(range(T + 1))
    assert summary["curve"]["se"] == [0.0] * (T + 1)

    charges = Ledger(folder / "ledger.jsonl").charges
    assert len(server) == len(charges) == len(released) == summary["n_charges"] == (algorithm not in NOTHING)
    if released:
        (row,) = server.to_dict("records")
        assert row["round"] == 0 and row["n_rejected"] == row["n_dropped"] == row["clip_fraction"] == 0
        assert charges[0].digest == digest(released[0].values)
        private = algorithm in PRIVATE
        assert (row["sigma"] > 0) == private == (charges[0].z is not None)
        assert (
            row["epsilon"] == pytest.approx(summary["epsilon"]["analytic_gaussian"], nan_ok=True)
            if private
            else (math.isnan(row["epsilon"]) and math.isnan(row["sensitivity"]))
        )
        if private:
            assert row["sensitivity"] == {"gaussian_gp_ucb": 1.0, "histogram_gp_ucb": math.sqrt(2)}[algorithm]
            assert row["sigma"] == charges[0].sigma == pytest.approx(charges[0].z * row["sensitivity"], rel=1e-12)


def test_summaries_say_what_is_claimed_and_what_is_guaranteed():
    for algorithm in ALGORITHMS:
        summary = expected(algorithm)["summary"]
        (epsilon,) = summary["epsilon"].values()
        assert set(summary["epsilon"]) == {summary["accountant"]} == {"analytic_gaussian"}
        assert summary["private"] is (algorithm in PRIVATE)
        assert (summary["metric"], summary["lower_is_better"], summary["n_agents"]) == ("simple_regret", True, 1)
        assert (summary["delta"], summary["approximations"]) == (1e-5, [])
        assert "not its measurements" in summary["epsilon_covers"]
        if algorithm in PRIVATE:
            assert EPSILON * (1 - 1e-6) <= epsilon <= EPSILON
        else:
            assert epsilon == (0.0 if algorithm in NOTHING else None)
        claim = summary["published_claim"]
        assert (claim is None) == (algorithm != "po_gp_ucb")
    claim = expected("po_gp_ucb")["summary"]["published_claim"]
    assert "published claim (eps 3.004, delta 1e-05); not a guarantee when n > d + 1, here n = 144, d = 2" in claim
    relations = {a: expected(a)["summary"]["relation"] for a in PRIVATE}
    assert relations == {
        "gaussian_gp_ucb": "one row moved by a norm of at most 1 of 25",
        "histogram_gp_ucb": "one row replaced by any other",
    }


def test_same_seed_same_records_another_seed_others(tmp_path):
    for algorithm in ("po_gp_ucb", "gaussian_gp_ucb"):
        assert differences(undisturbed(tmp_path / "same", *settings(algorithm)), expected(algorithm)) == []
    other = undisturbed(tmp_path / "other", *settings("gaussian_gp_ucb", "seed=1"))
    different = ["rounds.parquet", "server.parquet", "ledger.jsonl", "summary"]
    assert differences(other, expected("gaussian_gp_ucb")) == different


def test_a_run_that_is_repeated_is_paid_once_with_a_seed_and_twice_without(tmp_path):
    for more, charges in (([], 1), (["privacy.rng=os"], 2)):
        cfg = configured(tmp_path, "histogram_gp_ucb", *more)
        first, _ = run_configuration(cfg)
        cfg.again = True
        again, folder = run_configuration(cfg)
        assert again["n_charges"] == len(Ledger(folder / "ledger.jsonl").charges) == charges
        assert (again["epsilon"]["analytic_gaussian"] > EPSILON) == (charges == 2)
        assert first["epsilon"]["analytic_gaussian"] <= EPSILON


def test_exact_discrete_noise(tmp_path):
    pytest.importorskip("opendp")
    for algorithm in PRIVATE:
        summary, folder = run_configuration(configured(tmp_path, algorithm, "privacy/noise=discrete", "privacy.rng=os"))
        (charge,) = Ledger(folder / "ledger.jsonl").charges
        assert summary["epsilon"]["analytic_gaussian"] <= EPSILON
        least = 1 if algorithm == "gaussian_gp_ucb" else math.sqrt(2)
        assert least < charge.sensitivity < least * (1 + 1e-6), "what sigma was derived from, rounding included"
        assert charge.sigma == pytest.approx(charge.z * charge.sensitivity, rel=1e-12)


# --- interrupted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_interrupted_and_resumed_is_as_if_nothing_had_happened(tmp_path, algorithm):
    cfg = configured(tmp_path, algorithm)
    assert interrupted(cfg, 2) == [0, 1, 2]
    assert interrupted(cfg, 4) == [0, 1, 2, 3, 4]
    _, path = run_configuration(cfg)
    assert differences(records(path), expected(algorithm)) == []


@pytest.mark.parametrize("after", [0, T])
def test_interrupted_at_the_ends(tmp_path, after):
    cfg = configured(tmp_path, "histogram_gp_ucb", "algorithm.modeler.repeat=false")
    interrupted(cfg, after, KeyboardInterrupt)
    _, path = run_configuration(cfg)
    assert differences(records(path), expected("histogram_gp_ucb", "algorithm.modeler.repeat=false")) == []


def test_a_fitting_modeler_resumes(tmp_path):
    ml = ["algorithm.modeler.fit=ml", "algorithm.modeler.every=4"]  # fits after 4 and 8 of 9 measurements
    cfg = configured(tmp_path, "gaussian_gp_ucb", *ml)
    interrupted(cfg, 2)
    _, path = run_configuration(cfg)
    assert differences(records(path), expected("gaussian_gp_ucb", *ml)) == []
    assert differences(records(path), expected("gaussian_gp_ucb")) != []


@pytest.mark.parametrize("algorithm", [*PRIVATE, "po_gp_ucb"])
def test_fresh_noise_is_drawn_once(tmp_path, monkeypatch, algorithm):
    cfg = configured(tmp_path, algorithm, "privacy.rng=os")
    seen = []

    def note(done):
        seen.append(done.agents.y.tolist())
        if done.agents.round == 3:
            raise Stop

    with pytest.raises(Stop):
        run_configuration(cfg, note)
    paid = charged(folder_of(cfg))
    again = []
    with monkeypatch.context() as patch:
        patch.setattr(Curator, "release", lambda *_: pytest.fail("released again"))
        _, folder = run_configuration(cfg, lambda done: again.append(done.agents.y.tolist()))
    assert again[:4] == seen and len(again) == T + 1
    assert charged(folder) == paid and len(paid) == 1
    assert len(pd.read_parquet(folder / "server.parquet")) == 1


@pytest.mark.parametrize("where", ["before the charge", "after the charge"])
@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_killed_while_it_releases(tmp_path, monkeypatch, rng, where):
    """rng=os sends the kept release byte for byte and pays once; rng=seeded makes the same bytes again."""
    cfg = configured(tmp_path, "gaussian_gp_ucb", f"privacy.rng={rng}")

    def stop(*_):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(*((Ledger, "charge") if where == "before the charge" else (Checkpoint, "append")), stop)
        with pytest.raises(Stop):
            run_configuration(cfg)
    folder = folder_of(cfg)
    assert (len(charged(folder)) if folder.exists() else 0) == (where == "after the charge")
    kept = Checkpoint(folder / "checkpoint").curator_file().load(0)
    assert (kept is not None) == (rng == "os")
    run_configuration(cfg)
    (paid,) = charged(folder)
    if kept is None:
        assert differences(records(folder), expected("gaussian_gp_ucb")) == []
    else:
        assert paid == (0, digest(kept[0].values))
        records(folder)


def test_without_resume_it_releases_again(tmp_path):
    interrupted(configured(tmp_path, "gaussian_gp_ucb", "privacy.rng=os"), 3)
    summary, folder = run_configuration(configured(tmp_path, "gaussian_gp_ucb", "privacy.rng=os", "resume=false"))
    assert len(set(charged(folder))) == summary["n_charges"] == 2


def other_values(table):
    return Table(table.rows, table.natural, table.values + 0.1, table.names, table.lower, table.upper)


def other_rows(table):
    """Another table with the same measurements."""
    return Table(table.rows.flip(0), table.natural.flip(0), table.values, table.names, table.lower, table.upper)


@pytest.mark.parametrize("change", [other_values, other_rows])
@pytest.mark.parametrize("algorithm", ["gaussian_gp_ucb", "po_gp_ucb"])
def test_a_checkpoint_of_other_data_is_refused(tmp_path, monkeypatch, algorithm, change):
    cfg = configured(tmp_path, algorithm)
    interrupted(cfg, 3)
    before = {p: p.read_bytes() for p in folder_of(cfg).rglob("*.npz")}
    other = change(GridGP(side_points=12, function_seed=0).table)
    with monkeypatch.context() as patch:
        patch.setattr(GridGP, "table", other)
        with pytest.raises(ValueError, match="the repeated .* differs from the checkpoint: delete the folder"):
            run_configuration(cfg)
    assert {p: p.read_bytes() for p in folder_of(cfg).rglob("*.npz")} == before
    _, path = run_configuration(cfg)
    assert differences(records(path), expected(algorithm)) == []


def test_other_data_with_the_same_seeded_noise_are_refused(tmp_path, monkeypatch):
    cfg = configured(tmp_path, "gaussian_gp_ucb")
    interrupted(cfg, 3)
    folder = folder_of(cfg)
    before = (folder / "ledger.jsonl").read_bytes()
    monkeypatch.setattr(GridGP, "table", other_rows(GridGP(side_points=12, function_seed=0).table))
    cfg.resume = False
    with pytest.raises(LedgerError, match="same seeded noise"):
        run_configuration(cfg)
    assert (folder / "ledger.jsonl").read_bytes() == before


def test_a_ledger_that_lost_the_release_is_refused(tmp_path):
    cfg = configured(tmp_path, "gaussian_gp_ucb")
    interrupted(cfg, 3)
    (folder_of(cfg) / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(LedgerError, match="lacks the broadcast of round 0"):
        run_configuration(cfg)


# --- budget


def test_a_budget_pays_for_the_release_once(tmp_path):
    real = ["privacy.rng=os", f"privacy.budget.epsilon={EPSILON}"]
    cfg = configured(tmp_path, "gaussian_gp_ucb", *real)
    interrupted(cfg, 2)
    summary, folder = run_configuration(cfg)  # it goes on, although the budget is spent
    assert summary["n_charges"] == 1
    before = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    cfg.again = True
    with pytest.raises(BudgetSpent, match="1 more broadcasts would cost more than privacy.budget.epsilon=3.0042"):
        run_configuration(cfg)
    assert {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    run_configuration(
        configured(tmp_path, "gaussian_gp_ucb", f"privacy.budget.epsilon={EPSILON}")
    )  # seeded: in a folder of its own


# --- settings


def test_what_a_modeler_is_told_holds_no_row_and_no_seed():
    for algorithm in ALGORITHMS:
        experiment = build(compose(*settings(algorithm, "seed=8191")))
        told = pickle.dumps(experiment.brief())
        assert len(told) < 4000, "144 rows or values have more bytes"
        assert b"tensor" not in told.lower() and b"Streams" not in told and b"table" not in told.replace(b".table", b"")


PO, GAUSSIAN = ["algorithm=po_gp_ucb", *SMALL], ["algorithm=gaussian_gp_ucb", *SMALL]
REFUSED = [
    ([*PO, "transform.r=0"], "transform.r must be an integer of at least 1, got 0"),
    ([*PO, "privacy.epsilon=0"], "privacy.epsilon must be a finite number above 0, got 0"),
    ([*PO, "privacy.delta=1"], "privacy.delta must lie in (0, 1), got 1"),
    ([*PO, "privacy.accountant=pld"], "privacy.accountant must be one of 'analytic_gaussian', got 'pld'"),
    ([*PO, "problem.side_points=1"], "problem.side_points must be an integer of at least 2, got 1"),
    ([*PO, "n_init=0"], "n_init must be an integer of at least 1, got 0"),
    ([*PO, "dropout.probability=0.1"], "dropout is about agents' messages: an outsourced run has none"),
    ([*PO, "algorithm.modeler.policy=magic"], "algorithm.modeler.policy must be one of 'gp_ucb', 'random'"),
    ([*PO, "algorithm.modeler=3"], "algorithm.modeler"),
    ([*PO, "+algorithm.modeler.foo=1"], "a key of algorithm.modeler must be one of 'policy', 'delta_ucb'"),
    ([*PO, "algorithm.modeler.policy=random", "algorithm.modeler.fit=ml"], "fit has no effect on policy=random"),
    ([*PO, "transform.epsilon=10"], "transform.epsilon follows privacy.epsilon=3.004166: set that one, got 10"),
    ([*PO, "problem.noise_variance=1e-300"], "noise must be a finite number of at least 1e-12"),
    ([*PO, "rounds=9000000"], "rounds must be at most 100000, got 9000000"),
    ([*PO, "problem.side_points=110", "rounds=99000"], "so few that candidates times measurements are at most 1e+09"),
    ([*GAUSSIAN, "algorithm.private=false"], "algorithm.private must be True, as its transform is: leave it out"),
    ([*PO, "executor.device=cuda"], "executor.device=cuda is for agents"),
    ([*PO, "privacy.budget.epsilon=9"], "privacy.budget.epsilon needs a transform with a guarantee, got po_gp_ucb"),
    (["algorithm=po_gp_ucb", "problem=synthetic"], "needs a problem with a table of candidates, and Synthetic has"),
    (["algorithm=dp_fts_de", "problem=grid_gp"], "needs a problem with agents, and GridGP has a table of candidates"),
    (["algorithm=ts", "problem=branin", "transform=gaussian"], "transform is for outsourced algorithms"),
    (["algorithm=gp_ucb", "transform=gaussian"], "needs the transform Plain, got GaussianNoise"),
    ([*GAUSSIAN, "transform=random_projection"], "needs the transform GaussianNoise, got RandomProjection"),
    ([*GAUSSIAN, "privacy.epsilon=lots"], "privacy.epsilon must be a finite number above 0, got 'lots'"),
    ([*GAUSSIAN, "privacy.delta=null"], "privacy.delta must lie in (0, 1), got None"),
    ([*GAUSSIAN, "privacy.budget.epsilon=3"], "costs epsilon 3.004 at delta 1e-05, more than"),
    ([*GAUSSIAN, "privacy/noise=discrete"], "privacy/noise=discrete needs privacy.rng=os"),
    ([*GAUSSIAN, "privacy.budget.when_spent=stop"], "when_spent must be refuse for an outsourced run"),
]  # fmt: skip


def short(given):
    return " ".join(o for o in given if o not in SMALL)


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=[short(given) for given, _ in REFUSED])
def test_bad_settings_are_one_sentence_and_leave_nothing(tmp_path, given, says):
    with pytest.raises(user_errors()) as refusal:
        run_configuration(compose(*given, *QUIET, f"results_dir={tmp_path / 'r'}"))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("given", "says"), [REFUSED[0], REFUSED[11], REFUSED[-3]], ids=["r", "problem", "budget"])
def test_the_command_refuses_them(monkeypatch, capsys, tmp_path, given, says):
    assert call(monkeypatch, *given, f"results_dir={tmp_path / 'r'}") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_what_has_an_effect_is_not_said_to_have_none(monkeypatch, capsys, tmp_path):
    """privacy.epsilon of the published transform decides the raise of singular values."""
    assert build(compose(*PO)).transform != build(compose(*PO, "privacy.epsilon=1")).transform
    assert call(monkeypatch, *PO, "privacy.epsilon=1", f"results_dir={tmp_path}") == 0
    assert "privacy.epsilon=1 has no effect" not in capsys.readouterr().err


def test_hashes_tell_outsourced_settings_apart():
    base = setting_hash(compose(*PO))
    assert setting_hash(compose(*PO, "seed=3", "tracker.wandb.mode=disabled")) == base
    others = ["privacy.epsilon=1", "transform.r=3", "transform.inflation=authors", "n_init=2", "problem.side=9"]
    others += ["transform=none", "algorithm.modeler.repeat=false", "privacy.delta=1e-4"]
    assert len({base, *(setting_hash(compose(*PO, other)) for other in others)}) == len(others) + 1


def test_a_projection_that_no_seed_repeats_has_a_folder_of_its_own():
    """Like a private release: the two records differ, and a sweep over both has two settings."""
    for algorithm in (PO, GAUSSIAN):
        assert setting_hash(compose(*algorithm, "privacy.rng=os")) != setting_hash(compose(*algorithm))


# --- sweeps and trackers


def test_a_sweep_of_outsourced_settings(tmp_path):
    given = [*SMALL, *QUIET, "algorithm=po_gp_ucb,gaussian_gp_ucb", "privacy.epsilon=1,3", "seeds=0..1"]
    given += ["experiment_name=mine", "sweep.address=local", "sweep.max_concurrent=1", f"results_dir={tmp_path}"]
    grid = plan(given)
    labels = [setting.label for setting in grid.settings]
    assert len(set(labels)) == 4 and len(grid.trials) == 8
    assert [("eps" in label and label.rstrip()[-1]) for label in labels] == ["1", "3", "1", "3"]
    predicted = [setting.epsilon["analytic_gaussian"] for setting in grid.settings]
    assert predicted == [None, None, pytest.approx(1, rel=1e-6), pytest.approx(3, rel=1e-6)]
    for setting, trial in grid.trials:  # like a sweep's worker
        assert attempt(with_seed(setting, trial.seed), lambda done: None).phase == "done"
    summaries = [json.loads(path.read_text()) for path in tmp_path.rglob("summary.json")]
    assert len(summaries) == 8
    for summary in summaries:
        (setting,) = [s for s in grid.settings if s.name == summary["setting"]]
        assert summary["epsilon"] == setting.epsilon
    write_plan(tmp_path / "mine", [trial for _, trial in grid.trials])
    states = status.report(tmp_path / "mine").states
    assert len(states) == 8 and {state.phase for state in states.values()} == {"done"}


def test_an_offline_tracker(tmp_path):
    wandb = pytest.importorskip("wandb")
    offline = ["tracker.wandb.mode=offline", "progress=false", f"results_dir={tmp_path}"]
    try:
        summary, folder = run_configuration(compose(*settings("po_gp_ucb"), *offline))
    finally:
        wandb.teardown()  # another test must not use this service process
    assert list(tmp_path.rglob("*.wandb"))
    assert len(summary["curve"]["mean"]) == T + 1


def test_as_a_command_shows_the_claim_for_what_it_is(monkeypatch, capsys, tmp_path):
    shown = [*PO, "tracker.wandb.mode=disabled", f"results_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["runners.run", *shown])
    run.main()
    out = capsys.readouterr().out
    assert "simple_regret" in out
    assert "not a guarantee" in " ".join(out.split())
