"""The file of a ledger: charged by threads, objects and processes at once, wherever the process works."""

import copy
import hashlib
import multiprocessing
import os
import pickle
import stat
import subprocess
import sys
import threading

import pytest

from dpfbo.formats.files import is_file_at, locked_file
from dpfbo.privacy import ledger_file
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError


def charge(round, content="a", z=1.0):
    return Charge(round, 0.35, z, 0.5, 0.5, hashlib.sha256(content.encode()).hexdigest())


def charge_many(ledger, worker, n):
    """Charge rounds of the worker's own, and between them rounds that all workers charge with the same digest."""
    for k in range(n):
        assert ledger.charge(charge(1000 * worker + k))
        if k % 20 == 0:
            ledger.charge(charge(100_000 + k, "shared"))


def at_once(*acts):
    """Run functions in threads; raise what any of them raised."""
    errors, start = [], threading.Barrier(len(acts))

    def caught(act):
        start.wait()
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def quick(monkeypatch):
    """The disk is not waited for; locks are."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(ledger_file, "_LOCK_SECONDS", -1.0)


def test_threads_objects_and_processes_charge_one_file(tmp_path, quick):
    """Three threads share an object, three have one each, and two are processes: eight workers."""
    path, n = tmp_path / "ledger.jsonl", 200
    shared, own = Ledger(path), [Ledger(path) for _ in range(3)]
    fork = multiprocessing.get_context("fork")  # a new interpreter would import for seconds
    processes = [fork.Process(target=charge_many, args=(shared, worker, n)) for worker in (6, 7)]
    for process in processes:
        process.start()
    at_once(*(lambda w=w, one=one: charge_many(one, w, n) for w, one in enumerate([shared] * 3 + own)))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    rounds = [c.round for c in Ledger(path).charges]
    assert sorted(rounds) == sorted(
        [1000 * worker + k for worker in range(8) for k in range(n)] + [100_000 + k for k in range(0, n, 20)]
    )
    for ledger in (shared, *own):
        assert [c.round for c in ledger.charges] == rounds and len(ledger.events()) == len(rounds)


def test_threads_share_an_object_in_memory():
    ledger = Ledger()
    at_once(*(lambda w=w: charge_many(ledger, w, 200) for w in range(4)))
    assert len(ledger.charges) == len({c.round for c in ledger.charges}) == 4 * 200 + 10


def test_what_another_object_charged_is_known_and_written_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, second = Ledger(path), Ledger(path)
    assert first.charge(charge(0)) and not second.charge(charge(0))
    assert second.charge(charge(1)) and not first.charge(charge(1))
    assert len(path.read_text().splitlines()) == 2


def test_charges_and_events_follow_the_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, second = Ledger(path), Ledger(path)
    assert second.events() == []
    for t in range(3):
        first.charge(charge(t, z=1.0 + t))
        assert second.charges == first.charges and list(second.events()) == [c.event() for c in first.charges]
    assert len(second.events(up_to_round=1)) == 2
    assert second.carried_over == 0 and Ledger(path).carried_over == 3


def test_another_object_sees_the_run_that_the_ledger_is_of(tmp_path):
    path, run = tmp_path / "ledger.jsonl", LedgerCoverage("a" * 12, 3, None, None)
    first, second = Ledger(path), Ledger(path)
    first.bind(run)
    second.bind(run)
    assert second.covers == run and len(path.read_text().splitlines()) == 1
    with pytest.raises(LedgerError, match="is of another run"):
        second.bind(LedgerCoverage("b" * 12, 3, None, None))


def test_a_repaired_ledger_costs_what_its_new_lines_say(tmp_path):
    """The file was replaced by one with the same charges at a higher cost."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.charge(charge(0, z=2.0))
    assert [event.event.noise_multiplier for event in ledger.events()] == [2.0]
    Ledger(tmp_path / "new").charge(charge(0, z=0.5))
    (tmp_path / "new").replace(ledger.path)
    assert [event.event.noise_multiplier for event in ledger.events()] == [0.5]
    assert not ledger.charge(charge(0, z=2.0)) and ledger.charge(charge(1))


def test_a_bound_ledger_that_was_replaced_is_read_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.bind(LedgerCoverage("a" * 12, 3, None, None))
    ledger.charge(charge(0))
    (tmp_path / "copy").write_bytes(ledger.path.read_bytes())
    (tmp_path / "copy").replace(ledger.path)
    assert ledger.charges == [charge(0)] and ledger.charge(charge(1))


def test_a_longer_ledger_in_the_place_of_another_is_read_whole(tmp_path):
    """Its last lines follow from each other, and an earlier one was edited."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for t in range(3):
        ledger.charge(charge(t))
    before = ledger.path.read_bytes()
    Ledger(ledger.path).charge(charge(3))
    (tmp_path / "copy").write_bytes(ledger.path.read_bytes().replace(b'"z": 1.0', b'"z": 9.0', 1))
    (tmp_path / "copy").replace(ledger.path)
    assert ledger.path.stat().st_size > len(before)
    with pytest.raises(LedgerError, match="line 1 does not follow"):
        ledger.charge(charge(4))


def test_a_line_that_another_writes_is_not_cut(tmp_path, impatient):
    """Half of a line is in the file and its writer has the lock: readers leave it, and a charge waits."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    whole = path.read_bytes()
    Ledger(path).charge(charge(1))
    line = path.read_bytes().removeprefix(whole)
    path.write_bytes(whole)
    with locked_file(path, 0) as writer:
        writer.write(line[:40])
        assert Ledger(path).charges == ledger.charges == [charge(0)]
        with pytest.raises(LedgerError, match="another run is writing to ledger"):
            ledger.charge(charge(2))
        assert path.read_bytes() == whole + line[:40]
        writer.write(line[40:])
    assert ledger.charges == [charge(0), charge(1)]
    assert ledger.charge(charge(2)) and [c.round for c in Ledger(path).charges] == [0, 1, 2]


def test_a_torn_line_is_cut_while_others_write(tmp_path, quick):
    path = tmp_path / "ledger.jsonl"
    ledgers = [Ledger(path) for _ in range(4)]
    ledgers[0].charge(charge(99_999))

    def killed_while_it_writes():
        for _ in range(20):
            with locked_file(path, 60.0) as file:
                file.write(b'{"round": 5, "q": 0.3')

    at_once(killed_while_it_writes, *(lambda w=w, one=one: charge_many(one, w, 50) for w, one in enumerate(ledgers)))
    assert len({c.round for c in Ledger(path).charges}) == len(ledgers[0].charges) == 1 + 4 * 50 + 3


def test_a_line_that_was_not_synced_is_taken_back(tmp_path, monkeypatch):
    """The disk fails: the line may never reach it, though reading shows it, and so must not pass for a charge."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            ledger.charge(charge(1))
    assert path.read_bytes() == before and len(ledger.charges) == 1
    assert Ledger(path).charge(charge(1)) and not ledger.charge(charge(1))


def test_what_others_wrote_is_synced_before_it_counts_as_charged(tmp_path, monkeypatch):
    """Its writer may have been killed between writing and syncing."""
    path, synced = tmp_path / "ledger.jsonl", []
    first, second = Ledger(path), Ledger(path)
    second.charge(charge(0))
    with monkeypatch.context() as lazy:
        lazy.setattr("os.fsync", lambda descriptor: None)
        first.charge(charge(1))
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    assert not second.charge(charge(1))
    assert path.stat().st_ino in synced
    synced.clear()
    assert not second.charge(charge(1)) and synced == []


def test_a_check_and_a_charge_are_one_step(tmp_path, quick):
    """Eight threads with a ledger each see room for ten charges, and make ten together."""
    path, limit = tmp_path / "ledger.jsonl", 10

    def spend(worker):
        ledger = Ledger(path)
        for k in range(limit):
            with ledger.locked():
                if len(ledger.events()) < limit:
                    ledger.charge(charge(100 * worker + k))

    at_once(*(lambda w=w: spend(w) for w in range(8)))
    assert len(Ledger(path).charges) == limit


def test_a_held_file_is_charged_by_its_holder_alone(tmp_path, impatient):
    path = tmp_path / "ledger.jsonl"
    with locked_file(path, 0) as held:
        ledger, other = Ledger(path, held), Ledger(path)
        assert ledger.charge(charge(0)) and ledger.charge(charge(1))
        with pytest.raises(LedgerError, match=r"another run is writing to ledger .*: wait for it$"):
            other.charge(charge(2))
        for copied in (copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))):
            assert copied.charges == ledger.charges
            with pytest.raises(LedgerError, match="another run is writing"):
                copied.charge(charge(2))
        child = os.fork()
        if not child:
            try:
                ledger.charge(charge(2))
            except LedgerError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ledger.charge(charge(3)), "the child has not ended the lock"
    assert other.charge(charge(2)) and ledger.charge(charge(4)), "each by itself again"
    assert [c.round for c in Ledger(path).charges] == [0, 1, 3, 2, 4]


def test_a_held_file_that_was_replaced_takes_no_charge(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with locked_file(path, 0) as held:
        ledger = Ledger(path, held)
        ledger.charge(charge(0))
        (tmp_path / "copy").write_bytes(path.read_bytes())
        (tmp_path / "copy").replace(path)
        assert ledger.charge(charge(1))
        assert [c.round for c in Ledger(path).charges] == [0, 1] and not is_file_at(held, path)


def test_a_waiting_charge_goes_to_the_file_that_replaced_the_locked_one(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    held = locked_file(path, 0)
    waiting = threading.Thread(target=ledger.charge, args=(charge(1),))
    waiting.start()
    (tmp_path / "copy").write_bytes(path.read_bytes())
    (tmp_path / "copy").replace(path)
    held.close()
    waiting.join()
    assert [c.round for c in Ledger(path).charges] == [0, 1]


def test_the_lock_ends_with_a_killed_process(tmp_path, impatient):
    path = tmp_path / "ledger.jsonl"
    program = (
        "import sys, time; from pathlib import Path; from dpfbo.formats.files import locked_file\n"
        "file = locked_file(Path(sys.argv[1]), 0); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(LedgerError, match="another run is writing"):
            Ledger(path).charge(charge(0))
        holder.kill()
    assert Ledger(path).charge(charge(0))


def test_a_relative_path_is_that_of_the_first_working_directory(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("ledger.jsonl")
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.charge(charge(0))
    assert ledger.path == tmp_path / "ledger.jsonl" and list((tmp_path / "elsewhere").iterdir()) == []
    assert Ledger(tmp_path / "ledger.jsonl").charges == [charge(0)]


@pytest.mark.parametrize("umask", [0, 0o777])
def test_a_new_ledger_is_its_owners_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        Ledger(tmp_path / "ledger.jsonl").charge(charge(0))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "ledger.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_an_existing_ledger_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "ledger.jsonl"
    path.touch()
    path.chmod(mode)
    Ledger(path).charge(charge(0))
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_ledger_whose_file_is_gone_tells_what_it_knows_and_charges_nothing(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.charge(charge(0))
    ledger.path.unlink()
    assert ledger.charges == [charge(0)] and len(ledger.events()) == 1
    with pytest.raises(LedgerError, match="has lost charges"):
        ledger.charge(charge(1))
