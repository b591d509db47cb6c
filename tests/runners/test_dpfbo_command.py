"""dpfbo COMMAND runs the same programs, and completes their arguments."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from runners import dpfbo_command
from runners.completion import SCRIPT, candidates
from runners.dpfbo_command import COMMANDS

ROOT = Path(__file__).parents[2]
PROGRAMS = [name for name in COMMANDS if name != "completion"]


@pytest.fixture(autouse=True)
def own_argv(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["dpfbo"])
    monkeypatch.chdir(tmp_path)


def called(*argv):
    """Call the command; returns its exit code, returned or raised."""
    try:
        return dpfbo_command.main(argv)
    except SystemExit as stop:
        return stop.code or 0


def test_is_the_console_script():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"dpfbo": "runners.dpfbo_command:main"}


def test_help_has_a_line_for_every_command(capsys):
    assert called("--help") == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out and command.purpose in out for name, command in COMMANDS.items())
    assert max(map(len, out.splitlines())) <= 120
    assert called() == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_is_its_program(name, capsys):
    assert called(name, "--help") == 0
    out = capsys.readouterr().out
    package = "analysis" if name in ("tables", "figures", "agents", "claims", "report") else "runners"
    assert f"python -m {package}.{name}" in out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["rnu"], 2, "error: unknown command 'rnu' (did you mean 'run'?); see dpfbo --help"),
        (["run", "rouns=3"], 2, "did you mean 'rounds'?"),
        (["sweep", "rounds"], 2, "settings read key=value, got 'rounds'"),
        (["run", "rounds=0", "tracker.wandb.mode=disabled"], 1, "error: rounds must be an integer of at least 1"),
        (["privacy", "epsilon"], 1, "error: "),
        (["status", "nothing"], 1, "error: no trial of 'nothing' in results"),
        (["tables", "nothing", "results_dir=there"], 1, "error: no finished run of 'nothing' in there"),
        (["completion", "tcsh"], 2, "error: give the shell bash"),
    ],
)
def test_exit_codes_are_the_programs(argv, code, words, capfd):
    assert called(*argv) == code
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dpfbo st", ["status", "study"]),
        ("dpfbo sweep experiment=fig2", [f"experiment=fig2{panel}" for panel in "abcd"]),
        ("dpfbo run algorithm=ts,po_", ["algorithm=ts,po_gp_ucb"]),
        ("dpfbo run privacy/noise=", ["privacy/noise=discrete", "privacy/noise=gaussian"]),
        ("dpfbo run privacy.b", ["privacy.budget."]),
        ("dpfbo run privacy.budget.w", ["privacy.budget.when_spent="]),
        ("dpfbo run roun", ["rounds="]),
        ("dpfbo audit problem.grid_s", ["problem.grid_size="]),
        ("dpfbo run problem=landmine problem.sco", ["problem.score="]),
        ("dpfbo sweep algorithm=ts,dp_fts_de privacy.z=1,2 roun", ["rounds="]),
        ("dpfbo  headroom  problem=school n_in", ["n_init="]),
        ("dpfbo claims fig", []),
        ("dpfbo nothing ", []),
    ],
)
def test_completes(line, words):
    assert candidates(line) == words


def test_completes_settings_of_added_folders(tmp_path, monkeypatch):
    (tmp_path / "own" / "problem").mkdir(parents=True)
    (tmp_path / "own" / "problem" / "ours.yaml").write_text("_target_: ours.Problem\nwidth: 3\n")
    monkeypatch.setenv("DPFBO_CONF", str(tmp_path / "own"))
    assert candidates("dpfbo run problem=o") == ["problem=ours"]
    assert candidates("dpfbo run problem=ours problem.w") == ["problem.width="]


def test_completion_imports_no_program():
    program = "import sys; from runners.completion import main; main(['words', 'dpfbo run ']); print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rounds=" in done.stdout
    assert not {"torch", "pandas", "matplotlib"} & set(done.stdout.splitlines()[-1].split())


def test_prints_the_script_of_bash(capsys):
    assert called("completion", "bash") == 0
    assert capsys.readouterr().out == SCRIPT + "\n"


@pytest.mark.parametrize(
    ("line", "reply"),
    [("dpfbo st", ["status", "study"]), ("dpfbo run algorithm=ts,dp_fts_de_", ["ts,dp_fts_de_plus"]), ("dpfbo x ", [])],
)
def test_the_script_works_in_bash(line, reply, tmp_path):
    """Bash replaces the word after the equals sign."""
    (tmp_path / "dpfbo").write_text(f'#!/bin/sh\nexec {sys.executable} -m runners.dpfbo_command "$@"\n')
    (tmp_path / "dpfbo").chmod(0o755)
    ask = (
        f"PATH={tmp_path}:$PATH COMP_LINE='{line}' COMP_POINT={len(line)}\n_dpfbo\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", f"{SCRIPT}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == reply
