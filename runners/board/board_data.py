"""The content of the whole board, read from the folders no more often than asked."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runners.board.best_rows import best_rows
from runners.board.content import DRAWN, LISTED, MOST_DRAWN, experiment_content, key_of
from runners.board.experiment_folder import ExperimentFolder, experiments_in

_SHARE = 5.0  # a reading is used for at least so many times as long as it took


class BoardData:
    """The experiments in some folders. private: show the private records of real releases, too."""

    def __init__(self, folders: Sequence[Path], private: bool = False, every: float = 0.0) -> None:
        self.folders, self.private, self.every = list(folders), private, every
        self._known: dict[Path, ExperimentFolder] = {}
        self._lock = threading.Lock()
        self._kept: dict[tuple[Any, ...], tuple[float, dict[str, Any]]] = {}

    def content(self, drawn: Sequence[str] | None = None, find: str = "", most: int = MOST_DRAWN) -> dict[str, Any]:
        """The content of the page. drawn: `KEY/SETTING` of the curves that are wanted, None for the first ones."""
        key = None if drawn is None else tuple(sorted(drawn)), find, most
        with self._lock:
            now = time.monotonic()
            self._kept = {k: kept for k, kept in self._kept.items() if kept[0] > now}
            if key not in self._kept:
                content = self._read(drawn, find, most)
                self._kept[key] = time.monotonic() + max(self.every / 2, _SHARE * (time.monotonic() - now)), content
            return self._kept[key][1]

    def best(self, key: str, setting: str) -> dict[str, Any] | None:
        """The table of best configurations of a setting; None if there is no such experiment."""
        with self._lock:
            found = next((folder for folder in self._experiments() if key_of(folder) == key), None)
            return None if found is None else best_rows(found, setting, self.private)

    def for_file(self) -> dict[str, Any]:
        """The content of a page that is a file: with all curves that fit, and with the best configurations."""
        every = [f"{key_of(folder)}/{setting.name}" for folder in self._experiments() for setting in folder.read()]
        content = self.content(every, most=LISTED)
        content["best"] = {
            f"{e['key']}/{s['name']}": self.best(e["key"], s["name"])
            for e in content["experiments"]
            for s in e["settings"][:DRAWN]
        }
        return content

    def _read(self, drawn: Sequence[str] | None, find: str, most: int) -> dict[str, Any]:
        experiments = []
        for folder in self._experiments():
            prefix = f"{key_of(folder)}/"
            own = None if drawn is None else {name.removeprefix(prefix) for name in drawn if name.startswith(prefix)}
            experiments.append(experiment_content(folder, self.private, own, find, most))
        return {"private": self.private, "listed": LISTED, "most_drawn": most, "experiments": experiments}

    def _experiments(self) -> list[ExperimentFolder]:
        """The experiments that are there now; one that was known before keeps what it has read."""
        paths = dict.fromkeys(inner for folder in self.folders for inner in experiments_in(folder))
        for path in paths:
            self._known.setdefault(path, ExperimentFolder(path))
        return [self._known[path] for path in paths]
