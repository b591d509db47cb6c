"""Report errors that a user can fix: in one sentence, without a traceback."""

from collections.abc import Callable

from dpfbo.extras import MissingPackage
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.formats.run_folder import ResultsError
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger_file import LedgerError
from dpfbo.problems.readers.data_files import MissingData
from runners.record.terminal import say_error

INTERRUPTED = 130  # exit code after Ctrl-C
_QUICK = (
    ValueError, TypeError, UnsupportedEvent, MissingData, LedgerError, BudgetSpent, ResultsError, CheckpointError,
    MissingPackage, OSError,
)  # fmt: skip


def user_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a user can fix. The call imports torch."""
    from omegaconf.errors import OmegaConfBaseException

    from dpfbo.gp.posterior import FactorisationError
    from dpfbo.problems.custom import EvaluationError
    from runners.executor.deployment import ExecutorError

    return (*_QUICK, FactorisationError, EvaluationError, ExecutorError, OmegaConfBaseException)


def _of_overrides() -> tuple[type[Exception], ...]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return HydraException, OmegaConfBaseException


def outcome(program: Callable[[], int | None], interrupted: str = "interrupted") -> tuple[int, str]:
    """Run a program; return its exit code and its error message, which is empty without an error.

    Only errors that a user can fix, and Ctrl-C, are caught. The code is 2 if overrides do not compose, and 1 after
    another error. After Ctrl-C, the code is INTERRUPTED, and the message is the argument `interrupted`.
    """
    try:
        return program() or 0, ""
    except KeyboardInterrupt:
        return INTERRUPTED, interrupted
    except _of_overrides() as error:
        from runners.compose.overrides import one_sentence

        return 2, one_sentence(str(error))
    except _QUICK as error:
        return 1, str(error)
    except user_errors() as error:
        return 1, str(error)


def exit_code(program: Callable[[], int | None], interrupted: str = "interrupted") -> int:
    """Run a program as `outcome` does, print the error, and return the exit code."""
    code, error = outcome(program, interrupted)
    if error:
        say_error(error)
    return code
