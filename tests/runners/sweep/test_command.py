"""The sweep command: its plans, its refusals, and its results after kills of trials and of the sweep itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from dpfbo.formats.run_folder import Progress
from runners import status
from runners.compose.sweep_line import parse_seeds
from runners.identity.setting import names_of
from runners.recorded_run import run_configuration
from runners.sweep import command
from runners.sweep.plan import plan
from runners.sweep.trials import TrialState, known_trials, record_failure, state
from tests.helpers.compose import with_seed

TINY = ["problem.n_agents=4", "rounds=2", "algorithm.M=10", "acquisition.n_candidates=20", "acquisition.n_starts=1"]
QUIET = ["tracker.wandb.mode=disabled", "experiment_name=mine"]
# the accountant by privacy-loss distributions takes longer than these runs
FAST = ["privacy.accountants=[moments,rdp,fixed_size,gdp]", "privacy.accountant=rdp"]
BRANIN = ["problem=branin", *TINY, *QUIET, *FAST]


def labels(*arguments):
    return [setting.label for setting in plan([*BRANIN, *arguments]).settings]


def summaries(folder):
    """The summary file of every finished trial, with its inode and time, which show a second write."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(folder).rglob("summary.json")}


# --- the plan


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0..4", (0, 1, 2, 3, 4)), ("3", (3,)), (3, (3,)), ("0,1,5", (0, 1, 5)), ("[0,1,5]", (0, 1, 5)),
        ([0, 1, 5], (0, 1, 5)), ("0..2, 7,1", (0, 1, 2, 7)), (["0..1", 3], (0, 1, 3)), ("5..5", (5,)),
    ],
)  # fmt: skip
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 50)), min_size=1, max_size=5))
def test_seeds_of_any_ranges(ranges):
    text = ",".join(f"{a}..{a + n}" if n else str(a) for a, n in ranges)
    expected = [seed for a, n in ranges for seed in range(a, a + n + 1)]
    assert parse_seeds(text) == parse_seeds(f"[{text}]") == tuple(dict.fromkeys(expected))


@given(st.text(alphabet="0123456789.,-[] abc", max_size=12))
def test_seeds_are_numbers_or_one_sentence(text):
    says = ""
    try:
        seeds = parse_seeds(text)
    except ValueError as refusal:
        says = str(refusal)
    assert says.startswith("seeds must be") or all(isinstance(seed, int) and seed >= 0 for seed in seeds)


@pytest.mark.parametrize("text", ["", "4..0", "-1", "1.5", "a", "0..", "0...3", "True", "0..9999999999", "[[0]]", "٣"])
def test_bad_seeds(text):
    with pytest.raises(ValueError, match="seeds must be"):
        parse_seeds(text)


def test_product_of_the_command_line():
    sweep = plan([*BRANIN, "algorithm=fts,dp_fts", "privacy.z=range(1,3)", "seeds=0..1"])
    assert [s.label for s in sweep.settings] == ["fts", "dp_fts z=1", "dp_fts z=2"]
    trials = [trial.key for _, trial in sweep.trials]
    assert len(trials) == len(set(trials)) == 6
    assert [seed for _, seed in trials] == [0, 0, 0, 1, 1, 1]


def test_choice_and_glob():
    assert labels("weights=glob(*,exclude=power)") == ["softmax", "uniform"]
    assert labels("algorithm=choice(ts,fts)") == ["ts", "fts"]


def test_union_of_settings_times_the_command_line():
    settings = "sweep.settings=['algorithm=ts',['algorithm=dp_fts','privacy.z=1,2'],'algorithm=ts']"
    assert labels(settings, "rounds=2,3") == [
        "ts rounds=2", "ts rounds=3", "dp_fts z=1 rounds=2", "dp_fts z=1 rounds=3", "dp_fts z=2 rounds=2",
        "dp_fts z=2 rounds=3",
    ]  # fmt: skip
    assert labels(settings, "privacy.z=3") == ["ts", "dp_fts"]  # the command line goes first


def test_one_setting_is_named_by_its_overrides():
    assert labels("algorithm=ts") == ["branin ts"]
    assert plan(QUIET).settings[0].label == "dp_fts_de"


def test_same_hash_and_seed_is_one_trial():
    sweep = plan([*BRANIN, "algorithm=ts", "privacy.z=1,2,1.0", "seeds=0,1,0"])
    assert len(sweep.trials) == 2


def test_configuration_survives_the_way_to_a_worker():
    for setting in plan(["problem=synthetic,branin", "problem.function_seed=3,${seed}", *FAST]).settings:
        cfg = OmegaConf.create(OmegaConf.to_yaml(with_seed(setting, 3)))
        assert names_of(cfg).setting == setting.name
        assert cfg.seed == 3
        assert cfg.privacy.S == setting.cfg.privacy.S
        assert Path(cfg.results_dir).is_absolute()


def test_figure_2c():
    sweep = plan(["experiment=fig2c"])
    assert [s.label for s in sweep.settings] == [
        "ts", "random_server P=2", "dp_fts_de P=2 q=0.15 z=1", "dp_fts_de P=2 q=0.25 z=1",
        "dp_fts_de P=2 q=0.5 z=1",
    ]  # fmt: skip
    assert sweep.seeds == (0, 1, 2, 3, 4)
    for setting in sweep.settings[2:]:
        assert (setting.cfg.privacy.S, setting.cfg.privacy.z, setting.cfg.algorithm.P) == (11, 1, 2)
        assert (setting.cfg.problem.n_agents, setting.rounds) == (200, 40)
    epsilons = [s.epsilon["pld"] for s in sweep.settings]
    assert epsilons[:2] == [0, 0] and 0 < epsilons[2] < epsilons[3] < epsilons[4]


def test_actors_of_a_trial_have_their_own_cpus():
    options = plan([*BRANIN, "algorithm=ts", "executor=ray"]).options
    assert (options.cpus_per_trial, options.max_concurrent) == (0, 1)
    options = plan([*BRANIN, "algorithm=ts"]).options
    assert (options.cpus_per_trial, options.max_concurrent) == (1, None)


REFUSED = [
    ("seed=1", 2, "seed cannot be given to a sweep: use seeds, such as seeds=0..4"),
    ("seeds=4..1", 1, "seeds must be integers of at least 0, such as 0..4 or 0,1,5, got '4..1'"),
    ("privacy.q=0.2,1.4", 1, "privacy.q (sampling_probability) must lie in (0, 1], got 1.4"),
    ("privacy.zz=1,2", 2, "unknown override 'privacy.zz' (did you mean 'privacy.z'?)"),
    ("algorithm=ts,dp_fst", 2, "unknown algorithm 'dp_fst': choose one of"),
    ("experiment=fig2c,demo", 2, "experiment_name cannot be given to several experiments"),
    ("executor.threads=1,2", 2, "executor.threads must have one value for the whole sweep"),
    ("executor.threads=0", 1, "executor.threads must be an integer of at least 1, got 0"),
    ("privacy.q=interval(0,1)", 2, "privacy.q must be a list of values"),
    ("weights=glob(x*)", 2, "weights=glob(x*) has no values"),
    ("sweep.settings=ts", 2, "sweep.settings must be a list of settings, got 'ts'"),
    ("sweep.settings=[]", 2, "sweep.settings must be a list of settings, got []"),
    ("sweep.settings=['seed=1']", 2, "seed cannot be given in sweep.settings"),
    ("sweep.max_concurrent=0", 1, "sweep.max_concurrent must be an integer of at least 1, got 0"),
    ("sweep.cpus_per_trial=-1", 1, "sweep.cpus_per_trial must be a finite number of at least 0, got -1"),
    ("sweep.gpus_per_trial=1.5", 1, "sweep.gpus_per_trial above 1 must be a whole number, got 1.5"),
    ("sweep.retry_failed=maybe", 1, "sweep.retry_failed must be one of True, False, got 'maybe'"),
    ("sweep.address=3", 1, "sweep.address must be the address of a Ray cluster, got 3"),
    ("sweep.address='ray://head:10001'", 1, "sweep.address must read HOST:PORT, on a machine of the cluster"),
    (
        "+sweep.searching=asha",
        1,
        "a key of sweep must be one of 'experiments', 'settings', 'alone', 'scales', 'max_concurrent'",
    ),
    ("tracker.wandb.mode=loud", 1, "tracker.wandb.mode must be one of 'online', 'offline', 'disabled', got 'loud'"),
    ("experiment_name=a/b", 1, "experiment_name must be a plain folder name"),
    ("problem=landmine", 1, "python -m runners.fetch landmine"),
    ("~privacy.z", 1, "setting 'z' is missing"),
]


@pytest.mark.parametrize(("override", "code", "says"), REFUSED, ids=[o for o, _, _ in REFUSED])
def test_refused_in_one_sentence_before_ray_starts(override, code, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "runners.sweep.tune", None)
    if override == "problem=landmine":
        given = ["problem=landmine", f"data_dir={tmp_path}"]
    else:
        given = [*[o for o in BRANIN if o.split("=")[0] != override.split("=")[0]], override]
    assert command.main([*given, f"results_dir={tmp_path / 'r'}"]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_without_ray(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "runners.sweep.tune", raising=False)
    monkeypatch.delattr("runners.sweep.tune", raising=False)  # another test may have imported it
    assert command.main([*BRANIN, "algorithm=ts", f"results_dir={tmp_path / 'r'}"]) == 1
    assert "a sweep needs ray: pip install 'dpfbo[ray]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1"])
def test_no_cluster_at_the_address(address, tmp_path, capsys):
    assert command.main([*BRANIN, "algorithm=ts", f"sweep.address='{address}'", f"results_dir={tmp_path / 'r'}"]) == 1
    assert f"error: no Ray answers at {address}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_and_arguments(capsys):
    for arguments, code, says in ((["--help"], 0, "seeds=0..4"), (["rounds"], 2, "key=value"), (["-x"], 2, "-x")):
        with pytest.raises(SystemExit) as stop:
            command.main(arguments)
        assert stop.value.code == code
        captured = capsys.readouterr()
        assert says in captured.out + captured.err


def test_settings_are_printed_as_hydra_does(tmp_path, capsys):
    given = [*BRANIN, "-m", "algorithm=ts,dp_fts", "privacy.z=3", f"results_dir={tmp_path}", "--cfg", "job"]
    assert command.main(given) == 0
    printed = capsys.readouterr().out
    assert "name: ts" in printed and "seeds:" not in printed
    assert command.main([*given, "-p", "privacy.z"]) == 0
    assert capsys.readouterr().out.strip() == "3"
    assert command.main([*given, "--package", "privcy"]) == 1
    assert "--package must be a group or a key of the settings, got 'privcy'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_tells_all_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "runners.sweep.tune", None)
    sweeps = [*BRANIN, "algorithm=dp_fts,fts", "privacy.q=0.9", "rounds=9", "seeds=0..3", f"results_dir={tmp_path}"]
    assert command.main([*sweeps, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2 settings x 4 seeds = 8 trials, 8 to run" in out
    assert "relation zero-out" in out
    assert list(tmp_path.iterdir()) == []
    sweep = plan(sweeps)
    folders = [sweep.settings[0].trial(seed).folder(sweep.folder) for seed in range(3)]
    run_configuration(with_seed(sweep.settings[0], 0))
    record_failure(folders[1], "sensor off", "")
    folders[2].path.mkdir(parents=True)
    folders[2].note_progress(Progress(7, 9, 0.5, 0.1, {}, {}))
    before = sorted(tmp_path.rglob("*"))
    assert command.main([*sweeps, "--dry-run"]) == 0
    out = capsys.readouterr().out
    for words in ("0 done", "1 failed, skipped", "2 resumes", "3 to run", "8 trials, 6 to run"):
        assert words in out
    assert command.main([*sweeps, "--dry-run", "--json", "sweep.retry_failed=true"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(trial["to_run"] for trial in report["trials"]) == 7
    done = next(trial for trial in report["trials"] if trial["state"] == "done")
    assert done["predicted"]["epsilon"]["rdp"] == pytest.approx(done["epsilon"])
    assert done["predicted"]["delta"] == done["delta"]
    fts = next(trial for trial in report["trials"] if trial["label"] == "fts")
    assert set(fts["predicted"]["epsilon"].values()) == {None}
    assert sorted(tmp_path.rglob("*")) == before


# --- on Ray: 12 trials, 10 of `good` and 2 of `bad`

OBJECTIVE = """
import glob, os, signal, time

def good(agent, x):
    time.sleep(0.004)
    while os.path.exists("hold") and len(glob.glob("results/mine/*/*/summary.json")) >= 4:
        time.sleep(0.05)  # however slow the machine is, the sweep does not end before it is killed
    try:
        os.unlink("deadly")
    except FileNotFoundError:
        return -float(((x - 0.3) ** 2).sum())
    os.kill(os.getpid(), signal.SIGKILL)

def needing(agent, x):
    return float(os.environ["FOO"]) * float(x[0])

def bad(agent, x):
    if os.path.exists("broken"):
        raise RuntimeError("sensor off")
    return -float(((x - 0.6) ** 2).sum())
"""
SETTINGS = (
    "sweep.settings=['problem.function=sweep_objective:good algorithm=ts,fts,dp_fts,random_server,sobol_server',"
    "'problem.function=sweep_objective:bad algorithm=ts']"
)
CUSTOM = ["problem=custom", "problem.lower=[0,0]", "problem.upper=[1,1]", *TINY, *QUIET, *FAST, SETTINGS, "seeds=0..1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with a custom objective that is broken at first."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep_objective.py").write_text(OBJECTIVE)
    (folder / "broken").touch()
    (folder / "hold").touch()
    return folder


@pytest.fixture(scope="module")
def killed(folder):
    """The results of a sweep that was killed half-way, and the output of `status` before."""
    command = [sys.executable, "-m", "runners.sweep", *CUSTOM, "sweep.address=local"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    experiment, seen, give_up = folder / "results" / "mine", set(), time.monotonic() + 90
    while len(summaries(folder)) < 4:
        if time.monotonic() > give_up:
            process.kill()  # or communicate would wait for it
        assert process.poll() is None, process.communicate()
        seen.update(state(trial.folder(experiment)).phase for trial in known_trials(experiment))
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    (folder / "hold").unlink()
    return {"finished": summaries(folder), "seen": seen, "out": out, "err": err}


@pytest.fixture(scope="module")
def session():
    """A Ray that was started before the sweep; the sweep leaves it running."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    assert ray.is_initialized()
    ray.shutdown()


@pytest.fixture
def here(folder, monkeypatch, capfd):
    """Run a sweep in the working folder, one trial at a time; returns its exit code and its output."""
    monkeypatch.chdir(folder)

    def call(*more):
        code = command.main([*CUSTOM, "sweep.max_concurrent=1", *more])
        return code, *capfd.readouterr()

    return call


def test_killed_half_way(killed, folder):
    assert {"done", "running", "waiting"} <= killed["seen"]
    assert 4 <= len(killed["finished"]) < 10
    assert killed["out"] == ""
    assert "Traceback" not in killed["err"]
    states = status.report(folder / "results" / "mine").states
    assert len(states) == 12


def test_same_command_runs_only_what_is_missing(killed, folder, session, here):
    (folder / "deadly").touch()
    code, out, err = here("sweep.max_retries=0")
    assert code == 1
    after = summaries(folder)
    assert {path: after[path] for path in killed["finished"] if path in after} == killed["finished"]
    assert len(after) == 9
    assert "trials are finished and skipped" in err
    assert "9 of 12 done, 3 failed" in out
    assert "RuntimeError: sensor off" in out
    assert "its process died" in out
    assert "Traceback" not in err + out
    failures = [json.loads(path.read_text()) for path in folder.rglob("failure.json")]
    assert len(failures) == 3
    assert sum("sensor off" in f["error"] and "EvaluationError" in f["traceback"] for f in failures) == 2
    assert all(f["time"] and f["host"] for f in failures)


def test_failed_trials_are_skipped(folder, here):
    before = summaries(folder)
    code, out, err = here()
    assert code == 1
    assert "3 failed before and are skipped; sweep.retry_failed=true runs them again" in err
    assert "9 of 12 done, 3 failed" in out
    assert summaries(folder) == before


def test_resources_that_no_node_has(session, tmp_path, capsys):
    one = [*BRANIN, "algorithm=ts", f"results_dir={tmp_path / 'r'}"]
    assert command.main([*one, "sweep.cpus_per_trial=64"]) == 1
    error = capsys.readouterr().err
    assert "error: sweep.cpus_per_trial=64 and sweep.gpus_per_trial=0 fit on no node of the Ray cluster" in error
    assert list(tmp_path.iterdir()) == []


OF_RAY = ["executor=ray", "+executor.runtime_env.env_vars.FOO='2'"]


def test_an_environment_of_ray_reaches_the_trials(folder, tmp_path):
    given = [o for o in CUSTOM if not o.startswith(("sweep.settings", "seeds"))]
    command = [sys.executable, "-m", "runners.sweep", *given, "problem.function=sweep_objective:needing"]
    more = [*OF_RAY, "+executor.init.num_cpus=2", "sweep.address=local", "algorithm=ts", f"results_dir={tmp_path}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run([*command, *more], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("mine/*/*/summary.json"))) == 1


def test_an_environment_of_ray_cannot_reach_a_connection_that_is_there(session, tmp_path, capsys):
    assert command.main([*BRANIN, "algorithm=ts", *OF_RAY, f"results_dir={tmp_path / 'r'}"]) == 1
    assert "executor.runtime_env, .init and .dashboard have no effect on a Ray that is" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_retried_on_request(folder, session, here):
    """A trial whose process dies on the way is no failure."""
    (folder / "broken").unlink()
    (folder / "deadly").touch()
    before = summaries(folder)
    code, out, err = here("sweep.retry_failed=true", "--json")
    assert code == 0
    after = summaries(folder)
    assert len(after) == 12
    assert {path: after[path] for path in before} == before
    assert not list(folder.rglob("failure.json"))
    report = json.loads(out)
    assert {trial["state"] for trial in report["trials"]} == {"done"}
    assert sum(trial["preemptions"] for trial in report["trials"]) == 1
    (line,) = [json.loads(path.read_text()) for path in folder.rglob("preemptions.jsonl")]
    assert line["reason"].startswith("its process died")
    assert "12/12" in err
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") and path.is_file()]


def test_a_sweep_and_a_plain_run_give_the_same_records(folder, session, here, tmp_path):
    """The workers write the records that this process computes."""
    one = ["problem.function=sweep_objective:good", "algorithm=dp_fts"]
    (setting,) = plan([*(o for o in CUSTOM if o != SETTINGS), *one]).settings
    cfg = with_seed(setting, 1)
    cfg.results_dir = str(tmp_path)
    summary, _ = run_configuration(cfg)
    swept = json.loads((folder / "results" / "mine" / setting.name / "1" / "summary.json").read_text())
    assert swept["curve"] == summary["curve"]
    assert swept["epsilon"] == summary["epsilon"]


def test_folder_that_another_process_holds(session, here, folder, monkeypatch, tmp_path):
    from runners.sweep import attempt

    sweep = plan([*BRANIN, "algorithm=ts", f"results_dir={tmp_path}"])
    cfg = with_seed(sweep.settings[0], 0)
    monkeypatch.setattr(attempt, "BUSY_SECONDS", 0.1)
    held = sweep.settings[0].trial(0).folder(sweep.folder)
    with held.opened():
        ended = attempt.attempt(cfg, lambda done: None)
    assert ended == TrialState("running", error="another process is running it")
    assert not (held.path / "failure.json").exists()
    assert attempt.attempt(cfg, lambda done: None).phase == "done"
