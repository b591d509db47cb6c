"""A disk that keeps only what was synced, for tests of what a power cut leaves."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class Disk:
    """The files and the entries of folders as they were when they were last synced.

    content: bytes of files by number; entries: names and numbers of the files of a folder, by its number. cuts: copies
    of the disk, one after each sync. renamed_early: files that were renamed before their bytes were synced, which may
    be empty under the new name.
    """

    content: dict[int, bytes] = field(default_factory=dict)
    entries: dict[int, dict[str, int]] = field(default_factory=dict)
    cuts: list["Disk"] = field(default_factory=list)
    renamed_early: list[str] = field(default_factory=list)

    @staticmethod
    def watched(monkeypatch: pytest.MonkeyPatch) -> "Disk":
        """The disk under all files that this process syncs and renames from now on."""
        disk, replace = Disk(), os.replace

        def fsync(descriptor: int) -> None:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                names = os.listdir(descriptor)
                disk.entries[found.st_ino] = {name: os.stat(name, dir_fd=descriptor).st_ino for name in names}
            else:
                disk.content[found.st_ino] = os.pread(descriptor, found.st_size, 0)
            disk.cuts.append(disk.now())

        def renamed(source: str | Path, target: str | Path) -> None:
            if disk.content.get(Path(source).stat().st_ino) != Path(source).read_bytes():
                disk.renamed_early.append(str(target))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", renamed)
        return disk

    def now(self) -> "Disk":
        """A copy of the disk, as a power cut at this moment leaves it."""
        return Disk(dict(self.content), {number: dict(names) for number, names in self.entries.items()})

    def restored(self, folder: Path, copy: Path) -> Path:
        """A new folder with what is left of one; a file whose bytes were never synced is empty."""
        copy.mkdir()
        for name, number in self.entries.get(folder.stat().st_ino, {}).items():
            (copy / name).write_bytes(self.content.get(number, b""))
        return copy
