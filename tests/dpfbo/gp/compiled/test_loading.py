"""Building and loading the compiled library: only from a private folder, and never necessary."""

import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dpfbo.checks import SettingError
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.compiled import loading as module
from dpfbo.gp.compiled.loading import SWITCH, CannotCompile, cache_folder, library, load
from dpfbo.gp.features import FeatureFunction, RandomFeatures
from dpfbo.space.domain import Box
from dpfbo.space.regions import Regions

compiler = pytest.mark.skipif(library() is None, reason="there is no C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has not asked for the library yet, and no folder for it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(module, "FLAGS", ("-std=gnu11", "-O0", "-fPIC", "-shared"))  # builds in a tenth of the time
    module._found.cache_clear()
    yield tmp_path / "dpfbo"
    module._found.cache_clear()


def maximiser():
    g = torch.Generator().manual_seed(1)
    S, b = (torch.randn(2, *shape, dtype=torch.float64, generator=g) for shape in ((40, 2), (40,)))
    w = torch.randn(2, 1, 40, dtype=torch.float64, generator=g)
    f = FeatureFunction(RandomFeatures(S, b), w, Regions(1, 2), torch.ones(2, dtype=torch.float64))
    return Acquisition().maximize(f, Box((0.0, 0.0), (1.0, 1.0)), torch.zeros(2, dtype=torch.float64))


def built(folder):
    return sorted(folder.glob("*.so"))


@compiler
def test_is_built_once_into_a_private_folder(fresh, monkeypatch):
    assert library() is not None and library() is library()
    (path,) = built(fresh)
    assert list(fresh.iterdir()) == [path]
    for made in (fresh, path):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700 and made.stat().st_uid == os.getuid()
    monkeypatch.setattr(module, "_build", None)  # a second process finds it
    assert load(fresh) is not None


@compiler
@pytest.mark.parametrize("fact", ["FLAGS", "_processor", "_sources", "CC"])
def test_another_source_compiler_or_processor_is_another_library(fresh, monkeypatch, tmp_path, fact):
    load(fresh)
    if fact == "FLAGS":
        monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-DOTHER"))
    elif fact == "CC":
        other = tmp_path / "other"
        other.write_text('#!/bin/sh\n[ "$1" = --version ] && echo other && exit\nexec cc "$@"\n')
        other.chmod(0o700)
        monkeypatch.setenv("CC", str(other))
    else:
        monkeypatch.setattr(module, fact, lambda: ["other"] if fact == "_sources" else "other")
    load(fresh)
    assert len(built(fresh)) == 2


@pytest.mark.parametrize("broken", ["missing", "fails", "fails to build", "makes nonsense", "makes nothing"])
def test_without_a_compiler_the_tensor_code_runs(fresh, monkeypatch, tmp_path, capfd, broken):
    monkeypatch.setenv(SWITCH, "0")
    expected = maximiser()
    monkeypatch.setenv(SWITCH, "1")
    script = {
        "missing": None,
        "fails": "echo no; exit 1",
        "fails to build": '[ "$1" = --version ] || { echo no; exit 1; }',
        "makes nonsense": 'while [ "$1" != -o ]; do [ $# = 1 ] && exit; shift; done; echo no > "$2"',
        "makes nothing": "exit 0",
    }[broken]
    made = tmp_path / "compiler"
    if script is not None:
        made.write_text(f"#!/bin/sh\n{script}\n")
        made.chmod(0o700)
    monkeypatch.setenv("CC", str(made))
    assert library() is None
    assert torch.equal(maximiser(), expected)
    assert capfd.readouterr() == ("", "")
    assert broken == "makes nonsense" or not built(fresh)


@compiler
def test_a_damaged_library_is_built_again(fresh, monkeypatch):
    with monkeypatch.context() as patch:  # it must not be in the process yet
        patch.setattr(module, "_opened", lambda path: None)
        load(fresh)
    (path,) = built(fresh)
    size = path.stat().st_size
    path.write_bytes(b"")
    assert load(fresh).box_search and path.stat().st_size == size


@compiler
@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_nothing_that_others_may_write_is_loaded(fresh, what, mode):
    load(fresh)
    (path,) = built(fresh)
    (fresh if what == "folder" else path).chmod(mode)
    with pytest.raises(CannotCompile, match="must belong to this user"):
        load(fresh)
    assert library() is None
    maximiser()


@compiler
@pytest.mark.parametrize("what", ["folder", "file"])
def test_nothing_of_another_user_is_loaded(fresh, monkeypatch, what):
    load(fresh)
    found, owned = module.Path.lstat, built(fresh)[0] if what == "file" else fresh

    def of_another(path):
        fields = list(found(path))
        fields[stat.ST_UID] += path == owned
        return os.stat_result(fields)

    monkeypatch.setattr(module.Path, "lstat", of_another)
    with pytest.raises(CannotCompile, match="must belong to this user"):
        load(fresh)


@compiler
@pytest.mark.parametrize("what", ["folder", "file"])
def test_links_are_not_followed(fresh, what):
    load(fresh)
    (path,) = built(fresh)
    linked = fresh if what == "folder" else path
    elsewhere = fresh.with_name("elsewhere")
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    with pytest.raises(CannotCompile, match="must belong to this user"):
        load(fresh)


def test_a_compiler_that_cannot_be_read_is_no_error(fresh, monkeypatch):
    monkeypatch.setenv("CC", "cc 'x")
    with pytest.raises(CannotCompile, match="CC: No closing quotation"):
        load(fresh)
    assert library() is None


def test_a_folder_that_cannot_be_made_is_no_error(fresh, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library() is None
    maximiser()


def test_the_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "dpfbo"
    monkeypatch.setenv("HOME", str(tmp_path))
    for other in ("", "relative"):  # neither is a folder by the rules of XDG
        monkeypatch.setenv("XDG_CACHE_HOME", other)
        assert cache_folder() == tmp_path / ".cache" / "dpfbo"


def test_the_switch(fresh, monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert library() is None and not fresh.exists()
    monkeypatch.setenv(SWITCH, "no")
    with pytest.raises(SettingError, match="DPFBO_COMPILED must be 0 or 1, got 'no'"):
        library()


@compiler
def test_processes_and_threads_that_start_at_once(fresh):
    """Two processes, each with three threads, build and use the library in an empty folder."""
    program = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "from dpfbo.gp.compiled.loading import library\n"
        "with Pool(3) as pool: found = list(pool.map(lambda k: library(), range(3)))\n"
        "assert found[0] is not None and found[0] is found[2] and found[0].box_search"
    )
    started = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(2)]
    for process in started:
        _, error = process.communicate(timeout=100)
        assert process.returncode == 0, error.decode()
    assert list(fresh.iterdir()) == built(fresh) and len(built(fresh)) == 1


@compiler
def test_the_interpreter_goes_on_while_the_library_computes(monkeypatch):
    """A thread counts while a long search runs in another: a call that held the interpreter would let it count none."""
    monkeypatch.setenv(SWITCH, "1")
    g, B, M = torch.Generator().manual_seed(1), 20, 2000
    S, w = (torch.randn(B, *shape, dtype=torch.float64, generator=g) for shape in ((M, 2), (1, M)))
    f = FeatureFunction(
        RandomFeatures(S, torch.zeros(B, M, dtype=torch.float64)), w, Regions(1, 2), torch.ones(B, dtype=torch.float64)
    )
    arguments = (f, Box((0.0, 0.0), (1.0, 1.0)), torch.zeros(2, dtype=torch.float64))
    Acquisition(10).maximize(*arguments)  # the library is loaded
    with ThreadPoolExecutor(1) as pool:
        search, woken = pool.submit(Acquisition(10_000).maximize, *arguments), 0
        while not search.done():
            time.sleep(1e-3)
            woken += 1
    assert woken > 5
