"""The means of a suite: measurements in fresh processes, with progress, and the machine that they run on."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from runners.bench import federated_run, measured_process
from runners.bench.federated_run import RunTask
from runners.bench.machine import MachineFacts
from runners.bench.measured_process import OnStep, Reply
from runners.bench.measurement import Measurement

_SECONDS_BETWEEN_LINES = 3.0  # seconds between lines of progress where there is no terminal


@dataclass(frozen=True)
class Bench:
    """The options that all suites share.

    machine: measures the machine, at the first measurement. repeats: of a measurement at most; none begins after
    `seconds`. memory_gb: the most that a measurement may allocate; None for no limit. folder: for files that a
    measurement writes and removes.
    """

    machine: Callable[[], MachineFacts]
    folder: str
    threads: int = 1
    repeats: int = 3
    seconds: float = 20.0
    seed: int = 0
    memory_gb: float | None = None

    @cached_property
    def facts(self) -> MachineFacts:
        return self.machine()

    def ask(self, title: str, function: str, **arguments: Any) -> Reply:
        """Call a function in a fresh process, with progress under a title. Errors as `measured_process.measured`."""
        self.facts  # noqa: B018
        with progress(title) as on_step:
            return measured_process.measured(function, arguments, self.threads, self.memory_gb, on_step)

    def task(self, problem: str, algorithm: str, *overrides: str, **more: Any) -> RunTask:
        """A run with the common options."""
        common = {"seed": self.seed, "repeats": self.repeats, "seconds": self.seconds}
        return RunTask(problem, algorithm, overrides, **{**common, **more})

    def run(self, task: RunTask, panel: str, what: str, size: dict[str, float] | None = None) -> Measurement:
        """Measure a federated run; with floors if dpfbo makes it by its own methods."""
        reply = self.ask(f"{task.problem}: {what}", "runners.bench.federated_run:run", **asdict(task))
        own = task.by == "dpfbo" and reply.result["own_draw"] in ("rff", "exact")
        rates = self.facts.rates if own else None
        return federated_run.measurement(reply, panel, what, size or {}, rates)


@contextmanager
def progress(title: str) -> Iterator[OnStep]:
    """Show progress on standard error: a bar on a terminal, else a line every few seconds. Yields its callback."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        task, said = bar.add_task(title, total=None), time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal said
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                console.print(f"{title}: {done}/{total}", highlight=False)

        yield on_step
