"""The settings that claims about outsourced optimisation name: what the curator releases, and to which epsilon."""

import math
from dataclasses import dataclass

from analysis.evidence.selection import SettingFilter


@dataclass(frozen=True)
class Near:
    """A number to the four digits that settings are given with (e^1.1 is run as 3.0042)."""

    value: float

    def __call__(self, found: object) -> bool:
        return isinstance(found, int | float) and math.isclose(found, self.value, rel_tol=1e-4)


def gp_ucb() -> SettingFilter:
    """On the rows themselves, not private."""
    return _released("GP-UCB on the rows", "Plain", {"algorithm.modeler.policy": "gp_ucb"})


def random_rows() -> SettingFilter:
    """The control without a model: whatever it is given of the rows, it does not look at."""
    more = {"algorithm.modeler.policy": "random", "algorithm.modeler.repeat": False}
    return _released("random rows", _one_by_one, more)


def po(r: int, epsilon: float) -> SettingFilter:
    """PO-GP-UCB. epsilon: of the published claim, which is no guarantee."""
    more = {"transform.r": r, "transform.epsilon": Near(epsilon)}
    return _released(f"PO-GP-UCB, r = {r}, claimed ε = {epsilon:.2f}", "RandomProjection", more)


def gaussian(epsilon: float, aware: bool = True) -> SettingFilter:
    """Rows with Gaussian noise, guaranteed epsilon; the unaware modeler may measure a candidate again."""
    more = {
        "privacy.epsilon": Near(epsilon),
        "algorithm.modeler.noise_aware": aware,
        "algorithm.modeler.repeat": not aware,
    }
    return _released(
        f"Gaussian rows ({'noise-aware' if aware else 'unaware'}), ε = {epsilon:.2f}", "GaussianNoise", more
    )


def histogram(epsilon: float) -> SettingFilter:
    """Noisy counts of cells, guaranteed epsilon."""
    more = {"privacy.epsilon": Near(epsilon), "algorithm.modeler.repeat": True}
    return _released(f"histogram, ε = {epsilon:.2f}", "Histogram", more)


def cover() -> SettingFilter:
    """Public cells as large as the default has them, nothing released."""
    return _released("cover (nothing released)", "Cover", {"algorithm.modeler.repeat": True})


def _one_by_one(transform: object) -> bool:
    """True where a candidate is a row, and not a cell of rows."""
    return transform in ("Plain", "Indices")


def _released(words: str, transform: object, more: dict[str, object]) -> SettingFilter:
    return SettingFilter(words, tuple({"algorithm.server": "Curator", "transform._target_": transform, **more}.items()))
