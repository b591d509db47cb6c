"""Run a sweep as a Slurm job: write its script, submit it, query its state and cancel it, from a login node.

The script starts one task on each node. The tasks form a Ray cluster, and the first task runs the sweep on it.

results/<experiment>/slurm.json     the last job
results/<experiment>/slurm/         scripts and logs of jobs
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpfbo import checks
from dpfbo.formats.files import replace_text

RECORD = "slurm.json"
_NAME = "dpfbo-"  # prefix of the names of dpfbo's jobs
_OPTION = re.compile(r"[a-z][a-z0-9_-]*")
_OURS = ("job-name", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "ntasks-per-node", "ntasks")
_QUEUED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "COMPLETING", "STOPPED")
_SECONDS = 60.0  # timeout of a Slurm command


class SlurmError(ConnectionError):
    """A request to Slurm failed; the message is one sentence."""


@dataclass(frozen=True)
class SlurmLauncher:
    """The settings of launcher=slurm, which conf/launcher/slurm.yaml explains."""

    nodes: int
    cpus_per_task: int
    gpus_per_node: int
    mem: str | int | None
    time: str | int | None
    partition: str | None
    account: str | None
    qos: str | None
    options: dict[str, Any]
    setup: list[str]
    notice: int
    wait_for_nodes: float
    max_requeues: int

    def __post_init__(self) -> None:
        least = {"nodes": 1, "cpus_per_task": 1, "gpus_per_node": 0, "notice": 1, "max_requeues": 0}
        for name, minimum in least.items():
            checks.integer(f"launcher.{name}", getattr(self, name), minimum)
        checks.non_negative("launcher.wait_for_nodes", self.wait_for_nodes)
        if not isinstance(self.options, Mapping):
            raise ValueError(f"launcher.options must be options of sbatch, got {self.options!r}")
        if not isinstance(self.setup, list):
            raise ValueError(f"launcher.setup must be a list of shell lines, got {self.setup!r}")
        if taken := [key for key in self.options if str(key).replace("_", "-") in _OURS]:
            raise ValueError(f"launcher.options must leave {taken[0]} to the sweep, which sets it itself")
        for key, value in self._sbatch_options().items():
            if not _OPTION.fullmatch(key):
                raise ValueError(f"launcher.options must be named as sbatch names them, got {key!r}")
            if not isinstance(value, str | int | float) or not str(value).isprintable() or '"' in str(value):
                raise ValueError(f"launcher.{key} must be one line without quotes, got {value!r}")

    @classmethod
    def of(cls, node: Any, cpus_per_trial: float, gpus_per_trial: float) -> "SlurmLauncher | None":
        """Create the launcher from the `launcher` node of a configuration; None for launcher=local.

        Raises ValueError for a value that sbatch would not understand, or if no node of the job has room for a trial.
        """
        if node["name"] != "slurm":
            return None
        made = cls(**{f.name: node[f.name] for f in fields(cls)})
        for name, key, asked in (
            ("cpus_per_task", "cpus_per_trial", cpus_per_trial), ("gpus_per_node", "gpus_per_trial", gpus_per_trial),
        ):  # fmt: skip
            if asked > getattr(made, name):
                raise ValueError(f"launcher.{name} must be at least sweep.{key}={asked:g}, got {getattr(made, name)}")
        return made

    def script(self, name: str, log: Path, arguments: Sequence[str], cwd: Path, python: str = sys.executable) -> str:
        """Return the batch script of a sweep.

        name: the job's name without the prefix `dpfbo-`. log: file for the job's output. arguments: the command line
        of `runners.sweep`, without launcher and sweep.address. cwd: the working directory. python: the interpreter.
        """
        if not str(log).isprintable() or '"' in str(log):
            raise ValueError(f"results_dir must be printable and without quotes for Slurm, got {str(log)!r}")
        output = str(log.parent).replace("%", "%%") + f"/{log.name}"  # %j is the job's number only in the file name
        options = {
            "job-name": f"{_NAME}{name}", "output": output, "open-mode": "append", "requeue": True,
            "ntasks-per-node": 1, "signal": f"TERM@{self.notice}", **self._sbatch_options(),
        }  # fmt: skip
        task = [
            python, "-m", "runners.sweep.slurm_job", "--folder", str(log.parent), "--cpus", str(self.cpus_per_task),
            "--gpus", str(self.gpus_per_node), "--wait-for-nodes", f"{self.wait_for_nodes:g}",
            "--max-requeues", str(self.max_requeues), "--", *arguments,
        ]  # fmt: skip
        lines = ["#!/bin/bash"]
        for key, value in options.items():
            quoted = f'"{value}"' if " " in str(value) else value  # a #SBATCH line ends at an unquoted space
            lines.append(f"#SBATCH --{key}" if value is True else f"#SBATCH --{key}={quoted}")
        lines += [
            "# written by runners.sweep: one task per node; the first runs the sweep on a Ray cluster of all nodes",
            f"cd {shlex.quote(str(cwd))} || exit 1", *self.setup, 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"',
            f"exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 {shlex.join(task)}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _sbatch_options(self) -> dict[str, Any]:
        names = ("nodes", "cpus_per_task", "mem", "time", "partition", "account", "qos")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        own |= {"gpus_per_node": self.gpus_per_node} if self.gpus_per_node else {}
        own |= {str(key): value for key, value in self.options.items() if value is not False}
        return {name.replace("_", "-"): value for name, value in own.items()}


@dataclass(frozen=True)
class SlurmJob:
    """A submitted sweep. job: the job's number. log: the file of its output. command: the sweep's overrides."""

    job: str
    log: str
    submitted: str
    command: list[str]

    def state(self) -> str | None:
        """Return the job's state and nodes, as `RUNNING, 2 nodes n[1-2], for 3:21`; None if it is not in the queue.

        Raises SlurmError if Slurm does not answer.
        """
        try:
            answer = _called("squeue", "--noheader", "--jobs", self.job, "--states=all", "--format=%T|%D|%R|%M|%j")
        except SlurmError as error:
            if "Invalid job id" in str(error):  # it ended too long ago for Slurm to remember it
                return None
            raise
        if not answer.strip():
            return None
        state, nodes, where, elapsed, name = answer.splitlines()[0].split("|", 4)
        if state not in _QUEUED or not name.startswith(_NAME):  # it ended, or another job has its number now
            return None
        return f"{state}, {nodes} node{'s' * (nodes != '1')} {where}, for {elapsed}"

    def cancel(self) -> None:
        """Cancel the job. Raises SlurmError if Slurm refuses."""
        _called("scancel", self.job)


def submit(script: str, folders: Sequence[Path], command: Sequence[str], log: Path) -> SlurmJob:
    """Submit a script with sbatch, and record the job in the folders of its experiments.

    Raises SlurmError if one of the experiments has a job in the queue, or if sbatch is missing or refuses.
    """
    for folder in folders:
        if (earlier := read(folder)) is not None and (state := earlier.state()) is not None:
            raise SlurmError(
                f"Slurm job {earlier.job} of {folder.name} is {state}: wait for it, or cancel it with "
                f"{cancelling(folder)}"
            )
    made = [path for path in (log.parent, *log.parent.parents) if not path.exists()]
    log.parent.mkdir(parents=True, exist_ok=True)  # Slurm does not create the folder of the log
    log.parent.chmod(0o700)  # logs contain metrics and errors, which may be private
    try:
        number = _called("sbatch", "--parsable", given=script).strip().partition(";")[0]
    except SlurmError:
        for path in made:
            path.rmdir()
        raise
    replace_text(log.parent / f"{number}.sh", script)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    job = SlurmJob(number, str(log).replace("%j", number), now, list(command))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / RECORD, json.dumps(asdict(job), indent=1) + "\n")
    return job


def read(folder: Path) -> SlurmJob | None:
    """Return the last job of an experiment; None if there was none, or its record cannot be read."""
    try:
        return SlurmJob(**json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def where(results: Path) -> str:
    """Return the argument ` results_dir=RESULTS` for the end of a command; empty if `results` is the default folder."""
    return "" if results == Path("results").absolute() else f" results_dir={results}"


def cancelling(folder: Path) -> str:
    """Return the command that cancels the Slurm job of the experiment in `folder`."""
    return f"python -m runners.sweep --cancel experiment_name={folder.name}{where(folder.parent)}"


def in_words(folder: Path) -> str:
    """Describe an experiment's Slurm job, as `Slurm job 12: RUNNING, 2 nodes n[1-2], for 3:21; log /…`.

    Returns an empty string if no job is in the queue, or if Slurm does not answer.
    """
    job = read(folder)
    try:
        state = None if job is None else job.state()
    except SlurmError:  # runners.status also works on machines without Slurm
        return ""
    return "" if job is None or state is None else f"Slurm job {job.job}: {state}; log {job.log}"


def _called(*command: str, given: str | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, input=given)
    except FileNotFoundError as error:
        raise SlurmError(f"launcher=slurm needs {command[0]} on this machine, a login node of Slurm") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]} did not answer within {_SECONDS:g} s") from error
    if done.returncode:
        raise SlurmError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout
