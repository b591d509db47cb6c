"""Checks of 30 releases of one table: every entry has noise, and the order of the rows is secret.

If the transform is sound, each entry raises a false alarm with probability at most 4e-13. The check of the order
correlates a row's position in the release with the row's index in the table, with its released values and with its
noise. Each correlation raises a false alarm with probability about 2e-9.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpfbo.audit.findings import CheckResult, checked, require
from dpfbo.audit.release.scores import in_table_order
from dpfbo.audit.server.target import seeded
from dpfbo.outsourced.table import Table
from dpfbo.outsourced.transforms import Transform, Unreleased, within
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.privacy.entropy import SystemEntropy
from dpfbo.privacy.release import Release

RELEASES = 30  # releases of one table
Made = tuple[Release, Unreleased]
_LEAST, _MOST = 0.25, 2.5  # limits of a number's deviation, in sigma; a false alarm has probability 4e-13 or less
_ERRORS = 6.0  # largest correlation, in standard errors


def examine(transform: Transform, table: Table, seed: int = 0, system: bool = False) -> tuple[CheckResult, ...]:
    """Run all checks that apply to a transform; a transform without a guarantee has none.

    system: True for randomness from the operating system instead of a seed.
    """
    if not isinstance(transform, GaussianNoise | Histogram):
        return ()
    with torch.inference_mode():
        labels = [("outsourced checks", seed, k) for k in range(RELEASES)]
        releases = [transform.release(table, SystemEntropy() if system else seeded(*label)) for label in labels]
        found = [checked("noise in every entry", noise, releases, transform.sigma(table.public))]
        if isinstance(transform, GaussianNoise):
            rows = within(table.rows, table.public)[0] * transform.scale(table)
            found.append(checked("row order", row_order, releases, rows))
    return tuple(found)


def noise(releases: Sequence[Made], sigma: float) -> str:
    """Check that each number varies between releases by about the standard deviation of its noise."""
    deviations = torch.stack([in_table_order(*made) for made in releases]).std(0) / sigma
    least, most = float(deviations.min()), float(deviations.max())
    words = f"deviations of single numbers over {len(releases)} releases of one table: {least:.2f} to {most:.2f} sigma"
    return require(least >= _LEAST and most <= _MOST, words)


def row_order(releases: Sequence[Made], rows: Tensor) -> str:
    """Check that the order of the rows in the releases is random.

    The order must not be the same in all releases. A row's position in a release must be uncorrelated with the row's
    index in the table, with the released values and with the noise. rows: n x d, without noise, in the table's order.

    If the order is uniformly random, each correlation has mean 0 and variance 1 / (n - 1) in one release. Each
    correlation is summed over the releases. The absolute value of each sum may be at most 6 standard errors of the sum.
    """
    n = len(rows)
    orders = [list(range(n)) if private.order is None else list(private.order) for _, private in releases]
    permuted = all(sorted(order) == list(range(n)) for order in orders)
    require(permuted, "the order of a release is no permutation of its rows")
    words = f"{len(releases)} releases of one table in one order"
    words += ", that of the table" * (orders[0] == list(range(n)))
    require(any(order != orders[0] for order in orders), words)
    pairs = zip(orders, releases, strict=True)
    summed = torch.stack([_order_against(order, made.values, rows) for order, (made, _) in pairs]).sum(0)
    worst = float(summed.abs().max()) * math.sqrt((n - 1) / len(releases))
    words = f"correlation of the order with the table's, the released values or the noise: {worst:.1f} standard errors"
    return require(worst <= _ERRORS, words)


def _order_against(order: Sequence[int], values: Tensor, rows: Tensor) -> Tensor:
    """Correlate rows' positions in a release with their table indices, with the released values and with the noise."""
    there = torch.tensor(order)
    noise, place = values - rows[there], torch.arange(len(rows), dtype=torch.float64)
    flat = noise.flatten()
    half = len(flat) // 2
    some = min(half, len(rows))
    radii = torch.zeros(len(rows), dtype=torch.float64)
    radii[:some] = torch.hypot(flat[:some], flat[half : half + some])
    first = torch.stack([flat[: len(rows)], flat[: len(rows)].abs(), radii], 1)
    columns = torch.cat([there.double()[:, None], values, noise, noise.abs(), first], 1)
    found = _with_place(place, columns)
    # the place of the table's row k against noise row k, in case that noise was drawn in the table's order
    back = _with_place(there.argsort().double(), columns[:, 1 + values.shape[1] :])
    return torch.cat([found, back])


def _with_place(place: Tensor, columns: Tensor) -> Tensor:
    """Return the correlation of each column with the rows' positions `place`; 0 for a constant column."""
    return torch.corrcoef(torch.cat([place[None], columns.T]))[0, 1:].nan_to_num()
