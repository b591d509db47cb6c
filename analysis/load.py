"""Reading of finished runs from `results/<experiment>/<setting-hash>/<seed>/`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from analysis.labels import FOLLOW, NAMES, VARIANTS, claimed_epsilon, flat, labels
from dpfbo.formats.bounded import plain, read_plain, read_yaml
from dpfbo.formats.summary import NOISE, is_outsourced, lacking

if TYPE_CHECKING:
    import pandas as pd  # imported at run time where a table is made, so that --help does not load it


class LoadError(RuntimeError):
    """Result files are missing or unreadable; the message is one sentence for the user."""


@dataclass(frozen=True)
class Run:
    """One finished run.

    config: the normalised content of config.yaml. summary: the content of summary.json. path: the folder of the run.
    """

    setting: str
    seed: int
    config: dict[str, Any]
    summary: dict[str, Any]
    path: Path

    @property
    def curve(self) -> list[float]:
        """The metric after rounds 0..T, averaged over the agents."""
        return self.summary["curve"]["mean"]

    @property
    def own_function(self) -> bool:
        """True if the objective functions are random and drawn with the run's seed."""
        return self.config["problem"].get("function_seed") == self.seed

    @property
    def own_sample(self) -> bool:
        """True if the run's data are a random sample of a file, drawn with the run's seed."""
        return self.config["problem"].get("subset_seed") == self.seed

    @property
    def real(self) -> bool:
        """True for a run on real data (`privacy.rng=os`); files made from it are private."""
        return bool(self.summary["rng"] != "seeded")

    @property
    def outsourced(self) -> bool:
        """True for a run by a curator and a modeler, instead of a server and agents."""
        return is_outsourced(self.config)

    @property
    def claimed_epsilon(self) -> float | None:
        """The epsilon that the PO-GP-UCB paper claims (it is no guarantee); None for other algorithms."""
        return claimed_epsilon(self.config) if self.summary.get("published_claim") else None

    @property
    def flat(self) -> dict[str, Any]:
        """The entries of `config` that distinguish settings, by dotted name."""
        return flat(self.config, self.own_function)

    @cached_property
    def epsilon_spent(self) -> list[float]:
        """Epsilon spent before the query of each round 0..T, by the run's accountant; may be inf."""
        import pandas as pd

        file = self.path / "server.parquet"
        released = _read(file, lambda: pd.read_parquet(plain(file), columns=["epsilon"])["epsilon"])
        if released.empty:
            return [0.0] * len(self.curve)
        spent = [0.0, *released.astype(float).fillna(float("inf"))]
        return spent + [spent[-1]] * (len(self.curve) - len(spent))  # the broadcasts may stop before the last round


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
        """The number of rounds, T."""
        return self.first.summary["rounds"]

    @property
    def private(self) -> bool:
        return self.first.summary["private"]

    @property
    def noise(self) -> dict[str, float | None]:
        """The noise multiplier z, sampling probability q and clip norm S; all None if outsourced or not private."""
        own = self.private and not self.first.outsourced
        return {key: self.first.config["privacy"][key] if own else None for key in NOISE}

    def curve(self) -> pd.DataFrame:
        """Return a row for each round 0..T: `mean` and `se`, over the seeds, of the agents' mean metric."""
        import pandas as pd

        values = pd.concat([pd.Series(run.curve) for run in self.runs]).rename_axis("round")
        return values.groupby(level="round").agg(["mean", "sem"]).rename(columns={"sem": "se"})

    def at(self, round: int) -> tuple[float, float | None]:
        """Return the metric after a round: its mean over the seeds, and the standard error (None for one seed)."""
        mean, se = self.curve().iloc[round].tolist()
        return mean, None if math.isnan(se) else se

    def epsilon(self, accountant: str) -> float | None:
        """Return the largest epsilon over the seeds, None if not finite."""
        values = [run.summary["epsilon"][accountant] for run in self.runs]
        return None if None in values else max(values)


def load(results_dir: Path, experiment: str) -> list[Run]:
    """Return all finished runs of an experiment, by setting and seed.

    Raises LoadError if there is none, or one cannot be read.
    """
    if Path(experiment).name != experiment:
        raise LoadError(f"the experiment must be the name of a folder in {results_dir}, got {experiment!r}")
    folders = sorted(path.parent for path in (results_dir / experiment).glob("*/*/summary.json"))
    if not folders:
        command = "sweep experiment=demo" if experiment == "demo" else f"run experiment_name={experiment}"
        known = ", ".join(finished_experiments(results_dir))
        others = f" (there are results of {known})" if known else ""
        raise LoadError(f"no finished run of {experiment!r} in {results_dir}{others}: run python -m runners.{command}")
    return sorted((_run(folder) for folder in folders), key=lambda run: (run.setting, run.seed))


def finished_experiments(results_dir: Path) -> list[str]:
    """Return the names of the experiments that have a finished run."""
    return sorted({path.parts[-4] for path in results_dir.glob("*/*/*/summary.json")})


def with_parts(results_dir: Path, names: Iterable[str]) -> list[str]:
    """Replace each name without finished runs by the names of the finished experiments `<name>_*`.

    If there are no such experiments, the name stays.
    """
    finished, found = finished_experiments(results_dir), list[str]()
    for name in names:
        parts = [] if name in finished else [other for other in finished if other.startswith(f"{name}_")]
        found += parts or [name]
    return list(dict.fromkeys(found))


def by_metric(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs that may share an axis."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(variant(run), []).append(run)
    return list(groups.values())


def variant(run: Run) -> tuple[Any, ...]:
    """Return a key that is equal for runs that may share an axis: problem, metric, N, and settings of the problem."""
    told = (run.config["problem"].get(key) for key in ("score", *VARIANTS))
    return (*(run.summary[key] for key in ("problem", "metric", "n_agents")), *told)


def trust_in_words(run: Run) -> str:
    """Return what replaces the trusted server of a private run, such as `local noise`.

    The text is empty if the server is trusted or the run is not private.
    """
    privacy = run.config["privacy"]
    if not run.summary["private"] or privacy.get("trust", "server") == "server":
        return ""
    colluders = privacy["colluders"]
    return "local noise" if colluders == run.summary["n_agents"] - 1 else f"secure sum, {colluders} colluders"


def settings(runs: Sequence[Run]) -> list[SettingRuns]:
    """Group the runs by setting, sorted by algorithm, P, epsilon and `algorithm.follow`."""
    by_hash: dict[str, list[Run]] = {}
    for run in runs:
        by_hash.setdefault(run.setting, []).append(run)
    firsts = [group[0] for group in by_hash.values()]
    named = labels([run.config for run in firsts], [run.flat for run in firsts], [run.setting for run in firsts])
    found = [SettingRuns(name, tuple(group)) for name, group in zip(named, by_hash.values(), strict=True)]
    return sorted(found, key=lambda setting: (*_order(setting.runs), setting.label))


def _order(group: Sequence[Run]) -> tuple[Any, ...]:
    config, names = group[0].config, list(NAMES)
    a = config["algorithm"]
    rank = names.index(a["name"]) if a["name"] in names else len(names)
    if group[0].outsourced:
        transform, aware = config["transform"], a["modeler"]["noise_aware"]
        return rank, a["name"], not aware, [transform.get("epsilon") or 0.0, transform.get("r") or 0]
    noise: list[float] = []
    if a["private"]:
        values = [run.summary["epsilon"][run.summary["accountant"]] for run in group]
        spent = math.inf if None in values else round(max(values), 6)  # to the digits that tables show
        noise = [spent, *(config["privacy"][key] for key in NOISE)]
    follow = list(FOLLOW).index(a["follow"]) if a.get("follow") in FOLLOW else -1
    return rank, a["name"], a["P"], noise, follow


def seeds_phrase(groups: Sequence[SettingRuns]) -> str:
    """Return the number of seeds in words, such as `3 seeds` or `3 seeds, each with its own function`.

    The second text says that each seed has its own random objective function. If each seed has its own random sample
    of the records of a data file, the text is `3 seeds, each with its own sample of one file`.
    """
    counts = sorted({len(g.runs) for g in groups})
    phrase = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    runs = [run for g in groups for run in g.runs]
    if counts[-1] > 1 and all(run.own_function for run in runs):
        return f"{phrase}, each with its own function"
    sampled = counts[-1] > 1 and all(run.own_sample for run in runs)
    return f"{phrase}, each with its own sample of one file" if sampled else phrase


def normalised(node: Any) -> Any:
    """Return the configuration with class names instead of dotted paths.

    Each `_target_` is shortened to the last part of its path. Each `server` section is replaced by the name of
    the server's class.
    """
    if isinstance(node, list):
        return [normalised(value) for value in node]
    if not isinstance(node, dict):
        return node
    named = {key: normalised(value) for key, value in node.items()}
    if isinstance(path := named.get("_target_"), str):
        named["_target_"] = path.rpartition(".")[2]
    if isinstance(server := named.get("server"), dict):
        named["server"] = server.get("_target_")
    return named


def _run(folder: Path) -> Run:
    files = folder / "summary.json", folder / "config.yaml"
    summary = _read(files[0], lambda: json.loads(read_plain(files[0]).decode()))
    config = normalised(_read(files[1], lambda: read_yaml(files[1])))
    if wrong := lacking(summary, config):
        raise LoadError(f"{folder} was not written by this version ({wrong}): delete it and run it again")
    return Run(summary["setting"], summary["seed"], config, summary, folder)


def _read(file: Path, content: Callable[[], Any]) -> Any:
    try:
        return content()
    except (OSError, ValueError, KeyError, RecursionError, yaml.YAMLError) as error:
        raise LoadError(f"{file} cannot be read ({why(file, error)}): delete its folder and run it again") from error


def why(file: Path, error: Exception) -> str:
    """Return the reason of an error raised while reading `file`, in one line without the file's name."""
    return getattr(error, "strerror", None) or " ".join(str(error).removeprefix(f"{file} ").split())
