"""One file out of an archive, whole or not at all."""

import bz2
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from dpfbo.formats.files import replace_file

MOST_BYTES = 16 * 2**30  # of an archive, unpacked


def unpack(path: Path, member: str, target: Path) -> None:
    """Write the file named `member`, in any folder of the tar.bz2 archive at `path`, to `target`.

    Raises ValueError if the archive is damaged, has no such file or unpacks to more than `MOST_BYTES` before its end,
    OSError if the disk refuses.
    """
    try:
        with bz2.BZ2File(path) as content, tarfile.open(fileobj=_Bounded(content), mode="r|") as archive:  # type: ignore[call-overload]
            for entry in archive:
                if entry.isfile() and PurePosixPath(entry.name).name == member:
                    _write(archive, entry, target)
                    return
    except (tarfile.TarError, EOFError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # a disk error; bz2 reports damage as an OSError without a number
            raise
        raise ValueError(str(error)) from error
    raise ValueError("it is not in the archive")


class _Bounded:
    """The bytes of an archive, up to `MOST_BYTES`."""

    def __init__(self, content: bz2.BZ2File) -> None:
        self._content, self._left = content, MOST_BYTES

    def read(self, size: int) -> bytes:
        data = self._content.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes")
        return data


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = archive.extractfile(entry)
    assert content is not None  # the entry is a file
    replace_file(target, lambda out: shutil.copyfileobj(content, out))
