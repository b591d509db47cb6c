"""The best configurations that the agents of one setting found, for a table."""

from typing import Any

import yaml

from runners.board.content import hidden
from runners.board.experiment_folder import ExperimentFolder, ReadSetting
from runners.board.trial_reading import MOST_LETTERS, UnreadableFile, number, read_object
from runners.record.best_found import best_in

MOST_ROWS = 200


def best_rows(folder: ExperimentFolder, name: str, private: bool) -> dict[str, Any]:
    """The best query of every agent by seed, at most `MOST_ROWS` of them, and a sentence if there is something to say.

    Of real releases nothing without `private`.
    """
    setting = next((s for s in folder.read() if s.name == name), None)
    if setting is None:
        return _answer("this setting is not there any more")
    if (reason := hidden(setting, private)) is not None:
        return _answer(reason)
    return _of_finished_runs(folder, setting, private)


def _of_finished_runs(folder: ExperimentFolder, setting: ReadSetting, private: bool) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    words, n = "", 0
    for trial, reading in zip(setting.trials, setting.readings, strict=True):
        if reading.phase != "done":
            continue
        path = folder.folder_of(trial).path
        try:
            found = read_object(path / "summary.json").get("best")
            how_many = len(found) if isinstance(found, list) else 0
            if not isinstance(found, list) and private:
                table = best_in(path)
                found, how_many = table.slice(0, MOST_ROWS).to_pylist(), len(table)
        except (OSError, UnreadableFile, ValueError, KeyError, yaml.YAMLError) as error:
            words = f"seed {trial.seed} cannot be read: {str(error)[:MOST_LETTERS]}"
            continue
        if not isinstance(found, list):
            words = f"a summary lists no more than 100 agents: python -m runners.best {path} has them"
            continue
        sound = [_row(trial.seed, best) for best in found[:MOST_ROWS] if isinstance(best, dict)]
        n += how_many
        rows += sound[: MOST_ROWS - len(rows)]
    if n > len(rows):
        words = f"the first {len(rows)} of {n}: python -m runners.best {folder.path} has all"
    return _answer(words or ("" if rows else "no seed is finished yet"), rows)


def _row(seed: int, best: dict[str, Any]) -> dict[str, Any]:
    """One agent's best query with values that are numbers or short texts."""
    row: dict[str, Any] = {"seed": seed}
    for key, value in best.items():
        given = number(value)
        row[str(key)[:MOST_LETTERS]] = str(value)[:MOST_LETTERS] if given is None else float(f"{given:.5g}")
    return row


def _answer(words: str, rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    rows = rows or []
    return {"words": words, "columns": list(dict.fromkeys(key for row in rows for key in row)), "rows": rows}
