"""House prices by zip code, flat prices by town, and loan defaults by state."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.problems.objectives.parallel_scores import in_processes
from dpfbo.problems.places.place_models import PlaceRecords, load_places, place_scores
from dpfbo.problems.problem import ScoreProblem, check_settings
from dpfbo.problems.readers.data_files import data_file
from dpfbo.rng import Streams
from dpfbo.space.axes import Float, Integer
from dpfbo.space.mixed import MixedBox

_DOMAINS = {
    "svr": MixedBox((Float(1e-2, 1e2, log=True), Float(1e-3, 10.0, log=True), Float(1e-3, 1.0, log=True))),
    "trees": MixedBox((Float(0.01, 1.0, log=True), Integer(1, 8), Float(0.2, 1.0), Integer(1, 40, log=True))),
}


@dataclass(frozen=True)
class PlaceProblem(ScoreProblem):
    """A problem with one agent for each place of a csv file, in the order of the places' names.

    At most `records.most` records of each place are drawn at random and split in a training and a validation half.
    Features, and the target of a regression, are standardised by the training half. The objective is deterministic.
    Points x are hyper-parameters of the model; "log" marks axes that are searched on a logarithmic scale:

    - `svr`, a support vector regression with an RBF kernel: (C, gamma, epsilon) in [0.01, 100], [0.001, 10] and [0.001,
      1], all log.
    - `trees`, 25 boosted trees: in this order, the learning rate in [0.01, 1] (log), the depth from 1 to 8, the
      fraction of records for each tree in [0.2, 1], and the least number of records in a leaf from 1 to 40 (log).

    Args:
        n_agents: The number of agents N. The agents are the first N places.
        model: `svr` or `trees`.
        split_seed: The seed of the choice of records and of the split into halves.
        n_jobs: The number of processes for the fits; -1 for all cores.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format, or a setting is outside its range.
    """

    records: ClassVar[PlaceRecords]

    n_agents: int
    model: str = "svr"
    split_seed: int = 0
    n_jobs: int = -1
    data_dir: str | None = None
    metric: str = "one_minus_r2"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        checks.one_of("model", self.model, ("trees",) if self.records.classes else tuple(_DOMAINS))
        checks.workers("n_jobs", self.n_jobs)
        which = f"the places with at least {self.records.fewest} records in {self._path}"
        self._check_agents(len(load_places(self.records, self._path, self.split_seed)), which)

    @cached_property
    def _path(self) -> Path:
        return data_file(self.data_dir, self.records.file, self.records.fetch)

    @property
    def domain(self) -> MixedBox:
        return _DOMAINS[self.model]

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        fits = [(n, point) for n, points in zip(agents.tolist(), x.tolist(), strict=True) for point in points]
        scores = partial(place_scores, self.records, self._path, self.split_seed, self.model)
        return torch.from_numpy(in_processes(scores, fits, self.n_jobs)).view(x.shape[:2]).to(x.device)


@dataclass(frozen=True)
class Homes(PlaceProblem):
    """Tunes a regression of house prices for each of 63 zip codes of King County (Seattle, 2014-2015); y is its R2.

    The agents are the zip codes with at least 120 sales; at most 240 sales of each are used. The regression predicts
    the logarithm of the price. The metric is 1 - best R2 so far. `PlaceProblem` describes models, search spaces and
    settings.
    """

    records: ClassVar[PlaceRecords] = PlaceRecords(
        "property/king_county_2014_2015.csv.gz", "homes", "zipcode", "price",
        ("lon", "lat", "sqft_living", "bedrooms", "bathrooms", "sqft_lot", "floors", "view", "condition", "grade",
         "yr_built", "yr_renovated"),
        logs=("price", "sqft_living", "sqft_lot"), fewest=120, most=240,
    )  # fmt: skip

    n_agents: int = 63
    name: str = "homes"


@dataclass(frozen=True)
class Flats(PlaceProblem):
    """Tunes a regression of resale prices for each of 25 towns of Singapore (public housing, 2023); y is its R2.

    The agents are the towns with at least 100 resales; at most 300 resales of each are used. The regression predicts
    the logarithm of the price. The metric is 1 - best R2 so far. `PlaceProblem` describes models, search spaces and
    settings.
    """

    records: ClassVar[PlaceRecords] = PlaceRecords(
        "property/singapore_hdb_resale_2023.csv.gz", "flats", "town", "resale_price",
        ("lon", "lat", "floor_area_sqm", "lease_commence_date"),
        logs=("resale_price",), fewest=100, most=300, texts=("storey_range", "flat_type"),
    )  # fmt: skip

    n_agents: int = 25
    name: str = "flats"


@dataclass(frozen=True)
class Credit(PlaceProblem):
    """Tunes a classifier of loan defaults for each of 31 US states (LendingClub, 2007-2011); y is its AUC.

    The agents are the states with at least 250 finished loans; at most 400 loans of each are used. The model is `trees`
    of `PlaceProblem`. The metric is 1 - best AUC so far.
    """

    records: ClassVar[PlaceRecords] = PlaceRecords(
        "loans/lendingclub_2007_2011.csv.gz", "credit", "addr_state", "loan_status",
        ("loan_amnt", "term", "int_rate", "installment", "annual_inc", "dti", "delinq_2yrs", "inq_last_6mths",
         "open_acc", "pub_rec", "revol_bal", "revol_util", "total_acc"),
        logs=("annual_inc", "revol_bal"), fewest=250, most=400, classes=("Charged Off", "Fully Paid"),
    )  # fmt: skip

    n_agents: int = 31
    model: str = "trees"
    metric: str = "one_minus_auc"
    name: str = "credit"
