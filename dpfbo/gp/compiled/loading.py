"""The compiled library: built at its first use by the system's C compiler, and kept in a private folder of the user.

`DPFBO_COMPILED=0` in the environment leaves it out. So does everything that goes wrong, with a line in the log.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dpfbo.checks import SettingError

logger = logging.getLogger(__name__)

SWITCH = "DPFBO_COMPILED"
FOLDER = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_SECONDS = 120  # that the compiler may take
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_building = threading.Lock()


class CannotCompile(Exception):
    """There is no library that could be loaded: the reason."""


def library() -> ctypes.CDLL | None:
    """The library; None if it is not to be used or cannot be built. Raises SettingError for an unknown `SWITCH`."""
    wanted = os.environ.get(SWITCH, "1")
    if wanted not in ("0", "1"):
        raise SettingError(SWITCH, f"must be 0 or 1, got {wanted!r}")
    if wanted == "0":
        return None
    with _building:  # once in a process, however many threads ask
        return _found()


def computes(*numbers: Tensor) -> bool:
    """Tell if there is a library, and these are numbers for it: some, in float64 on a CPU."""
    plain = all(x.device.type == "cpu" and x.dtype == torch.float64 and x.numel() > 0 for x in numbers)
    return plain and library() is not None


@cache
def _found() -> ctypes.CDLL | None:
    try:
        return load(cache_folder())
    except CannotCompile as error:
        logger.info("no compiled library, tensor operations do the same: %s", error)
        return None


def cache_folder() -> Path:
    """The user's folder for what can be made anew: `$XDG_CACHE_HOME/dpfbo`, else `~/.cache/dpfbo`."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "dpfbo"
    except RuntimeError as error:
        raise CannotCompile(str(error)) from error


def load(folder: Path) -> ctypes.CDLL:
    """The library from the folder, built if it is not there yet. Raises CannotCompile with the reason."""
    compiler = _compiler()
    version = _output([*compiler, "--version"])
    facts = "\0".join([version, *compiler, *FLAGS, _processor(), *_sources()])
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder, stat.S_ISDIR)
        path = folder / f"library-{hashlib.sha256(facts.encode()).hexdigest()[:32]}.so"
        if not os.path.lexists(path):
            _build(compiler, path)
        try:
            return _opened(path)
        except OSError:  # the file is damaged
            _build(compiler, path)
            return _opened(path)
    except OSError as error:
        raise CannotCompile(str(error)) from error


def _compiler() -> list[str]:
    """The words of `$CC`, else `cc`."""
    try:
        return shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise CannotCompile(f"CC: {error}") from error


def _opened(path: Path) -> ctypes.CDLL:
    _check_private(path, stat.S_ISREG)
    return ctypes.CDLL(str(path))


def _build(compiler: list[str], path: Path) -> None:
    """Build the library under another name first: processes that start at once must not see half of it."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        made = Path(folder) / path.name
        _output([*compiler, *FLAGS, "-o", str(made), *map(str, sorted(FOLDER.glob("*.c"))), "-lm"])
        made.chmod(0o700)
        made.replace(path)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    if done.returncode:
        raise CannotCompile(f"{shlex.join(command)}: {done.stdout.strip()[-1000:]}")
    return done.stdout


def _sources() -> list[str]:
    try:
        return [path.read_text() for path in sorted(FOLDER.glob("*.[ch]"))]
    except OSError as error:
        raise CannotCompile(str(error)) from error


def _processor() -> str:
    """The model and the instructions of the processor, for which the library is built alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join([platform.machine(), platform.processor(), *(x for x in lines if x.startswith(names))])


def _check_private(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raise CannotCompile unless the path is the user's own, and nobody else may write there."""
    found = path.lstat()
    if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS:
        raise CannotCompile(f"{path} is not this user's alone, and not loaded from")
