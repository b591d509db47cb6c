"""Finished runs of an experiment, read from `results/<experiment>/<setting-hash>/<seed>/`."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.labels import FOLLOW, NAMES, VARIANTS, claimed_epsilon, flat, is_outsourced, labels
from analysis.labels import label as label
from analysis.labels import metric_label as metric_label
from analysis.plain_files import check_plain, plain_bytes, plain_yaml
from analysis.schema import NOISE, lacking


class LoadError(RuntimeError):
    """There is nothing to show; the message is one sentence for the person at the terminal."""


@dataclass(frozen=True)
class Run:
    """One finished run. config: config.yaml, as `normalised` leaves it; summary: summary.json; path: its folder."""

    setting: str
    seed: int
    config: dict[str, Any]
    summary: dict[str, Any]
    path: Path

    @property
    def curve(self) -> list[float]:
        """Mean over the agents of the metric after rounds 0..T."""
        return self.summary["curve"]["mean"]

    @property
    def own_function(self) -> bool:
        """True where the objectives follow the seed: another seed, other functions."""
        return self.config["problem"].get("function_seed") == self.seed

    @property
    def own_sample(self) -> bool:
        """True where the data are sampled by the seed: another seed, another part of one file."""
        return self.config["problem"].get("subset_seed") == self.seed

    @property
    def real(self) -> bool:
        """True for a run about real data, whose records are its owner's alone."""
        return bool(self.summary["rng"] != "seeded")

    @property
    def outsourced(self) -> bool:
        """True where a curator and a modeler ran it, not a server and agents."""
        return is_outsourced(self.config)

    @property
    def claimed_epsilon(self) -> float | None:
        """The epsilon published about the release, which is no guarantee; None where there is no such claim."""
        return claimed_epsilon(self.config) if self.summary.get("published_claim") else None

    @property
    def flat(self) -> dict[str, Any]:
        """The settings of the run by dotted name, without those that tell no setting apart."""
        return flat(self.config, self.own_function)

    @cached_property
    def epsilon_spent(self) -> list[float]:
        """Epsilon of what was released before the query of each round 0..T, by the run's accountant; may be inf."""
        file = self.path / "server.parquet"
        try:
            check_plain(file)
            released = pd.read_parquet(file, columns=["epsilon"])["epsilon"]
        except (OSError, ValueError, KeyError) as error:
            why = getattr(error, "strerror", None) or (
                "not there" if not file.exists() else " ".join(str(error).split())
            )
            raise LoadError(f"{file} cannot be read ({why}): delete its folder and run it again") from error
        if released.empty:
            return [0.0] * len(self.curve)
        spent = [0.0, *released.astype(float).fillna(float("inf"))]
        return spent + [spent[-1]] * (len(self.curve) - len(spent))  # the broadcasts may stop before the run does


@dataclass(frozen=True)
class SettingRuns:
    """All runs of one setting, by seed. Standard errors are over the seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def rounds(self) -> int:
        """T."""
        return self.first.summary["rounds"]

    @property
    def private(self) -> bool:
        return self.first.summary["private"]

    def curve(self) -> pd.DataFrame:
        """Columns `mean` and `se` over the seeds of each run's mean over agents, indexed by round 0..T."""
        return self._curve.copy()

    @cached_property
    def _curve(self) -> pd.DataFrame:
        return curves([self]).groupby("round")["mean"].agg(["mean", "sem"]).rename(columns={"sem": "se"})

    def at(self, round: int) -> tuple[float, float | None]:
        """Mean and standard error (None with one seed) after a round."""
        values = np.array([run.curve[round] for run in self.runs])
        se = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        return float(values.mean()), se

    def epsilon(self, accountant: str) -> float | None:
        """The largest over the seeds, whose charges are alike unless a ledger was used twice; None: none finite."""
        try:
            values = [run.summary["epsilon"][accountant] for run in self.runs]
        except KeyError as error:
            raise LoadError(f"{self.label!r} was run without the accountant {accountant!r}") from error
        return None if None in values else max(values)


def load(results_dir: Path, experiment: str) -> list[Run]:
    """All finished runs of an experiment, by setting and seed; a folder without summary.json is not finished.

    Raises LoadError if there is none, or one cannot be read.
    """
    if Path(experiment).name != experiment:
        raise LoadError(f"the experiment must be the name of a folder in {results_dir}, got {experiment!r}")
    folders = sorted(path.parent for path in (results_dir / experiment).glob("*/*/summary.json"))
    if not folders:
        raise LoadError(_what_to_run(results_dir, experiment))
    return sorted((_read(folder) for folder in folders), key=lambda run: (run.setting, run.seed))


def with_parts(results_dir: Path, names: Iterable[str]) -> list[str]:
    """The experiments; one without finished runs, such as `few`, stands for its parts, such as `few_school`."""
    finished = {path.parts[-4] for path in results_dir.glob("*/*/*/summary.json")}
    found: list[str] = []
    for name in names:
        parts = sorted(other for other in finished if other.startswith(f"{name}_"))
        found += parts if parts and name not in finished else [name]
    return list(dict.fromkeys(found))


def by_metric(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs in groups that may share an axis: the same problem with the same number of agents, the same metric."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        s = run.summary
        variant = (run.config["problem"].get(key) for key in ("score", *VARIANTS))
        key = (s["problem"], s["metric"], s["n_agents"], *variant)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def settings(runs: Sequence[Run]) -> list[SettingRuns]:
    """The runs grouped by setting: local, shared, private; then by P, epsilon and how often the server is followed.

    Settings without a finite epsilon come last among the private ones. Outsourced ones by algorithm, then by epsilon,
    guaranteed or claimed, and r.
    """
    by_hash: dict[str, list[Run]] = {}
    for run in runs:
        by_hash.setdefault(run.setting, []).append(run)
    groups = list(by_hash.values())
    firsts = [group[0] for group in groups]
    named = labels([run.config for run in firsts], [run.flat for run in firsts], [run.setting for run in firsts])
    found = [SettingRuns(name, tuple(group)) for name, group in zip(named, groups, strict=True)]
    return sorted(found, key=lambda setting: (*_order(setting.runs), setting.label))


def curves(groups: Iterable[SettingRuns]) -> pd.DataFrame:
    """One row for each setting, seed and round: `setting` (label), `seed`, `round`, `mean` over the agents."""
    frames = [
        pd.DataFrame({"setting": g.label, "seed": run.seed, "round": range(len(run.curve)), "mean": run.curve})
        for g in groups
        for run in g.runs
    ]
    return pd.concat(frames, ignore_index=True)


def seeds_phrase(groups: Sequence[SettingRuns]) -> str:
    """The units that the standard errors are over: `3 seeds, each another function`."""
    counts = sorted({len(g.runs) for g in groups})
    phrase = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    if counts[-1] > 1 and all(run.own_function for g in groups for run in g.runs):
        phrase += ", each another function"
    elif counts[-1] > 1 and all(run.own_sample for g in groups for run in g.runs):
        phrase += ", each another sample of one file"
    return phrase


def _what_to_run(results_dir: Path, experiment: str) -> str:
    command = "runners.demo" if experiment == "demo" else f"runners.run experiment_name={experiment}"
    finished = sorted({path.parts[-4] for path in results_dir.glob("*/*/*/summary.json")})
    others = f" (there are results of {', '.join(finished)})" if finished else ""
    return f"no finished run of {experiment!r} in {results_dir}{others}: run python -m {command}"


def normalised(config: Any) -> Any:
    """The configuration with the name of a class for each `_target_`, and for `algorithm.server` that of its class."""
    found = _class_names(config)
    algorithm = found.get("algorithm") if isinstance(found, dict) else None
    if isinstance(algorithm, dict) and isinstance(server := algorithm.get("server"), dict):
        algorithm["server"] = server.get("_target_")
    return found


def _class_names(node: Any) -> Any:
    if isinstance(node, list):
        return [_class_names(value) for value in node]
    if not isinstance(node, dict):
        return node
    named = {key: _class_names(value) for key, value in node.items()}
    if isinstance(path := named.get("_target_"), str):
        named["_target_"] = path.rpartition(".")[2]
    return named


def _read(folder: Path) -> Run:
    summary = _parsed(folder / "summary.json", json.loads)
    config = normalised(_parsed(folder / "config.yaml", plain_yaml))
    wrong = lacking(summary, config)
    if wrong:
        raise LoadError(f"{folder} was not written by this version ({wrong}): delete it and run it again")
    return Run(summary["setting"], summary["seed"], config, summary, folder)


def _parsed(file: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(plain_bytes(file).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise LoadError(
            f"{file} cannot be read ({' '.join(str(error).split())}): delete its folder and run it again"
        ) from error


def _spent(group: Sequence[Run]) -> float:
    """The epsilon of a setting by its own accountant, the largest over the seeds, to the digits that tables show."""
    values = [run.summary["epsilon"][run.summary["accountant"]] for run in group]
    return math.inf if None in values else round(max(values), 6)


def _order(group: Sequence[Run]) -> tuple[Any, ...]:
    config = group[0].config
    a = config["algorithm"]
    names = list(NAMES)
    rank = names.index(a["name"]) if a["name"] in names else len(names)
    if group[0].outsourced:
        transform, aware = config["transform"], a["modeler"]["noise_aware"]
        return rank, a["name"], not aware, [transform.get("epsilon") or 0.0, transform.get("r") or 0]
    noise = [_spent(group), *(config["privacy"][key] for key in NOISE)] if a["private"] else []
    follow = list(FOLLOW).index(a["follow"]) if a.get("follow") in FOLLOW else -1
    return rank, a["name"], a["P"], noise, follow
