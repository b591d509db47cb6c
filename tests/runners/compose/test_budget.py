"""Budgets, targets and an early end of the broadcasts."""

import json

import pandas as pd
import pytest

from dpfbo.privacy.ledger import Ledger
from runners.compose.composition import Composition, build
from runners.recorded_run import record_run, run_configuration
from runners.user_errors import user_errors
from tests.helpers.compose import compose, setting_hash
from tests.helpers.small_runs import QUIET, SMALL, Stop, call

SIX = [*SMALL, *QUIET, "privacy.delta=0.01"]  # six broadcasts


def curve(*overrides):
    experiment = build(compose(*SIX, *overrides))
    return [experiment.plan.epsilon(experiment.plan.events[: k + 1]) for k in range(len(experiment.plan.events))]


def sources(folder, round):
    rounds = pd.read_parquet(folder / "rounds.parquet")
    return set(rounds[rounds["round"] == round]["source"])


def test_a_run_over_its_budget_is_refused_before_it_starts(monkeypatch, capsys, tmp_path):
    limit = curve()[3] * 1.001
    assert call(monkeypatch, *SIX, f"privacy.budget.epsilon={limit}", f"results_dir={tmp_path}/r") == 1
    error = capsys.readouterr().err
    assert "6 broadcasts cost epsilon" in error
    assert "which pays for 4" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*"))


def test_broadcasts_stop_within_the_budget_and_the_agents_go_on_alone(tmp_path):
    limit = curve()[3] * 1.001
    stopped = ["privacy.budget.when_spent=stop", f"privacy.budget.epsilon={limit}", "algorithm.follow=always"]
    summary, folder = run_configuration(compose(*SIX, *stopped, f"results_dir={tmp_path}"))
    assert summary["n_charges"] == len(Ledger(folder / "ledger.jsonl").charges) == 4
    assert summary["epsilon"]["pld"] == pytest.approx(curve()[3])
    assert summary["epsilon"]["pld"] <= limit
    assert sources(folder, 4) == {"server"}
    assert sources(folder, 5) == sources(folder, 6) == {"own"}
    assert len(pd.read_parquet(folder / "server.parquet")) == 4
    assert len(summary["curve"]["mean"]) == 7


def test_a_budget_has_its_own_delta(tmp_path):
    build(compose(*SIX, f"privacy.budget.epsilon={curve()[-1] * 1.001}"))
    with pytest.raises(ValueError, match="at delta 0.001"):
        build(compose(*SIX, f"privacy.budget.epsilon={curve()[-1] * 1.001}", "privacy.budget.delta=1e-3"))


def test_a_ledger_of_real_releases_counts_against_the_budget(monkeypatch, capsys, tmp_path):
    """With fresh noise a second run into the same ledger adds to it."""
    real = [*SIX, "privacy.rng=os", f"privacy.budget.epsilon={curve()[-1] * 1.001}", f"results_dir={tmp_path}"]
    first, folder = run_configuration(compose(*real))
    assert first["n_charges"] == 6
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert call(monkeypatch, *real, "--again") == 1
    assert "6 more broadcasts would cost more" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_with_stop_a_spent_ledger_gets_nothing_more(tmp_path):
    limit = curve()[3] * 1.001
    stop = ["privacy.budget.when_spent=stop", f"privacy.budget.epsilon={limit}"]
    real = [*SIX, *stop, "privacy.rng=os", f"results_dir={tmp_path}"]
    for again in (False, True):
        summary, folder = run_configuration(compose(*real, f"again={again}"))
        assert summary["n_charges"] == 4
        assert summary["epsilon"]["pld"] <= limit
    assert sources(folder, 6) == {"own"}
    assert pd.read_parquet(folder / "server.parquet").empty


@pytest.mark.parametrize("after", [6, 7])
def test_with_stop_a_killed_continuation_ends_where_the_whole_run_does(tmp_path, after):
    limit = curve("rounds=8")[5] * 1.0001  # rounds 0 to 5: one more than the shorter run's
    stop = ["privacy.budget.when_spent=stop", f"privacy.budget.epsilon={limit}", "algorithm.follow=always"]

    def single(folder, rounds, on_round=lambda done: None):
        cfg = compose(*SIX, *stop, f"rounds={rounds}", f"results_dir={folder}")
        return record_run(Composition.of(cfg), on_round, single=True)

    def killed(done):
        if done.agents.round == after:
            raise Stop

    single(tmp_path, 5)
    with pytest.raises(Stop):
        single(tmp_path, 8, killed)
    summary, folder = single(tmp_path, 8)
    assert summary["n_charges"] == 6 and summary["epsilon"]["pld"] <= limit
    _, whole = single(tmp_path / "whole", 8)
    for name in ("rounds.parquet", "server.parquet", "ledger.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_broadcasts_that_stopped_do_not_begin_again(tmp_path):
    """Later rounds with more noise may be cheap enough, but agents would then alternate between two modes."""
    falling = [
        "privacy/schedule=steps",
        "privacy.schedule.factors=[0.6,0.7,1,2,6,20]",
        "privacy.rng=os",
        "privacy.q=0.5",
    ]
    stop = ["privacy.budget.when_spent=stop", "privacy.budget.epsilon=12", f"results_dir={tmp_path}"]
    for again in (False, True, True):
        summary, folder = run_configuration(compose(*SIX, *falling, *stop, f"again={again}"))
        assert summary["epsilon"]["pld"] <= 12
    rounds = [charge.round for charge in Ledger(folder / "ledger.jsonl").charges]
    runs = "".join(map(str, rounds)).split("0")[1:]
    assert len(runs) >= 2  # the budget was left for some of the second run's broadcasts
    assert all("12345".startswith(run) for run in runs)


def test_a_budget_pays_for_a_release_that_is_sent_again_once(tmp_path):
    """A run killed between charge and checkpoint ends within a budget of exactly its cost."""
    exact = [*SIX, "privacy.rng=os", f"privacy.budget.epsilon={curve()[-1] * (1 + 1e-9)}", f"results_dir={tmp_path}"]

    def stop(done):
        if done.agents.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_configuration(compose(*exact), stop)
    (last,) = tmp_path.rglob("round-00003.npz")
    last.unlink()  # as if the process had died before it wrote this
    summary, folder = run_configuration(compose(*exact))
    assert summary["n_charges"] == 6


def test_seeded_runs_repeat_within_their_budget(tmp_path):
    seeded = [*SIX, f"privacy.budget.epsilon={curve()[-1] * 1.001}", f"results_dir={tmp_path}"]
    for _ in range(2):
        summary, folder = run_configuration(compose(*seeded))
        assert summary["n_charges"] == 6


def test_interrupted_run_with_momentum_and_a_budget_resumes_to_the_same_records(tmp_path):
    limit = curve()[3] * 1.001
    stopped = [
        *SIX, "privacy.budget.when_spent=stop", f"privacy.budget.epsilon={limit}", "algorithm.momentum=0.7",
        "algorithm.follow=always",
    ]  # fmt: skip
    _, whole = run_configuration(compose(*stopped, f"results_dir={tmp_path}/whole"))

    for last in (2, 5):

        def stop(done, last=last):
            if done.agents.round == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_configuration(compose(*stopped, f"results_dir={tmp_path}/{last}"), stop)
        _, resumed = run_configuration(compose(*stopped, f"results_dir={tmp_path}/{last}"))
        for name in ("rounds.parquet", "server.parquet", "ledger.jsonl"):
            assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    _, plain = run_configuration(compose(*stopped, "algorithm.momentum=0", f"results_dir={tmp_path}/plain"))
    assert (plain / "rounds.parquet").read_bytes() != (whole / "rounds.parquet").read_bytes()


@pytest.mark.parametrize("algorithm", ["dp_fts_de", "fts", "random_server", "fts_original"])
def test_broadcasts_end_when_asked(tmp_path, algorithm):
    asked = [f"algorithm={algorithm}", "algorithm.broadcasts=2", "algorithm.follow=always", f"results_dir={tmp_path}"]
    summary, folder = run_configuration(compose(*SIX, *asked))
    assert sources(folder, 2) == {"server"}
    assert sources(folder, 3) == {"own"}
    assert summary["n_charges"] == (2 if algorithm in ("dp_fts_de", "fts") else 0)
    if algorithm == "dp_fts_de":
        assert summary["epsilon"]["pld"] == pytest.approx(curve()[1])


@pytest.mark.parametrize("target", [0.5, 2, 8])
def test_a_target_epsilon_is_met(target):
    cfg = Composition.of(compose(*SIX, f"privacy.epsilon={target}", "privacy.charge=effective")).given
    experiment = build(cfg)
    spent = experiment.plan.epsilon()
    assert 0.99 * target <= spent <= target
    assert setting_hash(Composition.of(cfg).given) == setting_hash(cfg)  # a second time changes nothing


def test_a_target_with_noise_that_falls_from_round_to_round():
    falling = ["privacy/schedule=power", "privacy.schedule.exponent=-1.5", "rounds=12", "privacy.epsilon=5"]
    experiment = build(Composition.of(compose(*SIX, *falling)).given)
    assert 4.9 <= experiment.plan.epsilon() <= 5


def test_a_run_with_a_target_says_what_it_cost(tmp_path):
    summary, folder = run_configuration(compose(*SIX, "privacy.epsilon=2", f"results_dir={tmp_path}"))
    assert 1.98 <= summary["epsilon"]["pld"] <= 2
    assert json.loads((folder / "ledger.jsonl").read_text().splitlines()[1])["z"] == 0.9808


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["privacy.budget.epsilon=0"], "privacy.budget.epsilon must be a finite number above 0, got 0"),
        (["privacy.budget.epsilon=much"], "privacy.budget.epsilon must be a finite number above 0, got 'much'"),
        (["privacy.budget.epsilon=1", "privacy.budget.delta=1"], r"privacy.budget.delta must lie in \(0, 1\), got 1"),
        (["privacy.budget.epsilon=1", "privacy.budget.when_spent=beg"], "when_spent must be one of 'refuse', 'stop'"),
        (["privacy.budget.epsilon=1", "algorithm=fts"], "privacy.budget.epsilon needs a private algorithm"),
        (["privacy.budget.epsilon=1", "privacy.accountant=gdp"], "privacy.budget needs an accountant whose epsilon is"),
        (["privacy.accountant=gdp", "privacy.rng=os"], "privacy.accountant must be one whose epsilon is a guarantee"),
        (["privacy.epsilon=-1"], "privacy.epsilon must be a finite number above 0, got -1"),
        (["privacy.epsilon=2", "privacy.z=7"], "privacy.z must be left out where privacy.epsilon=2 determines it"),
        (["privacy.epsilon=2", "~privacy.S"], "setting 'S' is missing"),
        (["privacy.budget=null"], "privacy.budget must have epsilon, delta and when_spent, got None"),
        (["privacy.epsilon=0.02", "privacy.accountant=moments"], "cannot be met"),
    ],
)
def test_bad_budgets_and_targets_are_one_sentence(overrides, says):
    with pytest.raises(user_errors(), match=says):
        build(Composition.of(compose(*SIX, *overrides)).given)
