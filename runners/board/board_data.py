"""The data of the whole board: experiments, and best configurations."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfbo.formats.words import objective_in_words
from runners.board.content import DRAWN, LISTED, MOST_DRAWN, experiment_content, hidden
from runners.board.experiment_folder import ExperimentFolder, ReadSetting, experiments_in
from runners.board.trial_reading import MOST_LETTERS, read_object, rounded
from runners.record.best_found import best_in

_SHARE = 5.0  # lifetime of a cached answer, as a multiple of the time that reading it took
MOST_ROWS = 200  # best configurations in one answer


class BoardData:
    """The experiments in some folders.

    private: True to show the private records of all runs, False to show only those of simulations.
    """

    def __init__(self, folders: Sequence[Path], private: bool = False) -> None:
        self.folders, self.private = list(folders), private
        self._known: dict[Path, ExperimentFolder] = {}
        self._lock = threading.Lock()
        self._last: tuple[Any, float, dict[str, Any]] = (None, 0.0, {})  # last query, expiry, answer

    def content(self, drawn: Sequence[str] | None = None, find: str = "", most: int = MOST_DRAWN) -> dict[str, Any]:
        """Return the content of the page.

        drawn: the wanted curves as `KEY/SETTING`, where KEY is the experiment's key; None for the first settings.
        """
        asked, begin = (drawn, find, most), time.monotonic()
        with self._lock:
            if asked == self._last[0] and begin < self._last[1]:
                return self._last[2]
            experiments = []
            for folder in self._experiments():
                own = None if drawn is None else {n.partition("/")[2] for n in drawn if n.startswith(f"{folder.key}/")}
                experiments.append(experiment_content(folder, self.private, own, find, most))
            content = {"private": self.private, "most_drawn": most, "experiments": experiments}
            now = time.monotonic()
            self._last = asked, now + _SHARE * (now - begin), content
            return content

    def best(self, key: str, name: str) -> dict[str, Any] | None:
        """Return each agent's best query in a setting, at most `MOST_ROWS` rows; None if no experiment has this key.

        The entry `words` explains missing rows and may be empty. A board that hides private records returns only rows
        of simulations.
        """
        with self._lock:
            folder = next((folder for folder in self._experiments() if folder.key == key), None)
            if folder is None:
                return None
            setting = next((s for s in folder.read() if s.name == name), None)
            rows: list[dict[str, Any]] = []
            if setting is None:
                words = "this setting no longer exists"
            elif (reason := hidden(setting, self.private)) is not None:
                words = reason
            else:
                words, rows = self._best_rows(folder, setting)
        return {"words": words, "columns": list(dict.fromkeys(key for row in rows for key in row)), "rows": rows}

    def for_file(self) -> dict[str, Any]:
        """Return the content of a page that is saved as a file.

        It has up to `LISTED` curves of each experiment, and the best configurations of the first `DRAWN` settings.
        """
        every = [f"{folder.key}/{setting.name}" for folder in self._experiments() for setting in folder.read()]
        content = self.content(every, most=LISTED)
        content["best"] = {
            f"{e['key']}/{s['name']}": self.best(e["key"], s["name"])
            for e in content["experiments"]
            for s in e["settings"][:DRAWN]
        }
        return content

    def _experiments(self) -> list[ExperimentFolder]:
        paths = dict.fromkeys(inner for folder in self.folders for inner in experiments_in(folder))
        for path in paths:
            self._known.setdefault(path, ExperimentFolder(path))
        return [self._known[path] for path in paths]

    def _best_rows(self, folder: ExperimentFolder, setting: ReadSetting) -> tuple[str, list[dict[str, Any]]]:
        """Return a sentence on missing rows, and the best queries of a setting's finished runs."""
        rows: list[dict[str, Any]] = []
        words, n = "", 0
        for trial, reading in zip(setting.trials, setting.readings, strict=True):
            if reading.phase != "done":
                continue
            path = folder.folder_of(trial)
            try:
                summary = read_object(path / "summary.json")
                found, objective = summary.get("best"), objective_in_words(str(summary.get("metric")))
                if not isinstance(found, list) and self.private:
                    table = best_in(path)
                    found, n = table.slice(0, MOST_ROWS).to_pylist(), n + len(table) - min(len(table), MOST_ROWS)
            except (OSError, ValueError) as error:
                words = f"seed {trial.seed} cannot be read: {str(error)[:MOST_LETTERS]}"
                continue
            if not isinstance(found, list):
                words = f"a summary lists at most 100 agents; python -m runners.best {path} shows all"
                continue
            n += len(found)
            shown = (best for best in found[: MOST_ROWS - len(rows)] if isinstance(best, dict))
            rows += [_short(trial.seed, best, objective) for best in shown]
        if n > len(rows):
            words = f"the first {len(rows)} of {n}: python -m runners.best {folder.path} shows all"
        return words or ("" if rows else "no seed is finished yet"), rows


def _short(seed: int, best: dict[str, Any], objective: str) -> dict[str, Any]:
    """Return a table row with the seed and the entries of an agent's best query.

    Numbers are rounded to 5 significant digits. Names and other values are cut to 300 characters. objective: the row's
    name for the entry `value`.
    """
    row: dict[str, Any] = {"seed": seed}
    for key, value in best.items():
        given, text = rounded(value, 5), "" if value is None else str(value)[:MOST_LETTERS]
        row[objective if key == "value" else str(key)[:MOST_LETTERS]] = text if given is None else given
    return row
