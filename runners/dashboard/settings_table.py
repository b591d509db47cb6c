"""The settings of an experiment, each with its final metric and epsilon over the seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from dpfbo.formats.words import delta_in_words
from runners.dashboard.from_files import RunOnDisk
from runners.record.wandb_layout import unique_label


@dataclass(frozen=True)
class SettingResult:
    """The finished runs of one setting, one for each seed."""

    runs: tuple[RunOnDisk, ...]

    @property
    def summary(self) -> dict[str, Any]:
        """Summary of the first seed, for what all seeds share."""
        return self.runs[0].summary

    @property
    def label(self) -> str:
        return unique_label(self.summary["label"], self.summary["setting"])

    @property
    def shown(self) -> bool:
        """True if metrics that are not released may be shown of all its runs."""
        return all(run.shown for run in self.runs)

    def curve(self) -> tuple[list[float], list[float]]:
        """(mean over the seeds, its standard error or NaN for one seed) after each round; NaN where a value lacks."""
        by_seed = [run.summary["curve"]["mean"] for run in self.runs]
        rows = [[math.nan if y is None else y for y in values] for values in zip(*by_seed, strict=False)]
        return [_mean(row) for row in rows], [_standard_error(row) for row in rows]

    def epsilon(self, accountant: str) -> float | None:
        """The largest of the seeds; None if there is no finite one."""
        found = [run.summary["epsilon"].get(accountant) for run in self.runs]
        return None if None in found else max(found)

    def row(self, accountants: Sequence[str]) -> dict[str, Any]:
        """The setting's row; the final metric is null where it is not released."""
        s, (mean, error) = self.summary, self.curve()
        seeds = sorted(run.summary["seed"] for run in self.runs)
        final = {"final": _finite(mean[-1]), "final_se_over_seeds": _finite(error[-1])}
        return {
            "label": self.label, "method": s["algorithm"], "problem": s["problem"], "setting": s["setting"],
            "rounds": s["rounds"], "agents": s["n_agents"], "seeds": ", ".join(map(str, seeds)), "n_seeds": len(seeds),
            "metric": s["metric"], **(final if self.shown else dict.fromkeys(final)),
            **{f"epsilon_{name}": self.epsilon(name) for name in accountants},
            "accountant": s["accountant"], "delta": s["delta"], "delta_in_words": delta_in_words(s["delta"]),
            "relation": s["relation"],
        }  # fmt: skip


def results_of(runs: Sequence[RunOnDisk]) -> list[SettingResult]:
    """The runs by setting, in the order of their labels."""
    by_setting: dict[str, list[RunOnDisk]] = {}
    for run in runs:
        by_setting.setdefault(run.summary["setting"], []).append(run)
    return sorted((SettingResult(tuple(group)) for group in by_setting.values()), key=lambda result: result.label)


def table(results: Sequence[SettingResult]) -> list[dict[str, Any]]:
    """A row for each setting, with a column for each accountant that one of them has."""
    accountants = list(dict.fromkeys(name for r in results for name in r.summary["epsilon"]))
    return [result.row(accountants) for result in results]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 and not any(map(math.isnan, values)) else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
