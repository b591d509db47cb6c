"""W&B for tests: each test has its own, and reads the offline records of runs."""

import json
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.wandb.attempts import read_note

FAKE_KEY = "0" * 40
_END_SECONDS = 30.0
CLOSED_PORT = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def own_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test runs without the user's key, settings and W&B, and leaves no service process."""
    end_wandb()  # what an earlier test of this process set up has that test's environment
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED_PORT)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    end_wandb()
    assert "WANDB_SERVICE" not in os.environ  # it names a service that is still owned


def end_wandb() -> None:
    """Forget the settings that W&B read from the environment; returns when its service process has ended.

    A service that lost its last message, because its connection broke at that moment, waits ten minutes: it is killed.
    """
    wandb = sys.modules.get("wandb")
    if hasattr(wandb, "teardown"):
        own = [process for process in psutil.Process().children() if "wandb-core" in process.name()]
        late = threading.Timer(_END_SECONDS, lambda: [process.kill() for process in own])
        late.start()
        try:
            wandb.teardown()
        except SystemExit:  # with the exit code of its service
            if not late.finished.is_set():
                raise
        finally:
            late.cancel()


def wandb_folder(run_dir: Path) -> Path:
    """The folder of the run's last W&B run: in its own folder `wandb`, or in that of its experiment."""
    note = read_note(run_dir)
    assert note is not None
    (found,) = (path for place in (run_dir, run_dir.parents[1]) for path in place.glob(f"wandb/*-run-*-{note.id}"))
    return found


def records(run_dir: Path) -> list[Any]:
    """The records of the run's last W&B run."""
    return records_in(wandb_folder(run_dir))


def records_in(folder: Path) -> list[Any]:
    """Read W&B's transaction log: a 7-byte header, then LevelDB's log format with protobuf records."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # the service writes the end of the file after `finish` has returned
    (path,) = folder.glob("run-*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    found, buffer, position = [], b"", 7
    while position + 7 <= len(data):
        left = 32768 - position % 32768  # bytes left in this block
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        buffer += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # FULL or LAST; FIRST and MIDDLE go on in the next block
            record = wandb_internal_pb2.Record()
            record.ParseFromString(buffer)
            found.append(record)
            buffer = b""
    return found


def of_kind(run_dir: Path, kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records(run_dir) if record.WhichOneof("record_type") == kind]


def values(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The logged rows without W&B's own entries, whose names begin with `_`."""
    logged = [values(row.item) for row in of_kind(run_dir, "history")]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in logged]


def config_of(run_dir: Path) -> dict[str, Any]:
    (run,) = of_kind(run_dir, "run")
    return values(run.config.update)


def summary_of(run_dir: Path) -> dict[str, Any]:
    return {key: value for part in of_kind(run_dir, "summary") for key, value in values(part.update).items()}
