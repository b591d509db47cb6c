"""One file out of an archive, whole or not at all."""

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from dpfbo.files import replace_file


def unpack(path: Path, member: str, target: Path) -> None:
    """Write the file named `member`, in any folder of the tar.bz2 archive at `path`, to `target`.

    Raises ValueError if the archive is damaged or has no such file, OSError if the disk refuses.
    """
    try:
        with tarfile.open(path, "r:bz2") as archive:
            for entry in archive:
                if entry.isfile() and PurePosixPath(entry.name).name == member:
                    _write(archive, entry, target)
                    return
    except (tarfile.TarError, EOFError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # a disk error; bz2 reports damage as an OSError without a number
            raise
        raise ValueError(str(error)) from error
    raise ValueError("it is not in the archive")


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = archive.extractfile(entry)
    assert content is not None  # the entry is a file
    replace_file(target, lambda out: shutil.copyfileobj(content, out))
