"""Scores of many models in several processes, without torch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpfbo.extras import needing


def in_processes(scores: Callable[[Sequence[Any]], list[float]], fits: Sequence[Any], n_jobs: int) -> np.ndarray:
    """Compute `scores(fits)` in n_jobs processes (-1: one per core); the result does not depend on n_jobs."""
    with needing("problems", "a problem with n_jobs"):
        import joblib

    jobs = joblib.cpu_count() if n_jobs == -1 else n_jobs
    if jobs == 1 or len(fits) <= 1:
        return np.array(scores(fits))
    tasks = [fits[i : i + 4] for i in range(0, len(fits), 4)]  # a worker gets four fits at once
    return np.concatenate(joblib.Parallel(n_jobs=jobs, batch_size=1)(joblib.delayed(scores)(task) for task in tasks))
