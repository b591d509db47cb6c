"""The W&B run that sums up an experiment: a table of its settings, and its claims.

It has one id: logged again as trials are added, it replaces what it said. Runners never import `analysis`, so the
claims come from a file that it writes (`python -m analysis.claims NAME --keep`). Settings whose data are real have
their epsilon in the table and no metric; then there are no claims, which quote metrics.
"""

import json
import logging
import uuid
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import read_object
from dpfbo.formats.files import replace_text
from runners.wandb import attempts, layout
from runners.wandb.finished_runs import RunOnDisk, settings_table
from runners.wandb.tracker import open_run, table

CLAIMS_FILE, NOTE = "claims.json", "sweep.json"  # in the experiment's folder, in its folder `wandb`

logger = logging.getLogger(__name__)


def log_summary(experiment: Path, runs: Sequence[RunOnDisk], mode: str, again: bool = False) -> bool:
    """Log the summary of an experiment's finished runs; returns False if it has not changed (unless `again`) or failed.

    A damaged file or a failure of W&B is a warning.
    """
    if mode == "disabled" or not runs:
        return False
    try:
        rows = settings_table(runs)
        claims = _claims(experiment) if all(run.shown for run in runs) else []  # they quote metrics
        digest = sha256(json.dumps([rows, claims, mode]).encode()).hexdigest()
        known = read_object(experiment / "wandb" / NOTE) or {}  # the last one's id, and a digest of what it shows
        if known.get("digest") == digest and not again:
            return False
        id = known.get("id") or "sweep" + uuid.uuid4().hex[:11]
        _log(experiment, id, mode, runs, rows, claims)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # W&B also leaves through SystemExit
        logger.warning("W&B has no summary of %s: %s", experiment.name, " ".join(repr(error).split())[:240])
        return False
    replace_text(experiment / "wandb" / NOTE, json.dumps({"id": id, "digest": digest}), durable=False)
    return True


def _log(
    experiment: Path, id: str, mode: str, runs: Sequence[RunOnDisk], rows: Sequence[dict[str, Any]],
    claims: Sequence[dict[str, Any]],
) -> None:  # fmt: skip
    (experiment / "wandb").mkdir(exist_ok=True)
    earlier = attempts.not_uploaded(experiment, id)
    settings = runs[0].config["tracker"]["wandb"]
    config = {
        "experiment": experiment.name, "method": None, "setting": None, "label": None, "n_settings": len(rows),
        "seeds": sorted({run.summary["seed"] for run in runs}), "n_runs": len(runs),
    }  # fmt: skip
    tag = "simulation" if all(run.shown for run in runs) else "released"
    run = open_run(
        mode, experiment, id=id, project=settings["project"], entity=settings["entity"], config=config,
        name=f"{experiment.name}: summary", group=experiment.name, job_type="sweep", tags=["summary", tag],
    )  # fmt: skip
    attempts.delete(earlier)
    try:
        run.log({layout.SETTINGS: table(rows), **({layout.CLAIMS: table(claims)} if claims else {})})
    finally:
        run.finish(exit_code=0)


def _claims(experiment: Path) -> list[dict[str, Any]]:
    """The judged claims about the experiment, as text; none if there is no file with them."""

    def text(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    path = experiment / CLAIMS_FILE
    found = (read_object(path) or {}).get("findings")
    if not isinstance(found, list) and path.exists():
        logger.warning("%s cannot be read: it holds no list of findings", path)
    claims = [claim for claim in found if isinstance(claim, dict)] if isinstance(found, list) else []
    names = dict.fromkeys(key for claim in claims for key in claim)
    return [{name: text(claim.get(name)) for name in names} for claim in claims]
