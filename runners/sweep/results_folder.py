"""After a sweep: a frame of its trials; and its figures, tables, verdicts and report in one folder.

The programs of `analysis` draw them from the files of the trials, as they do by themselves. Runners never import
`analysis`, and so each one is a process of its own.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfbo.formats.bounded import read_object, read_yaml
from dpfbo.formats.files import replace_text
from runners.identity.places import labelled_folders
from runners.sweep.trials import States, known_trials, state

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from runners.sweep.plan import SweepPlan  # imports torch, which reading a frame does without

# keys with columns of their own, and those that change no number
_NO_SETTING = {"seed", "experiment_name", "results_dir", "data_dir", "executor", "tracker", "sweep", "launcher"}


def results(folder: str | Path) -> "pd.DataFrame":
    """A row for each trial of an experiment, as in the `get_dataframe()` of Ray Tune's ResultGrid.

    Columns: label, setting (its hash), seed, state, stopped_by, round, mean and se (of the metric after that round; se
    over the agents), epsilon/ACCOUNTANT (at delta, NaN if not finite), delta, seconds, error, path (of the run folder),
    and config/KEY for every key in which the settings differ. Unfinished trials have the config of their overrides.

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
    configs: dict[str, dict[str, Any]] = {}  # by setting, of its first finished trial
    labelled = labelled_folders(experiment)
    for trial in known_trials(experiment):
        run = trial.folder(experiment, labelled.get(trial.setting, ()))
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
        if trial.setting not in configs and (run.path / "config.yaml").exists():
            configs[trial.setting] = _settings(read_yaml(run.path / "config.yaml"))
        given.append(_settings(_values(trial.overrides)))
    if not rows:
        raise FileNotFoundError(f"no trial in {experiment}")
    config = pd.json_normalize([configs.get(row["setting"], own) for row, own in zip(rows, given, strict=True)])
    differing = [key for key in config if config[key].dropna().astype(str).nunique() > 1]
    return pd.concat([pd.DataFrame(rows), config[differing].add_prefix("config/")], axis="columns")


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key.partition(".")[0] not in _NO_SETTING}


def _values(overrides: Sequence[str]) -> dict[str, Any]:
    """The values of overrides by key, such as `privacy.z`; without those that choose an option of a group."""
    words = [override.lstrip("+").partition("=") for override in overrides]
    return {key: _value(word) for key, _, word in words if "." in key}


def _value(word: str) -> Any:
    import yaml

    try:
        return json.loads(word)  # a number such as 1e-05 is none in YAML
    except ValueError:
        pass
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def write_results(
    sweeps: "Sequence[SweepPlan]", states: Sequence[States], overrides: Sequence[str], console: "Console"
) -> bool:
    """Write the results of the experiments that have finished trials; returns False if a program could not.

    overrides: the command line, which names the folder: `results/paper` of `experiment=paper`.
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
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)  # errors go to the terminal
        failed += [name] if done.returncode else []
        if name == "tables":
            replace_text(folder / "tables.txt", done.stdout, mode=0o600)  # it may tell of real data
    console.print(f"figures/, tables.txt, claims.md and report.html are in {folder}", soft_wrap=True)
    if failed:
        console.print(f"not whole, see the errors above: {', '.join(failed)}")
    return not failed
