"""In a checkout full of results, tests of the default folders pass, and a test that touches the user's files fails."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.data_files import write_mini_landmine
from tests.mutants.mutation import COPIED, ROOT

MARK = "of-the-user"  # in the value of each variable that the user has set
SMALL = "problem=branin problem.n_agents=4 rounds=1 n_init=2 experiment_name=mine"
LANDMINE = "run problem=landmine algorithm=dp_fts_de privacy.q=0.35 privacy.z=1 problem.n_jobs=1"
COMMANDS = {  # of README, on small data
    "quick": [f"{LANDMINE} rounds=1", f"run algorithm=ts {SMALL}"],
    "slow": [
        LANDMINE,
        f"sweep algorithm=ts,dp_fts_de,dp_prior privacy.epsilon=1,4 seeds=0..1 sweep.address=local {SMALL}",
        "figures mine",
        "report mine",
    ],
}
CALLED = "import sys; from runners.dpfbo_command import main; sys.exit(any(main(a.split()) for a in sys.argv[1:]))"
OF_DEFAULT_FOLDERS = {
    "quick": ["tests/runners/test_run.py::test_missing_data_says_what_to_run"],
    "slow": ["tests/runners/test_run.py", "tests/runners/test_arguments.py", "tests/runners/compose/test_budget.py"],
}
INNOCENT = ["test_environment", "test_deletes_a_folder_of_its_own"]
OFFENDERS = """
import os, shutil, subprocess, sys
from pathlib import Path
import pytest

ROOT, HOME = Path(__file__).parents[1], Path({home!r})
READS = "import sys; print(open(sys.argv[1]).read())"


def test_environment():
    own = {{name: value for name, value in os.environ.items() if not name.startswith("DPFBO_TESTS_")}}
    assert {mark!r} not in str(own) and not os.listdir()
    said = subprocess.run([sys.executable, "-c", "import runners; print(runners.__file__)"], capture_output=True)
    assert said.stdout.decode() == f"{{ROOT}}/runners/__init__.py\\n"


def test_deletes_a_folder_of_its_own(monkeypatch, tmp_path):
    (tmp_path / "own" / "results" / "mine").mkdir(parents=True)
    monkeypatch.chdir(ROOT)
    shutil.rmtree(tmp_path / "own")


def test_reads():
    (ROOT / "report.html").read_text()


def test_lists():
    with pytest.raises(PermissionError):
        list((ROOT / "figures").iterdir())


def test_writes_by_a_relative_path():
    with pytest.raises(PermissionError):
        Path(os.path.relpath(ROOT / "results" / "new")).write_text("")


def test_makes_a_folder():
    with pytest.raises(PermissionError):
        (HOME / ".cache" / "new").mkdir()


def test_renames():
    with pytest.raises(PermissionError):
        (HOME / ".netrc").rename("netrc")


def test_moves_there():
    Path("file").touch()
    with pytest.raises(PermissionError):
        os.replace("file", ROOT / "data" / "new")


def test_in_a_process():
    subprocess.run([sys.executable, "-c", READS, HOME / ".config" / "settings"], cwd=ROOT)
"""


def stamps(*folders):
    """All files and folders below some, with what would show that one has changed."""
    found = {path: path.stat() for folder in folders for path in [folder, *folder.rglob("*")]}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found.items()}


@pytest.fixture(scope="module", params=["quick", pytest.param("slow", marks=pytest.mark.slow)])
def tested(request, tmp_path_factory):
    """The words of pytest in a checkout where README's commands have run, of a user who has settings of all kinds."""
    folder = tmp_path_factory.mktemp("isolation")
    checkout, home = folder / "checkout", folder / MARK
    checkout.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name)  # with its compiled code, which saves seconds
        else:
            shutil.copy2(ROOT / name, checkout / name)
    (checkout / "data").mkdir()
    write_mini_landmine(checkout / "data", rows=12)
    for name in (".config/settings", ".cache/file", ".netrc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(MARK)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DPFBO_", "PYTEST_"))}
    user = {**plain, "HOME": str(home), "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", CALLED, *COMMANDS[request.param]]
    subprocess.run(command, cwd=checkout, env=user, check=True, capture_output=True)
    for name in ("figures/mine.png", "report.html"):  # of commands that the quick ones leave out
        if not (checkout / name).exists():
            (checkout / name).parent.mkdir(exist_ok=True)
            (checkout / name).write_text(MARK)
    (checkout / "tests" / "test_offenders.py").write_text(OFFENDERS.format(home=str(home), mark=MARK))
    user |= dict.fromkeys(("http_proxy", "HTTPS_PROXY", "RAY_ADDRESS", "WANDB_BASE_URL"), f"http://{MARK}")
    user |= dict.fromkeys(("DPFBO_CONF", "HYDRA_FULL_ERROR", "RESULTS", "WANDB_API_KEY", "WANDB_MODE"), MARK)
    user |= {name: f"{home}/{name}" for name in ("DPFBO_DATA", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    kept = [home, *(checkout / name for name in ("data", "figures", "report.html", "results"))]
    before = stamps(*kept)
    assert {"mine", "single"} <= {path.name for path in before}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-rA", "tests/test_offenders.py"]
    command += OF_DEFAULT_FOLDERS[request.param]
    done = subprocess.run(command, cwd=checkout, env=user, capture_output=True, text=True)
    assert stamps(*kept) == before
    assert not any((checkout / name).exists() for name in ("wandb", "outputs", "multirun"))
    return done.stdout


def outcomes(said, word):
    return re.findall(rf"^{word} (?:at \w+ of )?(\S+)", said.partition("short test summary info")[2], re.MULTILINE)


def test_tests_of_the_default_folders_do_not_see_the_users(tested):
    assert OF_DEFAULT_FOLDERS["quick"][0] in outcomes(tested, "PASSED"), tested
    assert all(name.startswith("tests/test_offenders.py") for name in outcomes(tested, "(?:ERROR|FAILED)")), tested


@pytest.mark.parametrize("name", INNOCENT)
def test_the_environment_is_not_the_users_and_own_files_are_free(tested, name):
    name = f"tests/test_offenders.py::{name}"
    assert name in outcomes(tested, "PASSED") and name not in outcomes(tested, "ERROR"), tested


def test_a_test_that_touches_a_file_of_the_user_fails(tested):
    offenders = [name for name in re.findall(r"def (test_\w+)", OFFENDERS) if name not in INNOCENT]
    assert outcomes(tested, "ERROR") == [f"tests/test_offenders.py::{name}" for name in offenders], tested
    for name in offenders:
        assert re.search(rf"^tests/test_offenders.py::{name} \(call\): \S+ /\S+$", tested, re.MULTILINE), tested
