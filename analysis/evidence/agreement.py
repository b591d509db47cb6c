"""Claims about published numbers: our means agree with them, or our accountant gives the printed epsilon."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from analysis.evidence import verdicts
from analysis.evidence.comparisons import AGREEMENT, EPSILON, Outcome, number, with_error
from analysis.evidence.selection import Measure, NotRun, SettingFilter, Unclear, units_in_words
from analysis.evidence.verdicts import PublishedMean
from analysis.load import Run


@dataclass(frozen=True)
class Agreement:
    """Claim: our means are the published numbers, within the errors of both."""

    form: ClassVar[str] = AGREEMENT

    where: SettingFilter
    points: tuple[tuple[Measure, PublishedMean], ...]

    @property
    def words(self) -> str:
        return self.points[0][0].words if len(self.points) == 1 else f"{{metric}} at {len(self.points)} rounds"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        pairs = [
            (verdicts.mean_of(list(measure.by_unit(found).values())), published) for measure, published in self.points
        ]
        deviations = [verdicts.deviation(*pair)[0] for pair in pairs]
        k = max(range(len(pairs)), key=lambda i: abs(deviations[i] or 0.0))
        (measure, _), (ours, published) = self.points[k], pairs[k]
        text = f"{with_error(ours, 'values')} against {number(published.value, ours.se)}"
        if len(pairs) > 1:
            text = f"farthest {measure.words.removeprefix('{metric} ')}: {text}"
        distance = deviations[k]
        far = None if distance is None else -abs(distance)
        return Outcome(text, far, units_in_words(ours.n, found), verdicts.agrees(pairs), None)


@dataclass(frozen=True)
class Printed:
    """Claim: the moments accountant gives the printed epsilon, to its two decimals. No statistics."""

    form: ClassVar[str] = EPSILON

    where: SettingFilter
    epsilon: float

    @property
    def words(self) -> str:
        return "moments accountant, δ = N^−1.1"

    def outcome(self, runs: Sequence[Run]) -> Outcome:
        found = self.where.among(runs)
        for run in found:
            delta = run.summary.get("delta")
            if delta is None or not math.isclose(delta, run.summary["n_agents"] ** -1.1, rel_tol=1e-9):
                raise NotRun(f"{self.where.words} at δ = N^−1.1")
        values: set[float | None] = {(run.summary.get("epsilon") or {}).get("moments") for run in found}
        known = sorted(value for value in values if value is not None)
        if len(known) < len(values):
            raise Unclear("a run without a finite ε of the moments accountant")
        if len(known) > 1:
            raise Unclear(f"runs with different ε: {', '.join(f'{value:.4g}' for value in known)}")
        (value,) = known
        same = abs(value - self.epsilon) <= 0.005 + 1e-9
        return Outcome(f"{value:.2f}", None, "exact", verdicts.HOLDS if same else verdicts.FAILS, None)
