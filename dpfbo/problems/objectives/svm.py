"""AUC of RBF-kernel SVMs on the landmine fields, without torch."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpfbo.extras import needing
from dpfbo.problems.readers.data_files import reading
from dpfbo.problems.readers.mat_cells import read_cells

Field = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # X_train, X_test, y_train, y_test

_NEEDED_BY = "the landmine problem"


@dataclass(frozen=True)
class Fit:
    """An SVM to train and score.

    field: the index of the landmine field whose data the SVM uses. C, gamma: the hyper-parameters of the SVM. seed: the
    seed of Platt scaling.
    """

    field: int
    C: float
    gamma: float
    seed: int = 0


@lru_cache(maxsize=2)
def load_fields(path: Path, split_seed: int) -> list[Field]:
    """Read each mine field of LandmineData.mat as two halves stratified by label; ValueError for another format."""
    with needing("problems", _NEEDED_BY):
        from sklearn.model_selection import train_test_split

    with reading(path, "is not a landmine file: it needs the cells 'feature' and 'label'"):
        feature, label = read_cells(path, ("feature", "label"))
        pairs = [_checked(x, y.ravel()) for x, y in zip(feature, label, strict=True)]
    return [tuple(train_test_split(x, y, test_size=0.5, stratify=y, random_state=split_seed)) for x, y in pairs]  # type: ignore[misc]


def _checked(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(x) != len(y) or not x.shape[1] or not np.isfinite(x).all():
        raise ValueError(f"a field has finite features and a label for each row, got {x.shape} and {y.shape}")
    if not np.isin(y, (0, 1)).all() or min(np.sum(y == 0), np.sum(y == 1)) < 2:
        raise ValueError("a field has the labels 0 and 1, each of them at least twice")
    return x, y


def auc(path: Path, split_seed: int, score: str, fits: Sequence[Fit]) -> list[float]:
    """Train the SVM of each fit on one half of a mine field, and return the AUCs on the other half.

    score: `margin` or `platt`, see `Landmine`.
    """
    with needing("problems", _NEEDED_BY):
        from sklearn.metrics import roc_auc_score
        from sklearn.svm import SVC

    fields = load_fields(path, split_seed)
    result = []
    for fit in fits:
        X_train, X_test, y_train, y_test = fields[fit.field]
        if score == "margin":
            decision = SVC(C=fit.C, gamma=fit.gamma).fit(X_train, y_train).decision_function(X_test)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # deprecated, but what the published curves used
                model = SVC(C=fit.C, gamma=fit.gamma, probability=True, random_state=fit.seed)
                decision = model.fit(X_train, y_train).predict_proba(X_test)[:, 1]
        result.append(float(roc_auc_score(y_test, decision)))
    return result
