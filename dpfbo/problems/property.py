"""Property (Kharkovskii et al. 2020, Sec. 5): the search for the location with the cheapest square metre."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.outsourced.table import Table
from dpfbo.problems import candidates
from dpfbo.problems.problem import check_settings
from dpfbo.problems.readers.csv_table import read_columns, refuse, refuse_tiny
from dpfbo.problems.readers.data_files import MissingData, data_file

_KM_A_DEGREE = 111.32  # kilometres in a degree of latitude


@dataclass(frozen=True)
class Area:
    """Public knowledge about an area: its bounds in degrees, and the GP of the log price, with length-scale in km."""

    lon: Sequence[float]
    lat: Sequence[float]
    lengthscale: float
    mean: float
    signal_sd: float
    noise_sd: float

    def __post_init__(self) -> None:
        for name, pole in (("lon", 180), ("lat", 90)):
            bounds = getattr(self, name)
            candidates.check_bounds(name, bounds)
            if not -pole <= bounds[0] < bounds[1] <= pole:
                raise SettingError(name, f"must lie in [-{pole}, {pole}] degrees, got {list(bounds)}")
        check_settings(self)


@dataclass(frozen=True)
class PriceSource:
    """A file of prices: its path in the data folder, its name for `runners.fetch`, its price column and its area."""

    name: str
    file: str
    fetch: str
    price: str
    area: Area
    stand_in: str


# The GPs were fitted by maximum likelihood (`dpfbo.outsourced.hyperparameters`) to 1500 random locations of each file
SOURCES = {
    "king_county": PriceSource(
        "property_king_county",
        "property/king_county_2014_2015.csv.gz",
        "homes",
        "price_per_sqm",
        Area((-122.55, -121.3), (47.1, 47.8), lengthscale=6.1, mean=7.76, signal_sd=0.239, noise_sd=0.236),
        "house sales in King County 2014-2015 stand in for the paper's private property in Singapore",
    ),
    "singapore": PriceSource(
        "property_singapore_hdb",
        "property/singapore_hdb_resale_2023.csv.gz",
        "flats",
        "price_per_sqm",
        Area((103.6, 104.1), (1.15, 1.48), lengthscale=0.3, mean=8.67, signal_sd=0.153, noise_sd=0.088),
        "resales of public housing in Singapore 2023 stand in for the paper's private property in Singapore",
    ),
}
OWN_FILE = "csv"


@dataclass(frozen=True)
class Property(candidates.OneCurator):
    """Minimises, over the locations of sold property, the logarithm of a location's mean price per square metre.

    The rank of a record is random and depends only on subset_seed and the record's position in the file; the rank of a
    location is the lowest rank of its records. The table has the n_rows locations of lowest rank, in the order of
    ranks. If one record is replaced, at most two rows of the table change. At most one of these rows gets another
    location. In each other changed row, only the price changes. With n_rows=None, the table may gain or lose a row.

    Features are the distances east and north of the centre of the public bounds, in units of the length-scale. The
    metric is simple regret in units of signal_sd. As in the code of Kharkovskii et al. (2020), every measurement of a
    location returns the location's price in the table. The regret therefore includes the noise of the prices.

    Args:
        source: `king_county`, house sales in King County (Seattle), 2014 to 2015; `singapore`, resales of public
            housing in Singapore, 2023; both stand in for that paper's data, which are not public. `csv`, a file of
            your own.
        file: The path of a csv file with the columns lon, lat (degrees) and price; only for source=csv.
        n_rows: The number of locations; None for all.
        subset_seed: The seed of the ranks.
        lon: Public bounds (lowest, highest) in degrees; locations outside stay in the table. For lon, lat,
            lengthscale, mean, signal_sd and noise_sd, None means the source's own value (`SOURCES`). If source is
            `csv`, all six must be given. Take their values from public knowledge, not from the file.
        lat: Public bounds in degrees.
        lengthscale: The length-scale of the GP of the log price, in km.
        mean: The mean of the GP.
        signal_sd: The standard deviation of the GP.
        noise_sd: The standard deviation of the noise in the log price.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format.
    """

    source: str = "king_county"
    file: str | None = None
    n_rows: int | None = 2004
    subset_seed: int = 0
    lon: Sequence[float] | None = None
    lat: Sequence[float] | None = None
    lengthscale: float | None = None
    mean: float | None = None
    signal_sd: float | None = None
    noise_sd: float | None = None
    data_dir: str | None = None
    area: Area = field(init=False)
    name: str = field(init=False, default="property")

    def __post_init__(self) -> None:
        checks.one_of("source", self.source, (*SOURCES, OWN_FILE))
        if (self.file is None) == (self.source == OWN_FILE):
            raise SettingError("file", f"must be given for source=csv and for no other, got {self.file!r}")
        name = f"property_{OWN_FILE}" if self.source == OWN_FILE else SOURCES[self.source].name
        object.__setattr__(self, "name", name)
        check_settings(self)
        parts = dict.fromkeys(part.name for part in fields(Area))
        parts |= {} if self.source == OWN_FILE else vars(SOURCES[self.source].area)
        parts |= {name: getattr(self, name) for name in parts if getattr(self, name) is not None}
        if absent := [name for name, value in parts.items() if value is None]:
            raise ValueError(f"source={self.source} needs {', '.join(absent)}, got none")
        object.__setattr__(self, "area", Area(**parts))  # type: ignore[arg-type]
        _ = self.table  # raises for an unfit file before any work starts

    @property
    def stand_in(self) -> str | None:
        return None if self.source == OWN_FILE else SOURCES[self.source].stand_in

    @property
    def _prior_noise(self) -> float:
        return (self.area.noise_sd / self.area.signal_sd) ** 2

    @cached_property
    def table(self) -> Table:
        locations, area = self._locations(), self.area
        natural = torch.from_numpy(locations[["lon", "lat"]].to_numpy(copy=True))  # n x 2
        price = torch.from_numpy(locations["price"].to_numpy(copy=True))
        east = _KM_A_DEGREE * math.cos(math.radians((area.lat[0] + area.lat[1]) / 2))
        lengthscales = (area.lengthscale / east, area.lengthscale / _KM_A_DEGREE)  # degrees
        values = (area.mean - price.log()) / area.signal_sd
        return candidates.table_of(natural, [tuple(area.lon), tuple(area.lat)], lengthscales, values, ("lon", "lat"))

    def _locations(self) -> pd.DataFrame:
        """Return the table's locations and their mean prices, sorted by the locations' random ranks."""
        path, column = self._file
        sold = read_columns(path, ("lon", "lat", column))
        for name in sold:
            refuse(path, str(name), sold[name].isna(), "a finite number")
        refuse_tiny(path, sold[column])
        sold["rank"] = candidates.random_ranks(len(sold), self.subset_seed)
        places = sold.groupby(["lon", "lat"], sort=False)
        prices = places.agg(price=(column, "mean"), rank=("rank", "min")).reset_index()
        for name in ("lon", "lat", "price"):
            if prices[name].nunique() < 2:
                raise ValueError(f"{path}, column {name}: must have at least 2 different values, got {len(sold)} rows")
        lon, lat = self.area.lon, self.area.lat
        inside = prices["lon"].between(lon[0], lon[1]) & prices["lat"].between(lat[0], lat[1])
        if not inside.any():
            raise ValueError(f"{path}: some locations must lie within the bounds lon and lat, none of them does")
        return prices.iloc[candidates.lowest(prices["rank"].to_numpy(), self.n_rows, self.name)]

    @property
    def data_files(self) -> tuple[Path, ...]:
        return (self._file[0],)

    @property
    def _file(self) -> tuple[Path, str]:
        """The csv file and the name of its price column."""
        if self.file is None:
            source = SOURCES[self.source]
            return data_file(self.data_dir, source.file, source.fetch), source.price
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise MissingData(f"file must be a csv file, there is none at {path}")
        return path, "price"
