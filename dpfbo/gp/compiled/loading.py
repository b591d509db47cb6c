"""The compiled library; at its first use, the system's C compiler builds it in the user's cache folder.

Tensor operations replace the library if `DPFBO_COMPILED=0` is set, or if it cannot be built or loaded.
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
from typing import Any

import torch
from torch import Tensor

from dpfbo.checks import SettingError

logger = logging.getLogger(__name__)

SWITCH = "DPFBO_COMPILED"
FOLDER = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_SECONDS = 120  # time limit of the compiler
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_building = threading.Lock()


class CannotCompile(Exception):
    """The library cannot be built or loaded; the message is the reason."""


def library() -> ctypes.CDLL | None:
    """Return the library; None if it is switched off, or cannot be built or loaded.

    Raises SettingError if `DPFBO_COMPILED` is neither 0 nor 1.
    """
    wanted = os.environ.get(SWITCH, "1")
    if wanted not in ("0", "1"):
        raise SettingError(SWITCH, f"must be 0 or 1, got {wanted!r}")
    if wanted == "0":
        return None
    with _building:  # threads of a process build it only once
        return _found()


def computes(*numbers: Tensor) -> bool:
    """Return whether the compiled library is available and all tensors are non-empty, float64 and on a CPU."""
    plain = all(x.device.type == "cpu" and x.dtype == torch.float64 and x.numel() > 0 for x in numbers)
    return plain and library() is not None


def call(name: str, task: str, *arguments: Any) -> None:
    """Call a function of the library; raise MemoryError(task) if memory is short.

    Call this only after `computes` has returned True. Tensors are passed as pointers, and structures by reference.
    Numbers must have a ctypes type, such as `c_double`.
    """
    kept = [part.contiguous() if isinstance(part, Tensor) else part for part in arguments]  # until the call returns
    passed = [
        ctypes.c_void_p(part.data_ptr()) if isinstance(part, Tensor)
        else ctypes.byref(part) if isinstance(part, ctypes.Structure) else part
        for part in kept
    ]  # fmt: skip
    if getattr(library(), name)(*passed):
        raise MemoryError(task)


@cache
def _found() -> ctypes.CDLL | None:
    try:
        return load(cache_folder())
    except CannotCompile as error:
        logger.info("no compiled library, so tensor operations are used: %s", error)
        return None


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/dpfbo` if that is an absolute path, else `~/.cache/dpfbo`."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "dpfbo"
    except RuntimeError as error:
        raise CannotCompile(str(error)) from error


def load(folder: Path) -> ctypes.CDLL:
    """Load the library from the folder, and build it first if needed; raise CannotCompile if that fails."""
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise CannotCompile(f"CC: {error}") from error
    try:
        facts = "\0".join([_output([*compiler, "--version"]), *compiler, *FLAGS, _processor(), *_sources()])
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
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error


def _opened(path: Path) -> ctypes.CDLL:
    _check_private(path, stat.S_ISREG)
    return ctypes.CDLL(str(path))


def _build(compiler: list[str], path: Path) -> None:
    """Build the library, and move it to `path` only when it is complete."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        made = Path(folder) / path.name
        _output([*compiler, *FLAGS, "-o", str(made), *map(str, sorted(FOLDER.glob("*.c"))), "-lm"])
        made.chmod(0o700)
        made.replace(path)


def _output(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", timeout=_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise CannotCompile(f"{shlex.join(command)}: {done.stdout.strip()[-1000:]}")
    return done.stdout


def _sources() -> list[str]:
    return [path.read_text() for path in sorted(FOLDER.glob("*.[ch]"))]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join([platform.machine(), platform.processor(), *(x for x in lines if x.startswith(names))])


def _check_private(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raise CannotCompile unless the path belongs to the user and nobody else may write there."""
    found = path.lstat()
    if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS:
        raise CannotCompile(f"{path} is not used: it must belong to this user and not be a link or writable by others")
