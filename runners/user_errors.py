"""The errors that a user can do something about: one sentence on the terminal, no traceback."""

from omegaconf.errors import OmegaConfBaseException

from dpfbo.extras import MissingPackage
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.gp.posterior import FactorisationError
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import LedgerError
from dpfbo.problems.custom import EvaluationError
from dpfbo.problems.readers.data_files import MissingData
from runners.executor.deployment import ExecutorError
from runners.record.run_folder import ResultsError

USER_ERRORS = (
    ValueError, TypeError, UnsupportedEvent, MissingData, LedgerError, BudgetSpent, FactorisationError, EvaluationError,
    ResultsError, ExecutorError, CheckpointError, MissingPackage, OmegaConfBaseException, OSError,
)  # fmt: skip
