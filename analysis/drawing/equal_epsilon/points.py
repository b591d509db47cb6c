"""Regret at equal privacy, in numbers: each private algorithm at its target epsilons, beside what needs none."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.labels import NAMES, VARIANTS, joined_by_or, problem_label, value_in_words, variant_in_words
from analysis.load import LoadError, Run
from dpfbo.formats.words import large_delta


@dataclass(frozen=True)
class FrontierPoint:
    """One algorithm at one target. Means and errors over the seeds.

    target: None for a reference. epsilon: what the runs cost by their accountant, the largest; 0 where nothing was
    shared, None where nothing is private. average: of the metric over rounds 1..t; last: after
    round t.
    """

    name: str
    regions: int
    target: float | None
    epsilon: float | None
    noise_multiplier: float | None
    seeds: tuple[int, ...]
    average: tuple[float, float]
    last: tuple[float, float]

    @property
    def label(self) -> str:
        name = NAMES.get(self.name, self.name)
        return f"{name}, P = {self.regions}" if self.regions > 1 else name


@dataclass(frozen=True)
class FrontierPanel:
    """One variant of the problem: the algorithms' points at their targets, and the references'.

    t: the last round. sharing: q and S of the private runs, in words.
    """

    title: str
    metric: str
    t: int
    epsilon_in_words: str
    sharing: str
    points: tuple[FrontierPoint, ...]
    references: tuple[FrontierPoint, ...]

    @property
    def curves(self) -> list[list[FrontierPoint]]:
        """The points of each algorithm, by target."""
        names = dict.fromkeys((p.name, p.regions) for p in self.points)
        return [sorted((p for p in self.points if (p.name, p.regions) == n), key=lambda p: p.target) for n in names]  # type: ignore[arg-type, return-value]


def has_targets(runs: Iterable[Run]) -> bool:
    """True where the private runs were calibrated to more than one epsilon."""
    return len({target for run in runs if (target := _target(run)) is not None}) > 1


def panels(runs: Sequence[Run], t: int | None = None) -> list[FrontierPanel]:
    """The runs by variant of the problem.

    A run without the shared features of the family (TS, the controls, the private prior) belongs to each length-scale
    of them.

    t: the last round to count, T where not given. Raises LoadError where a variant has no private run, where two
    settings claim one point, or where a round is not there.
    """
    everywhere = [run for run in runs if not _sends_queries(run)]
    variants: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if _sends_queries(run):
            variants.setdefault(_variant(run), []).append(run)
    several = len({key[-1] for key in variants}) > 1
    for run in everywhere:
        alike = [group for key, group in variants.items() if key[:-1] == _variant(run)[:-1]]
        for group in alike or [variants.setdefault(_variant(run), [])]:
            group.append(run)
    return [_panel(group, several, t) for _, group in sorted(variants.items(), key=lambda pair: str(pair[0]))]


def lengths(runs: Iterable[Run]) -> list[int]:
    """The numbers of rounds T of the runs at target epsilons."""
    return sorted({run.summary["rounds"] for run in runs if _target(run) is not None})


def of_length(runs: Sequence[Run], T: int) -> list[Run]:
    """The runs of T rounds; of settings that were only run longer, those that released nothing later than round T.

    Such a run begins with the run of T rounds. A setting that spends its epsilon over more than T rounds does not, and
    is left out.
    """
    found: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        rounds, private = run.summary["rounds"], run.summary["private"]
        if rounds == T or (rounds > T and (not private or run.summary["n_charges"] <= T)):
            found.setdefault((_variant(run), *_key(run)), []).append(run)
    shortest = {key: min(run.summary["rounds"] for run in group) for key, group in found.items()}
    return [run for key, group in found.items() for run in group if run.summary["rounds"] == shortest[key]]


def table(found: Sequence[FrontierPanel]) -> pd.DataFrame:
    """One row for each point and reference; standard errors are over the seeds, empty with one."""
    return pd.DataFrame(
        [
            {
                "panel": panel.title, "metric": panel.metric, "rounds": panel.t, "algorithm": p.name, "P": p.regions,
                "target_epsilon": p.target, "epsilon": p.epsilon, "privacy": panel.epsilon_in_words,
                "z": p.noise_multiplier, "seeds": len(p.seeds),
                "average": p.average[0], "average_se": p.average[1], "last": p.last[0], "last_se": p.last[1],
            }
            for panel in found
            for p in (*panel.points, *panel.references)
        ]
    )  # fmt: skip


def _panel(runs: Sequence[Run], name_lengthscale: bool, t: int | None) -> FrontierPanel:
    first = runs[0].summary
    rounds = min(run.summary["rounds"] for run in runs)
    if t is not None and not 1 <= t <= rounds:
        raise LoadError(f"round {t} cannot be drawn: all settings have rounds 1 to {rounds}")
    last = t or rounds
    title = _title(runs[0])
    if name_lengthscale:
        title += f", length-scale {value_in_words(runs[0].config['algorithm'].get('lengthscale'))}"
    by_point: dict[tuple[str, int, float | None], list[Run]] = {}
    for run in runs:
        if _target(run) is not None or not run.summary["private"]:
            by_point.setdefault(_key(run), []).append(run)
    found = [_point(key, group, last) for key, group in by_point.items()]
    order = list(NAMES)
    found.sort(key=lambda p: (order.index(p.name) if p.name in order else len(order), p.name, p.regions, p.target or 0))
    points = tuple(p for p in found if p.target is not None)
    if not points:
        raise LoadError(
            f"{title} has no private run at a target epsilon: run python -m runners.sweep experiment=frontier"
        )
    private = [run for run in runs if _target(run) is not None]
    return FrontierPanel(
        title, first["metric"], last, _epsilon_in_words(private), _sharing_in_words(private), points,
        tuple(p for p in found if p.target is None),
    )  # fmt: skip


def _point(key: tuple[str, int, float | None], runs: Sequence[Run], t: int) -> FrontierPoint:
    name, P, target = key
    if len(settings := {run.setting for run in runs}) > 1:
        at = "" if target is None else f" at epsilon {target:g}"
        raise LoadError(
            f"{NAMES.get(name, name)}{at} was run with {len(settings)} settings ({', '.join(sorted(settings))}): keep "
            "the folder of one"
        )
    curves = np.array([run.curve[1 : t + 1] for run in runs])  # seeds x t
    epsilons = [run.summary["epsilon"][run.summary["accountant"]] for run in runs]
    epsilon = None if None in epsilons else max(epsilons)
    z = runs[0].config["privacy"]["z"] if target is not None else None
    return FrontierPoint(
        name, P, target, epsilon, z, tuple(run.seed for run in runs), _mean_and_se(curves.mean(1)),
        _mean_and_se(curves[:, -1]),
    )  # fmt: skip


def _mean_and_se(values: np.ndarray) -> tuple[float, float]:
    """Over the seeds; the error is nan with one."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else math.nan


def _epsilon_in_words(runs: Sequence[Run]) -> str:
    s = runs[0].summary
    at = f"δ = {s['delta']:.3g}{large_delta([s['delta']])}"
    return f"{s['accountant'].upper()} accountant, {at}, {s['relation']}, user level, N = {s['n_agents']}"


def _sharing_in_words(runs: Sequence[Run]) -> str:
    return ", ".join(f"{key} = {joined_by_or({run.config['privacy'][key] for run in runs})}" for key in ("q", "S"))


def _sends_queries(run: Run) -> bool:
    """True where a server sends queries that it found with the shared features, whose length-scale then counts."""
    return run.config["algorithm"].get("server") in ("Server", "PeerExchange")


def _target(run: Run) -> float | None:
    return run.config["privacy"].get("epsilon") if run.summary["private"] else None


def _key(run: Run) -> tuple[str, int, float | None]:
    """The algorithm with its P, and the target."""
    return run.config["algorithm"]["name"], run.config["algorithm"]["P"], _target(run)


def _variant(run: Run) -> tuple[object, ...]:
    """The key that tells panels apart, the length-scale of the shared features last."""
    s, told = run.summary, tuple(run.config["problem"].get(key) for key in ("score", *VARIANTS))
    return s["problem"], s["metric"], s["n_agents"], *told, run.config["algorithm"].get("lengthscale")


def _title(run: Run) -> str:
    return problem_label(run.summary["problem"]) + variant_in_words(run.config["problem"])
