"""A sweep as a Slurm job: its script, its submission, its state and its end, seen from a login node.

The script starts one `runners.sweep.slurm_job` on each node of the allocation. They make a Ray cluster, and the first
one runs the sweep there. submitit was the alternative: it pickles a function and requeues it, and knows nothing of a
cluster over the nodes. `ray symmetric-run` starts such a cluster, and knows nothing of signals, requeues, or a node
with two jobs.

results/<experiment>/slurm.json     the job, to ask for its state and to cancel it
results/<experiment>/slurm/         scripts and logs of jobs
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpfbo import checks
from dpfbo.formats.files import replace_file

RECORD = "slurm.json"
_NAME = "dpfbo-"  # the beginning of the names of our jobs
_OPTION = re.compile(r"[a-z][a-z0-9_-]*")
_OURS = ("job-name", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "ntasks-per-node", "ntasks")
_QUEUED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "COMPLETING", "STOPPED")
_SECONDS = 60.0  # limit of one call of a Slurm command


class SlurmError(RuntimeError):
    """Slurm cannot do what was asked; one sentence."""


@dataclass(frozen=True)
class SlurmLauncher:
    """launcher=slurm. conf/launcher/slurm.yaml explains the settings."""

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
        checks.integer("launcher.nodes", self.nodes, minimum=1)
        checks.integer("launcher.cpus_per_task", self.cpus_per_task, minimum=1)
        checks.integer("launcher.gpus_per_node", self.gpus_per_node, minimum=0)
        checks.integer("launcher.notice", self.notice, minimum=1)
        checks.non_negative("launcher.wait_for_nodes", self.wait_for_nodes)
        checks.integer("launcher.max_requeues", self.max_requeues, minimum=0)
        if self.time is not None and (limit := _seconds(str(self.time))) is not None and limit <= self.notice:
            raise ValueError(
                f"launcher.time must be longer than launcher.notice={self.notice} s, at which the sweep stops, got "
                f"{self.time!r}"
            )
        if not isinstance(self.options, Mapping):
            raise ValueError(f"launcher.options must be options of sbatch, got {self.options!r}")
        if not isinstance(self.setup, Sequence) or isinstance(self.setup, str):
            raise ValueError(f"launcher.setup must be a list of shell lines, got {self.setup!r}")
        for key, value in self._all_options().items():
            if not _OPTION.fullmatch(key):
                raise ValueError(f"launcher.options must be named as sbatch names them, got {key!r}")
            if not isinstance(value, str | int | float) or not str(value).isprintable() or '"' in str(value):
                raise ValueError(f"launcher.{key} must be one line without quotes, got {value!r}")
        if taken := [key for key in self.options if str(key).replace("_", "-") in _OURS]:
            raise ValueError(f"launcher.options must leave {taken[0]} to the sweep, which sets it itself")

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "SlurmLauncher":
        """The launcher of a configuration. Raises ValueError for a value that sbatch would not understand."""
        return cls(**{f.name: node[f.name] for f in fields(cls)})

    def check_trials(self, cpus: float, gpus: float) -> None:
        """Raise ValueError if a trial with so many CPUs and GPUs fits on no node of the job."""
        for kind, asked, there in (("cpus", cpus, self.cpus_per_task), ("gpus", gpus, self.gpus_per_node)):
            if asked > there:
                name = "cpus_per_task" if kind == "cpus" else "gpus_per_node"
                raise ValueError(f"launcher.{name} must be at least sweep.{kind}_per_trial={asked:g}, got {there}")

    def script(self, name: str, log: Path, arguments: Sequence[str], cwd: Path, python: str = sys.executable) -> str:
        """The batch script of a sweep.

        Args:
            name: of the job, after `_NAME`.
            log: file of all that the job prints.
            arguments: command line of `runners.sweep`, without launcher and sweep.address.
            cwd: folder of the sweep.
            python: the interpreter.
        """
        if not str(log).isprintable() or '"' in str(log):
            raise ValueError(f"results_dir must be printable and without quotes for Slurm, got {str(log)!r}")
        output = str(log.parent).replace("%", "%%") + f"/{log.name}"  # only the name has Slurm's own %j
        options = {
            "job-name": f"{_NAME}{name}", "output": output, "open-mode": "append", "requeue": True,
            "ntasks-per-node": 1, "signal": f"TERM@{self.notice}", **self._all_options(),
        }  # fmt: skip
        shown = (key if value is True else f"{key}={_quoted(value)}" for key, value in options.items())
        task = [
            python, "-m", "runners.sweep.slurm_job", "--folder", str(log.parent), "--cpus", str(self.cpus_per_task),
            "--gpus", str(self.gpus_per_node), "--wait-for-nodes", f"{self.wait_for_nodes:g}",
            "--max-requeues", str(self.max_requeues), "--", *arguments,
        ]  # fmt: skip
        lines = [
            "#!/bin/bash", *(f"#SBATCH --{option}" for option in shown),
            "# written by runners.sweep; one task a node, the first of which runs the sweep on a Ray cluster of all",
            f"cd {shlex.quote(str(cwd))} || exit 1", *self.setup, 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"',
            f"exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 {shlex.join(task)}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _all_options(self) -> dict[str, Any]:
        own = {
            "nodes": self.nodes, "cpus-per-task": self.cpus_per_task, "mem": self.mem, "time": self.time,
            "partition": self.partition, "account": self.account, "qos": self.qos,
        }  # fmt: skip
        own = {key: value for key, value in own.items() if value is not None}
        if self.gpus_per_node:
            own["gpus-per-node"] = self.gpus_per_node
        added = {str(key).replace("_", "-"): value for key, value in self.options.items() if value is not False}
        return {**own, **added}


@dataclass(frozen=True)
class SlurmJob:
    """A submitted sweep. job: its number. log: file of all that it prints. command: its command line."""

    job: str
    log: str
    submitted: str
    command: list[str]

    def state(self) -> str | None:
        """Slurm's word for the state, such as RUNNING; None if the job is over, or another one has its number by now.

        Raises SlurmError if Slurm does not say.
        """
        try:
            answer = _called("squeue", "--noheader", "--jobs", self.job, "--states=all", "--format=%T %j").split()
        except SlurmError as error:
            if "Invalid job id" in str(error):  # over for some minutes
                return None
            raise
        ours = len(answer) == 2 and answer[1].startswith(_NAME)
        return answer[0] if ours and answer[0] in _QUEUED else None

    def details(self) -> dict[str, str]:
        """Number of nodes, their names (or the reason for waiting), elapsed time and requeues of a job in the queue."""
        found: dict[str, str] = {}
        try:
            line = _called("squeue", "--noheader", "--jobs", self.job, "--format=%D|%R|%M").strip()
            found = dict(zip(("nodes", "where", "elapsed"), line.splitlines()[0].split("|"), strict=False))
            shown = _called("scontrol", "show", "job", self.job)
            found["requeues"] = m[1] if (m := re.search(r"Restarts=(\d+)", shown)) else "0"
        except (SlurmError, IndexError):
            pass
        return found

    def cancel(self) -> None:
        """Cancel the job. Raises SlurmError if Slurm refuses."""
        _called("scancel", self.job)


def _quoted(value: object) -> str:
    """A value for a line of #SBATCH, which ends at a space outside of quotes."""
    return f'"{value}"' if " " in str(value) else str(value)


def _seconds(limit: str) -> float | None:
    """The seconds of a time limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS; None for anything else."""
    days, dash, rest = limit.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            hours, minutes, seconds = [*parts, 0, 0][:3]
            return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    except ValueError:
        return None
    if len(parts) == 1:
        return parts[0] * 60.0
    return sum(part * unit for part, unit in zip(reversed(parts), (1, 60, 3600), strict=False))


def submit(script: str, folders: Sequence[Path], command: Sequence[str], log: Path) -> SlurmJob:
    """Hand a script to sbatch, and note its job in the folders of its experiments.

    Raises SlurmError if one of them has a job in the queue, or if sbatch is not there or refuses.
    """
    for folder in folders:
        if (earlier := read(folder)) is not None and (state := earlier.state()) is not None:
            raise SlurmError(
                f"Slurm job {earlier.job} of {folder.name} is {state}: wait for it, or cancel it with "
                f"python -m runners.sweep --cancel experiment_name={folder.name}"
            )
    made = [path for path in (log.parent, *log.parent.parents) if not path.exists()]
    log.parent.mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for the log
    log.parent.chmod(0o700)  # logs tell metrics and failures
    try:
        number = _called("sbatch", "--parsable", given=script).strip().partition(";")[0]
    except SlurmError:
        for path in made:
            path.rmdir()
        raise
    replace_file(log.parent / f"{number}.sh", lambda file: file.write(script.encode()))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    job = SlurmJob(number, str(log).replace("%j", number), now, list(command))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(job.__dict__, indent=1) + "\n"
        replace_file(folder / RECORD, lambda file, text=content: file.write(text.encode()))  # type: ignore[misc]
    return job


def read(folder: Path) -> SlurmJob | None:
    """The last job of an experiment; None if there never was one, or its record cannot be read."""
    try:
        return SlurmJob(**json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def in_words(folder: Path) -> str:
    """`Slurm job 12: RUNNING on 2 nodes (n[1-2]) for 3:21, log /…`; nothing without a job in the queue."""
    job = read(folder)
    try:
        state = None if job is None else job.state()
    except SlurmError:  # status is also for machines without Slurm
        return ""
    if job is None or state is None:
        return ""
    d = job.details()
    where = f", {d['nodes']} node{'s' * (d['nodes'] != '1')} {d['where']}, for {d['elapsed']}" if "where" in d else ""
    again = f", requeues: {d['requeues']}" if d.get("requeues", "0") != "0" else ""
    return f"Slurm job {job.job}: {state}{where}{again}; log {job.log}"


def _called(*command: str, given: str | None = None) -> str:
    """The standard output of a Slurm command. Raises SlurmError if it is not there, fails, or does not end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, input=given)
    except FileNotFoundError as error:
        raise SlurmError(f"launcher=slurm needs {command[0]} on this machine, a login node of Slurm") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]} did not answer within {_SECONDS:g} s") from error
    if done.returncode:
        raise SlurmError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout
