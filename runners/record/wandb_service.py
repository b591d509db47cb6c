"""One W&B service process for all trials of a machine, instead of one for each worker process.

W&B's service is a separate process of some tens of megabytes. The first trial of a machine starts one that belongs to
no trial, so it outlives the worker; it ends by itself when no process has used it for a minute. Where that fails, W&B
starts a service for the process alone, as it does for a single run.

It is for offline runs. Online, the service of a killed worker must die with it: a shared one would tell the server that
the run goes on, while another worker resumes it.
"""

import fcntl
import logging
import os
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from runners import private_apis

VARIABLE = "WANDB_SERVICE"  # W&B's own: the address of the service that a process uses
IDLE = "60s"  # without any process that uses it
LOCK_SECONDS = 15.0  # longest wait for another process that starts the service

logger = logging.getLogger(__name__)
_sharing = False


def share() -> None:
    """From now on the offline W&B runs of this process use the machine's service; nothing is started yet."""
    global _sharing
    _sharing = True


def join() -> None:
    """Give this process the machine's service, if it shares one and has none yet; raises no Exception."""
    if not _sharing or os.environ.get(VARIABLE):
        return
    try:
        os.environ[VARIABLE] = _running_or_started(_own_folder())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.debug("no shared W&B service: %r", error)


def _running_or_started(folder: Path) -> str:
    """The address of the service that `folder` names, after starting one if it does not answer."""
    file = folder / private_apis.wandb_version()
    with open(folder / "lock", "a") as lock:
        _lock(lock.fileno())
        address = file.read_text() if file.exists() else ""
        if not (address and private_apis.wandb_service_answers(address)):
            address = private_apis.start_shared_wandb_service(IDLE)
            file.write_text(address)
    return address


def _lock(file: int) -> None:
    give_up = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def _own_folder() -> Path:
    """A folder that this user alone can use. Raises OSError if another user made it."""
    folder = Path(tempfile.gettempdir()) / f"dpfbo-wandb-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} can be used by others")
    return folder
