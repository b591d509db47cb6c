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
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import MOST_RECORD, read_plain
from dpfbo.formats.files import replace_file
from runners.dashboard import frontier_picture
from runners.dashboard.from_files import DAMAGED, RunOnDisk
from runners.dashboard.settings_table import SettingResult, results_of, table
from runners.record import wandb_attempts as attempts
from runners.record.wandb_tracker import open_run

CLAIMS, NOTE = "claims.json", "sweep.json"  # in the experiment's folder, in its folder `wandb`
SETTINGS, FRONTIER = "settings", "figures/frontier"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SummaryNote:
    """The last summary run of an experiment: its id, and a digest of what it shows."""

    id: str
    digest: str


def log_summary(experiment: Path, runs: Sequence[RunOnDisk], mode: str, again: bool = False) -> bool:
    """Log the summary of an experiment's finished runs; returns True if it was logged.

    It is not logged twice with the same content, unless `again`. A failure of W&B is a warning.
    """
    if mode == "disabled" or not runs:
        return False
    try:
        results = results_of(runs)
        rows = table(results)
        claims = _claims(experiment) if all(result.shown for result in results) else []  # they quote metrics
    except DAMAGED as error:
        logger.warning("W&B has no summary of %s, a run cannot be read: %r", experiment.name, error)
        return False
    digest = sha256(json.dumps([rows, claims, mode]).encode()).hexdigest()
    note = _read(experiment)
    if note is not None and note.digest == digest and not again:
        return False
    id = note.id if note is not None else "sweep" + uuid.uuid4().hex[:11]
    try:
        _log(experiment, id, mode, runs[0].wandb, results, rows, claims)
    except BaseException as error:  # W&B also leaves through SystemExit
        if isinstance(error, KeyboardInterrupt):
            raise
        logger.warning("W&B has no summary of %s: %s", experiment.name, " ".join(str(error).split())[:240])
        return False
    note = SummaryNote(id, digest)
    replace_file(experiment / "wandb" / NOTE, lambda f: f.write(json.dumps(asdict(note)).encode()), durable=False)
    return True


def _log(
    experiment: Path, id: str, mode: str, wandb_settings: dict[str, Any], results: Sequence[SettingResult],
    rows: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]],
) -> None:  # fmt: skip
    (experiment / "wandb").mkdir(exist_ok=True)
    found = experiment.glob(f"wandb/offline-run-*-{id}")
    earlier = [attempt for attempt in found if not any(attempt.glob("*.synced"))]
    config = {
        "experiment": experiment.name, "method": None, "setting": None, "label": None, "n_settings": len(results),
        "seeds": sorted({run.summary["seed"] for result in results for run in result.runs}),
        "n_runs": sum(len(result.runs) for result in results),
    }  # fmt: skip
    released = not all(result.shown for result in results)
    run = open_run(
        mode, experiment, id=id, resume="allow" if mode == "online" else "never", project=wandb_settings["project"],
        entity=wandb_settings["entity"], config=config, name=f"{experiment.name}: summary", group=experiment.name,
        job_type="sweep", tags=["summary", "released" if released else "simulation"],
    )  # fmt: skip
    attempts.delete(earlier)
    try:
        row = {SETTINGS: _table(rows), **({"claims": _table(claims)} if claims else {})}
        with tempfile.TemporaryDirectory() as folder:
            run.log({**row, **_pictures(results, Path(folder))})
    finally:
        run.finish(exit_code=0)


def _pictures(results: Sequence[SettingResult], folder: Path) -> dict[str, Any]:
    """A picture for each problem and metric of the settings that may be shown."""
    import wandb

    kinds: dict[tuple[str, str], list[SettingResult]] = {}
    for result in results:
        if result.shown:
            kinds.setdefault((result.summary["problem"], result.summary["metric"]), []).append(result)
    pictures = {}
    for number, ((problem, metric), group) in enumerate(kinds.items()):
        path = frontier_picture.draw(group, folder / f"{number}.png")
        pictures[FRONTIER if len(kinds) == 1 else f"{FRONTIER}/{problem}-{metric}"] = wandb.Image(str(path))
    return pictures


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    import wandb

    columns: list[Any] = list(rows[0])
    return wandb.Table(columns=columns, data=[[row[c] for c in columns] for row in rows], allow_mixed_types=True)


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


def _read(experiment: Path) -> SummaryNote | None:
    try:
        return SummaryNote(**json.loads(read_plain(experiment / "wandb" / NOTE, MOST_RECORD)))
    except (OSError, ValueError, TypeError):
        return None
