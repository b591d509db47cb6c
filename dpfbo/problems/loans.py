"""Loans (Kharkovskii et al. 2020, Sec. 5): a bank looks for the loan with the largest return on investment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from dpfbo import checks
from dpfbo.outsourced.table import Table
from dpfbo.problems import candidates
from dpfbo.problems.problem import check_settings
from dpfbo.problems.readers.csv_table import read_columns, refuse, refuse_tiny
from dpfbo.problems.readers.data_files import data_file

FILE = "loans/lendingclub_2007_2011.csv.gz"

_FEATURES = ("funded_amnt_inv", "int_rate", "annual_inc")
_BOUNDS = ("amount", "rate", "income")
_PAID = "total_pymnt_inv"
_STATUS = "loan_status"
_FINISHED = ("Fully Paid", "Charged Off")  # last words of the status, also after "Does not meet the credit policy."


@dataclass(frozen=True)
class Loans(candidates.OneCurator):
    """Maximises investors' return over LendingClub's loans of 2007-2011, in place of the paper's unknown 36000 loans.

    The candidates are finished loans with a stated income and at least `amount[0]` USD committed by investors. The
    features are the logarithms of the committed amount (USD), the interest rate (percent) and the annual income (USD);
    the value is the investors' return, (paid back - committed) / committed. The table has the n_rows loans of lowest
    rank, in the order of ranks. The rank of a record is random and depends only on subset_seed and the record's
    position in the file. If one record of the file is replaced, no rank changes, so at most one row of the table is
    replaced. With n_rows=None, the replacement adds a row if only the new record is a candidate. The replacement
    removes a row if only the old record was a candidate.

    The metric is simple regret in units of signal_sd. As in the code of the paper's authors, measurements are exact:
    each returns the loan's value in the table. Most of a return is chance, so compare a method's regret with that of
    other methods and of random choices, not with zero.

    Args:
        n_rows: The number of candidates; None for all.
        subset_seed: The seed of the ranks.
        amount: Public bounds (lowest, highest) of the amount. Loans below the lowest amount are left out.
            Loans above the highest amount, or outside the bounds of rate or income, remain candidates.
        rate: Public bounds of the interest rate.
        income: Public bounds of the income.
        lengthscales: The length-scales of the return's GP in the logarithms of the three features.
        mean: The mean of this GP.
        signal_sd: The standard deviation of this GP.
        noise_sd: The standard deviation of the noise in a return.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format.
    """

    n_rows: int | None = 36000
    subset_seed: int = 0
    amount: Sequence[float] = (500.0, 35000.0)
    rate: Sequence[float] = (5.0, 25.0)
    income: Sequence[float] = (5000.0, 500000.0)
    lengthscales: Sequence[float] = (3.5, 0.94, 1.16)
    mean: float = 0.08
    signal_sd: float = 0.041
    noise_sd: float = 0.282
    data_dir: str | None = None
    name: str = "loans"

    def __post_init__(self) -> None:
        check_settings(self)
        for name in _BOUNDS:
            candidates.check_bounds(name, getattr(self, name))
            checks.positive(name, getattr(self, name)[0])
        candidates.check_lengthscales(self.lengthscales, _BOUNDS)
        _ = self.table  # raises for an unfit file before any work starts

    @property
    def stand_in(self) -> str:
        return "LendingClub loans 2007-2011 stand in for the paper's file, whose selection of loans is unknown"

    @property
    def _prior_noise(self) -> float:
        return (self.noise_sd / self.signal_sd) ** 2

    @cached_property
    def table(self) -> Table:
        (path,) = self.data_files
        loans = read_columns(path, (*_FEATURES, _PAID), (_STATUS,))
        for name in ("funded_amnt_inv", "int_rate", _PAID):
            refuse(path, name, loans[name].isna(), "a finite number")
        for name in ("int_rate", "annual_inc"):
            refuse_tiny(path, loans[name])
        kept = loans[_STATUS].str.endswith(_FINISHED, na=False)
        kept &= loans["annual_inc"].notna() & (loans["funded_amnt_inv"] >= self.amount[0])
        ranks = candidates.random_ranks(len(loans), self.subset_seed)[kept]
        loans = loans[kept].iloc[candidates.lowest(ranks, self.n_rows, self.name)]
        natural = torch.from_numpy(loans[list(_FEATURES)].to_numpy(copy=True))  # n x 3
        bounds = [tuple(math.log(bound) for bound in getattr(self, name)) for name in _BOUNDS]
        profit = torch.from_numpy((loans[_PAID] / loans[_FEATURES[0]] - 1).to_numpy(copy=True))
        values = (profit - self.mean) / self.signal_sd
        return candidates.table_of(natural.log(), bounds, tuple(self.lengthscales), values, _BOUNDS, natural)

    @property
    def data_files(self) -> tuple[Path, ...]:
        return (data_file(self.data_dir, FILE, "credit"),)
