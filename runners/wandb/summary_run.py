"""The W&B run that sums up an experiment: a table of its settings, a picture of its frontier, and its claims.

It is of the type `sweep` in the group of the experiment's runs, with one id: logged again as trials are added, it
replaces what it said. The claims are judged by `analysis`, which runners never import, so they come from a file: the
summary shows `claims.json` of the experiment's folder if it is there (`python -m analysis.claims NAME --keep`).
Settings whose data are real have their epsilon in the table and no metric, and then there are no claims, which quote
metrics; a picture is drawn of the other settings.
"""

import json
import logging
import tempfile
import uuid
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import MOST_RECORD, read_plain
from dpfbo.formats.files import replace_file
from runners.wandb import attempts, frontier_picture
from runners.wandb.finished_runs import RunOnDisk, SettingResult, results_of, settings_table
from runners.wandb.tracker import open_run, table

CLAIMS, NOTE = "claims.json", "sweep.json"  # in the experiment's folder, in its folder `wandb`
SETTINGS, FRONTIER = "settings", "figures/frontier"

logger = logging.getLogger(__name__)


def log_summary(experiment: Path, runs: Sequence[RunOnDisk], mode: str, again: bool = False) -> bool:
    """Log the summary of an experiment's finished runs; returns True if it was logged.

    It is not logged twice with the same content, unless `again`. A damaged file or a failure of W&B is a warning.
    """
    if mode == "disabled" or not runs:
        return False
    try:
        results = results_of(runs)
        rows = settings_table(results)
        claims = _claims(experiment) if all(result.shown for result in results) else []  # they quote metrics
        digest = sha256(json.dumps([rows, claims, mode]).encode()).hexdigest()
        known = _note(experiment)  # of the last summary run: its id, and a digest of what it shows
        if known.get("digest") == digest and not again:
            return False
        id = known.get("id") or "sweep" + uuid.uuid4().hex[:11]
        _log(experiment, id, mode, results, rows, claims)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # W&B also leaves through SystemExit
        logger.warning("W&B has no summary of %s: %s", experiment.name, " ".join(repr(error).split())[:240])
        return False
    note = json.dumps({"id": id, "digest": digest}).encode()
    replace_file(experiment / "wandb" / NOTE, lambda f: f.write(note), durable=False)
    return True


def _log(
    experiment: Path, id: str, mode: str, results: Sequence[SettingResult], rows: Sequence[dict[str, Any]],
    claims: Sequence[dict[str, Any]],
) -> None:  # fmt: skip
    (experiment / "wandb").mkdir(exist_ok=True)
    earlier = attempts.not_uploaded(experiment, id)
    runs = [run for result in results for run in result.runs]
    settings = runs[0].config["tracker"]["wandb"]
    config = {
        "experiment": experiment.name, "method": None, "setting": None, "label": None, "n_settings": len(results),
        "seeds": sorted({run.summary["seed"] for run in runs}), "n_runs": len(runs),
    }  # fmt: skip
    tag = "simulation" if all(result.shown for result in results) else "released"
    run = open_run(
        mode, experiment, id=id, project=settings["project"], entity=settings["entity"], config=config,
        name=f"{experiment.name}: summary", group=experiment.name, job_type="sweep", tags=["summary", tag],
    )  # fmt: skip
    attempts.delete(earlier)
    try:
        row = {SETTINGS: table(rows), **({"claims": table(claims)} if claims else {})}
        with tempfile.TemporaryDirectory() as folder:
            run.log({**row, **_pictures(results, Path(folder))})
    finally:
        run.finish(exit_code=0)


def _pictures(results: Sequence[SettingResult], folder: Path) -> dict[str, Any]:
    """A picture for each problem and metric of the settings that may be shown."""
    import wandb

    kinds: dict[str, list[SettingResult]] = {}
    for result in results:
        if result.shown:
            kinds.setdefault(f"{result.summary['problem']}-{result.summary['metric']}", []).append(result)
    pictures = {}
    for number, (kind, group) in enumerate(kinds.items()):
        path = frontier_picture.draw(group, folder / f"{number}.png")
        pictures[FRONTIER if len(kinds) == 1 else f"{FRONTIER}/{kind}"] = wandb.Image(str(path))
    return pictures


def _claims(experiment: Path) -> list[dict[str, Any]]:
    """The judged claims about the experiment, as text; none if the file is not there."""
    try:
        found = json.loads(read_plain(experiment / CLAIMS, MOST_RECORD))["findings"]
        names = list(dict.fromkeys(key for claim in found for key in claim))
        return [{name: _text(claim.get(name)) for name in names} for claim in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read: %s", experiment / CLAIMS, error)
        return []


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _note(experiment: Path) -> dict[str, str]:
    try:
        return dict(json.loads(read_plain(experiment / "wandb" / NOTE, MOST_RECORD)))
    except (OSError, ValueError, TypeError):
        return {}
