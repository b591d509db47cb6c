"""Describe the software and hardware on which the last digits of results may depend."""

import functools
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dpfbo.gp.compiled.loading import library

PACKAGES = (
    "dpfbo", "torch", "numpy", "scipy", "dp-accounting", "gpytorch", "botorch", "scikit-learn", "pyarrow", "ray",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Return this process's package versions, system, processor and number of threads, as a dict for JSON.

    `compiled` is True if dpfbo's compiled C code is in use.
    """
    return {
        "python": platform.python_version(),
        "packages": _versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "compiled": library() is not None,
    }


@functools.cache  # the code that runs is the code that was imported
def commit() -> str | None:
    """Return the git commit of the code, with "+" for uncommitted changes; None if git does not track the code."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # fails for an installed package inside another checkout
        return git("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@functools.cache
def _processor() -> str:
    with suppress(OSError):
        if names := re.findall(r"^model name\s*: *(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return names[0].strip()
    return platform.processor() or platform.machine()
