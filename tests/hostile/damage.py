"""python -m tests.hostile.damage --seed 0: run folders damaged in every way, and what each command does with them.

Every file of a finished, a real and an interrupted run, and the plan of a sweep beside them, is damaged in every way,
and every command that reads folders is called on a copy. A call has ended fine, with one sentence, with a traceback, or
it hangs. Rounds are numbers that commands read, so a damaged file may also be read as if it were whole where no digest
covers it.
"""

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runners.sweep.trials import PLAN, Trial, write_plan
from tests.helpers.compose import compose, setting_hash
from tests.helpers.small_runs import QUIET, SYNTHETIC, folder_of, interrupted

SECONDS = 20  # after which a call hangs
SETTINGS = (
    *SYNTHETIC, "rounds=3", "experiment_name=single", "privacy.accountant=pld", "privacy.accountants=[pld,rdp]",
)  # fmt: skip
REAL = "privacy.rng=os"
OUTCOMES = ("fine", "sentence", "traceback", "hang")


class Hang(BaseException):
    """A call has not ended in time."""


def _bit(content: bytes, dice: random.Random) -> bytes:
    k = dice.randrange(max(1, len(content)))
    return content[:k] + bytes([content[k] ^ 1 << dice.randrange(8)]) + content[k + 1 :] if content else b"\1"


CONTENTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "emptied": lambda content, dice: b"",
    "truncated": lambda content, dice: content[: dice.randrange(1 + len(content))],
    "a bit flipped": _bit,
    "garbage": lambda content, dice: dice.randbytes(300),
    "byte order mark": lambda content, dice: b"\xef\xbb\xbf" + content,
    "CRLF": lambda content, dice: content.replace(b"\n", b"\r\n"),
    "NULs": lambda content, dice: content[:5] + bytes(300) + content[5:],
    "deep": lambda content, dice: b"[" * 60_000,
    "huge number": lambda content, dice: content.replace(b"3", b"1" + b"0" * 400),
    "inf": lambda content, dice: content.replace(b"0.", b"Infinity, 0."),
    "NaN": lambda content, dice: content.replace(b": 3", b": NaN"),
    "bool": lambda content, dice: content.replace(b": 3", b": true").replace(b": 0", b": false"),
    "list": lambda content, dice: b"[1, 2]\n",
    "null": lambda content, dice: b"null\n",
    "text for a number": lambda content, dice: content.replace(b": 3", b': "x"'),
    "negative rounds": lambda content, dice: content.replace(b'"round": ', b'"round": -').replace(b"s: ", b"s: -"),
    "repeated": lambda content, dice: content * 2,
    "zip bomb": lambda content, dice: _bomb(),
    "pickle": lambda content, dice: _pickled(),
}  # fmt: skip


def _bomb() -> bytes:
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("meta.npy", "w") as member:
        for _ in range(64):
            member.write(bytes(2**20))
    return file.getvalue()


def _pickled() -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.savez(file, meta=np.array([{"format": 2}], dtype=object))
    return file.getvalue()


def _in_place(kind: str, path: Path) -> None:
    path.unlink()
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a symlink loop":
        path.symlink_to(path.name)


PLACES = ("removed", "a FIFO", "a folder", "a symlink loop")
KINDS = (*CONTENTS, *PLACES)


def damage(path: Path, kind: str, dice: random.Random) -> None:
    """Damage a file in its place."""
    if kind in PLACES:
        _in_place(kind, path)
    else:
        path.write_bytes(CONTENTS[kind](path.read_bytes(), dice))


def _run(*words: str) -> int:
    from runners import run

    argv, sys.argv = sys.argv, ["runners.run", *words]
    try:
        run.main()
    finally:
        sys.argv = argv
    return 0


def commands(results: Path, run: Path) -> dict[str, Callable[[], int | None]]:
    """By name, the commands that read a run's folder."""
    from analysis import claims, figures, report, tables
    from runners import best, status
    from runners.board.experiment_folder import ExperimentFolder
    from runners.privacy import command as privacy
    from runners.sweep import command as sweep
    from runners.theory import command as theory
    from runners.wandb.finished_runs import DAMAGED, finished_runs

    def claimed() -> int | None:
        (results / "fig2c").symlink_to("single")
        return claims.main(["fig2c", *where])

    def board() -> None:
        ExperimentFolder(results / "single").read()

    def backfill() -> int:
        for found in finished_runs(results / "single"):
            try:
                list(found.rounds()), found.shown
            except DAMAGED:
                return 1
        return 0

    where = [f"results_dir={results}"]
    return {
        "run": lambda: _run(*SETTINGS, *QUIET, *where),
        "status": lambda: status.main([*where, "--json"]),
        "best": lambda: best.main([str(run), "--format", "json"]),
        "ledger": lambda: privacy.main(["ledger", str(run), "--agents", "6"]),
        "ledger --verify": lambda: privacy.main(["ledger", str(run), "--verify"]),
        "ledger --repair": lambda: privacy.main(["ledger", str(run), "--repair"]),
        "certificate": lambda: privacy.main(["certificate", str(run)]),
        "replay": lambda: _run("--replay", str(run)),
        "theory": lambda: theory.main(["single", *where]),
        "sweep --dry-run": lambda: sweep.main([*SETTINGS, *QUIET, *where, "seeds=0", "--dry-run"]),
        "tables": lambda: tables.main(["single", *where]),
        "figures": lambda: figures.main(["single", "--out", str(results / "figures"), *where]),
        "claims": claimed,
        "report": lambda: report.main(["single", "--out", str(results / "report.html"), *where]),
        "backfill": backfill,
        "board": board,
    }


def outcome(call: Callable[[], int | None]) -> tuple[str, str]:
    """The class of a call's end, and what it printed or raised."""

    def stop(number: int, frame: object) -> None:
        raise Hang

    before, said = signal.signal(signal.SIGALRM, stop), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = call() or 0
    except Hang:
        return "hang", ""
    except SystemExit as end:
        code = 0 if end.code is None else 1
        said.write("" if isinstance(end.code, int | None) else str(end.code))
        code = end.code if isinstance(end.code, int) else code
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    text = said.getvalue().strip()
    if "Traceback (most recent call last)" in text:
        return "traceback", text
    return ("sentence" if code else "fine"), text


def folders(root: Path) -> dict[str, Path]:
    """Results folders with a finished run, a finished run of real noise, and an interrupted run."""
    cfgs = {
        kind: compose(*SETTINGS, *more, *QUIET, f"results_dir={root / kind}")
        for kind, more in (("finished", ()), ("real", (REAL,)), ("interrupted", ()))
    }
    assert outcome(lambda: _run(*SETTINGS, *QUIET, f"results_dir={root / 'finished'}"))[0] == "fine"
    assert outcome(lambda: _run(*SETTINGS, REAL, *QUIET, f"results_dir={root / 'real'}"))[0] == "fine"
    interrupted(cfgs["interrupted"], 1)
    for kind, cfg in cfgs.items():
        rng = str(cfg.privacy.rng)
        write_plan(root / kind / "single", [Trial("x", ("seed=0",), setting_hash(cfg), 0, 3, "simple_regret", rng)])
    return {kind: folder_of(cfg) for kind, cfg in cfgs.items()}


def cases(made: dict[str, Path]) -> Iterator[tuple[str, Path, str]]:
    """(state, file below the run's folder, kind of damage)."""
    for state, run in made.items():
        own = sorted(p.relative_to(run) for p in run.rglob("*") if p.is_file())
        for path in [*own, Path("../..") / PLAN]:
            for kind in KINDS:
                yield state, path, kind


def campaign(seed: int, most: int | None = None, only: str | None = None) -> list[tuple[str, str, str, str, str]]:
    """(command, kind of damage, outcome, state and file, what was said) of every call. most: of so many cases."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        root, dice = Path(name), random.Random(seed)
        made = folders(root)
        every = list(cases(made))
        for state, path, kind in every if most is None else dice.sample(every, most):
            results = made[state].parents[2]
            for command in commands(results, made[state]):
                if only not in (None, command):
                    continue
                copy = root / "copy"
                shutil.copytree(results, copy)
                run = copy / made[state].relative_to(results)
                damage(run / path, kind, dice)
                end, said = outcome(commands(copy, run)[command])
                found.append((command, kind, end, f"{state} {path}", said.replace(str(copy), "..")))
                shutil.rmtree(copy)
    return found


def main() -> int:
    """Print the outcomes by command and by damage, and each traceback and hang; the exit code is 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.damage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--command")
    args = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "Agg")
        found = campaign(args.seed, args.cases, args.command)
    for k, title in ((0, "command"), (1, "damage")):
        counts = Counter((row[k], row[2]) for row in found)
        print(f"{title:20}", *(f"{end:>10}" for end in OUTCOMES))
        for name in dict.fromkeys(row[k] for row in found):
            print(f"{name:20}", *(f"{counts[name, end]:10}" for end in OUTCOMES))
    bad = [row for row in found if row[2] in ("traceback", "hang")]
    for row in bad:
        print(*row[:4], row[4][-200:].replace("\n", " "), sep=" | ")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
