"""The errors that a user can fix: one sentence on the terminal, no traceback."""

from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dpfbo.extras import MissingPackage
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.formats.run_folder import ResultsError
from dpfbo.gp.posterior import FactorisationError
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import LedgerError
from dpfbo.problems.custom import EvaluationError
from dpfbo.problems.readers.data_files import MissingData
from runners.compose.overrides import one_sentence
from runners.executor.deployment import ExecutorError
from runners.record.terminal import say_error

USER_ERRORS = (
    ValueError, TypeError, UnsupportedEvent, MissingData, LedgerError, BudgetSpent, FactorisationError, EvaluationError,
    ResultsError, ExecutorError, CheckpointError, MissingPackage, OmegaConfBaseException, OSError,
)  # fmt: skip


def exit_code(program: Callable[[], int | None], interrupted: str = "interrupted") -> int:
    """Run a program, and print a user's error in one sentence; returns the program's exit code.

    It is 1 after an error, 2 if overrides do not compose, and 130 after Ctrl-C, when `interrupted` is printed.
    """
    try:
        return program() or 0
    except KeyboardInterrupt:
        say_error(interrupted)
        return 130
    except (HydraException, OmegaConfBaseException) as error:
        say_error(one_sentence(str(error)))
        return 2
    except USER_ERRORS as error:
        say_error(str(error))
        return 1
