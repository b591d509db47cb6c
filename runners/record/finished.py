"""Finished runs: told from others, continued with more rounds, or put aside for a repetition.

rounds.zip   the finished rounds (`dpfbo.checkpoint`) of a run that a longer one may continue; as private as
             rounds.parquet. Its comment says which setting it is of, so that a longer run finds it.
earlier/k/   the records of a run that was repeated; its ledger goes on in the run's folder
"""

import json
import shutil
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpfbo.files import sync_folder
from runners.record.run_folder import ResultsError, RunFolder

ROUNDS = "rounds.zip"
EARLIER = "earlier"
_RECORDS = ("config.yaml", "rounds.parquet", "server.parquet", "theory.json", ROUNDS, "failures.log")


@dataclass(frozen=True)
class Lineage:
    """The identity that a run shares with those of more rounds.

    family: a digest of the setting without `rounds` and without the target epsilon, which the noise multiplier says.
    any_noise: the same without the noise multiplier z.
    """

    family: str
    any_noise: str
    z: float | None
    rounds: int


def summary_of(folder: RunFolder) -> dict[str, Any] | None:
    """The content of summary.json; None if the run is not finished."""
    try:
        summary = json.loads((folder.path / "summary.json").read_bytes())
        return summary if isinstance(summary["rounds"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def put_aside(folder: RunFolder) -> Path:
    """Move the records of a finished run to `earlier/k`; the ledger stays. The summary is the first to go."""
    k = 1
    while (folder.path / EARLIER / str(k)).exists():
        k += 1
    to = folder.path / EARLIER / str(k)
    to.mkdir(parents=True)
    for name in ("summary.json", *_RECORDS):
        if (folder.path / name).exists():
            (folder.path / name).rename(to / name)
    for changed in (to, to.parent, folder.path):
        sync_folder(changed)
    return to


def keep_rounds(folder: RunFolder, lineage: Lineage) -> None:
    """Write rounds.zip from the checkpoint."""

    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(folder.checkpoint_path.glob("*.npz")):
                archive.write(path, path.name)
            archive.comment = json.dumps(asdict(lineage)).encode()

    folder.replace(ROUNDS, write)


def take_rounds(folder: RunFolder) -> None:
    """Make rounds.zip the checkpoint. Raises ResultsError if it is damaged."""
    part = folder.checkpoint_path.with_name(".continued")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        with zipfile.ZipFile(folder.path / ROUNDS) as archive:
            for name in archive.namelist():
                if Path(name).name != name or not name.endswith(".npz"):
                    raise ResultsError(f"{folder.path / ROUNDS} holds {name!r}, which is no round: delete it")
                (part / name).write_bytes(archive.read(name))
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        shutil.rmtree(part)
        if isinstance(error, ResultsError):
            raise
        raise ResultsError(f"{folder.path / ROUNDS} cannot be read ({error}): --again runs all rounds anew") from error
    shutil.rmtree(folder.checkpoint_path, ignore_errors=True)
    part.rename(folder.checkpoint_path)


def relatives(experiment: Path, seed: int, lineage: Lineage) -> list[tuple[Path, Lineage]]:
    """The kept runs of the same seed that differ in noise and, if at all, have fewer rounds; the longest first."""
    found = []
    for path in experiment.glob(f"*/{seed}/{ROUNDS}"):
        other = lineage_of(RunFolder(path.parent))
        if other is not None and other.any_noise == lineage.any_noise and other.rounds <= lineage.rounds:
            found.append((path.parent, other))
    return sorted(found, key=lambda pair: -pair[1].rounds)


def lineage_of(folder: RunFolder) -> Lineage | None:
    """The lineage that rounds.zip names; None if there is none to read."""
    try:
        with zipfile.ZipFile(folder.path / ROUNDS) as file:
            return Lineage(**json.loads(file.comment))
    except (OSError, ValueError, TypeError, zipfile.BadZipFile):
        return None
