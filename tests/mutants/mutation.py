"""mutmut on a copy of the tree, and the mutants that it made.

mutmut mutates the bodies and defaults of functions and methods, one change a mutant. It leaves alone what has a
decorator other than staticmethod and classmethod (properties, cached functions), class bodies and module constants;
here also everything in a `raise` (the wording of errors), never the condition that leads to it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from tests.mutants.modules import LEFT_OUT, MutatedModule

ROOT = Path(__file__).parents[2]
COPIED = ("dpfbo", "runners", "analysis", "conf", "tests", "pyproject.toml")
WITHOUT = ("cacheprovider", "unraisableexception", "threadexception")  # the last two collect garbage
OPTIONS = ("-o", "addopts=", "--tb=no", *(f"-pno:{name}" for name in WITHOUT))
SETTINGS = """
[tool.mutmut]
source_paths = ["dpfbo"]
also_copy = ["runners", "analysis", "conf"]
only_mutate = {files}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = {options}
do_not_mutate_patterns = ['raise \\w+']
process_isolation = "forkserver" # no mutant sees what another or the sound code has cached
timeout_multiplier = 3 # times what its tests take and the constant, in seconds
timeout_constant = 20
track_dependencies = false
use_git_change_detection = false
"""
CPU_TIME_SPENT = dict.fromkeys((-signal.SIGXCPU, signal.SIGXCPU, 128 + signal.SIGXCPU), "timeout")
# of exit codes; another one, as where pytest does not find a test, says nothing about the mutant
STATUS = {0: "survived", 1: "killed", 3: "killed", 5: "no tests", 33: "no tests", 36: "timeout", **CPU_TIME_SPENT}


@dataclass(frozen=True)
class Mutant:
    """One change of the source. was, becomes: the changed lines, without indentation. status: a value of `STATUS`."""

    module: str
    function: str
    was: str
    becomes: str
    status: str

    @property
    def survived(self) -> bool:
        """True if no test fails; also if no test runs it, or it was not decided."""
        return self.status not in ("killed", "timeout")


def tested_copy(folder: Path, module: MutatedModule) -> Path:
    """Copy what the tests need into a folder, with mutmut's settings for a module. Returns the folder."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    options = OPTIONS if module.conftest else (*OPTIONS, "--noconftest")
    settings = SETTINGS.format(
        files=json.dumps([f"dpfbo/{name}.py" for name in module.files]),
        tests=json.dumps([f"tests/{name}" for name in module.tests]),
        options=json.dumps([*options, *(f"--deselect=tests/{name}" for name in LEFT_OUT)]),
    )
    with open(folder / "pyproject.toml", "a") as file:
        file.write(settings)
    return folder


def mutants_of(folder: Path, processes: int) -> list[Mutant]:
    """All mutants of a copied tree, each tested. Raises RuntimeError if mutmut fails."""
    command = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", "run", "--max-children", str(processes)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # a mutant costs a tenth without them
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"mutmut failed: {(ran.stdout + ran.stderr)[-2000:]}")
    return read_mutants(folder)


def read_mutants(folder: Path) -> list[Mutant]:
    """The mutants that mutmut has tested in a folder."""
    from mutmut.configuration import reset_config
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import read_functions_from_index
    from mutmut.utils.file_utils import walk_mutatable_files
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key

    found = []
    with contextlib.chdir(folder):
        reset_config()
        for path in walk_mutatable_files():
            data = SourceFileMutationData(path=path)
            data.load()
            for key, code in data.exit_code_by_key.items():
                name, owner = orig_function_and_class_names_from_key(key)
                functions = read_functions_from_index(key, path)
                if functions is None:
                    raise RuntimeError(f"mutmut has lost the mutant {key}")
                was, becomes = changed([_code(function) for function in functions])
                function = name if owner is None else f"{owner}.{name}"
                found.append(Mutant(str(path), function, was, becomes, STATUS.get(code, "undecided")))
    return found


def changed(sources: list[str]) -> tuple[str, str]:
    """The lines that differ between two sources, from the first to the last, without indentation."""
    a, b = ([line.strip() for line in source.splitlines()] for source in sources)
    blocks = [block for block in SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if block[0] != "equal"]
    (_, a0, _, b0, _), (_, _, a1, _, b1) = blocks[0], blocks[-1]
    return " ".join(a[a0:a1]), " ".join(b[b0:b1])


def _code(function: object) -> str:
    import libcst

    return libcst.Module([function]).code
