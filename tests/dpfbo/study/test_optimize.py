"""`dpfbo.optimize` that ends early, and goes on in its folder to the result of an undisturbed one."""

import json
import os
import random
import shutil
import signal
import time
from functools import partial

import pytest

import dpfbo
from dpfbo import Categorical, Float, Integer, SettingError
from dpfbo.formats.journal import StateError
from dpfbo.formats.run_folder import ResultsError
from dpfbo.gp import Acquisition
from dpfbo.problems.custom import EvaluationError
from tests.helpers.objectives import tuned

SPACE = {"rate": Float(1e-4, 1.0, log=True), "depth": Integer(1, 12), "kind": Categorical(["a", "b", "c"])}
N, T, N_INIT = 4, 3, 2
PLANNED = N * (N_INIT + T)
DP_PRIOR, DP_FTS_DE = {"epsilon": 1.0, "delta": 1e-3}, {"algorithm": "dp_fts_de", "epsilon": 4.0, "delta": 1e-3}
RECORDS = ("config.yaml", "rounds.parquet", "server.parquet", "ledger.jsonl")


def found(f=tuned, **settings):
    few = {"n_agents": N, "rounds": T, "n_init": N_INIT, "acquisition": Acquisition(n_candidates=30, n_starts=2)}
    return dpfbo.optimize(f, SPACE, **{**few, "algorithm": "ts", "seed": 3, **settings})


def of_prior(f=tuned, **settings):
    return found(f, **{"algorithm": "dp_prior", **DP_PRIOR, **settings})


class Counted:
    """Counts its calls, and raises an error at the call of a number."""

    def __init__(self, at=None, error=None):
        self.calls, self.at, self.error, self.__qualname__ = 0, at, error, "tuned"

    def __call__(self, agent, x):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return tuned(agent, x)


def contents(result):
    """The files that do not depend on when and how often the study was interrupted."""
    return {name: (result.folder / name).read_bytes() for name in RECORDS}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return of_prior(folder=tmp_path_factory.mktemp("undisturbed") / "study")


@pytest.mark.parametrize("at", [1, N * N_INIT - 1, N * N_INIT, N * N_INIT + 1, PLANNED - 1, PLANNED])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("sensor off")], ids=["interrupt", "error"])
def test_an_interrupted_study_goes_on_to_the_same_result(tmp_path, undisturbed, at, error):
    broken = Counted(at, error)
    if isinstance(error, ValueError):
        with pytest.raises(EvaluationError, match="sensor off"):
            of_prior(broken, folder=tmp_path / "study")
    else:
        stopped = of_prior(broken, folder=tmp_path / "study")
        assert (stopped.stopped, stopped.interrupted) == ("an interrupt", True)
    rest = Counted()
    result = of_prior(rest, folder=tmp_path / "study")
    assert broken.calls + rest.calls == PLANNED + 1  # no evaluation was lost; the interrupted one is repeated
    assert contents(result) == contents(undisturbed)
    assert result.to_pandas().equals(undisturbed.to_pandas()) and not result.interrupted


def test_a_finished_study_is_shown_and_not_repeated(undisturbed):
    again = Counted()
    shown = of_prior(again, folder=undisturbed.folder.parents[1])
    assert again.calls == 0
    assert shown.to_pandas().equals(undisturbed.to_pandas()) and shown.epsilons == undisturbed.epsilons


def test_a_folder_changes_no_result(undisturbed):
    assert of_prior().to_pandas().equals(undisturbed.to_pandas())


def test_without_a_folder_an_interrupt_returns_what_there_is():
    result = found(Counted(N * N_INIT + 3, KeyboardInterrupt()))
    assert result.stopped == "an interrupt" and len(result.curve) == 1
    assert [(e.agent, e.round) for e in result.unfinished] == [(0, 1), (1, 1)]
    assert str(result).startswith(f"ts, {N} agents, 0 of {T} rounds (an interrupt): best_value ")
    frame = result.to_pandas()
    assert len(frame) == N * N_INIT + 2 and frame["y"].max() == max(best.value for best in result.best())
    assert frame["x.depth"].tolist()[-1] == result.unfinished[-1].configuration["depth"]
    nothing = found(Counted(1, KeyboardInterrupt()))
    assert nothing.best() == [] and "no finished round" in str(nothing)


def test_callbacks_see_every_evaluation_and_may_end_the_study():
    seen = []
    whole = found(callbacks=[lambda study, evaluation: seen.append(evaluation)])
    frame = whole.to_pandas()
    rows = zip(*(frame[name] for name in ("agent", "round", "y")), strict=True)
    assert [(e.agent, e.round, e.value) for e in seen] == list(rows)
    assert seen[0].configuration == {name: frame[f"x.{name}"][0] for name in SPACE}

    def enough(study, evaluation):
        if evaluation.round == 2:
            dpfbo.stop()

    assert found(callbacks=[enough]).stopped == "a callback"


@pytest.mark.parametrize("most", [1, N * N_INIT, N * N_INIT + 1, PLANNED - 1])
def test_a_study_ends_after_its_evaluations(tmp_path, most):
    counted = Counted()
    result = found(counted, max_evaluations=most, folder=tmp_path / "study")
    assert (counted.calls, result.stopped) == (most, f"max_evaluations={most}")
    assert len(result.to_pandas()) == most
    again = found(counted, max_evaluations=most, folder=tmp_path / "study")
    assert (counted.calls, again.stopped) == (most, result.stopped)
    summary = result.folder / "summary.json"
    assert summary.exists() == (most >= N * N_INIT)
    assert found(counted, folder=tmp_path / "study", max_evaluations=PLANNED).stopped is None
    assert json.loads(summary.read_text())["rounds"] == T


def test_a_study_ends_after_its_time():
    result = found(lambda agent, x: time.sleep(0.02) or tuned(agent, x), timeout=0.05)
    assert result.stopped == "timeout=0.05" and 1 <= len(result.to_pandas()) < PLANNED


@pytest.mark.parametrize("algorithm", ["local", "shared_prior"])
def test_a_study_ends_when_no_agent_expects_a_gain(algorithm):
    result = found(algorithm=algorithm, min_gain=1e9)
    assert (result.stopped, len(result.curve)) == ("min_gain=1e+09", 1)
    whole = found(algorithm=algorithm)
    assert found(algorithm=algorithm, min_gain=1e-12).to_pandas().equals(whole.to_pandas())
    flat = found(lambda agent, x: 1.0, algorithm=algorithm, min_gain=1e-12)
    assert flat.stopped == "min_gain=1e-12"


def scaled(scale, agent, x):
    return scale * tuned(agent, x)


def test_an_expected_gain_is_in_the_unit_of_the_objective():
    least = {}
    for scale in (1.0, 1000.0):
        gains = []
        for gain in (1e-3, 1e-2, 1e-1, 1.0):
            result = found(partial(scaled, scale), algorithm="local", min_gain=scale * gain)
            gains.append(len(result.curve))
        least[scale] = gains
    assert least[1.0] == least[1000.0] and least[1.0][0] > least[1.0][-1]


def test_several_calls_at_a_time_are_kept_as_they_end(tmp_path):
    stopped = found(tuned, n_jobs=2, max_evaluations=5, folder=tmp_path / "study")
    assert stopped.interrupted
    result = found(tuned, n_jobs=2, folder=tmp_path / "study")
    assert result.to_pandas().equals(found().to_pandas())


def test_failed_evaluations_are_kept_as_failures(tmp_path):
    def moody(agent, x):
        if x["depth"] % 2:
            raise RuntimeError("sensor off")
        return tuned(agent, x)

    common = {"on_failure": "penalty", "folder": tmp_path / "study"}
    found(moody, max_evaluations=N * N_INIT + 1, **common)
    result, whole = found(moody, **common), found(moody, on_failure="penalty")
    assert result.to_pandas().equals(whole.to_pandas()) and whole.to_pandas()["y"].isna().any()
    assert "sensor off" in (result.folder / "failures.log").read_text()


@pytest.mark.parametrize("settings", [DP_PRIOR, DP_FTS_DE], ids=["dp_prior", "dp_fts_de"])
def test_real_releases_are_charged_once_however_often_the_study_is_interrupted(tmp_path, settings):
    for most in (3, N * N_INIT, N * N_INIT + 2, N * (N_INIT + 1), N * (N_INIT + 2) + 1, None):
        result = of_prior(**settings, rng="os", folder=tmp_path / "study", max_evaluations=most)
    whole = of_prior(**settings, rng="os", folder=tmp_path / "other")
    assert len(result.ledger.charges) == len(whole.ledger.charges) == (1 if settings is DP_PRIOR else T)
    assert result.epsilon == whole.epsilon


def test_studies_of_other_settings_have_folders_of_their_own(tmp_path):
    folders = {
        found(folder=tmp_path, **changed).folder
        for changed in ({}, {"seed": 4}, {"rounds": 2}, {"algorithm": "local"}, {"algorithm": "dp_fts", "epsilon": 8.0})
    }
    assert len(folders) == 5 and {path.parents[1] for path in folders} == {tmp_path}


def test_values_of_another_function_are_refused(tmp_path):
    found(folder=tmp_path, max_evaluations=3)
    with pytest.raises(StateError, match="is of function='tuned', and this is function='test_.*<lambda>'"):
        found(lambda agent, x: 0.0, folder=tmp_path)


def test_a_value_of_another_query_is_refused(tmp_path):
    path = found(folder=tmp_path, max_evaluations=3).folder / "evaluations.jsonl"
    lines = path.read_text().splitlines()
    event = json.loads(lines[1])
    path.write_text("\n".join([lines[0], json.dumps({**event, "x": [0.5, 1.0, 0.0]}), *lines[2:]]) + "\n")
    with pytest.raises(StateError, match="has the value of another query of agent 0 in round 0"):
        found(folder=tmp_path)


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    def inside(agent, x):
        found(folder=tmp_path)

    inside.__qualname__ = "tuned"
    with pytest.raises(EvaluationError, match=f"{ResultsError.__name__}: another run is writing to"):
        found(inside, folder=tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_evaluations": 0}, "max_evaluations must be an integer of at least 1, got 0"),
        ({"timeout": -1}, "timeout must be a finite number above 0, got -1"),
        ({"min_gain": 0.1}, "min_gain has no effect on algorithm=ts, which has no expected improvement: leave it out"),
        ({"call_timeout": 0}, "timeout must be a finite number above 0, got 0"),
        ({"rng": "os", "algorithm": "dp_prior", "ledger": dpfbo.Ledger()}, "ledger must be a dpfbo.Ledger with a path"),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path, settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        found(folder=tmp_path / "study", **settings)
    assert list(tmp_path.iterdir()) == []


def slowly(agent, x):
    time.sleep(0.01)
    return tuned(agent, x)


def killed(folder, seconds, settings):
    """Go on with a study in a process that is killed after so many seconds; True if it was still running."""
    child = os.fork()
    if child == 0:
        try:
            of_prior(slowly, folder=folder, **settings)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [DP_PRIOR, DP_FTS_DE], ids=["dp_prior", "dp_fts_de"])
def test_a_study_that_is_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path, settings, times):
    begin = time.perf_counter()
    whole = of_prior(slowly, folder=tmp_path / "whole", **settings)
    dice, length, killings = random.Random(5), time.perf_counter() - begin, 0
    while killings < times:
        folder = tmp_path / str(killings)
        while killed(folder, dice.uniform(0, length), settings):
            killings += 1
        result = of_prior(slowly, folder=folder, **settings)
        assert contents(result) == contents(whole), killings
        shutil.rmtree(folder)
