"""Make the tables of homes, flats and loans from published files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfbo.extras import needing

_HOMES, _FLATS, _LOANS = (columns.split() for columns in (
    """id date lon lat price sqft_living price_per_sqm bedrooms bathrooms sqft_lot floors waterfront view condition
    grade yr_built yr_renovated zipcode""",
    """month town flat_type storey_range lon lat svy21_x svy21_y floor_area_sqm lease_commence_date resale_price
    price_per_sqm""",
    """id issue_d loan_amnt funded_amnt funded_amnt_inv term int_rate installment grade sub_grade emp_length
    home_ownership annual_inc verification_status purpose addr_state dti delinq_2yrs inq_last_6mths open_acc pub_rec
    revol_bal revol_util total_acc loan_status out_prncp total_pymnt total_pymnt_inv total_rec_prncp total_rec_int
    total_rec_late_fee recoveries collection_recovery_fee last_pymnt_d last_pymnt_amnt""",
))  # fmt: skip


def homes(first: Path, second: Path, prices: Path) -> pd.DataFrame:
    """Return the sales of the csv files `first` and `second` in one table, sorted by date and id.

    Row n of the csv file `prices` is the price of the sale in row n of `second`.
    """
    sales = pd.concat([pd.read_csv(first), pd.read_csv(second).assign(price=pd.read_csv(prices, header=None)[0])])
    sales = sales.sort_values(["date", "id"]).rename(columns={"long": "lon"}).astype({"price": float, "floors": float})
    sales["price_per_sqm"] = (sales["price"] / (sales["sqft_living"] * 0.09290304)).round(2)  # m2 in a square foot
    return sales[_HOMES]


def flats(resales: Path) -> pd.DataFrame:
    """Read a csv.xz file of resales, drop the addresses, and round coordinates to centimetres."""
    names = {"LNG": "lon", "LAT": "lat", "X": "svy21_x", "Y": "svy21_y"}
    sales = pd.read_csv(resales, compression="xz").rename(columns=names)
    sales["price_per_sqm"] = (sales["resale_price"] / sales["floor_area_sqm"]).round(2)
    return sales[_FLATS].round({"lon": 7, "lat": 7, "svy21_x": 2, "svy21_y": 2})


def loans(finance: Path) -> pd.DataFrame:
    """Read the loans in an rda file, round amounts to cents, and convert percentages and months to numbers."""
    with needing("problems", "the file of loans"):
        import rdata
    kinds: dict[Any, Any] = {
        **rdata.conversion.DEFAULT_CLASS_MAP,
        "Date": lambda days, _: pd.to_datetime(days, unit="D"),
    }
    read = rdata.read_rda(finance, constructor_dict=kinds)
    table = read["finance"].dropna(subset="loan_amnt")[_LOANS]  # a headline in the source has no amount
    rates = {name: pd.to_numeric(table[name].str.removesuffix("%")) for name in ("int_rate", "revol_util")}
    table = table.assign(term=table["term"].str.removesuffix(" months").astype(int), **rates)
    with np.errstate(invalid="ignore"):  # R's missing number is a signalling NaN
        return table.assign(**table.select_dtypes("float").round(2))
