"""SIGKILLs of agent actor, server actor and driver at any moment; `make soak` does ten times as many."""

import os

import pytest

from dpfbo.formats import files, run_folder
from dpfbo.formats.run_folder import RunFolder
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.ledger import Charge, Ledger
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.killed_runs import (
    RAY,
    RAY_OF_ITS_OWN,
    RUN,
    SHARDS,
    Kill,
    Moment,
    Outcome,
    T,
    actor_kills,
    driver_moments,
    kill_actors,
    kill_drivers,
    ray_session,
)
from tests.helpers.small_runs import QUIET, charged, differences, records, undisturbed


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), *RUN)


@pytest.fixture(scope="module")
def mark():
    pytest.importorskip("ray")
    with ray_session() as mark:
        yield mark


def test_agents_and_server_are_killed(tmp_path, mark, expected):
    kills = [Kill(SHARDS[0], 0, 0.03), Kill("the server", 4, "charge")]
    outcome = kill_actors("agents and server", kills, tmp_path, mark, expected)
    assert outcome.kills == 2
    assert outcome.passed, outcome


@pytest.mark.slow
def test_resumed_with_other_executors(tmp_path, mark, expected):
    """A run goes on in two actors after one process, then in one process again."""

    class Stop(Exception):
        pass

    def resumed(after, *executor):
        def stop(done):
            if done.agents.round == after:
                raise Stop

        return run_configuration(compose(*RUN, *executor, *QUIET, f"results_dir={tmp_path}"), stop)

    with pytest.raises(Stop):
        resumed(5)
    with pytest.raises(Stop):
        resumed(12, *RAY)
    _, folder = resumed(None)
    assert differences(records(folder), expected) == []


@pytest.mark.slow
def test_the_driver_is_killed(tmp_path, expected):
    outcome = kill_drivers("local", driver_moments(3, 0, 4.0), tmp_path, expected)
    assert outcome.kills == 3
    assert outcome.passed, outcome


@pytest.mark.slow
def test_the_driver_on_ray_is_killed_and_its_orphans_go_away(tmp_path, expected):
    pytest.importorskip("ray")
    (_, moment) = driver_moments(2, 1, 0.0, finish=False)
    outcome = kill_drivers("ray", [moment], tmp_path, expected, *RAY_OF_ITS_OWN)
    assert outcome.kills == 1
    assert outcome.passed, outcome


@pytest.mark.slow
def test_the_driver_is_killed_and_its_noise_is_never_the_same(tmp_path):
    moments = [Moment("charge", 5), Moment("charge", 12)]  # before the rounds of these charges are kept
    outcome = kill_drivers("local, rng=os", moments, tmp_path, None, "privacy.rng=os")
    assert outcome.kills == 2
    assert outcome.passed, outcome
    assert "20 charges, 20 broadcasts" in outcome.notes[-1], "what was kept is sent again, not made anew"


def test_a_ledger_has_one_server_at_a_time(tmp_path, monkeypatch):
    """The server of a killed driver may outlive it; the next server waits for the end of that process."""
    first = RunFolder(tmp_path).hold_ledger()
    with monkeypatch.context() as impatient:
        impatient.setattr(run_folder, "_SERVER_SECONDS", -1.0)
        with pytest.raises(run_folder.ResultsError, match="another server is writing"):
            RunFolder(tmp_path).hold_ledger()
    monkeypatch.setattr(files.time, "sleep", lambda seconds: first.close())  # its process ends while we wait
    RunFolder(tmp_path).hold_ledger().close()


def test_a_fifo_in_the_place_of_a_ledger_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "ledger.jsonl")
    with pytest.raises(OSError, match="ledger.jsonl must be a plain file, got a pipe"):
        RunFolder(tmp_path).hold_ledger()


def test_planned_kills_are_as_many_as_asked_for():
    for kind in ("agent", "server"):
        for n in (1, 2, 5, 10):
            for seed in range(20):
                kills = actor_kills(kind, n, seed)
                assert sum(1 + k.again for k in kills) == n
                assert len({k.after for k in kills}) == len(kills)
                assert all(0 <= k.after < T - 1 for k in kills)
    for n in (2, 3, 10):
        moments = driver_moments(n, 0, 1.0)
        assert len(moments) == n and (moments[0].at, moments[-1].t) == ("start", T)
        assert [m.t for m in moments] == sorted(m.t for m in moments)


def test_the_judge_sees_what_is_wrong(tmp_path, expected):
    """Each fault in the records or the ledger of a finished run fails the judgement."""
    _, folder = run_configuration(compose(*RUN, *QUIET, f"results_dir={tmp_path}"))

    def judged():
        outcome = Outcome("")
        outcome.judge(folder, expected)
        return outcome.records, outcome.ledger

    ledger, rounds = folder / "ledger.jsonl", folder / "rounds.parquet"
    lines, whole = ledger.read_text(), rounds.read_bytes()
    assert judged() == (True, True)
    ledger.write_text("".join(lines.splitlines(keepends=True)[:-1]))
    assert judged() == (False, False)
    ledger.write_text(lines + lines.splitlines(keepends=True)[-1])
    assert judged() == (False, False)
    ledger.write_text(lines)
    rounds.write_bytes(whole + b"\0")
    assert judged() == (False, True)
    rounds.write_bytes(whole)
    assert judged() == (True, True)


def test_the_judge_of_fresh_noise_sees_what_is_wrong(tmp_path):
    _, folder = run_configuration(compose(*RUN, "privacy.rng=os", *QUIET, f"results_dir={tmp_path}"))
    seen = set(charged(folder))

    def judged(observed):
        outcome = Outcome("")
        outcome.judge_fresh(folder, observed, T)
        return outcome.records, outcome.ledger

    assert judged(seen) == (True, True)
    assert judged(seen | {(5, "f" * 64)}) == (True, False)
    assert judged(seen - {max(seen)}) == (True, False)
    assert len(Rdp().curve(Ledger(folder / "ledger.jsonl").events(), 1e-2)) == T
    Ledger(folder / "ledger.jsonl").charge(Charge(5, 0.35, 1.0, 0.1, 0.1, "e" * 64))
    assert judged(seen) == (False, True)
