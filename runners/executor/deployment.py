"""The deployment of a run's parts in processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from threadpoolctl import threadpool_limits

from dpfbo.run_result import OnRound

if TYPE_CHECKING:
    from dpfbo.privacy.ledger import Ledger
    from dpfbo.privacy.plan import PrivacyPlan


class ExecutorError(RuntimeError):
    """The processes of a run could not be placed, or died too often."""


@dataclass(frozen=True)
class Spent:
    """The privacy cost of a run's ledger. epsilons: the epsilon by each accountant; None if it is not finite."""

    epsilons: dict[str, float | None]
    n_charges: int

    @staticmethod
    def of(plan: "PrivacyPlan", ledger: "Ledger") -> "Spent":
        return Spent(plan.epsilons(ledger.events()), len(ledger.charges))


@dataclass(frozen=True)
class Deployment:
    """One run, federated or outsourced, whose parts are placed in processes.

    run: `run(on_round, broadcasts)` runs the remaining rounds and calls `on_round` after each of them. `broadcasts`
    limits the number of broadcasts of a federated run; None sets no limit. spent: returns the privacy cost in the
    ledger. placed: returns the entry `executor` of summary.json.
    """

    run: Callable[[OnRound, int | None], object]
    spent: Callable[[], Spent]
    placed: Callable[[], dict[str, Any]]


def device(wanted: str, given_gpu: bool) -> torch.device:
    """Return the device for a process's tensors.

    wanted: `cpu`, `cuda` or `auto`. `auto` means cuda if the process was given a GPU, and cpu if not.

    Raises ValueError if a GPU is wanted and torch sees none.
    """
    if wanted == "cpu" or (wanted == "auto" and not given_gpu):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"executor.device={wanted} needs a GPU here and torch sees none; executor.device=cpu uses none"
        )
    return torch.device("cuda")


def use_threads(threads: int) -> None:
    """Limit the threads of tensor and array operations in this process."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def limit_gpu_memory(share: float) -> None:
    """Limit this process's tensors to a share of its GPU's memory; the CUDA context comes on top.

    A share of 0, or of 1 and more, sets no limit.
    """
    if 0 < share < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)
