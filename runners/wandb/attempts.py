"""The W&B runs of a run folder: their ids, and where their files are.

All online attempts of a run have one id until it is finished, so that the server has one curve. An offline attempt has
an id of its own, and replaces earlier ones that were not uploaded: W&B's service may still hold the id of a killed
process. All runs of an experiment share the folder `<results>/<experiment>/wandb`, where a run's ids begin with a
digest of its folder's name. wandb.json in the run folder has its id, and whether it was logged to the end.
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
_DIGITS = 10  # hexadecimal digits of an id that say which run folder it belongs to
_RANDOM = 6  # further digits: W&B never gives an id twice, even if its run was deleted


@dataclass(frozen=True)
class WandbNote:
    """The last attempt to log a run. finished: all its rounds and its summary are logged. rounds: how many, then."""

    id: str
    mode: str
    finished: bool = False
    rounds: int | None = None

    def write(self, run_dir: Path) -> None:
        replace_file(run_dir / NOTE, lambda f: f.write(json.dumps(asdict(self)).encode() + b"\n"), durable=False)


def read_note(run_dir: Path) -> WandbNote | None:
    """The note of a run folder; None if there is none to read."""
    try:
        return WandbNote(**(read_object(run_dir / NOTE) or {}))
    except TypeError:
        return None


def id_of_attempt(run_dir: Path, mode: str) -> str:
    """The id of the attempt that begins; in a W&B sweep it is that of its agent."""
    if in_sweep():
        return os.environ["WANDB_RUN_ID"]
    note = read_note(run_dir)
    if note is not None and not note.finished and note.mode == mode == "online":
        return note.id
    return id_prefix(run_dir) + uuid.uuid4().hex[:_RANDOM]


def in_sweep() -> bool:
    """True in a process that an agent of a W&B sweep started."""
    return bool(os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"))


def id_prefix(run_dir: Path) -> str:
    """The first characters of the ids of all attempts of a run."""
    return hashlib.sha256(f"{run_dir.parent.name}/{run_dir.name}".encode()).hexdigest()[:_DIGITS]


def not_uploaded(folder: Path, id: str = "") -> list[Path]:
    """The offline runs in `<folder>/wandb` that were not uploaded. id: the first characters of theirs."""
    found = folder.glob(f"wandb/offline-run-*-{id}*")
    return sorted(attempt for attempt in found if not any(attempt.glob("*.synced")))


def delete(attempts: Iterable[Path]) -> None:
    """Delete attempts that another one replaces, once that is open."""
    for attempt in attempts:
        shutil.rmtree(attempt, ignore_errors=True)
