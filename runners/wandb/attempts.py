"""The attempts to log a run to W&B: their ids and the places of their files.

All online attempts of a run share one id until the run is finished. Each offline attempt has a new id, and replaces
earlier offline attempts that were not uploaded. All runs of an experiment share the folder
`<results>/<experiment>/wandb`. To tell runs apart, the ids of a run begin with a digest of the run's own folder.
wandb.json in the run folder has the last id.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfbo.formats.bounded import read_object
from dpfbo.formats.files import replace_file

NOTE = "wandb.json"
_DIGITS = 10  # hexadecimal digits of an id that identify its run folder
_RANDOM = 6  # random digits, since W&B never accepts an id twice, even of a deleted run


@dataclass(frozen=True)
class WandbNote:
    """A note about the last attempt to log a run to W&B: the content of wandb.json in the run's folder.

    finished: True if all rounds and the summary are logged. rounds: the last round's index; None if not finished.
    """

    id: str
    mode: str
    finished: bool = False
    rounds: int | None = None

    def write(self, run_dir: Path) -> None:
        replace_file(run_dir / NOTE, lambda f: f.write(json.dumps(asdict(self)).encode() + b"\n"), durable=False)


def read_note(run_dir: Path) -> WandbNote | None:
    """Read wandb.json, the note in a run folder; None if it is missing or unreadable."""
    try:
        return WandbNote(**(read_object(run_dir / NOTE) or {}))
    except TypeError:
        return None


def id_of_attempt(run_dir: Path, mode: str) -> str:
    """Return the id for a new attempt; in a W&B sweep, W&B's agent has chosen it."""
    if in_sweep():
        return os.environ["WANDB_RUN_ID"]
    note = read_note(run_dir)
    if note is not None and not note.finished and note.mode == mode == "online":
        return note.id
    return id_prefix(run_dir) + uuid.uuid4().hex[:_RANDOM]


def in_sweep() -> bool:
    """Return True in a process that an agent of a W&B sweep started."""
    return bool(os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"))


def id_prefix(run_dir: Path) -> str:
    """Return the prefix of the ids of all attempts of a run."""
    return hashlib.sha256(f"{run_dir.parent.name}/{run_dir.name}".encode()).hexdigest()[:_DIGITS]


def not_uploaded(folder: Path, id: str = "") -> list[Path]:
    """Return the folders of the offline runs in `<folder>/wandb` that were not uploaded. id: prefix of their ids."""
    found = folder.glob(f"wandb/offline-run-*-{id}*")
    return sorted(attempt for attempt in found if not any(attempt.glob("*.synced")))


def delete(attempts: Iterable[Path]) -> None:
    """Delete the folders of offline W&B runs. Call this only when the W&B run that replaces them is open."""
    for attempt in attempts:
        shutil.rmtree(attempt, ignore_errors=True)
