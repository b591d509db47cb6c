"""A baseline that releases only the number of rows."""

from dataclasses import dataclass

from dpfbo.outsourced.table import Table
from dpfbo.outsourced.transforms import Transform, Unreleased, nothing
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release


@dataclass(frozen=True)
class Indices(Transform):
    """Releases a zero for each row, as a control: epsilon is 0, and the modeler's model has nothing to learn from."""

    def scale(self, table: Table) -> float:
        return 1.0

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        return nothing(len(table.rows), table)
