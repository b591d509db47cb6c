"""An interrupted and resumed run leaves the records of an uninterrupted one, and pays once."""

import fcntl
import functools
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpfbo.checkpoint import Checkpoint
from dpfbo.formats import files
from dpfbo.formats.run_folder import RunFolder
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.ledger import Ledger, LedgerError, digest
from dpfbo.privacy.ledger_lines import START, chained, entries_of, entry_of
from dpfbo.problems.custom import EvaluationError
from runners import recorded_run, run
from runners.compose.typed import checked_settings
from runners.recorded_run import finished_before, run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import (
    BRANIN,
    FAST,
    FILES,
    QUIET,
    SYNTHETIC,
    Stop,
    charged,
    differences,
    folder_of,
    interrupted,
    records,
    undisturbed,
)

T = 12
PROBLEMS = {"synthetic": SYNTHETIC, "branin": BRANIN}  # branin refits before rounds 2, 7 and 12


def settings(problem="synthetic", *more):
    return [*PROBLEMS[problem], f"rounds={T}", *more]


@functools.cache
def expected(problem, *more):
    """The records of the uninterrupted run, made once."""
    with tempfile.TemporaryDirectory() as folder:
        return undisturbed(Path(folder), *settings(problem, *more))


def configured(tmp_path, problem="synthetic", *more):
    return compose(*settings(problem, *more), *QUIET, f"results_dir={tmp_path}")


def call(monkeypatch, tmp_path, *more):
    """Run the command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["runners.run", *settings(), *QUIET, f"results_dir={tmp_path}", *more])
    try:
        run.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize(("after", "error"), [(0, Stop), (6, KeyboardInterrupt), (7, Stop), (T, KeyboardInterrupt)])
def test_after_a_round(tmp_path, after, error):
    cfg = configured(tmp_path, "branin")
    interrupted(cfg, after, error)
    folder = folder_of(cfg)
    assert not (folder / "summary.json").exists()
    assert [r.agents.round for r in Checkpoint(folder / "checkpoint").rounds()] == list(range(after + 1))
    _, path = run_configuration(cfg)
    assert path == folder
    assert differences(records(path), expected("branin")) == []


def test_with_draws_of_gpytorch(tmp_path):
    """A fit of round 7 is not kept: the resumed run makes it again from the records."""
    draws = ["algorithm=ts", "algorithm.own_gp.fit=gpytorch", "algorithm.own_draw.method=gpytorch"]
    kernel = ["algorithm.own_gp.kernel=matern52", "algorithm.own_gp.ard=true"]
    cfg = configured(tmp_path, "branin", *draws, *kernel)
    interrupted(cfg, 8)
    _, path = run_configuration(cfg)
    assert differences(records(path), expected("branin", *draws, *kernel)) == []


@pytest.mark.parametrize(
    "algorithm", ["dp_fts_de", "fts_de", "ts", "local", "fts_original", "sobol_server", "random_server"]
)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_kind_of_server(tmp_path, problem, algorithm):
    more = [f"algorithm={algorithm}", "dropout.probability=0.3"]
    cfg = configured(tmp_path, problem, *more)
    interrupted(cfg, 6)
    interrupted(cfg, 10)
    _, path = run_configuration(cfg)
    assert differences(records(path), expected(problem, *more)) == []


PRIOR = "algorithm.M=24"


@pytest.mark.parametrize("algorithm", ["dp_prior", "shared_prior"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_with_a_prior(tmp_path, problem, algorithm):
    """Interrupted right after the release, and once more when its prior has been followed."""
    more = [f"algorithm={algorithm}", PRIOR, "dropout.probability=0.3"]
    cfg = configured(tmp_path, problem, *more)
    interrupted(cfg, 0)
    interrupted(cfg, 8)
    summary, path = run_configuration(cfg)
    assert differences(records(path), expected(problem, *more)) == []
    assert summary["n_charges"] == 1


def test_after_every_round_in_turn(tmp_path):
    cfg = configured(tmp_path, "branin")
    for after in range(T + 1):
        assert interrupted(cfg, after) == list(range(after + 1))
    _, path = run_configuration(cfg)
    assert differences(records(path), expected("branin")) == []


def test_another_run_is_told_apart(tmp_path):
    """The comparison of these tests finds a run with another seed different."""
    other = undisturbed(tmp_path, *settings("branin", "seed=1"))
    assert differences(other, expected("branin")) == ["rounds.parquet", "server.parquet", "ledger.jsonl", "summary"]


@pytest.mark.parametrize("rng", ["seeded", "os"])
@pytest.mark.parametrize("where", ["before the charge", "after the charge"])
@pytest.mark.parametrize("t", [0, T - 1])
def test_in_the_middle_of_a_round(tmp_path, monkeypatch, where, rng, t):
    """rng=os sends the kept release byte for byte and pays once; rng=seeded makes the same bytes again."""
    cfg = configured(tmp_path, "synthetic", f"privacy.rng={rng}")

    def stop(*arguments):
        if (arguments[1].round if where == "before the charge" else arguments[1].agents.round) == t:
            raise Stop
        return whole(*arguments)

    at = (Ledger, "charge") if where == "before the charge" else (Checkpoint, "append")
    whole = getattr(*at)
    with monkeypatch.context() as broken:
        broken.setattr(*at, stop)
        with pytest.raises(Stop):
            run_configuration(cfg)
    folder = folder_of(cfg)
    assert len(list(Checkpoint(folder / "checkpoint").rounds())) == t
    paid = charged(folder) if folder.exists() else []
    assert [round for round, _ in paid] == list(range(t + (where == "after the charge")))
    kept = Checkpoint(folder / "checkpoint").release_file().load(t)
    assert (kept is not None) == (rng == "os")
    sent = {}
    run_configuration(cfg, lambda done: done.server and sent.update({done.server.round: digest(done.broadcast.values)}))
    assert charged(folder) == sorted(sent.items())
    assert charged(folder)[: len(paid)] == paid
    if kept is not None:
        assert sent[t] == digest(kept[0].values)
        records(folder)
    else:
        assert differences(records(folder), expected("synthetic")) == []


def test_a_prior_with_fresh_noise_is_released_once(tmp_path, monkeypatch):
    """Killed between the charge and the release, and again after it: the kept release is sent, and paid for once."""
    cfg = configured(tmp_path, "synthetic", "algorithm=dp_prior", PRIOR, "privacy.rng=os")

    def stop(*arguments):
        raise Stop

    with monkeypatch.context() as broken:
        broken.setattr(Checkpoint, "append", stop)
        with pytest.raises(Stop):
            run_configuration(cfg)
    folder = folder_of(cfg)
    (paid,) = charged(folder)
    assert paid[0] == 0 and list(Checkpoint(folder / "checkpoint").rounds()) == []
    kept = Checkpoint(folder / "checkpoint").release_file().load(0)
    assert kept is not None and digest(kept[0].values) == paid[1]
    interrupted(cfg, 0)
    interrupted(cfg, 4)
    sent = []
    summary, _ = run_configuration(cfg, lambda done: sent.append(done.broadcast))
    assert charged(folder) == [paid] and summary["n_charges"] == 1
    assert digest(sent[0].values) == paid[1] and sent[1:] == [None] * T
    records(folder)


@pytest.mark.parametrize("after", [0, 5, T])
def test_done_rounds_with_fresh_noise_are_sent_and_paid_once(tmp_path, after):
    cfg = configured(tmp_path, "synthetic", "privacy.rng=os")
    first, last = {}, {}

    def stop(done):
        if done.server:
            first[done.server.round] = digest(done.broadcast.values)
        if done.agents.round == after:
            raise Stop

    with pytest.raises(Stop):
        run_configuration(cfg, stop)
    summary, folder = run_configuration(
        cfg, lambda done: done.server and last.update({done.server.round: digest(done.broadcast.values)})
    )
    assert summary["n_charges"] == T
    assert charged(folder) == sorted(last.items())
    assert first.items() <= last.items()
    fresh, _ = run_configuration(configured(tmp_path / "other", "synthetic", "privacy.rng=os"))
    assert summary["epsilon"] == fresh["epsilon"]
    records(folder)


@pytest.mark.parametrize("lost", ["release", "round"])
def test_fresh_noise_that_was_not_kept_is_paid_in_addition(tmp_path, monkeypatch, lost):
    cfg = configured(tmp_path, "synthetic", "privacy.rng=os")
    t = 5
    if lost == "release":
        with monkeypatch.context() as broken:
            append = Checkpoint.append
            broken.setattr(Checkpoint, "append", lambda c, r: append(c, r) if r.agents.round < t else 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run_configuration(cfg)
        folder = folder_of(cfg)
        (folder / "checkpoint" / "release.npz").unlink()
        paid, again = t + 1, T - t
    else:
        interrupted(cfg, 8)
        folder = folder_of(cfg)
        (folder / "checkpoint" / f"round-{t:05d}.npz").write_bytes(b"")  # a power cut: rounds need not be durable
        paid, again = 9, T - t
    before, observed = charged(folder), {}
    assert len(before) == paid
    summary, _ = run_configuration(
        cfg, lambda done: done.server and observed.update({done.server.round: done.broadcast.values})
    )
    now = charged(folder)
    assert now[:paid] == before
    assert len(now) == len(set(now)) == paid + again == summary["n_charges"]
    assert {(t, digest(values)) for t, values in observed.items()} <= set(now)
    epsilon = pd.read_parquet(folder / "server.parquet")["epsilon"].tolist()
    implied = Rdp().curve(Ledger(folder / "ledger.jsonl").events(), summary["delta"])
    assert epsilon[:t] == implied[:t]
    assert epsilon[t:] == implied[paid:], "of all that was paid before, whatever its round"
    assert epsilon[-1] == summary["epsilon"]["rdp"] > expected("synthetic")["summary"]["epsilon"]["rdp"]


def cut_off(ledger):
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[: len(whole) // 2])


def without_a_line(ledger):
    lines = ledger.read_text().splitlines(keepends=True)
    k = next(k for k, line in enumerate(lines) if '"digest"' in line)
    ledger.write_text("".join(lines[:k] + lines[k + 1 :]))


def other_bytes(ledger):
    whole = ledger.read_text()
    old = json.loads(whole.splitlines()[2])["digest"]
    ledger.write_text(whole.replace(old, "0" * 64))


def chained_anew(change):
    """Changes a ledger and rebuilds its whole chain, so that its own lines show nothing."""

    def changed(ledger):
        change(ledger)
        lines, before = [], START
        for number, line in enumerate(ledger.read_bytes().splitlines(), start=1):
            line, before = chained(entry_of(entries_of(line, number), number), before)
            lines.append(line + b"\n")
        ledger.write_bytes(b"".join(lines))

    return changed


LACKS = "that the checkpoint holds: restore the ledger, or delete the folder"
TOUCHED = (
    "line {} does not follow from what is before it (a line was edited, moved, repeated or removed), refusing to rel"
)
LOST = {
    "deleted": (lambda p: p.unlink(), LACKS),
    "empty": (lambda p: p.write_bytes(b""), LACKS),
    "cut off": (cut_off, LACKS),
    "a line": (without_a_line, TOUCHED.format(2)),
    "a line, all others chained anew": (chained_anew(without_a_line), LACKS),
    "last line": (lambda p: p.write_bytes(b"".join(p.read_bytes().splitlines(keepends=True)[:-1])), LACKS),
    "last line torn": (lambda p: p.write_bytes(p.read_bytes()[:-9]), LACKS),
    "other bytes": (other_bytes, TOUCHED.format(3)),
    "other bytes, chained anew": (chained_anew(other_bytes), LACKS),
    "less cost": (lambda p: p.write_text(p.read_text().replace('"z": 1.0', '"z": 100.0', 1)), TOUCHED.format(2)),
}


@pytest.mark.parametrize(("lose", "says"), LOST.values(), ids=LOST)
def test_a_ledger_that_lost_something_is_refused(monkeypatch, capsys, tmp_path, lose, says):
    cfg = configured(tmp_path)
    interrupted(cfg, 5)
    folder = folder_of(cfg)
    whole = (folder / "ledger.jsonl").read_bytes()
    lose(folder / "ledger.jsonl")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert call(monkeypatch, tmp_path) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ledger ") and error.count("\n") == 1
    assert says in error
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before, "nothing was released or lost"
    with pytest.raises(LedgerError):
        run_configuration(cfg, lambda done: pytest.fail("a round was shown"))
    (folder / "ledger.jsonl").write_bytes(whole)
    run_configuration(cfg)
    assert differences(records(folder), expected("synthetic")) == []


def test_a_ledger_that_cannot_be_read_is_refused(monkeypatch, capsys, tmp_path):
    cfg = configured(tmp_path)
    interrupted(cfg, 5)
    ledger = folder_of(cfg) / "ledger.jsonl"
    ledger.write_bytes(b"\0" + ledger.read_bytes()[1:])
    assert call(monkeypatch, tmp_path) == 1
    assert "line 1 cannot be read, refusing to release anything more" in capsys.readouterr().err


def edited(change, name="meta"):
    """Changes the entries, or one array, of the checkpoint's round 3, in a file that is whole."""

    def edit(checkpoint, other):
        with np.load(checkpoint / "round-00003.npz") as whole:
            arrays = {n: whole[n] for n in whole.files}
        if name == "meta":
            arrays["meta"] = np.array(json.dumps(change(json.loads(arrays["meta"].item()))).encode())
        else:
            arrays[name] = change(arrays[name])
        np.savez(checkpoint / "round-00003.npz", **arrays)

    return edit


def of_another_run(pattern):
    def put(checkpoint, other):
        for file in other.glob(pattern):
            shutil.copy(file, checkpoint)

    return put


FILES_OF_ANOTHER = {
    "y": (edited(lambda y: y + 1, "y"), "round-00003.npz was edited and does not match its digest"),
    "broadcast": (edited(lambda v: -v, "broadcast"), "round-00003.npz was edited and does not match its"),
    "newer": (edited(lambda meta: {**meta, "format": 9}), "round-00003.npz is of format 9, and this version reads 4"),
    "one round": (of_another_run("round-00003.npz"), "round-00003.npz does not follow from the round before it"),
    "all rounds": (of_another_run("round-*.npz"), "round-00000.npz is of another run (other settings or another seed)"),
}


@pytest.mark.parametrize(("change", "says"), FILES_OF_ANOTHER.values(), ids=FILES_OF_ANOTHER)
def test_a_checkpoint_that_was_touched_is_refused(monkeypatch, capsys, tmp_path, change, says):
    cfg, other = configured(tmp_path), configured(tmp_path / "other", "synthetic", "seed=1")
    interrupted(cfg, 5)
    interrupted(other, 5)
    (theirs,) = (tmp_path / "other").rglob("checkpoint")
    folder = folder_of(cfg)
    change(folder / "checkpoint", theirs)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert call(monkeypatch, tmp_path) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and says in error and "Traceback" not in error
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    shutil.rmtree(folder / "checkpoint")
    run_configuration(cfg)
    assert differences(records(folder), expected("synthetic")) == []


@pytest.mark.parametrize("rng", ["seeded", "os"])
def test_without_resume_it_starts_again(tmp_path, rng, caplog):
    cfg = configured(tmp_path, "synthetic", f"privacy.rng={rng}")
    interrupted(cfg, 5)
    folder, made = folder_of(cfg), []
    with caplog.at_level(logging.WARNING):
        summary, _ = run_configuration(
            configured(tmp_path, "synthetic", f"privacy.rng={rng}", "resume=false"),
            lambda done: made.append(len(charged(folder))),
        )
    assert "already holds 6 broadcasts" in caplog.text
    if rng == "seeded":
        assert made == [6] * 6 + [*range(7, T + 1), T]
        assert differences(records(folder), expected("synthetic")) == []
    else:
        assert made == [*range(7, 6 + T + 1), 6 + T]
        assert len(set(charged(folder))) == summary["n_charges"] == 6 + T
        records(folder)


def test_without_resume_nothing_that_was_kept_is_sent(tmp_path, monkeypatch):
    cfg = configured(tmp_path, "synthetic", "privacy.rng=os")
    with monkeypatch.context() as broken:
        broken.setattr(Checkpoint, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_configuration(cfg)
    folder = folder_of(cfg)
    run_configuration(configured(tmp_path, "synthetic", "privacy.rng=os", "resume=false"))
    assert len(set(charged(folder))) == T + 1


def fragile(agent, x):
    """An objective of which one call fails."""
    CALLS.append(agent)
    if len(CALLS) == FAIL_AT[0]:
        raise RuntimeError("sensor off")
    return -float(((x - 0.3) ** 2).sum())


CALLS: list[int] = []
FAIL_AT = [0]


@pytest.mark.parametrize("round", [0, 7, T])
def test_an_objective_that_raised_goes_on_in_its_round(tmp_path, round):
    N, n_init = 6, 4
    custom = [
        "problem=custom", "problem.lower=[0,0]", "problem.upper=[1,1]",
        "problem.function=tests.runners.test_resume:fragile",
        "problem.n_agents=6", f"n_init={n_init}",
        f"rounds={T}", "algorithm.M=20", "acquisition.n_candidates=20", "acquisition.n_starts=2", *FAST,
    ]  # fmt: skip
    CALLS.clear()
    FAIL_AT[0] = 0
    whole = undisturbed(tmp_path / "whole", *custom)
    assert len(CALLS) == N * (n_init + T)
    CALLS.clear()
    done = N * (n_init + round - 1) if round else 0  # calls in earlier rounds
    FAIL_AT[0] = done + 3
    cfg = compose(*custom, *QUIET, f"results_dir={tmp_path / 'run'}")
    with pytest.raises(EvaluationError, match="at agent .* raised RuntimeError: sensor off"):
        run_configuration(cfg)
    FAIL_AT[0] = 0
    CALLS.clear()
    _, folder = run_configuration(cfg)
    assert len(CALLS) == N * (n_init + T) - done
    assert differences(records(folder), whole) == [], (records(folder)["summary"], whole["summary"])


def test_replayed_rounds_are_shown_as_they_were(tmp_path):
    cfg = configured(tmp_path)
    shown = []

    def show(done):
        arrays = [getattr(done.agents, name).numpy().tobytes() for name in ("u", "x", "y", "best", "metric", "source")]
        sent = None if done.server is None else (done.server, digest(done.broadcast.values), done.diagnostics)
        shown.append((done.agents.round, arrays, sent))
        if stop_after[0] == done.agents.round:
            raise Stop

    stop_after = [None]
    run_configuration(configured(tmp_path / "whole"), show)
    whole, shown = list(shown), []
    stop_after = [7]
    with pytest.raises(Stop):
        run_configuration(cfg, show)
    assert shown == whole[:8]
    shown, stop_after = [], [None]
    run_configuration(cfg, show)
    assert shown == whole


def test_an_error_while_rounds_are_replayed_loses_nothing(tmp_path):
    cfg = configured(tmp_path)
    interrupted(cfg, 8)
    interrupted(cfg, 3)
    assert len(list(Checkpoint(folder_of(cfg) / "checkpoint").rounds())) == 9
    _, folder = run_configuration(cfg)
    assert differences(records(folder), expected("synthetic")) == []


@pytest.mark.parametrize("name", ["config.yaml", "rounds.parquet", "server.parquet", "summary.json"])
def test_interrupted_while_the_records_are_written(tmp_path, monkeypatch, name):
    cfg = configured(tmp_path)
    replace = RunFolder.replace

    def stop(folder, file, *arguments, **more):
        if file == name:
            raise Stop
        replace(folder, file, *arguments, **more)

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "replace", stop)
        with pytest.raises(Stop):
            run_configuration(cfg)
    folder = folder_of(cfg)
    assert not (folder / "summary.json").exists()
    with monkeypatch.context() as watched:
        watched.setattr("dpfbo.problems.synthetic.Synthetic.evaluate", lambda *_: pytest.fail("evaluated again"))
        run_configuration(cfg)
    assert differences(records(folder), expected("synthetic")) == []


@pytest.mark.parametrize("left", [0, 1, T])
def test_interrupted_while_the_checkpoint_is_cleared(tmp_path, monkeypatch, left):
    """Any files may be left: the next start ends with the same records and no checkpoint folder."""
    cfg = configured(tmp_path)

    def clear_some(checkpoint):
        for file in sorted(checkpoint.folder.iterdir(), reverse=True)[: T + 1 - left]:
            file.unlink()
        raise Stop

    with monkeypatch.context() as broken:
        broken.setattr(Checkpoint, "clear", clear_some)
        with pytest.raises(Stop):
            run_configuration(cfg)
    folder = folder_of(cfg)
    assert (folder / "summary.json").exists()
    run_configuration(cfg)
    assert differences(records(folder), expected("synthetic")) == []


@pytest.mark.parametrize("step", ["tidy", "clear", "removal"])
def test_killed_after_its_summary_was_written(tmp_path, monkeypatch, step):
    """The next start, which has no round to make, removes what the run would have removed."""
    cfg = configured(tmp_path)

    def stop(*_, **__):
        raise Stop

    with monkeypatch.context() as broken:
        if step == "removal":  # the checkpoint has its other name by then
            broken.setattr("dpfbo.checkpoint.shutil.rmtree", lambda path, ignore_errors=False: ignore_errors or stop())
        else:
            broken.setattr(*{"tidy": (RunFolder, "tidy"), "clear": (Checkpoint, "clear")}[step], stop)
        with pytest.raises(Stop):
            run_configuration(cfg)
    folder = folder_of(cfg)
    assert (folder / "progress.json").exists() == (step == "tidy")
    assert (folder / ".checkpoint").exists() == (step == "removal")
    assert finished_before(*checked_settings(cfg)) is None
    run_configuration(cfg)
    assert finished_before(*checked_settings(cfg)) is not None
    assert differences(records(folder), expected("synthetic")) == []


def test_a_damaged_checkpoint_costs_rounds_and_nothing_else(tmp_path):
    cfg = configured(tmp_path, "branin")
    interrupted(cfg, 8)
    folder = folder_of(cfg)
    (folder / "checkpoint" / "round-00004.npz").write_bytes(b"PK\x03\x04")
    (folder / "checkpoint" / ".round-00009.npz.x1").write_bytes(b"half")
    _, folder = run_configuration(cfg)
    assert differences(records(folder), expected("branin")) == []


def test_the_command_says_how_to_go_on_and_does(monkeypatch, capsys, tmp_path):
    cfg = configured(tmp_path)

    def stop(progress, done):
        if done.agents.round == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("runners.record.terminal.RoundProgress.__call__", stop)
        assert call(monkeypatch, tmp_path) == 130
    assert "interrupted" in capsys.readouterr().err
    assert call(monkeypatch, tmp_path) == 0
    folder = folder_of(cfg)
    assert differences(records(folder), expected("synthetic")) == []


def test_says_where_it_goes_on(tmp_path, caplog):
    cfg = configured(tmp_path)
    interrupted(cfg, 4)
    with caplog.at_level(logging.WARNING):
        run_configuration(cfg)
    assert f"going on after round 4 of {T}" in caplog.text
    assert "already holds" not in caplog.text


def test_progress_and_busy_in_every_state(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_run, "_PROGRESS_SECONDS", -1.0)
    cfg = configured(tmp_path)
    states = []

    def state(folder):
        return folder.progress(), folder.busy()

    def look(done):
        folder = RunFolder(folder_of(cfg))
        states.append(state(folder))
        epsilon = done.server.epsilon if done.server else last[0]
        before["epsilon"].append(last[0])
        before["mean"].append(done.agents.mean)
        before["round"].append(done.agents.round)
        progress, busy = states[-1]
        assert busy
        assert (progress.round, progress.rounds) == (done.agents.round, T)
        assert (progress.mean, progress.epsilon, progress.curve) == (done.agents.mean, epsilon, before)
        assert (progress.facts["rng"], progress.facts["accountant"]) == ("seeded", "rdp")
        last[0] = epsilon
        if done.agents.round == 6:
            raise Stop

    last, before = [0.0], {"round": [], "mean": [], "epsilon": []}
    assert state(RunFolder(tmp_path / "nothing")) == (None, False)
    with pytest.raises(Stop):
        run_configuration(cfg, look)
    folder = RunFolder(folder_of(cfg))
    assert state(folder) == (states[-1][0], False)
    assert states[-1][0].round == 6
    interrupted(cfg, 9)
    assert folder.progress().round == 9
    run_configuration(cfg)
    assert state(folder) == (None, False)
    assert {f.name for f in folder.path.iterdir()} == FILES


@pytest.mark.parametrize("algorithm", ["ts", "fts_de"])
def test_progress_without_epsilon(tmp_path, algorithm):
    cfg = configured(tmp_path, "synthetic", f"algorithm={algorithm}")
    interrupted(cfg, 0)
    (file,) = tmp_path.rglob("progress.json")
    assert RunFolder(file.parent).progress().epsilon == (0.0 if algorithm == "ts" else None)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"round": 1}', '{"round": 1, "more": 2}', "3"])
def test_a_torn_progress_is_none(tmp_path, content):
    (tmp_path / "progress.json").write_text(content)
    assert RunFolder(tmp_path).progress() is None


def test_a_folder_left_by_a_killed_run_is_not_busy(tmp_path):
    (tmp_path / ".lock").touch()
    assert not RunFolder(tmp_path).busy()
    with RunFolder(tmp_path).opened():
        assert RunFolder(tmp_path).busy()
        assert RunFolder(tmp_path).busy(), "looking changes nothing"
    assert not RunFolder(tmp_path).busy()


def test_who_only_looks_keeps_no_run_out(tmp_path, monkeypatch):
    (tmp_path / ".lock").touch()
    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: fcntl.flock(looking, fcntl.LOCK_UN))
    with RunFolder(tmp_path).opened():
        assert RunFolder(tmp_path).busy()
    os.close(looking)
