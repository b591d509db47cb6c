"""Calls of a function in processes of their own: several at a time, each with a limit of time."""

import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dpfbo.checks import SettingError, shown
from dpfbo.extras import needing

_function: Callable[[int, Any], Any]  # of a worker


@dataclass(frozen=True)
class CallOutcome:
    """The end of a call: its result, or the sentence and the traceback (empty if there is none) of its failure."""

    kind: Literal["returned", "raised", "ended"]
    result: Any
    traceback: str = ""


class WorkerCalls:
    """A pool of `n_jobs` processes (-1: one a CPU) that call `function`.

    timeout: seconds until a call is given up and its process ended; None for no limit. The function may be one that no
    other process can import, such as a notebook's. A process that dies takes one call with it.
    """

    def __init__(self, function: Callable[[int, Any], Any], n_jobs: int, timeout: float | None) -> None:
        with needing("problems", "an objective with n_jobs or timeout"):
            import cloudpickle
            from loky import cpu_count
            from loky.backend import get_context  # its processes do not run the main script again
            from pebble import ProcessPool

        self._timeout = timeout
        try:
            pickled = cloudpickle.dumps(function)
        except Exception as error:  # what an object raises when it is pickled
            rule = f"cannot be sent to other processes, as n_jobs and timeout need: {error}"
            raise SettingError("function", rule) from error
        workers = cpu_count() if n_jobs == -1 else n_jobs
        self._pool = ProcessPool(  # a worker loads the function before its first call, whose time is limited
            max_workers=workers, context=get_context("loky"), initializer=_load, initargs=[pickled]
        )
        self._end = weakref.finalize(self, _stop, self._pool)

    def outcomes(self, calls: Iterable[tuple[int, Any]]) -> Iterator[CallOutcome]:
        """The outcome of each call (an agent's number and its configuration), in their order."""
        asked = [self._pool.schedule(_call, args=call, timeout=self._timeout) for call in calls]
        try:
            for future in asked:
                yield self._outcome(future)
        finally:
            for future in asked:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _outcome(self, future: Any) -> CallOutcome:
        from pebble import ProcessExpired

        try:
            kind, result, trace = future.result()
            return CallOutcome(kind, result, trace)
        except TimeoutError:
            return CallOutcome("ended", f"took longer than timeout={self._timeout:g} seconds")
        except ProcessExpired as error:
            return CallOutcome("ended", f"ended its process (exit code {error.exitcode})")


def _stop(pool: Any) -> None:
    pool.stop()
    pool.join()


def _load(pickled: bytes) -> None:
    """In a worker, at its start: make the function ready."""
    import cloudpickle

    global _function
    _function = cloudpickle.loads(pickled)


def _call(agent: int, x: Any) -> tuple[str, Any, str]:
    """In a worker: call the function, and describe what it did by plain values."""
    try:
        result = _function(agent, x)
        number = as_number(result)
        return "returned", shown(result) if number is None else number, ""
    except (Exception, SystemExit) as error:
        return "raised", f"{type(error).__name__}: {error}", traceback.format_exc()


def as_number(result: Any) -> float | None:
    """A result of an objective as a float, perhaps NaN or infinite; None if it is no number, or a text."""
    try:
        return None if isinstance(result, str) else float(result)
    except Exception:  # whatever a class of the user's raises
        return None
