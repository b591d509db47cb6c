"""The Slurm launcher without Slurm: its script, its settings, and what is said where no Slurm is."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runners.compose.sweep_line import base_of
from runners.recorded_run import run_configuration
from runners.sweep import command, slurm
from runners.sweep.plan import plan
from runners.sweep.slurm import SlurmError, SlurmJob, SlurmLauncher, in_words, read, submit
from tests.helpers.compose import with_seed

SWEEP = ["problem=branin", "problem.n_agents=4", "rounds=2", "algorithm=ts", "experiment_name=mine"]


def script(*arguments, python="python"):
    made = SlurmLauncher.of(OmegaConf.to_container(base_of(["launcher=slurm", *arguments]).launcher), 1, 0)
    return made.script("mine", Path("/r/mine/slurm/%j.log"), ["a=1,2", "b='x y'"], Path("/home/me"), python)


def options(text):
    return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_the_script_asks_for_what_the_settings_say():
    text = script(
        "launcher.nodes=4", "launcher.cpus_per_task=16", "launcher.gpus_per_node=2", "launcher.mem=32G",
        "launcher.time=04:00:00", "launcher.partition=long", "launcher.setup=['module load python','ulimit -n 65536']",
        "+launcher.options.constraint=a100", "+launcher.options.exclusive=true", "+launcher.options.x_y=false",
    )  # fmt: skip
    assert set(options(text)) == {
        "job-name=dpfbo-mine", "output=/r/mine/slurm/%j.log", "open-mode=append", "requeue", "ntasks-per-node=1",
        "signal=TERM@120", "nodes=4", "cpus-per-task=16", "gpus-per-node=2", "mem=32G", "time=04:00:00",
        "partition=long", "constraint=a100", "exclusive",
    }  # fmt: skip
    lines = text.splitlines()
    assert lines.index("module load python") > lines.index("cd /home/me || exit 1")
    assert "--cpus 16 --gpus 2 --wait-for-nodes 300 --max-requeues 100 -- a=1,2 'b='\"'\"'x y'\"'\"''" in lines[-1]
    assert 'comment="two words"' in options(script("+launcher.options.comment='two words'"))
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("launcher.nodes=0", "launcher.nodes must be an integer of at least 1, got 0"),
        ("launcher.cpus_per_task=1.5", "launcher.cpus_per_task must be an integer of at least 1, got 1.5"),
        ("launcher.mem='1G\n#SBATCH --uid=0'", "launcher.mem must be one line"),
        ("+launcher.options.ntasks=3", "launcher.options must leave ntasks to the sweep"),
        ("+launcher.options.'a b'=3", None),
        ("+launcher.options.constraint=null", "launcher.constraint must be one line without quotes, got None"),
        ("+launcher.options.nodelist=[a,b]", "launcher.nodelist must be one line without quotes, got ['a', 'b']"),
        ("sweep.cpus_per_trial=2", "launcher.cpus_per_task must be at least sweep.cpus_per_trial=2, got 1"),
        ("sweep.gpus_per_trial=0.5", "launcher.gpus_per_node must be at least sweep.gpus_per_trial=0.5, got 0"),
        ("launcher.setup=ls", "launcher.setup must be a list of shell lines, got 'ls'"),
        ("launcher.options=ls", "launcher.options must be options of sbatch, got 'ls'"),
        ("launcher.wait_for_nodes=-1", "launcher.wait_for_nodes must be a finite number of at least 0, got -1"),
    ],
)
def test_bad_settings_are_one_sentence(override, says, tmp_path, capsys):
    given = [*SWEEP, "launcher=slurm", override, f"results_dir={tmp_path / 'r'}"]
    assert command.main(given) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert says is None or says in error
    assert not (tmp_path / "r").exists()


def test_without_slurm(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    given = [*SWEEP, "launcher=slurm", f"results_dir={tmp_path / 'r'}"]
    assert command.main(given) == 1
    assert "launcher=slurm needs sbatch on this machine, a login node of Slurm" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert command.main(["--cancel", "experiment_name=mine", f"results_dir={tmp_path / 'r'}"]) == 1
    assert "no Slurm job of mine is in the queue" in capsys.readouterr().err


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Commands of a Slurm whose job 7 is in a state that the test says; returns a function that sets it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        text = f'#!/bin/sh\necho {name} "$@" >> {folder}/calls\n'
        text += {"sbatch": f"cat > {folder}/script; echo '7;cluster'\n", "squeue": f"cat {folder}/state\n"}.get(
            name, ""
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def state(word, name="dpfbo-a"):
        (folder / "state").write_text(f"{word}|2|n[1-2]|3:21|{name}\n" if word else "")

    state("PENDING")
    return state


def test_a_job_is_noted_in_every_experiment_and_is_alone(tmp_path, commands):
    folders = [tmp_path / "results" / name for name in ("a", "b")]
    job = submit("#!/bin/sh\n", folders, ["x=1"], folders[0] / "slurm" / "%j.log")
    assert job.job == "7" and job.log == str(folders[0] / "slurm" / "7.log")
    assert read(folders[0]) == read(folders[1]) == job
    assert (folders[0] / "slurm" / "7.sh").read_text() == (tmp_path / "bin" / "script").read_text() == "#!/bin/sh\n"
    with pytest.raises(SlurmError, match="Slurm job 7 of b is PENDING, 2 nodes .*, for 3:21: wait for it") as refusal:
        submit("", folders[1:], [], folders[1] / "slurm" / "%j.log")
    assert str(refusal.value).endswith(f"runners.sweep --cancel experiment_name=b results_dir={tmp_path / 'results'}")
    assert in_words(folders[0]) == f"Slurm job 7: PENDING, 2 nodes n[1-2], for 3:21; log {job.log}"
    commands("RUNNING", "somebody-elses")
    assert job.state() is None  # the number went round
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(SlurmError, match="squeue: Unable to contact slurm controller"):
        submit("", folders, [], folders[0] / "slurm" / "%j.log")
    assert in_words(folders[0]) == ""
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho 'error: Invalid job id specified' >&2; exit 1\n")
    assert job.state() is None
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/bin/state\n")
    commands("COMPLETED")
    assert in_words(folders[0]) == "" and job.state() is None
    assert submit("", folders, [], folders[0] / "slurm" / "%j.log").job == "7"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"job": 1}', "null"])
def test_a_damaged_note_is_no_job(tmp_path, content):
    (tmp_path / slurm.RECORD).write_text(content)
    assert read(tmp_path) is None and in_words(tmp_path) == ""


def test_the_sweep_is_submitted_with_its_own_command_line(tmp_path, commands, capsys):
    results = tmp_path / "r"
    assert command.main([*SWEEP, "seeds=0..1", "launcher=slurm", "launcher.nodes=2", f"results_dir={results}"]) == 0
    out = capsys.readouterr().out
    assert "Slurm job 7" in out and "--cancel experiment_name=mine" in out
    text = (results / "mine" / "slurm" / "7.sh").read_text()
    assert "launcher" not in text.splitlines()[-1] and "seeds=0..1" in text
    assert len(json.loads((results / "mine" / "sweep.json").read_text())["trials"]) == 2
    assert isinstance(read(results / "mine"), SlurmJob)
    commands("")


def test_a_finished_sweep_submits_nothing(tmp_path, commands, capsys):
    given = [*SWEEP, "seeds=0", f"results_dir={tmp_path / 'r'}", "tracker.wandb.mode=disabled"]
    (setting,) = plan(given).settings
    run_configuration(with_seed(setting, 0))
    assert command.main([*given, "launcher=slurm"]) == 0
    assert "1 of 1 done" in capsys.readouterr().out
    assert not (tmp_path / "bin" / "script").exists()


def test_an_experiment_may_choose_its_launcher(tmp_path, commands, monkeypatch, capsys):
    monkeypatch.setenv("DPFBO_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - override /launcher: slurm\nexperiment_name: mine\n"
    (tmp_path / "conf" / "experiment" / "chosen.yaml").write_text(text)
    assert command.main(["experiment=chosen", "problem=branin", f"results_dir={tmp_path / 'r'}"]) == 0
    assert "Slurm job 7" in capsys.readouterr().out
    assert (tmp_path / "r" / "mine" / "slurm").stat().st_mode & 0o077 == 0


def test_cancel_needs_a_name(capsys):
    assert command.main(["--cancel"]) == 1
    assert "--cancel needs experiment=NAME or experiment_name=NAME" in capsys.readouterr().err
