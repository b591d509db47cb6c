"""The checkpoint: whole rounds or none, to the bit, and nothing in it that gives away the noise."""

import dataclasses
import io
import json
import math
import os
import random
import re
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfbo.checkpoint import Checkpoint, ReleaseFile, check_charged
from dpfbo.federated import federation
from dpfbo.federated.broadcast import AgentVectors, Points, RegionVectors, SharedPrior
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.server import Server
from dpfbo.formats import files
from dpfbo.formats.checkpoint_file import CheckpointError
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError, digest
from dpfbo.privacy.release import Diagnostics, Release
from dpfbo.records import RoundRecord, ServerRecord
from dpfbo.rng import box_muller
from dpfbo.run_result import Round
from tests.helpers.federated_world import server_for, world

AWKWARD = [math.inf, -math.inf, math.nan, -0.0, 5e-324, 1 / 3, -1e300]  # a text file may not restore them


def numbers(*shape, seed=0):
    values = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values.view(-1)[: len(AWKWARD)] = torch.tensor(AWKWARD, dtype=torch.float64)[: values.numel()]
    return values


def record(t=0, n=4, k=3, D=2):
    whole = torch.arange(n * k).view(n, k)
    fields = (numbers(n, k, D, seed=1), numbers(n, k, D, seed=2), *(numbers(n, k, seed=s) for s in (3, 4, 5)))
    return RoundRecord(t, whole % 3, whole % 4, *fields)


def release(P=2, M=5, **changes):
    """A release and its diagnostics."""
    whole = Release(numbers(P, M, seed=6), 0.1 + 0.2, 1 / 3), Diagnostics(1e-300, 2.5, 3, 1, 0)
    public, private = ({n: v for n, v in changes.items() if n in vars(part)} for part in whole)
    return dataclasses.replace(whole[0], **public), dataclasses.replace(whole[1], **private)


def make(kind="aggregate", t=0):
    """A round with one kind of broadcast."""
    agents, seconds = record(t), {"objective": 0.1 + 0.2, "fit": 1e-9}
    if kind == "none":
        return Round(agents, None, None, None, seconds)
    if kind in ("peer", "control"):
        broadcast = AgentVectors(numbers(4, 5)) if kind == "peer" else Points(numbers(4, 2))
        return Round(agents, broadcast, None, None, seconds)
    if kind == "prior":
        tensors = [numbers(*shape) for shape in ((1, 5), (5,), (15,), (2,))]
        tensors += [torch.tensor(x, dtype=torch.float64) for x in (1 / 3, 2 / 3)]
        return Round(agents, SharedPrior(*tensors), ServerRecord(t, 1 / 3, 0.1, 0.2), release()[1], seconds)
    if kind == "public":
        epsilon, done = math.inf, release(sigma=0.0, sensitivity=math.inf, noise=0.0, n_dropped=2)
    elif kind == "nothing finite":
        epsilon, done = math.inf, release(sensitivity=math.inf, signal=math.nan)
    else:
        epsilon, done = 1 / 3, release(n_dropped=1)
    made, private = done
    record_of_server = ServerRecord(t, epsilon, made.sigma, made.sensitivity)
    return Round(agents, RegionVectors(made.values), record_of_server, private, seconds)


KINDS = ["aggregate", "prior", "public", "nothing finite", "peer", "control", "none"]


def bits(value):
    """Every bit and the structure of a round's parts."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if dataclasses.is_dataclass(value):
        return type(value).__name__, *(bits(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, tuple):
        return tuple(bits(v) for v in value)
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    return type(value).__name__, value


def path(checkpoint, t):
    return checkpoint.folder / f"round-{t:05d}.npz"


def charge(t, content):
    return Charge(t, 0.5, 1.0, 0.3, 0.3, content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_comes_back_to_the_bit(tmp_path, kind):
    checkpoint, done = Checkpoint(tmp_path / "c"), make(kind)
    checkpoint.append(done)
    (back,) = Checkpoint(tmp_path / "c").rounds()
    assert bits(back) == bits(done)


def test_known_rounds_are_read_one_at_a_time_or_missed(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    for t in range(3):
        checkpoint.append(make(t=t))
    reading = checkpoint.rounds(2)
    assert bits(next(reading)) == bits(make(t=0))
    path(checkpoint, 1).write_bytes(b"")
    with pytest.raises(OSError, match="round-00001.npz was there before and cannot be read any more"):
        next(reading)
    with pytest.raises(OSError, match="round-00001.npz was there before"):
        checkpoint.record(1)
    assert bits(checkpoint.record(2)) == bits(make(t=2).agents)
    assert [r.agents.round for r in checkpoint.rounds()] == [0]


def test_what_a_run_made_comes_back_to_the_bit(tmp_path):
    problem, agents, _ = world()
    made, checkpoint = [], Checkpoint(tmp_path / "c")
    server = server_for(problem, agents, SubsampledGaussian(0.5, 1.0, 2.0))
    federation.run(
        federation.LocalPopulation.of(problem, agents), server, 3, lambda r: (made.append(r), checkpoint.append(r))
    )
    assert len(made) == 4 and made[-1].server is None
    assert [bits(r) for r in checkpoint.rounds()] == [bits(r) for r in made]


def test_no_folder_no_rounds(tmp_path):
    checkpoint = Checkpoint(tmp_path / "c")
    assert list(checkpoint.rounds()) == []
    checkpoint.clear()
    assert not checkpoint.folder.exists()


def test_a_gap_ends_what_is_there(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    for t in range(5):
        checkpoint.append(make(t=t))
    path(checkpoint, 2).unlink()
    assert [r.agents.round for r in checkpoint.rounds()] == [0, 1]
    checkpoint.append(make(t=2))
    assert [r.agents.round for r in checkpoint.rounds()] == [0, 1, 2, 3, 4]
    checkpoint.append(make("peer", 2))
    with pytest.raises(CheckpointError, match="round-00003.npz does not follow from the round before it"):
        list(checkpoint.rounds())
    path(checkpoint, 0).unlink()
    assert list(checkpoint.rounds()) == []


def test_a_round_written_again_replaces_the_first(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.append(make("aggregate"))
    checkpoint.append(make("peer"))
    (back,) = checkpoint.rounds()
    assert bits(back) == bits(make("peer"))


def with_meta(change):
    """Writes a round file whose meta is changed; `change` gets and returns it."""

    def damage(file):
        with np.load(file) as whole:
            arrays = {name: whole[name] for name in whole.files}
        meta = change(json.loads(arrays.pop("meta").item()))
        np.savez(file, meta=np.array(json.dumps(meta)), **arrays)

    return damage


def pickled(file):
    np.savez(file, meta=np.array([{"format": 1}], dtype=object))


def no_array(name):
    def damage(file):
        with np.load(file) as whole:
            arrays = {n: whole[n] for n in whole.files if n != name}
        np.savez(file, **arrays)

    return damage


DAMAGE = {
    "empty": lambda f: f.write_bytes(b""),
    "garbage": lambda f: f.write_bytes(random.Random(0).randbytes(3000)),
    "zeros, as after a power cut": lambda f: f.write_bytes(bytes(f.stat().st_size)),
    "text": lambda f: f.write_text('{"format": 1}'),
    "not a zip of arrays": lambda f: zipfile.ZipFile(f, "w").close(),
    "an array alone": lambda f: np.save(f.open("wb"), np.zeros(3)),
    "pickle": pickled,
    "no format": with_meta(lambda m: {k: v for k, v in m.items() if k != "format"}),
    "meta is a list": with_meta(lambda m: [m]),
    "meta is a number": with_meta(lambda m: 3),
    "no meta": no_array("meta"),
}


def with_array(name, change):
    """Writes a round file in which one array is changed."""

    def edit(file):
        with np.load(file) as whole:
            arrays = {n: whole[n] for n in whole.files}
        np.savez(file, **{**arrays, name: change(arrays[name])})

    return edit


EDITED = "round-00001.npz was edited and does not match its digest: restore it, or delete the checkpoint"
EDITS = {
    "y": (with_array("y", lambda y: y + 1), EDITED),
    "one bit of y": (with_array("y", lambda y: np.nextafter(y, 0)), EDITED),
    "type of y": (with_array("y", lambda y: y.view(np.int64)), EDITED),
    "shape of u": (with_array("u", lambda u: u.reshape(-1)), EDITED),
    "broadcast": (with_array("broadcast", lambda v: v[::-1]), EDITED),
    "sources": (with_array("source", lambda s: s[::-1]), EDITED),
    "round": (with_meta(lambda m: {**m, "round": 7}), EDITED),
    "seconds": (with_meta(lambda m: {**m, "seconds": {}}), EDITED),
    "kind of broadcast": (with_meta(lambda m: {**m, "broadcast": "Postcards"}), EDITED),
    "server": (with_meta(lambda m: {**m, "server": {**m["server"], "shape": 3}}), EDITED),
    "epsilon": (with_meta(lambda m: {**m, "server": {**m["server"], "epsilon": 0.1}}), EDITED),
    "round before": (with_meta(lambda m: {**m, "before": "0" * 64}), EDITED),
    "no u": (no_array("u"), EDITED),
    "no broadcast": (no_array("broadcast"), EDITED),
    "no digest": (with_meta(lambda m: {k: v for k, v in m.items() if k != "digest"}), EDITED),
    "a number as digest": (with_meta(lambda m: {**m, "digest": 3}), EDITED),
    "earlier format": (with_meta(lambda m: {**m, "format": 2}), "format 2, and this version reads 4: use the one"),
    "format of tomorrow": (with_meta(lambda m: {**m, "format": 5}), "format 5, and this version reads 4: use the one"),
}


@pytest.mark.parametrize(("edit", "says"), EDITS.values(), ids=EDITS)
def test_a_file_that_was_edited_or_is_of_a_newer_format_is_refused_in_one_sentence(tmp_path, edit, says):
    checkpoint = Checkpoint(tmp_path)
    for t in range(4):
        checkpoint.append(make(t=t))
    edit(path(checkpoint, 1))
    for known in (None, 4):
        with pytest.raises(CheckpointError, match=re.escape(says)) as refused:
            list(checkpoint.rounds(known))
        assert "\n" not in str(refused.value)
    assert bits(checkpoint.record(0)) == bits(make().agents)


RELEASE_EDITS = {
    "values": with_array("values", lambda v: v + 1),
    "sigma": with_meta(lambda m: {**m, "sigma": 0.0}),
}


@pytest.mark.parametrize("edit", RELEASE_EDITS.values(), ids=RELEASE_EDITS)
def test_a_kept_release_that_was_edited_is_refused(tmp_path, edit):
    kept = ReleaseFile(tmp_path / "release.npz")
    kept.save(0, release()[0])
    with_array("values", lambda v: v)(kept.path)
    assert bits(kept.load(0)[0]) == bits(release()[0]), "written anew with the same numbers"
    edit(kept.path)
    with pytest.raises(CheckpointError, match="release.npz was edited"):
        kept.load(0)


def test_rounds_of_other_runs_are_refused(tmp_path):
    """A file, or all of them, of a run with other settings, another seed, or another course."""
    one, two = Checkpoint(tmp_path / "one", "a 0"), Checkpoint(tmp_path / "two", "a 1")
    for t in range(3):
        one.append(make(t=t))
        two.append(make(t=t))
    for kept, run in ((one, "a 0"), (two, "a 1"), (two, None)):
        assert len(list(Checkpoint(kept.folder, run).rounds())) == 3
    for run in ("a 1", "b 0", ""):
        with pytest.raises(
            CheckpointError, match=r"round-00000.npz is of another run \(other settings or another seed"
        ):
            list(Checkpoint(one.folder, run).rounds())
    path(one, 1).write_bytes(path(two, 1).read_bytes())
    with pytest.raises(CheckpointError, match="round-00001.npz does not follow from the round before it"):
        list(one.rounds())


def test_a_file_under_the_name_of_another_round_is_refused(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    for t in range(3):
        checkpoint.append(make(t=t))
    path(checkpoint, 2).replace(path(checkpoint, 1))
    with pytest.raises(CheckpointError, match="round-00001.npz is of round 2"):
        list(checkpoint.rounds())


def test_a_resumed_run_goes_on_with_the_chain(tmp_path):
    first = Checkpoint(tmp_path, "a 0")
    for t in range(2):
        first.append(make(t=t))
    again = Checkpoint(tmp_path, "a 0")
    again.append(make(t=2))
    assert len(list(again.rounds())) == 3
    path(again, 0).unlink()
    assert list(again.rounds()) == []


@pytest.mark.parametrize("what", ["fifo", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path, what):
    checkpoint = Checkpoint(tmp_path)
    (os.mkfifo if what == "fifo" else os.mkdir)(path(checkpoint, 0))
    got = "a pipe" if what == "fifo" else "a folder"
    with pytest.raises(OSError, match=f"round-00000.npz must be a plain file, got {got}") as refused:
        list(checkpoint.rounds())
    assert isinstance(refused.value, files.NoFile)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_cannot_be_read_and_all_after_it_count_as_absent(tmp_path, damage):
    checkpoint = Checkpoint(tmp_path)
    for t in range(4):
        checkpoint.append(make(t=t))
    damage(path(checkpoint, 1))
    back = list(checkpoint.rounds())
    assert [bits(r) for r in back] == [bits(make(t=0))]


def test_cut_off_anywhere_it_counts_as_absent(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.append(make())
    whole = path(checkpoint, 0).read_bytes()
    for size in {*range(0, len(whole), 13), len(whole) - 1}:
        path(checkpoint, 0).write_bytes(whole[:size])
        assert list(checkpoint.rounds()) == [], size


def test_one_flipped_bit_makes_a_file_absent_or_changes_nothing(tmp_path):
    """A bit flipped anywhere: a checkpoint never returns other numbers than were written, and never raises."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.append(make())
    whole, expected, absent = path(checkpoint, 0).read_bytes(), bits(make()), 0
    with zipfile.ZipFile(path(checkpoint, 0)) as archive:
        directory = archive.start_dir  # where every byte has a meaning of its own
    dice = random.Random(0)
    for place in range(len(whole)):
        for bit in dice.sample(range(8), 3 if place >= directory else place % 8 == 0):
            torn = bytearray(whole)
            torn[place] ^= 1 << bit
            path(checkpoint, 0).write_bytes(torn)
            back = list(checkpoint.rounds())
            assert back == [] or bits(back[0]) == expected, (place, bit)
            absent += back == []
    assert absent > len(whole) / 8


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def half(file, savez=np.savez, **arrays):
    """End the process when half of the file is on disk."""
    whole = io.BytesIO()
    savez(whole, **arrays)
    file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
    file.flush()
    die()


def killed_in(where, write):
    """Call `write` in a process that ends in it."""
    child = os.fork()
    if child == 0:
        np.savez, os.replace = (half, os.replace) if where == "write" else (np.savez, die)
        write()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("where", ["write", "replace"])
@pytest.mark.parametrize("what", ["round", "release"])
def test_a_write_that_is_killed_leaves_what_was_there(tmp_path, where, what):
    checkpoint = Checkpoint(tmp_path / "c")
    for t in range(3):
        checkpoint.append(make(t=t))
    checkpoint.release_file().save(1, release()[0])
    before = {f.name: f.read_bytes() for f in checkpoint.folder.iterdir()}
    kept = checkpoint.release_file()
    other = release(sigma=9.0)[0]
    write = {"round": lambda: checkpoint.append(make("peer", 1)), "release": lambda: kept.save(1, other)}
    killed_in(where, write[what])
    after = {f.name: f.read_bytes() for f in checkpoint.folder.iterdir()}
    (left,) = after.keys() - before.keys()
    assert left.startswith(".")
    assert {name: after[name] for name in before} == before
    assert [bits(r) for r in checkpoint.rounds()] == [bits(make(t=t)) for t in range(3)]
    checkpoint.forget_from(1)
    checkpoint.append(make("peer", 1))
    assert bits(list(checkpoint.rounds())[1]) == bits(make("peer", 1))
    checkpoint.clear()
    assert not checkpoint.folder.exists()


def test_a_write_that_fails_leaves_no_other_file(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "c")
    checkpoint.append(make())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.append(make("peer"))
    assert [f.name for f in checkpoint.folder.iterdir()] == ["round-00000.npz"]
    assert [bits(r) for r in checkpoint.rounds()] == [bits(make())]


def test_interrupted_right_after_the_file_is_in_place(tmp_path, monkeypatch):
    """Ctrl-C there must arrive as Ctrl-C, and the file stays."""

    def interrupted(source, target, replace=os.replace):
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.replace_file(tmp_path / "a", lambda f: f.write(b"whole"))
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [("a", b"whole")]


def test_a_release_is_on_disk_when_save_returns_and_a_round_need_not_be(tmp_path, monkeypatch):
    """The release must outlive a power cut, because its charge does; a round can be done again."""
    synced = []
    checkpoint = Checkpoint(tmp_path)
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    checkpoint.append(make())
    assert synced == []
    checkpoint.release_file().save(0, release()[0])
    assert len(synced) == 2
    assert Path(synced[0]).name.startswith(".release.npz") and synced[1] == str(tmp_path)


def loose(file):
    """All arrays of a file, read without pickle, and its meta."""
    with np.load(file, allow_pickle=False) as whole:
        arrays = {name: whole[name] for name in whole.files}
    return arrays, json.loads(arrays.pop("meta").item())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_what_was_done_and_nothing_to_make_noise_from(tmp_path, kind):
    """The exact list of a file's contents: a seed or the state of a generator would fail here."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.append(make(kind))
    arrays, meta = loose(path(checkpoint, 0))
    inside = {"region", "source", "u", "x", "y", "best", "metric"} | (set() if kind == "none" else {"broadcast"})
    if kind == "prior":  # a post-processing of the broadcast and of public numbers
        inside |= {f"broadcast.{f.name}" for f in dataclasses.fields(SharedPrior) if f.name != "values"}
    assert set(arrays) == inside
    assert all(a.dtype.kind in "fi" for a in arrays.values())
    assert meta.keys() <= {"format", "round", "seconds", "broadcast", "server", "diagnostics", "before", "digest"}
    assert all(re.fullmatch("[0-9a-f]{64}", meta[name]) for name in ("before", "digest"))
    assert meta.get("server", {}).keys() <= {"epsilon", "sigma", "sensitivity"}
    assert meta.get("diagnostics", {}).keys() <= {f.name for f in dataclasses.fields(Diagnostics)}


class Recorded(SystemEntropy):
    """Records the drawn numbers."""

    def uniform(self, purpose, round, size):
        drawn = super().uniform(purpose, round, size)
        DRAWN.append(drawn)
        return drawn


DRAWN = []


def test_nothing_of_the_noise_is_in_the_files_of_a_run(tmp_path):
    seed = 987654321012345
    problem, agents, _ = world(seed=seed)
    DRAWN.clear()
    checkpoint = Checkpoint(tmp_path / "c")
    server = server_for(problem, agents, SubsampledGaussian(0.5, 1.0, 2.0), Ledger(tmp_path / "l"), Recorded())
    server = dataclasses.replace(server, kept=checkpoint.release_file())
    federation.run(federation.LocalPopulation.of(problem, agents), server, 3, checkpoint.append)
    uniforms = torch.cat(DRAWN)
    normals = torch.cat([box_muller(u) for u in DRAWN if len(u) % 2 == 0])
    assert len(uniforms) == 3 * (12 + 2 * 30)  # the choices, and the noise of two regions
    names = sorted(f.name for f in checkpoint.folder.iterdir())
    assert names == ["release.npz", *(f"round-0000{t}.npz" for t in range(4))]
    for file in checkpoint.folder.iterdir():
        arrays, meta = loose(file)
        assert str(seed) not in json.dumps(meta)
        inside = np.concatenate([a.reshape(-1).astype(float) for a in arrays.values()])
        assert "diagnostics" not in meta, "the norms of sum and noise tell the sum beside its broadcast"
        sigma = meta.get("sigma", meta.get("server", {}).get("sigma", 1.0))
        for forbidden in (uniforms, normals, sigma * normals, torch.tensor([float(seed)])):
            assert not near(inside, forbidden.numpy())
    assert near(inside, inside[-1:] * (1 + 1e-15))


def near(numbers, others):
    """True if one of them is one of the others, but for rounding."""
    others = np.sort(others)
    places = (
        np.searchsorted(others, numbers).clip(1, len(others) - 1) if len(others) > 1 else np.zeros(len(numbers), int)
    )
    gap = np.minimum(np.abs(others[places] - numbers), np.abs(others[places - 1] - numbers))
    return bool((gap <= 1e-13 * np.abs(numbers)).any())


@pytest.mark.parametrize(
    "changes",
    [{}, {"sigma": 0.0, "sensitivity": math.inf}, {"values": torch.zeros(1, 1).double()}],
)
@pytest.mark.parametrize("order", [None, [2, 0, 1]])
def test_a_release_comes_back_to_the_bit_in_its_round_and_in_no_other(tmp_path, changes, order):
    kept = ReleaseFile(tmp_path / "c" / "release.npz")
    assert kept.load(0) is None
    made = release(**changes)[0]
    kept.save(4, made, order)
    again = ReleaseFile(kept.path)
    assert (bits(again.load(4)[0]), again.load(4)[1]) == (bits(made), order)
    assert digest(again.load(4)[0].values) == digest(made.values)
    assert [again.load(t) for t in (0, 3, 5)] == [None] * 3


def test_only_the_last_release_is_kept(tmp_path):
    kept = ReleaseFile(tmp_path / "release.npz")
    kept.save(4, release()[0])
    kept.save(5, release(sigma=2.0)[0])
    assert kept.load(4) is None
    assert kept.load(5)[0].sigma == 2.0
    assert [f.name for f in tmp_path.iterdir()] == ["release.npz"]


def test_forget_from(tmp_path):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    kept = checkpoint.release_file()
    checkpoint.forget_from(0)  # nothing there
    kept.save(4, release()[0])
    checkpoint.forget_from(4)
    assert kept.load(4) is not None
    checkpoint.forget_from(5)
    assert not kept.path.exists()
    kept.path.write_bytes(b"torn")
    assert kept.load(4) is None
    checkpoint.forget_from(4)
    assert not kept.path.exists()


def test_rounds_after_a_gap_are_dropped(tmp_path):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.folder.mkdir()
    for t in (0, 1, 3, 10, 100000):
        (checkpoint.folder / f"round-{t:05d}.npz").write_bytes(b"")
    checkpoint.forget_from(2)
    assert sorted(p.name for p in checkpoint.folder.iterdir()) == ["round-00000.npz", "round-00001.npz"]


def test_file_that_cannot_be_opened_is_not_a_gap(tmp_path):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    (checkpoint.folder / "round-00000.npz").mkdir(parents=True)  # opening a folder fails whoever asks
    with pytest.raises(OSError, match="got a folder"):
        list(checkpoint.rounds())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY", bytes(2000)])
def test_a_torn_release_is_none(tmp_path, content):
    kept = ReleaseFile(tmp_path / "release.npz")
    kept.path.write_bytes(content)
    assert kept.load(0) is None
    kept.save(0, release()[0])
    assert bits(kept.load(0)[0]) == bits(release()[0])


def test_a_release_is_no_round(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.release_file().save(0, release()[0])
    assert list(checkpoint.rounds()) == []
    checkpoint.append(make())
    assert len(list(checkpoint.rounds())) == 1


def test_clear_takes_rounds_release_and_leftovers_and_nothing_else(tmp_path):
    beside = tmp_path / "ledger.jsonl"
    beside.write_text("")
    checkpoint = Checkpoint(tmp_path / "c")
    checkpoint.append(make())
    checkpoint.release_file().save(1, release()[0])
    (checkpoint.folder / ".round-00001.npz.abc").write_bytes(b"half")
    checkpoint.clear()
    assert list(tmp_path.iterdir()) == [beside]
    checkpoint.clear()
    checkpoint.append(make("none"))
    assert [bits(r) for r in checkpoint.rounds()] == [bits(make("none"))]


def test_rounds_whose_broadcasts_are_charged_pass(tmp_path):
    rounds = [make("aggregate", 0), make("none", 1), make("peer", 2), make("public", 3)]
    ledger = Ledger(tmp_path / "l")
    for t in (0, 3):
        ledger.charge(charge(t, digest(rounds[t].broadcast.values)))
    ledger.charge(charge(9, "0" * 64))  # of an earlier run
    check_charged(rounds, ledger)
    check_charged([], Ledger())


@pytest.mark.parametrize("charged", ["nothing", "another round", "other bytes", "the first only"])
def test_a_broadcast_that_is_not_in_the_ledger_is_refused(tmp_path, charged):
    rounds = [make("aggregate", 0), make("public", 1)]
    right = digest(rounds[0].broadcast.values)
    ledger = Ledger(tmp_path / "l")
    entries = {"nothing": [], "another round": [(2, right)], "other bytes": [(0, right[::-1]), (1, "a" * 64)]}
    for t, content in entries.get(charged, [(0, right)]):
        ledger.charge(charge(t, content))
    lacking = 1 if charged == "the first only" else 0
    with pytest.raises(LedgerError, match=f"lacks the broadcast of round {lacking} .* delete the folder") as refused:
        check_charged(rounds, ledger)
    assert str(tmp_path / "l") in str(refused.value)


class Killed(BaseException):
    """A stand-in for SIGKILL: no code under test may catch it."""


class Dying(Ledger):
    """A ledger whose process is killed right before or right after the charge of one round."""

    def __init__(self, path, dies, round=1):
        super().__init__(path)
        self.dies, self.round = dies, round

    def charge(self, entry):
        if self.dies == "before" and entry.round == self.round:
            raise Killed
        made = super().charge(entry)
        if self.dies == "after" and entry.round == self.round:
            raise Killed
        return made


def server_on(ledger, kept, entropy, N=6, M=4):
    mechanism = SubsampledGaussian(0.5, 1.0, 2.0)
    problem, agents, _ = world(P=2, M=M)
    curve = EpsilonCurve(Pld(), [mechanism.dp_event(torch.ones(1, N), 0)] * 3, 1e-2)
    whole = server_for(problem, agents, mechanism)
    return Server(N, M, agents.regions, whole.weighting, mechanism, entropy, ledger, curve, kept=kept)


MESSAGES = numbers(6, 4, seed=9).nan_to_num(0, 1, -1)


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("rng", ["os", "seeded"])
def test_a_server_that_dies_at_its_charge_sends_the_same_and_pays_once(tmp_path, rng, dies):
    entropy = SystemEntropy() if rng == "os" else SeededEntropy(world()[1].streams)
    kept = Checkpoint(tmp_path / "c").release_file() if rng == "os" else None
    first = server_on(Dying(tmp_path / "l", dies), kept, entropy)
    sent, _, _ = first.round(0, MESSAGES)
    with pytest.raises(Killed):
        first.round(1, MESSAGES)
    assert len(Ledger(tmp_path / "l").charges) == (2 if dies == "after" else 1)
    on_disk = kept.load(1) if kept else None
    again = Ledger(tmp_path / "l")
    second = server_on(again, kept, entropy)
    broadcast, record, private = second.round(1, MESSAGES)
    assert [c.round for c in again.charges] == [0, 1]
    assert [c.digest for c in again.charges] == [digest(sent.values), digest(broadcast.values)]
    assert Ledger(tmp_path / "l").charges == again.charges
    assert record.epsilon == pytest.approx(Pld().curve(again.events(), 1e-2)[-1])
    if on_disk:
        assert bits(Release(broadcast.values, record.sigma, record.sensitivity)) == bits(on_disk[0])
    assert (private is None) == (rng == "os")
    third, _, _ = second.round(1, MESSAGES)  # the answer was lost: a second request
    assert digest(third.values) == digest(broadcast.values)
    assert len(again.charges) == 2


def test_fresh_noise_without_a_kept_release_is_charged_in_addition(tmp_path):
    first = server_on(Dying(tmp_path / "l", "after"), None, SystemEntropy())
    first.round(0, MESSAGES)
    with pytest.raises(Killed):
        first.round(1, MESSAGES)
    ledger = Ledger(tmp_path / "l")
    broadcast, record, _ = server_on(ledger, None, SystemEntropy()).round(1, MESSAGES)
    assert [c.round for c in ledger.charges] == [0, 1, 1]
    assert ledger.charges[2].digest == digest(broadcast.values) != ledger.charges[1].digest
    assert record.epsilon == pytest.approx(Pld().curve(ledger.events(), 1e-2)[-1])


def test_a_release_is_kept_before_it_is_charged(tmp_path):
    kept = Checkpoint(tmp_path / "c").release_file()
    server = server_on(Dying(tmp_path / "l", "before", round=0), kept, SystemEntropy())
    with pytest.raises(Killed):
        server.round(0, MESSAGES)
    assert kept.load(0) is not None
    assert Ledger(tmp_path / "l").charges == []


@pytest.mark.parametrize("n", [5, 6, 7, 12, 29, 64])
def test_the_mean_of_a_round_is_the_same_after_it_was_kept(tmp_path, n):
    """To the bit: a sum depends on its numbers' strides, and records of a live run are views of wider tensors."""
    checkpoint = Checkpoint(tmp_path)
    for t in range(20):
        wide = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        live = dataclasses.replace(record(t, n, 1), best=wide[:, 1:], metric=wide[:, 1:])
        checkpoint.append(Round(live, None, None, None, {}))
        back = list(checkpoint.rounds())[t].agents
        assert (back.mean, back.standard_error) == (live.mean, live.standard_error)
