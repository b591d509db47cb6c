"""Regression and classification of the records of one place, such as a town; this module does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpfbo.extras import needing
from dpfbo.problems.readers.csv_table import read_columns, refuse

_NEEDED_BY = "a problem with places as agents"
_LARGEST = 6.0  # rooms of a flat whose type states no number: executive and multi-generation flats


@dataclass(frozen=True)
class PlaceRecords:
    """A csv file of records, and the columns that the problem uses.

    fetch: the file's name for `runners.fetch`. place: the column with a record's place. target: the column to predict.
    numbers: numeric features. texts: columns with texts such as `04 TO 06`; the feature is the first number in the
    text. logs: columns that are replaced by log(1 + value). fewest: places with fewer records are left out. most: if a
    place has more records, a random choice of this size is used. classes: () for a regression. For a classification, a
    target that ends in the text classes[0] is positive, and a target that ends in classes[1] is negative.
    """

    file: str
    fetch: str
    place: str
    target: str
    numbers: tuple[str, ...]
    logs: tuple[str, ...]
    fewest: int
    most: int
    texts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@lru_cache(maxsize=2)
def load_places(records: PlaceRecords, path: Path, split_seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read the features and targets of each place, in the order of the places' names.

    The first half of a place's rows is for training, the second for validation. Duplicates and records with an empty
    field are left out. Raises ValueError for an unfit file.
    """
    with needing("problems", _NEEDED_BY):
        from sklearn.preprocessing import StandardScaler

    place, target, features = records.place, records.target, [*records.numbers, *records.texts]
    numbers, texts = ((), (target,)) if records.classes else ((target,), ())
    table = read_columns(path, (*records.numbers, *numbers), (place, *records.texts, *texts))
    for name in records.logs:
        refuse(path, name, table[name] < 0, "at least 0")
        table[name] = np.log1p(table[name])
    if records.classes:
        table = table[table[target].str.endswith(records.classes, na=False)]
        table = table.assign(**{target: table[target].str.endswith(records.classes[0]).astype(float)})
    table = table.dropna().drop_duplicates()
    for name in records.texts:
        table[name] = table[name].str.extract(r"(\d{1,9})", expand=False).astype(float).fillna(_LARGEST)
    places = []
    for which, own in table.groupby(place):
        if len(own) >= records.fewest:
            half = min(len(own), records.most) // 2
            values = own.sample(2 * half, random_state=split_seed)[[*features, target]].to_numpy()
            scaled = StandardScaler().fit(values[:half]).transform(values)
            X, y = scaled[:, :-1], (values if records.classes else scaled)[:, -1]
            if not (np.isfinite(X).all() and np.isfinite(y).all()) or min(np.ptp(y[:half]), np.ptp(y[half:])) == 0:
                rule = f"moderate numbers, and in each half different values of {target}"
                raise ValueError(f"{path}: {place} {which} needs {rule}")
            places.append((X, y))
    return places


def place_scores(
    records: PlaceRecords, path: Path, split_seed: int, model: str, fits: Sequence[tuple[int, list[float]]]
) -> list[float]:
    """Return the validation R2 of each fit, or its validation AUC for a classifier.

    fits: the index of a place and a point x as in `PlaceProblem`, for each fit.
    """
    with needing("problems", _NEEDED_BY):
        from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
        from sklearn.metrics import roc_auc_score
        from sklearn.svm import SVR

    places, found = load_places(records, path, split_seed), []
    boosted = GradientBoostingClassifier if records.classes else GradientBoostingRegressor
    for place, x in fits:
        (X, X_validation), (y, y_validation) = (np.split(part, 2) for part in places[place])
        if model == "svr":
            fitted = SVR(C=x[0], gamma=x[1], epsilon=x[2]).fit(X, y)
        else:
            whole = dict(max_depth=int(x[1]), min_samples_leaf=int(x[3]), n_estimators=25, random_state=0)
            fitted = boosted(learning_rate=x[0], subsample=x[2], **whole).fit(X, y)
        auc = roc_auc_score(y_validation, fitted.decision_function(X_validation)) if records.classes else 0.0
        found.append(float(auc if records.classes else fitted.score(X_validation, y_validation)))
    return found
