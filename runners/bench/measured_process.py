"""Measurements in fresh processes, so that the memory peak of one does not hide that of the next.

The processes are forked from a server that has imported the program, and done nothing: a fork has a peak of its own,
and starts at once.
"""

import importlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dpfbo.problems.readers.data_files import MissingData
from runners.user_errors import USER_ERRORS

OnStep = Callable[[int, int], None]  # called with the steps that are done, and their number

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory", "bad_alloc")
_SECONDS_BETWEEN_STEPS = 0.2  # least time between two reports of progress
_KILLED = -9
_PRELOADED = ["runners.bench.federated_run", *(f"dpfbo.privacy.accounting.{name}" for name in ("pld", "rdp"))]


class BenchError(RuntimeError):
    """A measurement could not be made."""


class TooLarge(BenchError):
    """A measurement needs more memory than it may take."""


@dataclass(frozen=True)
class Reply:
    """The result of a function in a process of its own.

    start_mb, peak_mb: the process's memory peak before the call, with all that it imports, and at the end.
    """

    result: dict[str, Any]
    start_mb: float
    peak_mb: float


def measured(
    function: str,
    arguments: Mapping[str, Any],
    threads: int = 1,
    memory_gb: float | None = None,
    on_step: OnStep = lambda done, total: None,
) -> Reply:
    """Call `function`, such as `runners.bench.machine:measure`, in a fresh process.

    arguments: keyword arguments, as JSON; the function also takes `on_step`. threads: of torch and NumPy. memory_gb:
    the most that the process may allocate. Raises TooLarge if that is not enough, MissingData, and BenchError for any
    other failure.
    """
    request = {"function": function, "arguments": dict(arguments), "threads": threads, "memory_gb": memory_gb}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    reading, writing = context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile() as said, reading:
        process = context.Process(target=_serve, args=(json.dumps(request), writing, said.name))
        with _environment(threads):
            process.start()
        writing.close()
        last: dict[str, Any] = {}
        try:
            while not last.keys() & {"result", "error"}:
                try:
                    last = json.loads(reading.recv_bytes())
                except EOFError:
                    break
                if "step" in last:
                    on_step(*last["step"])
            process.join()
        except BaseException:
            process.kill()
            process.join()
            raise
        words = said.read().decode(errors="replace").strip().splitlines()
    if "result" in last or "error" in last:
        return reply_of(last)
    end = f"the measuring process ended with exit code {process.exitcode}: {(words or [''])[-1]}"
    if process.exitcode == _KILLED or any(word in end.lower() for word in _NO_MEMORY):
        raise TooLarge(end)
    raise BenchError(end)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """The environment of the server of forks, which starts with the first measurement."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(request: str, writing: Connection, said: str) -> None:
    """Answer a request in this process; what it prints goes to the file `said`."""
    out = os.open(said, os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        answer(json.loads(request), lambda line: writing.send_bytes(json.dumps(line).encode()))
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)


def _end(code: int) -> None:
    """End this process at once, and the workers of a problem's objective, which would wait for more work."""
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def reply_of(line: Mapping[str, Any]) -> Reply:
    """The reply in the last line of `answer`; raises the error in it."""
    if "error" in line:
        kinds: dict[str, type[Exception]] = {"memory": TooLarge, "data": MissingData}
        raise kinds.get(line["kind"], BenchError)(line["error"])
    return Reply(line["result"], line["start_mb"], line["peak_mb"])


def peak_mb() -> float:
    """The largest resident memory of this process so far, in MB; not that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def use_threads(n: int) -> None:
    """Set the number of threads of torch, NumPy and SciPy in this process."""
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(n)
    torch.set_num_threads(n)


def answer(request: Mapping[str, Any], write: Callable[[dict[str, Any]], None]) -> None:
    """Call the requested function in this process and write its result, or its error."""
    try:
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        use_threads(request["threads"])
        if request["memory_gb"] is not None:
            limit = int(1e9 * request["memory_gb"])
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        said = time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal said
            if time.monotonic() - said > _SECONDS_BETWEEN_STEPS:
                said = time.monotonic()
                write({"step": [done, total]})

        start = peak_mb()
        result = function(on_step=on_step, **request["arguments"])
        start = result.pop("start_mb", start)  # where the function knows better
        write({"result": result, "start_mb": start, "peak_mb": peak_mb()})
    except MissingData as error:
        write({"error": str(error), "kind": "data"})
    except (MemoryError, RuntimeError, *USER_ERRORS) as error:
        no_memory = isinstance(error, MemoryError) or any(word in str(error).lower() for word in _NO_MEMORY)
        told = " ".join(str(error).split()) or type(error).__name__
        write({"error": told, "kind": "memory" if no_memory else "other"})
