"""The environment of the tests: nothing of the user's, and everything that is written goes to a temporary folder."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.isolation.watch import REPORT, WATCHED

ROOT = Path(__file__).parents[2]
FOLDER = "DPFBO_TESTS_FOLDER"  # environment: the temporary folder of the tests; set in a process that is isolated
DATA = "DPFBO_TESTS_DATA"  # environment: the folder of real data, which the user's DPFBO_DATA named
OUTPUTS = ("results", "figures", "report.html", "data", "wandb", "outputs", "multirun")  # that commands leave in ROOT
OF_HOME = (".cache", ".config", ".local/share", ".local/state", ".matplotlib", ".netrc", ".ray", ".wandb")
PREFIXES = ("DPFBO_", "HYDRA_", "MAKE", "MATPLOTLIB", "MPL", "RAY_", "SLURM_", "TUNE_", "WANDB_", "XDG_")
NAMES = {"COLUMNS", "FORCE_COLOR", "MFLAGS", "NETRC", "NO_COLOR", "PYTEST_CURRENT_TEST", "RESULTS", "results_dir"}


@contextlib.contextmanager
def isolated() -> Iterator[Path]:
    """Set the environment of this process, and of those that it starts; yields a temporary folder, which it deletes.

    The home folder is inside, so processes share what they cache there, such as the compiled library. The checkout is
    on Python's path, so its programs are found from any folder.
    """
    given = dict(os.environ)
    kept = {name: value for name, value in given.items() if not _is_of_the_user(name)}
    data = [os.path.abspath(os.path.expanduser(data))] if (data := given.get("DPFBO_DATA")) else []
    watched = os.pathsep.join(map(str, _watched(given, data)))
    path = [str(ROOT / "tests" / "isolation" / "startup"), str(ROOT), *filter(None, [given.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="dpfbo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "home").mkdir()
        own = {"HOME": f"{folder}/home", "RAY_TMPDIR": name, "PYTHONPATH": os.pathsep.join(path)}
        own |= {FOLDER: name, WATCHED: watched, REPORT: f"{name}/report"}
        own |= {DATA: data[0]} if data else {}
        with mock.patch.dict(os.environ, {**kept, **own}, clear=True):
            yield folder


def _is_of_the_user(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES) or name.lower().endswith("_proxy")


def _watched(given: dict[str, str], data: list[str]) -> Iterator[Path]:
    """The outputs in the checkout and the user's folders, except those around what tests need."""
    home = Path(given.get("HOME") or Path.home())
    xdg = [Path(value) for name, value in given.items() if name.startswith("XDG_") and name.endswith("_HOME")]
    needed = [ROOT, *map(Path, [sys.prefix, sys.base_prefix, tempfile.gettempdir(), *data])]
    for place in [*(ROOT / name for name in OUTPUTS), *(home / name for name in OF_HOME), *xdg]:
        if not any(path.is_relative_to(place) for path in needed):
            yield place
