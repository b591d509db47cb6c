"""The control without a model: only the number of rows is released, and the modeler picks at random."""

from dataclasses import dataclass

from dpfbo.outsourced.table import Table
from dpfbo.outsourced.transforms import Transform, Unreleased, nothing
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release


@dataclass(frozen=True)
class Indices(Transform):
    """Releases a zero for each row, as a control: epsilon is 0, and a model learns nothing."""

    def scale(self, table: Table) -> float:
        return 1.0

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        return nothing(len(table.rows), table)
