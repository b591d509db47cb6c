"""The results of a sweep: a data frame of its trials, and a folder of figures, tables, verdicts and a report."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfbo.formats.bounded import read_object, read_yaml
from dpfbo.formats.files import replace_text
from runners.sweep.trials import States, folders_of, known_trials, state

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from runners.sweep.plan import SweepPlan  # imports torch, which `results` does not need

# keys that have columns of their own, and keys that do not affect the results
_NO_SETTING = {"seed", "experiment_name", "results_dir", "data_dir", "executor", "tracker", "sweep", "launcher"}


def results(folder: str | Path) -> "pd.DataFrame":
    """Return a data frame with a row for each trial of an experiment.

    Columns: label, setting (its hash), seed, state, stopped_by, round, mean and se (mean and standard error of the
    metric over the agents after that round), epsilon/ACCOUNTANT (at delta, NaN if not finite), delta, seconds, error,
    path (of the run folder), and config/KEY for every key in which settings differ. A key whose value depends on the
    seed has no column.

    Args:
        folder: The experiment's folder, such as `results/mine`.

    Raises:
        FileNotFoundError: The folder has no trials.

    Example:
        >>> from runners.sweep import results
        >>> frame = results("results/mine")  # doctest: +SKIP
        >>> frame.groupby("config/privacy.z")["mean"].mean()  # doctest: +SKIP
    """
    import pandas as pd

    experiment, rows, given = Path(folder).absolute(), list[dict[str, Any]](), list[dict[str, Any]]()
    configs = defaultdict[str, list[dict[str, Any]]](list)  # by setting, those of its first two finished trials
    trials = known_trials(experiment)
    folders = folders_of(experiment, trials)
    for trial in trials:
        run = folders[trial.key]
        known, summary = state(run).as_json(), read_object(run.path / "summary.json") or {}
        del known["epsilon"], known["delta"]
        rows.append({
            "label": trial.label, "setting": trial.setting, "seed": trial.seed,
            **{key: known[key] for key in ("state", "stopped_by", "round", "mean")},
            "se": summary.get("final", {}).get("se"),
            **{f"epsilon/{name}": value for name, value in summary.get("epsilon", {}).items()},
            "delta": summary.get("delta"), "seconds": summary.get("seconds", {}).get("total"), "error": known["error"],
            "path": str(run.path),
        })  # fmt: skip
        if len(configs[trial.setting]) < 2 and (run.path / "config.yaml").exists():
            configs[trial.setting].append(_settings(read_yaml(run.path / "config.yaml")))
        given.append(_settings(_values(trial.overrides)))
    if not rows:
        raise FileNotFoundError(f"no trial in {experiment}")
    config = pd.json_normalize([(configs[row["setting"]] or [own])[0] for row, own in zip(rows, given, strict=True)])
    by_seed = {key for pair in configs.values() for key in _differing(pd.json_normalize(pair))}
    differing = [key for key in _differing(config) if key not in by_seed]
    return pd.concat([pd.DataFrame(rows), config[differing].add_prefix("config/")], axis="columns")


def _differing(table: "pd.DataFrame") -> list[str]:
    return [str(key) for key in table if table[key].dropna().astype(str).nunique() > 1]


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key.partition(".")[0] not in _NO_SETTING}


def _values(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides by key, such as `privacy.z`; choices of config groups are left out."""
    words = [override.lstrip("+").partition("=") for override in overrides]
    return {key: _value(word) for key, _, word in words if "." in key}


def _value(word: str) -> Any:
    import yaml

    try:
        return json.loads(word)  # first as JSON, because YAML reads 1e-05 as a string
    except ValueError:
        pass
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def write_results(
    sweeps: "Sequence[SweepPlan]", states: Sequence[States], overrides: Sequence[str], console: "Console"
) -> bool:
    """Write figures, tables, verdicts and a report of the experiments with finished trials; return False on a failure.

    overrides: the command line, which determines the folder, such as `results/paper` for `experiment=paper`.
    """
    found = [
        s.experiment for s, known in zip(sweeps, states, strict=True) if any(t.phase == "done" for t in known.values())
    ]
    if not found:
        return True
    asked = {o.lstrip("+").partition("=")[0]: o.partition("=")[2] for o in overrides}
    results_dir = sweeps[0].folder.parent
    folder = results_dir / (asked.get("experiment") or sweeps[0].experiment).replace(",", "+")
    folder.mkdir(parents=True, exist_ok=True)
    programs = {
        "figures": ["--out", folder / "figures"], "tables": [], "claims": ["--out", folder],
        "report": ["--out", folder / "report.html"],
    }  # fmt: skip
    failed = []
    for name, options in programs.items():
        console.print(f"python -m analysis.{name}")
        line = [sys.executable, "-m", f"analysis.{name}", *found, *map(str, options), f"results_dir={results_dir}"]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)  # stderr goes to the terminal
        failed += [name] if done.returncode else []
        if name == "tables":
            replace_text(folder / "tables.txt", done.stdout, mode=0o600)  # it may describe real data
    console.print(f"figures/, tables.txt, claims.md and report.html are in {folder}", soft_wrap=True)
    if failed:
        console.print(f"incomplete, because of the errors above: {', '.join(failed)}")
    return not failed
