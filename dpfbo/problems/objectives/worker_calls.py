"""Calls of a user's function, in parallel processes and with a time limit."""

import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpfbo.checks import SettingError, shown
from dpfbo.extras import needing

Objective = Callable[[int, Any], Any]  # takes an agent's id and a configuration
_function: Objective  # the function that this worker process calls


@dataclass(frozen=True)
class CallOutcome:
    """The outcome of one call of the user's function.

    kind: `returned`; `raised` for an error; `ended` if the call's process ended, for example at the time limit. result:
    what the function returned; for the other two kinds, a text that says what happened.
    """

    kind: Literal["returned", "raised", "ended"]
    result: Any
    traceback: str = ""
    error: BaseException | None = None


def outcome_of(function: Objective, agent: int, x: Any) -> CallOutcome:
    """Call the function in this process and return the outcome."""
    try:
        return CallOutcome("returned", function(agent, x))
    except (Exception, SystemExit) as error:  # an objective that calls sys.exit must not end the run silently
        sentence = f"{type(error).__name__}: {error}"
        return CallOutcome("raised", sentence, traceback.format_exc(), error)


class WorkerCalls:
    """A pool of `n_jobs` processes (-1: one per CPU) that call a function; if a process dies, only its call fails.

    timeout: seconds after which a call has failed and its process is ended; None for no limit.
    """

    def __init__(self, function: Objective, n_jobs: int, timeout: float | None) -> None:
        with needing("problems", "an objective with n_jobs or timeout"):
            import cloudpickle
            from loky import cpu_count
            from loky.backend import get_context  # its processes do not run the main script again
            from pebble import ProcessPool

        self._timeout = timeout
        try:
            pickled = cloudpickle.dumps(function)
        except Exception as error:  # pickling an object may raise anything
            rule = f"cannot be sent to other processes, as n_jobs and timeout need: {error}"
            raise SettingError("function", rule) from error
        workers = cpu_count() if n_jobs == -1 else n_jobs
        self._pool = ProcessPool(  # a worker loads the function outside the time limit of its first call
            max_workers=workers, context=get_context("loky"), initializer=_load, initargs=[pickled]
        )
        self._end = weakref.finalize(self, _stop, self._pool)

    def outcomes(self, calls: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, CallOutcome]]:
        """Yield the index and outcome of each call as it ends; a call is given as (agent's id, configuration)."""
        asked: dict[Any, int] = {
            self._pool.schedule(_call, args=call, timeout=self._timeout): i for i, call in enumerate(calls)
        }
        try:
            for future in as_completed(asked):
                yield asked[future], self._outcome(future)
        finally:
            for future in asked:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _outcome(self, future: Any) -> CallOutcome:
        from pebble import ProcessExpired

        try:
            outcome: CallOutcome = future.result()
            return outcome
        except TimeoutError:
            return CallOutcome("ended", f"took longer than timeout={self._timeout:g} seconds")
        except ProcessExpired as error:
            return CallOutcome("ended", f"ended its process (exit code {error.exitcode})")


def _stop(pool: Any) -> None:
    pool.stop()
    pool.join()


def _load(pickled: bytes) -> None:
    import cloudpickle

    global _function
    _function = cloudpickle.loads(pickled)


def _call(agent: int, x: Any) -> CallOutcome:
    """Call the function in a worker process; the outcome holds only values that can be pickled."""
    outcome = outcome_of(_function, agent, x)
    if outcome.kind == "raised":
        return replace(outcome, error=None)
    number = as_number(outcome.result)
    return replace(outcome, result=shown(outcome.result) if number is None else number)


def as_number(result: Any) -> float | None:
    """Convert a result to a float, which may be NaN or infinite; None for a string or a failed conversion."""
    try:
        return None if isinstance(result, str) else float(result)
    except Exception:  # a user's class may raise anything
        return None
