"""The common form of all measurements: medians with quartiles by phase, peak memory, floors, and their JSON."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

NOT_COUNTED = "objective"  # the phase that `time` leaves out: it is the user's function
FLOOR_MB = "memory before it and records, MB"  # the least peak memory, an entry of `Measurement.more`


@dataclass(frozen=True)
class Spread:
    """Repeats of one measurement: median, quartiles (the extremes of fewer than four repeats), number of repeats."""

    median: float
    low: float
    high: float
    repeats: int

    @staticmethod
    def of(values: Iterable[float]) -> "Spread":
        """Raises ValueError if there is no value."""
        found = sorted(values)
        if not found:
            raise ValueError("a median needs at least one repeat")
        if len(found) < 4:
            return Spread(median(found), found[0], found[-1], len(found))
        low, _, high = quantiles(found, n=4, method="inclusive")
        return Spread(median(found), low, high, len(found))


@dataclass(frozen=True)
class FloorTime:
    """The least time of a phase on this machine, in the measurement's unit.

    formula: the counted work, in words and symbols. work: the counts for one unit (as `floors.Work`). bound:
    `arithmetic`, `memory` or `disk`, which of them takes the time.
    """

    time: float
    formula: str
    bound: str
    work: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """One point of a suite, measured in a fresh process.

    panel: the table and picture that it belongs to. what: the series. size: the numbers that say how large, such as N,
    M and T. time: everything but the objective, in the panel's unit; phases: its parts, and the objective. cpu: CPU
    time of the same. start_mb, peak_mb: the process's largest memory before the measurement and after it. floors: by
    phase. more: further facts, such as seconds of the whole run.
    """

    panel: str
    what: str
    size: dict[str, float]
    time: Spread
    phases: dict[str, Spread] = field(default_factory=dict)
    cpu: Spread | None = None
    start_mb: float | None = None
    peak_mb: float | None = None
    floors: dict[str, FloorTime] = field(default_factory=dict)
    more: dict[str, float | str] = field(default_factory=dict)

    @property
    def floor(self) -> float | None:
        """The sum of the floors of all phases but the objective; None if none is counted."""
        counted = [floor.time for phase, floor in self.floors.items() if phase != NOT_COUNTED]
        return sum(counted) if counted else None

    @property
    def ratio(self) -> float | None:
        """The time over its floor."""
        return self.time.median / self.floor if self.floor else None

    def phase_ratio(self, phase: str) -> float | None:
        """The time of a phase over its floor; None where no floor is counted, or the phase did not occur."""
        floor, spread = self.floors.get(phase), self.phases.get(phase)
        return spread.median / floor.time if floor and floor.time and spread and spread.median else None


@dataclass(frozen=True)
class BenchPanel:
    """One table and one picture of a suite.

    unit: of `time`. axis: the entry of `size` on the horizontal axis; None for a comparison of series by phase. label:
    of that axis. memory: True for a second picture, of peak memory.
    """

    name: str
    title: str
    unit: str
    axis: str | None = None
    label: str = ""
    memory: bool = False


@dataclass(frozen=True)
class Findings:
    """All that a suite measured. settings: of the suite. complete: False if a part could not be measured.

    machine: `MachineFacts` as a dictionary.
    """

    suite: str
    settings: dict[str, Any]
    panels: list[BenchPanel]
    measurements: list[Measurement]
    notes: list[str] = field(default_factory=list)
    complete: bool = True
    machine: dict[str, Any] = field(default_factory=dict)

    def of(self, panel: BenchPanel) -> list[Measurement]:
        return [m for m in self.measurements if m.panel == panel.name]

    def to_json(self) -> str:
        """A JSON object; every measurement also has its ratios to the floors."""
        content = asdict(self)
        for entry, m in zip(content["measurements"], self.measurements, strict=True):
            phases = {phase: m.phase_ratio(phase) for phase in m.floors}
            entry["ratio_to_floor"] = {"all": m.ratio, **{k: v for k, v in phases.items() if v is not None}}
        return json.dumps(content, indent=1, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "Findings":
        """Raises ValueError for anything else than a suite's JSON."""
        try:
            content = json.loads(text)
            measurements = [_measurement(entry) for entry in content.pop("measurements")]
            panels = [BenchPanel(**panel) for panel in content.pop("panels")]
            return Findings(panels=panels, measurements=measurements, **content)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"no JSON of a benchmark suite ({error})") from error


def _measurement(entry: Mapping[str, Any]) -> Measurement:
    nested: dict[str, Callable[[Any], Any]] = {
        "time": _spread,
        "cpu": lambda cpu: None if cpu is None else _spread(cpu),
        "phases": lambda phases: {name: _spread(phase) for name, phase in phases.items()},
        "floors": lambda floors: {name: FloorTime(**floor) for name, floor in floors.items()},
    }
    kept = {name: value for name, value in entry.items() if name != "ratio_to_floor"}
    return Measurement(**{name: nested.get(name, lambda value: value)(value) for name, value in kept.items()})


def _spread(entry: Mapping[str, Any]) -> Spread:
    return Spread(**entry)
