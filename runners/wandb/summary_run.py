"""The W&B run that sums up an experiment: a table of its settings, and judged claims about it.

Logging the summary again replaces its earlier content. The claims come from a file that
`python -m analysis.claims NAME --keep` writes. If `tracker.wandb.show` allows only released metrics, the final metrics
and the claims are left out.
"""

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import read_object
from dpfbo.formats.files import replace_text
from runners.wandb import attempts, layout
from runners.wandb.finished_runs import RunOnDisk, settings_table
from runners.wandb.tracker import log_files, open_run, table

CLAIMS_FILE, NOTE = "claims.json", "sweep.json"  # in the experiment's folder, and in its folder `wandb`
ALERT_TITLE = 63  # characters, W&B's own limit

logger = logging.getLogger(__name__)


def log_summary(
    experiment: Path, runs: Sequence[RunOnDisk], settings: Mapping[str, Any], again: bool = False, ended: str = ""
) -> bool | None:
    """Log the summary of an experiment's finished runs unless it is unchanged; return whether it was logged.

    If a file is damaged or W&B fails, logs a warning and returns None.

    settings: `tracker.wandb`. again: log also an unchanged summary. ended: text of an alert at the end of a sweep;
    empty for none. It is sent only if it differs from the last alert. If an alert is sent, the summary is logged even
    if it is unchanged.
    """
    known = read_object(experiment / "wandb" / NOTE) or {}  # id, digest of the content, and alert of the last summary
    alert = ended if settings.get("alerts") and ended != known.get("alert") else ""
    if settings["mode"] == "disabled" or not (runs or alert):
        return False
    try:
        rows, shown = settings_table(runs), all(run.shown for run in runs)
        claims = _claims(experiment) if shown else []  # they quote metrics
        report = _report(experiment, shown) if settings.get("artifacts") else []
        content = [rows, claims, settings["mode"], *(sha256(file.read_bytes()).hexdigest() for file in report)]
        digest = sha256(json.dumps(content).encode()).hexdigest()
        if known.get("digest") == digest and not (again or alert):
            return False
        id = known.get("id") or "sweep" + uuid.uuid4().hex[:11]
        _log(experiment, id, settings, runs, rows, claims, report, alert)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # W&B also leaves through SystemExit
        logger.warning("W&B has no summary of %s: %s", experiment.name, " ".join(repr(error).split())[:240])
        return None
    note = {"id": id, "digest": digest, "alert": alert or known.get("alert", "")}
    replace_text(experiment / "wandb" / NOTE, json.dumps(note), durable=False)
    return True


def _log(
    experiment: Path, id: str, settings: Mapping[str, Any], runs: Sequence[RunOnDisk], rows: Sequence[dict[str, Any]],
    claims: Sequence[dict[str, Any]], report: Sequence[Path], alert: str,
) -> None:  # fmt: skip
    (experiment / "wandb").mkdir(parents=True, exist_ok=True)
    earlier = attempts.not_uploaded(experiment, id)
    config = {
        "experiment": experiment.name, "method": None, "setting": None, "label": None, "n_settings": len(rows),
        "seeds": sorted({run.summary["seed"] for run in runs}), "n_runs": len(runs),
    }  # fmt: skip
    tag = "simulation" if runs and all(run.shown for run in runs) else "released"
    run = open_run(
        settings["mode"], experiment, id=id, project=settings["project"], entity=settings["entity"], config=config,
        name=f"{experiment.name}: summary", group=experiment.name, job_type="summary", tags=["summary", tag],
    )  # fmt: skip
    attempts.delete(earlier)
    try:
        tables = {layout.SETTINGS: rows, layout.CLAIMS: claims}
        run.log({name: table(content) for name, content in tables.items() if content})
        if report:
            log_files(run, f"report-{id}", "report", report)
        if alert:
            run.alert(title=f"{experiment.name}: the sweep ended"[:ALERT_TITLE], text=alert)
    finally:
        run.finish(exit_code=0)


def _report(experiment: Path, shown: bool) -> list[Path]:
    found = sorted(path for path in (experiment / "figures").glob("*") if path.is_file())
    found += [path for path in [experiment / "report.html"] if path.is_file()]
    if found and not shown:
        logger.warning("the report of %s is not uploaded: it shows metrics that are not released", experiment.name)
    return found if shown else []


def _claims(experiment: Path) -> list[dict[str, Any]]:
    """Return the judged claims about the experiment, with values as text."""

    def text(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    path = experiment / CLAIMS_FILE
    found = (read_object(path) or {}).get("findings")
    if not isinstance(found, list) and path.exists():
        logger.warning("%s cannot be read: it holds no list of findings", path)
    claims = [claim for claim in found if isinstance(claim, dict)] if isinstance(found, list) else []
    names = dict.fromkeys(key for claim in claims for key in claim)
    return [{name: text(claim.get(name)) for name in names} for claim in claims]
