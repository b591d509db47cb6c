"""python -m tests.bare WHEEL: install a wheel with its mandatory packages alone into a new environment, and use it.

The packages have the versions of constraints.txt; torch comes first, by its exact version, since a range may bring
gigabytes of GPU packages. Installing needs a package index, or pip's cache; the study itself runs without a network.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bare.study import check_study

ROOT = Path(__file__).parents[2]
SENTENCES = r"error: .+ needs [\w-]+: pip install 'dpfbo\[(run|analysis)\]'\n"


def main():
    wheel = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        call(sys.executable, "-m", "venv", python.parents[1], folder=folder)
        constraints = ROOT / "constraints.txt"
        torch = re.search(r"^torch==.*$", constraints.read_text(), re.MULTILINE)[0]
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        call(*install, torch, folder=folder)
        call(*install, "-c", constraints, wheel, folder=folder)
        installed = json.loads(call(python, "-m", "pip", "list", "--format=json", folder=folder))
        print(f"installed: {', '.join(sorted(package['name'] for package in installed))}")

        check_study(json.loads(call(python, ROOT / "tests" / "bare" / "study.py", folder=folder)))
        for command in (["-m", "runners.run"], ["-m", "analysis.tables"], [python.parent / "dpfbo", "run"]):
            program = [python, *command] if command[0] == "-m" else command
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 1 and re.fullmatch(SENTENCES, done.stderr), done.stderr
        print("a study runs without optional packages and without a network; programs say what they need")


def call(*command, folder):
    """Run a program; returns its standard output, or fails with what it said."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    main()
